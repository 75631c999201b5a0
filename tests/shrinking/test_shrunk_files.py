import re
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import tersify
from tersify import CompressedModel, CompressedTensor
from tersify.cli.app import app
from tersify.lab.trainer import load_network
from tersify.shrinking import fit_, packed
from tersify.units import find_units
from unit_nets import NETS, make


def halved(name: str) -> tuple[nn.Module, torch.Tensor]:
    model, x = make(name)
    for group in find_units(model, x):
        group.silence_(model, torch.arange(group.size) % 2 == 1)
    return model, x


@pytest.mark.parametrize(
    "name", ["digits-cnn", "resnet20", "mobile", "grouped", "encoder"]
)
def test_a_fresh_module_takes_the_shapes_of_the_file(name: str, tmp_path: Path) -> None:
    model, x = halved(name)
    if name == "resnet20":  # a layer that died alone
        model.layer2[0].bn2.weight.data[3:] = model.layer2[0].bn2.bias.data[3:] = 0
    small = tersify.shrink(model, x)
    tersify.save(packed(small), tmp_path / "small.terse")
    fresh = fit_(NETS[name][0](), tersify.open(tmp_path / "small.terse").shapes())
    again = tersify.load(tmp_path / "small.terse", into=fresh).eval()
    assert torch.equal(again(x), small(x))


def test_another_network_does_not_fit() -> None:
    shapes = {"0.weight": (5, 4)}
    with pytest.raises(
        ValueError,
        match=re.escape(
            "0.weight has shape (5, 4) in the file and (4, 4) in the module"
        ),
    ):
        fit_(nn.Sequential(nn.Linear(4, 4)), shapes)


def test_codes_stay_codes(tmp_path: Path) -> None:
    """Levels per filter, a scale per filter, pruned values: each is cut like the weight
    it stands for.
    """
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 8, bias=False),
        nn.ReLU(),
        nn.Linear(8, 6, bias=False),
        nn.Linear(6, 3),
    )
    dead = torch.arange(8) % 2 == 1
    codes = torch.randint(1, 3, (8, 4), dtype=torch.uint8).masked_fill_(
        dead[:, None], 0
    )
    mask = torch.randint(0, 2, (6, 8), dtype=torch.uint8)
    tensors = {
        "0.weight": CompressedTensor(
            shape=(8, 4),
            codes=codes,
            codebook=torch.tensor([0.0, -1.0, 1.0]).repeat(8, 1),
            axis=0,
            scale=torch.rand(8, 1) + 0.5,
        ),
        "2.weight": CompressedTensor(
            shape=(6, 8), codes=mask, values=torch.randn(int(mask.sum()))
        ),
        "3.weight": torch.randn(3, 6),
        "3.bias": torch.randn(3),
    }
    tersify.save(
        CompressedModel(tensors, metadata={"from": "here"}), tmp_path / "large.terse"
    )
    x = torch.randn(5, 4)
    small = tersify.shrink(tersify.load(tmp_path / "large.terse", into=model), x)
    ready = packed(small)
    assert sorted(ready.compressed()) == ["0.weight", "2.weight"]
    assert ready["0.weight"].shape == (4, 4)
    assert ready.metadata == {"from": "here"}
    assert all(
        torch.equal(t, small.state_dict()[name])
        for name, t in ready.state_dict().items()
    )
    assert torch.allclose(small(x), model(x), atol=1e-6)
    with torch.no_grad():
        small[0].weight.add_(1)
    # trained on: no longer what the codes say
    assert sorted(packed(small).compressed()) == ["2.weight"]


def test_the_command_writes_a_smaller_file_that_the_other_commands_read(
    tmp_path: Path,
) -> None:
    from tersify.lab import network

    torch.manual_seed(0)
    model, x = network("digits-cnn").eval(), torch.randn(2, 1, 8, 8)
    for group in find_units(model, x):
        group.silence_(model, torch.arange(group.size) % 2 == 1)
    large, small = tmp_path / "large.terse", tmp_path / "small.terse"
    metadata = {"target": {"name": "digits-cnn", "options": {}}, "input": [1, 8, 8]}
    tersify.save(CompressedModel(model.state_dict(), metadata=metadata), large)
    result = CliRunner().invoke(app, ["shrink", str(large), "--out", str(small)])
    assert result.exit_code == 0, result.output
    assert "parameters (" in result.output
    assert small.stat().st_size < 0.6 * large.stat().st_size
    assert torch.allclose(load_network(small)(x), model(x), atol=1e-5)
    assert torch.allclose(
        load_network(small, target="digits-cnn")(x), model(x), atol=1e-5
    )


def test_the_command_shrinks_a_network_of_tokens(tmp_path: Path) -> None:
    text = (
        "nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))"
    )
    (tmp_path / "nets.py").write_text(
        f"from torch import nn\ndef net(): return {text}\n"
    )
    model = nn.Sequential(
        nn.Embedding(9, 6), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)
    )
    with torch.no_grad():
        model[1].weight[4:], model[1].bias[4:] = 0, 0
    tersify.save(
        CompressedModel(model.state_dict(), metadata={"input": [5]}),
        tmp_path / "large.terse",
    )
    target = ["--target", f"{tmp_path / 'nets.py'}:net"]
    command = [
        "shrink",
        str(tmp_path / "large.terse"),
        "--out",
        str(tmp_path / "small.terse"),
        *target,
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert tersify.open(tmp_path / "small.terse").shapes()["1.weight"] == (4, 6)


def test_the_command_does_not_write_over_its_input(tmp_path: Path) -> None:
    file = tmp_path / "a.terse"
    tersify.save({"w": torch.zeros(2)}, file)
    result = CliRunner().invoke(app, ["shrink", str(file), "--out", str(file)])
    assert "--out is the file itself" in str(result.exception)
