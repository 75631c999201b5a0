"""Files that hold the graph of their network, or its name."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

import tersify
from method_zoo import make
from tersify.cli import main
from tersify.graph import GraphNetwork, recorded
from tersify.lab import dataset, network
from tersify.tensor import CompressedModel


class Nested(nn.Module):
    """Several inputs and outputs, a constant that is not saved, and tied weights."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer(
            "positions", torch.linspace(-1, 1, 40).view(1, 5, 8), persistent=False
        )

    def forward(self, tokens, weights):
        x = self.encoder(self.embed(tokens) + self.positions)
        return {"logits": self.head(x), "rest": (weights * 2, x.mean(1))}


class Branching(nn.Module):
    """Does something else with a batch of one, which torch.export does not see."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) if x.shape[0] > 1 else self.layer(-x)


def leaves(outputs):
    return torch.utils._pytree.tree_leaves(outputs)


def saved(model, example, path):
    packed = tersify.compress_(copy.deepcopy(model), "uniform-8")
    assert (
        tersify.save(packed, path, network=model, example=example)
        == path.stat().st_size
    )
    model.load_state_dict(packed.state_dict())
    return model.eval()


@pytest.mark.parametrize(
    "name", ["conv1d", "conv2d", "conv3d", "linear", "tied", "lstm", "gru"]
)
def test_a_network_comes_back_without_its_class(name, tmp_path):
    model, x = make(name)
    model = saved(model, x, tmp_path / "net.terse")
    loaded = tersify.load(tmp_path / "net.terse")
    assert isinstance(loaded, GraphNetwork)
    assert not loaded.training
    assert list(loaded.state_dict()) == list(model.state_dict())
    for batch in (x, x[:1], torch.cat([x, x, x])):
        assert torch.allclose(loaded(batch), model(batch), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "size"), [("digits-cnn", (1, 8, 8)), ("resnet20", (3, 32, 32))]
)
def test_a_graph_can_be_compiled_like_the_module_it_was(name, size, tmp_path):
    x = torch.randn(4, *size)
    model = saved(network(name), x, tmp_path / "net.terse")
    compiled = tersify.compile(tersify.load(tmp_path / "net.terse"), x)
    with torch.no_grad():
        wanted, given = model(x), compiled(x)
    assert float((given - wanted).abs().max()) <= 2e-5 * float(wanted.abs().max())


def test_several_inputs_nested_outputs_constants_and_tied_weights_come_back(tmp_path):
    model = Nested().eval()
    example = (torch.randint(0, 7, (2, 5)), torch.randn(2, 3))
    tersify.save(
        tersify.pack(model), tmp_path / "net.terse", network=model, example=example
    )
    loaded = tersify.load(tmp_path / "net.terse")
    given = (torch.randint(0, 7, (4, 5)), torch.randn(4, 3))
    ours, theirs = loaded(*given), model(*given)
    assert ours.keys() == theirs.keys()
    assert all(
        torch.allclose(a, b, atol=1e-6)
        for a, b in zip(leaves(ours), leaves(theirs), strict=True)
    )


def test_a_network_that_treats_one_sample_differently_is_for_the_examples_batch_alone(
    tmp_path,
):
    model = Branching()
    tersify.save(
        tersify.pack(model),
        tmp_path / "net.terse",
        network=model,
        example=torch.randn(2, 4),
    )
    loaded = tersify.load(tmp_path / "net.terse")
    assert torch.equal(loaded(torch.ones(2, 4)), model(torch.ones(2, 4)))
    with pytest.raises(
        ValueError, match=r"written down for inputs 2×4 of torch\.float32, got \(1, 4\)"
    ):
        loaded(torch.ones(1, 4))


def test_inputs_of_another_kind_are_refused(tmp_path):
    model, x = make("linear")
    loaded = tersify.load(_file(model, x, tmp_path))
    for wrong in (x[:, :5], x.long(), x[0]):
        with pytest.raises(ValueError, match="written down for inputs N×8"):
            loaded(wrong)
    with pytest.raises(ValueError, match="takes 1 inputs, got 2"):
        GraphNetwork.forward(loaded, x, x)


def _file(model, x, folder):
    tersify.save(tersify.pack(model), folder / "net.terse", network=model, example=x)
    return folder / "net.terse"


class Numpy(nn.Module):
    def forward(self, x):
        return torch.from_numpy(x.numpy() * 2)


class OnValues(nn.Module):
    def forward(self, x):
        return -x if x.sum().item() > 1e9 else x


@pytest.mark.parametrize(
    ("model", "example", "message"),
    [
        (OnValues(), torch.ones(2, 2), "OnValues cannot be written down as a graph"),
        (Numpy(), torch.ones(2, 2), "Numpy cannot be written down as a graph"),
        (nn.Linear(2, 2), [], "an example is a tensor, or a tensor for each argument"),
        (nn.Linear(2, 2), "x", "an example is a tensor"),
    ],
)
def test_what_cannot_be_written_down_is_told(model, example, message, capfd):
    with pytest.raises(ValueError, match=message):
        recorded(model, example)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("plan", [None, "fp32"])
def test_a_network_in_a_session_is_saved_once_the_session_has_ended(plan, tmp_path):
    model, x = nn.Sequential(nn.Linear(6, 5), nn.ReLU()), torch.randn(3, 6)
    session = tersify.attach(model, "twn")
    session.step()
    packed, path = session.pack(), tmp_path / "net.terse"
    settings = {"example": x, "plan": plan}
    with pytest.raises(ValueError, match=r"in a session.*session\.bake_\(\)"):
        tersify.save(packed, path, network=model, **settings)
    tersify.save(packed, path)
    with pytest.raises(ValueError, match=r"in a session.*session\.bake_\(\)"):
        tersify.load(path, into=model)
    session.bake_()
    tersify.save(packed, path, network=model, **settings)
    assert torch.allclose(tersify.load(path)(x), model.eval()(x), atol=1e-6)


def test_save_wants_the_plain_network_and_an_example(tmp_path):
    model = nn.Linear(3, 3)
    with pytest.raises(ValueError, match="give example="):
        tersify.save(tersify.pack(model), tmp_path / "a.terse", network=model)
    with pytest.raises(ValueError, match="name different tensors"):
        tersify.save(
            tersify.pack(model),
            tmp_path / "a.terse",
            network=nn.Linear(3, 3, False),
            example=torch.ones(1, 3),
        )
    session = tersify.attach(model, "twn")
    with pytest.raises(
        ValueError,
        match=r"in a session, .*; end that with session\.bake_\(\)",
    ):
        tersify.save(
            session.pack(),
            tmp_path / "a.terse",
            network=model,
            example=torch.ones(1, 3),
        )


def test_a_reference_network_needs_no_into(tmp_path):
    model = network("digits-cnn", width=0.5)
    metadata = {"target": {"name": "digits-cnn", "options": {"width": 0.5}}}
    tersify.save(
        CompressedModel(model.state_dict(), metadata=metadata), tmp_path / "net.terse"
    )
    loaded = tersify.load(tmp_path / "net.terse")
    assert type(loaded) is type(model)
    assert all(
        torch.equal(t, model.state_dict()[name])
        for name, t in loaded.state_dict().items()
    )


def test_loading_it_does_not_import_training(tmp_path):
    model, x = make("linear")
    code = "import sys, tersify; tersify.load(sys.argv[1]); print(sorted(m for m in sys.modules if 'tersify.' in m))"
    told = subprocess.run(
        [sys.executable, "-c", code, str(_file(model, x, tmp_path))],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "tersify.graph" in told
    assert not any(
        half in told
        for half in ("tersify.methods", "tersify.session", "tersify.recipe")
    )


USERS = """
from pathlib import Path
from torch import nn

