"""The zoo: architectures of timm, transformers, the lab and our own, small, with
weights as if trained.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import zoo_hf
import zoo_own
import zoo_timm
from against_torch import thinned_
from torch import Tensor, nn

BATCHES = (1, 2, 5)
EXAMPLE_BATCH = 2


class Network(NamedTuple):
    """How to build it, its inputs for a batch and a size (positional, or by keyword),
    and the sizes it takes.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[int, int], Any]
    sizes: tuple[int, ...]
    family: str


def _images(batch: int, size: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, size, size),)


def _networks() -> dict[str, Network]:
    found = {name: Network(*entry, "own") for name, entry in zoo_own.OWN.items()}
    for name, (options, sizes) in zoo_timm.BY_NAME.items():
        short = (
            name.removesuffix("_224")
            .replace("_patch16", "")
            .replace("_patch4_window7", "")
        )
        found[f"timm_{short}"] = Network(
            functools.partial(zoo_timm.model, name, **options), _images, sizes, "timm"
        )
    for name, ((place, kind, options), sizes) in zoo_timm.BY_CLASS.items():
        build = functools.partial(zoo_timm.from_class, place, kind, **options)
        found[f"timm_{name}"] = Network(build, _images, sizes, "timm")
    for table, inputs in (
        (zoo_hf.TEXTS, zoo_hf.tokens),
        (zoo_hf.IMAGES, zoo_hf.pictures),
        (zoo_hf.SOUNDS, zoo_hf.waves),
    ):
        for name, (kind, config, options, sizes) in table.items():
            build = functools.partial(zoo_hf._model, kind, config, options)
            found[name] = Network(build, inputs, sizes, "transformers")
    found["whisper_encoder"] = Network(
        zoo_hf.whisper_encoder, zoo_hf.mel_features, (60,), "transformers"
    )
    return found


NETWORKS: dict[str, Network] = _networks()
WEIGHTS = ("dense", "pruned", "ternary")
THINNED = frozenset(sorted(NETWORKS)[::2])  # these also with 90 % zeros, and ternary
NEEDS = {"timm": "timm", "transformers": "transformers"}


def cases() -> list[tuple[str, str]]:
    """Every network with the weights it is tried with."""
    return [
        (name, weights)
        for name in NETWORKS
        for weights in (WEIGHTS if name in THINNED else WEIGHTS[:1])
    ]


def called(network: nn.Module, inputs: Any) -> Any:
    return network(**inputs) if isinstance(inputs, dict) else network(*inputs)


@torch.no_grad()
def lived_(model: nn.Module, inputs: Any) -> nn.Module:
    """Norms that have seen data, and scales, gates and heads away from the zeros that
    some networks start with.

    Without this a block behind a scale of 1e-6 could be anything, and nobody would see
    it.
    """
    for parameter in model.parameters():
        if not parameter.is_floating_point():
            continue
        if parameter.ndim > 1 and parameter.std() < 1e-4:
            parameter.normal_(0, 0.05)
        elif parameter.ndim <= 1 and parameter.abs().max() < 1e-3:
            parameter.normal_(0, 0.1)
        elif parameter.ndim <= 1 and parameter.numel() > 1 and parameter.std() == 0:
            parameter.mul_(torch.empty_like(parameter).uniform_(0.7, 1.3))
    norms = [
        m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)
    ]
    if norms:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for norm in norms:
                norm.reset_running_stats()
                # the layers around them keep to eval mode
                norm.momentum, norm.training = 0.9, True
            for _ in range(3):
                called(model, inputs)
            for norm in norms:
                norm.momentum, norm.training = 0.1, False
                # no channel is dead
                norm.running_var.clamp_(min=0.5 * norm.running_var.mean().item() + 1e-3)
    return model


def made(name: str, weights: str = "dense", seed: int = 0) -> nn.Module:
    """The network of that name, in eval mode."""
    torch.manual_seed(seed)
    entry = NETWORKS[name]
    model = entry.build().eval()
    if weights != "dense":
        thinned_(model, 0.9, ternary=weights == "ternary")
    return lived_(model, entry.inputs(24, entry.sizes[0])).eval()
