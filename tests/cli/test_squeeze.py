"""`tersify squeeze` from a file to a smaller one."""

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