Path("ran").touch()

def small(width=16):
    return nn.Sequential(nn.Conv2d(1, width, 3), nn.ReLU(), nn.Flatten(), nn.Linear(width * 36, 10))
"""


@pytest.fixture
def users(tmp_path, monkeypatch):
    """A user's own network, trained; nothing of it has run since."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(USERS)
    arguments = (
        "compress nets.py:small --option width=4 --data digits --recipe twn --epochs 1 "
        "--no-dense-twin --out run"
    )
    assert main(arguments.split()) == 0
    (tmp_path / "ran").unlink()
    return tmp_path / "run" / "model.terse"


def test_a_users_network_is_evaluated_benched_and_exported_without_its_code(
    users, capsys
):
    pytest.importorskip("onnx", reason="needs the package onnx")
    capsys.readouterr()
    assert main(["eval", str(users), "--data", "digits"]) == 0
    told = capsys.readouterr().out
    assert main(["export", "onnx", str(users), "--out", "net.onnx"]) == 0
    assert not (users.parent.parent / "ran").exists()
    assert main(["eval", str(users), "--data", "digits", "--trust"]) == 0
    assert (users.parent.parent / "ran").exists()
    assert told.split("top-1")[1] in capsys.readouterr().out


def test_without_a_graph_a_file_chooses_code_with_trust_alone(users, capsys):
    stripped = tersify.open(users).read()
    stripped.metadata.pop("graph")
    tersify.save(stripped, "plain.terse")
    capsys.readouterr()
    assert main(["eval", "plain.terse", "--data", "digits"]) == 2
    told = capsys.readouterr().err
    assert (
        "names 'nets.py:small', code that a file must not choose; say what it is with --target, or let"
        in told
    )
    assert "--trust" in told
    assert not (users.parent.parent / "ran").exists()
    with pytest.raises(ValueError, match=r"must not choose.*into=MyNet\(\)"):
        tersify.load("plain.terse")
    assert not (users.parent.parent / "ran").exists()
    assert main(["eval", "plain.terse", "--data", "digits", "--trust"]) == 0
    assert (users.parent.parent / "ran").exists()
    images = dataset("digits").test.images[:3].float() / 255
    assert torch.equal(
        tersify.load("plain.terse", trust=True)(images), tersify.load(users)(images)
    )


def test_trust_and_another_network_are_one_too_many(users, capsys):
    assert (
        main(
            [
                "eval",
                str(users),
                "--data",
                "digits",
                "--trust",
                "--target",
                "nets.py:small",
            ]
        )
        == 2
    )
    assert "leave one of them out" in capsys.readouterr().err
    with pytest.raises(ValueError, match="leave one of them out"):
        tersify.load(users, into=nn.Linear(1, 1), trust=True)


def test_a_file_that_says_nothing_is_told_what_to_do(tmp_path):
    tersify.save({"w": torch.zeros(2)}, tmp_path / "w.terse")
    with pytest.raises(
        ValueError,
        match=r"does not say which network it is; give the network: load\(path, into=",
    ):
        tersify.load(tmp_path / "w.terse")


def test_a_shrunk_file_does_not_keep_the_graph_of_the_larger_network(users):
    assert main(["shrink", str(users), "--out", "small.terse"]) == 0
    assert "graph" not in tersify.open("small.terse").metadata


def test_inspect_tells_how_many_operations_there_are(users, capsys):
    capsys.readouterr()
    assert main(["inspect", str(users)]) == 0
    assert "graph operations 5" in capsys.readouterr().out
