"""`tersify squeeze` from a file to a smaller one."""

import pytest
import torch
from typer.testing import CliRunner

import tersify
from tersify import CompressedModel
from tersify.cli.app import app
from tersify.lab import network


def test_squeeze_writes_a_smaller_file_and_says_by_how_much(tmp_path):
    torch.manual_seed(0)
    file, out = tmp_path / "net.terse", tmp_path / "small.terse"
    options = {"width": 0.25}
    metadata = {"target": {"name": "digits-cnn", "options": options}}
    tersify.save(
        CompressedModel(
            network("digits-cnn", **options).state_dict(), metadata=metadata
        ),
        file,
    )
    flags = ["--data", "digits", "--drop", "100", "--images", "256", "--held-out", "50"]
    done = CliRunner().invoke(app, ["squeeze", str(file), "--out", str(out), *flags])
    assert done.exit_code == 0, done.output
    assert out.stat().st_size < file.stat().st_size / 2
    assert f"{out.stat().st_size:,} bytes" in done.output
    again = CliRunner().invoke(app, ["eval", str(out), "--data", "digits"])
    assert again.exit_code == 0, again.output


def squeezed(file, out, *flags):
    given = ["squeeze", str(file), "--out", str(out), "--data", "digits", *flags]
    return CliRunner().invoke(app, given)


def saved(path, name, recipe=None, **options):
    torch.manual_seed(0)
    net = network(name, **options)
    for buffer in net.buffers():
        if buffer.is_floating_point():  # statistics of a trained network differ
            buffer.uniform_(0.5, 1.5)
    packed = tersify.compress_(net, recipe) if recipe else net.state_dict()
    metadata = {"target": {"name": name, "options": options}}
    tersify.save(CompressedModel(dict(packed), metadata=metadata), path)
    return path


QUICKLY = ("--drop", "100", "--images", "128", "--held-out", "50")


@pytest.mark.parametrize("recipe", ["lut-4", "bitnet"])
def test_a_file_of_another_recipe_becomes_no_larger(tmp_path, recipe):
    file = saved(tmp_path / "net.terse", "digits-cnn", recipe, width=0.25)
    out = tmp_path / "small.terse"
    done = squeezed(file, out, *QUICKLY)
    assert done.exit_code == 0, done.output
    assert out.stat().st_size <= file.stat().st_size


def test_images_of_another_size_are_refused_in_one_sentence(tmp_path):
    file = saved(tmp_path / "net.terse", "resnet20")
    done = squeezed(file, tmp_path / "small.terse", *QUICKLY)
    assert isinstance(done.exception, ValueError)
    assert "does not take the 1×8×8 images" in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not (tmp_path / "small.terse").exists()


def test_a_drop_that_no_price_keeps_is_refused_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("tersify.lab.squeeze._accuracy", accuracies := Falling())
    file = saved(tmp_path / "net.terse", "digits-cnn", width=0.25)
    flags = ("--drop", "0", "--images", "128", "--held-out", "50")
    done = squeezed(file, tmp_path / "small.terse", *flags)
    assert accuracies.asked > 1
    assert "one of 50 held-out images is 2 points" in done.output
    assert isinstance(done.exception, ValueError)
    assert "keeps the drop of 0.0 points" in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not (tmp_path / "small.terse").exists()


class Falling:
    """Accuracies of a network that gets worse each time."""

    def __init__(self):
        self.asked = 0

    def __call__(self, *of_what):
        self.asked += 1
        return 100.0 - self.asked


def test_noise_makes_a_network_less_sure_of_images_that_it_knows():
    from tersify.lab import dataset
    from tersify.lab.squeeze import noisy

    data = dataset("digits")
    held = data.test[:50]
    assert noisy(held, data, 0.0) is held
    once, again = noisy(held, data, 0.5), noisy(held, data, 0.5)
    assert torch.equal(once.images, again.images)
    unit = held.images.float() / (255.0 if held.images.dtype == torch.uint8 else 1.0)
    spread = (once.images - unit).std() / torch.tensor(data.std).mean()
    assert 0.45 < spread < 0.55
