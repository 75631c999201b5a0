"""Architectures that people compile: each equals its module for every batch and size,
or is refused in a sentence.
"""

from __future__ import annotations

import importlib.util

import pytest
import torch
from against_torch import FP32_BOUND
from zoo_check import trial
from zoo_networks import BATCHES, NEEDS, NETWORKS, THINNED, called, cases, made

pytest.importorskip("tersify._runtime")
# of the libraries the networks come from
pytestmark = pytest.mark.filterwarnings("default")

SAMPLE = (
    ("unet", "pruned"),
    ("lstm_tagger", "dense"),
    ("transformer_encoder", "ternary"),
    ("dual_path_rnn", "dense"),
    ("gtcrn", "dense"),
    ("folded_video", "ternary"),
    ("resnet20_star", "ternary"),
    ("tasnet", "pruned"),
    ("timm_swin_tiny", "dense"),
    ("timm_mixer", "pruned"),
    ("timm_mobilenetv3_small_050", "ternary"),
    ("bert", "dense"),
    ("llama", "ternary"),
    ("wav2vec2", "dense"),
)


REST = tuple(case for case in cases() if case not in SAMPLE)


def tried(name: str, weights: str) -> None:
    library = NEEDS.get(NETWORKS[name].family)
    if library and importlib.util.find_spec(library) is None:
        pytest.skip(f"needs the package {library}")
    found = trial(name, weights)
    assert found.kind == "right", f"{found.kind}: {found.why}"
    assert found.error <= FP32_BOUND


@pytest.mark.parametrize(("name", "weights"), SAMPLE, ids=map("-".join, SAMPLE))
def test_a_network_of_the_sample_equals_its_module(name, weights):
    tried(name, weights)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "weights"), REST, ids=map("-".join, REST))
def test_a_network_of_the_zoo_equals_its_module(name, weights):
    tried(name, weights)


def test_the_zoo_holds_what_it_promises():
    families = [network.family for network in NETWORKS.values()]
    assert len(NETWORKS) >= 60
    assert families.count("timm") >= 30
    assert families.count("transformers") >= 15
    assert len(THINNED) >= len(NETWORKS) // 2
    assert sum(len(network.sizes) > 1 for network in NETWORKS.values()) >= 40
    assert {name for name, _ in SAMPLE} <= set(NETWORKS)
    assert BATCHES == (1, 2, 5)


@pytest.mark.parametrize("name", ["unet", "dual_path_rnn", "variational", "resnet20"])
def test_a_network_of_the_zoo_answers_with_numbers_that_depend_on_its_input(name):
    network = NETWORKS[name]
    model = made(name)
    with torch.no_grad():
        one, other = (
            called(model, network.inputs(2, network.sizes[0])) for _ in range(2)
        )
    one, other = (
        value["made"] if isinstance(value, dict) else value for value in (one, other)
    )
    assert one.isfinite().all()
    assert (one - other).abs().max() > 0.05 * one.abs().max()
