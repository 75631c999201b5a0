"""Plans whose length is free: the numbers that change with it are polynomials, and what
no polynomial says is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from plan_networks import packed
from test_plan_sequences import LastStep, Patches, encoder
from torch import Tensor, nn
from typer.testing import CliRunner

from tersify import codec
from tersify.cli.app import app
from tersify.codec import TerseFileError
from tersify.export.c import export_c
from tersify.runtime.portable import Replay, lowered, read_program
from tersify.runtime.portable.program import program_of


class Places(nn.Module):
    """A transformer that adds a table of sines to what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 32)
        angles = torch.arange(64)[:, None] / 100 ** (torch.arange(16) / 16)
        self.register_buffer("places", torch.cat([angles.sin(), angles.cos()], 1))
        self.encoder = encoder()

    def forward(self, ids: Tensor) -> Tensor:
        return self.encoder(self.words(ids) + self.places[: ids.shape[1]])


class Frames(nn.Module):
    """Two recurrent layers, along the frames and along the pieces of a frame, as
    dual-path networks have them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.within = nn.GRU(6, 6, batch_first=True)
        self.across = nn.LSTM(6, 6, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, bins, width = x.shape
        y = self.within(x.reshape(batch * steps, bins, width))[0]
        x = x + y.reshape(x.shape)
        y = x.transpose(1, 2).reshape(batch * bins, steps, width)
        y = self.across(y)[0].reshape(batch, bins, steps, width)
        return x + y.transpose(1, 2)


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(4, 8, 5, padding=2),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Conv1d(8, 8, 3, dilation=2),
        nn.GELU(),
        nn.Conv1d(8, 3, 1),
    )


def strided() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(4, 8, 4, 2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(8, 3, 3, padding=1)
    )


Maker = Callable[[int, int], Tensor]
LENGTHS: dict[str, tuple[Callable[[], nn.Module], Maker, int, int]] = {
    "convolutions": (convolutions, lambda b, n: torch.randn(b, 4, n), 12, 17),
    "strided": (strided, lambda b, n: torch.randn(b, 4, n), 18, 26),
    "lstm": (lambda: LastStep(nn.LSTM), lambda b, n: torch.randn(b, n, 12), 9, 12),
    "gru": (lambda: LastStep(nn.GRU), lambda b, n: torch.randn(b, n, 12), 9, 12),
    "encoder": (encoder, lambda b, n: torch.randn(b, n, 32), 9, 12),
    "places": (Places, lambda b, n: torch.randint(0, 40, (b, n)), 9, 40),
    "frames": (Frames, lambda b, n: torch.randn(b, n, 5, 6), 7, 9),
}


def seeded(name: str) -> tuple[nn.Module, Maker, int, int]:
    torch.manual_seed(0)
    make, example, first, other = LENGTHS[name]
    return make().eval(), example, first, other


@pytest.mark.parametrize("name", LENGTHS)
def test_a_plan_of_two_lengths_runs_every_length_and_batch(name: str) -> None:
    model, example, first, other = seeded(name)
    tensors = packed(model)
    program = lowered(model, example(2, first), tensors, other=example(2, other))
    program = program_of(program.to_bytes())
    assert program.batch is None
    assert program.length is not None
    least, step, most = program.length
    assert least <= first
    replay = Replay(program, tensors)
    for length in (least, first + step, other, other + 4 * step):
        for batch in (1, 2, 5):
            x = example(batch, length)
            if most is not None and length > most:
                with pytest.raises(ValueError, match=f"lengths {least}.*{most}"):
                    replay.run([x])
                continue
            (made,) = replay.run([x])
            with torch.no_grad():
                wanted = model(x)
            assert made.shape == wanted.shape
            assert torch.allclose(made, wanted, rtol=0, atol=1e-5)


def test_a_table_of_places_ends_where_the_longer_example_ends() -> None:
    model, example, first, other = seeded("places")
    program = lowered(model, example(2, first), packed(model), other=example(2, other))
    assert program.length is not None
    assert program.length[2] == other


def test_the_longer_example_may_be_all_that_a_table_has() -> None:
    model, example, _, _ = seeded("places")
    program = lowered(model, example(2, 63), packed(model), other=example(2, 64))
    assert program.length == (1, 1, 64)


@pytest.mark.parametrize("name", ["lstm", "gru", "encoder", "places"])
def test_a_sequence_may_be_one_step(name: str) -> None:
    model, example, first, other = seeded(name)
    program = lowered(model, example(2, first), packed(model), other=example(2, other))
    assert program.length is not None
    assert program.length.least == 1


def test_strides_leave_the_lengths_that_they_divide() -> None:
    model, example, first, other = seeded("strided")
    tensors = packed(model)
    program = lowered(model, example(2, first), tensors, other=example(2, other))
    assert program.length is not None
    assert program.length[1] == 4
    with pytest.raises(ValueError, match=r"lengths .* in steps of 4, got 19"):
        Replay(program, tensors).run([example(2, 19)])


def test_ranges_of_int8_do_not_depend_on_the_length() -> None:
    torch.manual_seed(0)
    model = convolutions().eval()
    for layer in model:
        if isinstance(layer, nn.Conv1d):
            layer.weight.data = layer.weight.sign() * 0.1
    x = torch.randn(4, 4, 24)
    tensors = packed(model)
    program = lowered(
        model, x[..., :12], tensors, other=x, precision="int8", calibration=[x]
    )
    fixed = lowered(model, x[..., :16], tensors, precision="int8", calibration=[x])
    given = [x[..., :16].contiguous()]
    (made,), (wanted,) = (Replay(p, tensors).run(given) for p in (program, fixed))
    assert torch.equal(made, wanted)


class Weighs(nn.Module):
    """Numbers that are another function of the length."""

    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.act(x))


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "constant": (
        lambda x: x + torch.linspace(0, 1, x.shape[1])[:, None],
        "'elementwise' has other numbers",
    ),
    "factor": (lambda x: x * math.sqrt(x.shape[1]), "has other numbers"),
    "calls": (
        lambda x: x.flip(1) if x.shape[1] % 4 < 2 else x + x,
        "other calls",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_polynomial_of_the_length_is_refused_with_its_call(
    name: str,
) -> None:
    act, words = REFUSED[name]
    model = Weighs(act).eval()
    x = torch.randn(2, 13, 6)
    with pytest.raises(ValueError, match=words):
        lowered(model, x[:, :8], packed(model), other=x)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (torch.randn(2, 9, 6), "has another length"),
        (torch.randn(3, 12, 6), "the same batch"),
        (torch.randn(2, 12), "as many axes"),
        (torch.randn(2, 9, 6, dtype=torch.float64), "as many axes"),
    ],
)
def test_a_second_example_differs_in_its_length_alone(
    other: Tensor, words: str
) -> None:
    model = Weighs(lambda x: x).eval()
    with pytest.raises(ValueError, match=words):
        lowered(model, torch.randn(2, 9, 6), packed(model), other=other)


def test_hostile_polynomials_are_refused() -> None:
    model, example, first, other = seeded("lstm")
    tensors = packed(model)
    program = lowered(model, example(2, first), tensors, other=example(2, other))
    for terms, over in (
        ([[1, 0, 1]], 2),
        ([[2**60, 0, 4]], 1),
        ([[1, 0, 9]], 1),
        ([[0.5, 0, 1]], 1),
        ([[1, 0, 1]], 0),
        ([[-1, 0, 1]], 1),
        ([[1, 0]], 1),
        ("none", 1),
    ):
        broken = program_of(program.to_bytes())
        call = next(call for call in broken.calls if call[0] == "input")
        call[2] = [{"terms": terms, "over": over}, 1, 1]
        with pytest.raises(TerseFileError):
            Replay(broken, tensors).run([example(2, first)])


def test_a_c_source_has_one_length_and_says_so(tmp_path: Path) -> None:
    model, example, first, other = seeded("convolutions")
    program = lowered(model, example(2, first), packed(model), other=example(2, other))
    with pytest.raises(ValueError, match="a C source runs one length"):
        export_c(program, packed(model), tmp_path / "c")


def test_items_that_change_places_leave_the_batch_free() -> None:
    torch.manual_seed(0)
    model = encoder().eval()
    tensors = packed(model)
    x = torch.randn(4, 9, 32)
    program = lowered(model, x, tensors)
    assert program.batch is None
    for batch in (1, 3, 4):
        (made,) = Replay(program, tensors).run([x[:batch]])
        with torch.no_grad():
            assert torch.allclose(made, model(x[:batch]), rtol=0, atol=1e-5)


def test_one_item_that_loses_its_axis_fixes_the_batch() -> None:
    model = Weighs(lambda x: x.flip(0).squeeze()).eval()
    x = torch.randn(3, 6)
    tensors = packed(model)
    program = lowered(model, x, tensors)
    assert program.batch == 3
    assert torch.allclose(Replay(program, tensors).run([x])[0], model(x), atol=1e-5)


def test_a_network_of_images_still_has_its_batch_as_older_readers_know_it() -> None:
    torch.manual_seed(0)
    model = Patches().eval()
    program = lowered(model, torch.randn(2, 3, 12, 12), packed(model))
    assert (program.batch, program.absolute) == (None, False)


NETWORK = """
from torch import nn

def convolutions():
    return nn.Sequential(nn.Conv1d(4, 8, 5, padding=2), nn.ReLU(), nn.Conv1d(8, 3, 1))
"""


def test_the_command_leaves_the_length_free(tmp_path: Path) -> None:
    code, path, out = (tmp_path / name for name in ("net.py", "a.terse", "b.terse"))
    code.write_text(NETWORK)
    model = nn.Sequential(nn.Conv1d(4, 8, 5, padding=2), nn.ReLU(), nn.Conv1d(8, 3, 1))
    codec.save(packed(model), path)
    given = ["plan", str(path), "--out", str(out), "--target", f"{code}:convolutions"]
    done = CliRunner().invoke(app, [*given, "--shape", "4,12", "--lengths", "4,17"])
    assert done.exit_code == 0, done.output
    assert "for any batch and lengths 1 or more" in " ".join(done.output.split())
    file = codec.open(out)
    x = torch.randn(3, 4, 29)
    (made,) = Replay(read_program(file), file).run([x])
    assert torch.allclose(made, model.eval()(x), atol=1e-5)
