"""What `save` takes for a plan: the network itself and an example, what is known of
images, and the names of the classes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from plan_networks import networks, packed
from torch import Tensor, nn
from typer.testing import CliRunner

import tersify
from tersify import codec
from tersify.cli import main
from tersify.cli.app import app
from tersify.runtime.portable import Program, Replay, read_program

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
        ({"image": (0.5, 0.0)}, "std of an image must be finite and above 0"),
        ({"image": (0.5, 1e-50)}, "std of an image must be finite and above 0"),
        ({"image": (float("nan"), 1.0)}, "mean of an image must be finite, got .nan"),
        ({"image": (1e300, 1.0)}, "mean of an image must be finite, got .inf"),
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


def planned(path: Path, out: Path, *flags: str) -> Program:
    given = ["plan", str(path), "--out", str(out), "--shape", "3,12,12", *flags]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    return read_program(codec.open(out))


def test_another_plan_keeps_what_the_file_says_of_images_and_classes(
    tmp_path: Path,
) -> None:
    path, out = tmp_path / "net.terse", tmp_path / "again.terse"
    tersify.save(MODEL, path, example=IMAGES, image=(0.5, 0.25), labels=NAMES)
    program = planned(path, out)
    assert (program.mean, program.std, program.labels) == ((0.5,), (0.25,), NAMES)


def test_flags_say_of_images_and_classes_what_the_file_does_not(
    tmp_path: Path,
) -> None:
    path, out, names = (tmp_path / name for name in ("a.terse", "b.terse", "names"))
    tersify.save(MODEL, path, example=IMAGES, image=(0.5, 0.25))
    names.write_text("a\nb\nc\nd\ne\nf\ng\n")
    flags = ("--image", "0.5,0.25,0.125/0.25,0.5,1", "--labels", str(names))
    program = planned(path, out, *flags)
    assert (program.mean, program.std) == ((0.5, 0.25, 0.125), (0.25, 0.5, 1.0))
    assert program.labels == NAMES


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--image", "0.5"], "MEAN/STD"),
        (["--image", "a/b"], "MEAN/STD"),
        (["--image", "0.5/0"], "std"),
        (["--image", "nan/1"], "mean"),
        (["--labels", "there/is/none"], "check the path"),
    ],
)
def test_a_flag_about_images_or_classes_that_cannot_be_is_told(
    flags: list[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, out = tmp_path / "net.terse", tmp_path / "again.terse"
    tersify.save(MODEL, path, example=IMAGES)
    assert main(["plan", str(path), "--out", str(out), *flags]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1
    assert not out.exists()
