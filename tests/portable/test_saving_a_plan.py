"""What `save` takes for a plan: the network itself and an example, what is known of
images, and the names of the classes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from plan_networks import networks, packed
from torch import Tensor, nn

import tersify
from tersify import codec
from tersify.runtime.portable import Replay, read_program

MODEL, IMAGES = networks()["ternary"]
NAMES = tuple("abcdefg")


def test_a_module_and_an_example_are_enough_for_a_file_with_a_plan(
    tmp_path: Path,
) -> None:
    path = tmp_path / "net.terse"
    tersify.save(MODEL, path, example=IMAGES)
    file = codec.open(path)
    program = read_program(file)
    assert program.precision == "fp32"
    (made,) = Replay(program, file).run([IMAGES])
    assert torch.allclose(made, MODEL(IMAGES), atol=1e-5)
    assert torch.allclose(tersify.load(path)(IMAGES), MODEL(IMAGES), atol=1e-5)


def test_a_module_gets_the_file_of_its_packed_weights(tmp_path: Path) -> None:
    one, other = tmp_path / "one.terse", tmp_path / "other.terse"
    given = {"example": IMAGES, "plan": "int8", "calibration": IMAGES}
    tersify.save(MODEL, one, **given)  # type: ignore[arg-type]
    tersify.save(packed(MODEL), other, network=MODEL, **given)  # type: ignore[arg-type]
    assert codec.open(one).section("plan") == codec.open(other).section("plan")
    assert codec.open(one).keys() == codec.open(other).keys()


def test_images_and_names_of_classes_are_told_to_whoever_runs_the_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "net.terse"
    mean, std = (0.5, 0.25, 0.125), (0.25, 0.5, 1.0)
    tersify.save(MODEL, path, example=IMAGES, image=(mean, std), labels=NAMES)
    program = read_program(codec.open(path))
    assert (program.mean, program.std, program.labels) == (mean, std, NAMES)


def test_one_mean_stands_for_all_channels(tmp_path: Path) -> None:
    path = tmp_path / "net.terse"
    tersify.save(MODEL, path, example=IMAGES, image=(0.5, 0.25))
    assert read_program(codec.open(path)).mean == (0.5,)


def test_a_network_that_no_graph_writes_down_still_gets_its_plan(
    tmp_path: Path,
) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            # a size that torch.export cannot leave open
            return self.layer(x) * float(len(x) > 1)

    path, x = tmp_path / "net.terse", torch.randn(4, 6)
    model = Counts().eval()
    tersify.save(model, path, example=x)
    file = codec.open(path)
    (made,) = Replay(read_program(file), file).run([x])
    assert torch.allclose(made, model(x), atol=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"image": (0.5, 0.0)}, "std of an image must be above 0"),
        ({"image": ((0.5, 0.5), (1.0, 1.0))}, "3 channels, got a mean of 2"),
        ({"image": ((0.5,), (1.0, 1.0, 1.0))}, "as many numbers in its mean as"),
        ({"image": 0.5}, r"image must be \(mean, std\)"),
        ({"labels": ["a", "b"]}, "7 outputs, got 2 labels"),
        ({"labels": "abcdefg"}, "labels must be a list of names"),
        ({"network": MODEL}, "the first argument is the network"),
    ],
)
def test_what_save_cannot_tell_of_a_plan_is_refused(
    given: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        tersify.save(MODEL, tmp_path / "n.terse", example=IMAGES, **given)  # type: ignore[arg-type]
    assert not (tmp_path / "n.terse").exists()


@pytest.mark.parametrize(
    "given", [{"image": (0.5, 0.5)}, {"labels": NAMES}, {"other": IMAGES}]
)
def test_facts_of_a_plan_without_one_are_refused(
    given: dict[str, object], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="are for the plan"):
        tersify.save(packed(MODEL), tmp_path / "n.terse", **given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give network="):
        tersify.save(packed(MODEL), tmp_path / "n.terse", example=IMAGES)
