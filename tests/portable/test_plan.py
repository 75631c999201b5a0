"""The lowered network in a file: the same numbers as the module, the weights of the
file, any batch.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from plan_networks import Block, networks, packed, seeded, ternary_
from torch import Tensor, nn

import tersify
from tersify import codec
from tersify.codec import TerseFileError
from tersify.codec.container import Sections
from tersify.codec.writer import add_plan
from tersify.runtime.portable import Replay, lowered, read_program
from tersify.runtime.portable.program import program_of

NETWORKS = networks()


@pytest.mark.parametrize("name", NETWORKS)
def test_a_plan_read_from_its_file_makes_what_the_module_makes_for_any_batch(
    name: str, tmp_path: Path
) -> None:
    model, example = NETWORKS[name]
    path = tmp_path / "net.terse"
    tersify.save(packed(model), path, network=model, example=example, plan="fp32")
    file = codec.open(path)
    replay = Replay(read_program(file), file)
    for batch in (1, 2, 5):
        given = torch.cat([example] * 3)[:batch].contiguous()
        with torch.no_grad():
            wanted = model(given)
        (made,) = replay.run([given])
        assert float((made - wanted).abs().max()) <= 2e-5 * float(wanted.abs().max())


def test_an_int8_plan_has_the_bits_of_the_compiled_network(tmp_path: Path) -> None:
    model, images = NETWORKS["ternary"]
    path = tmp_path / "net.terse"
    tersify.save(
        packed(model),
        path,
        network=model,
        example=images,
        plan="int8",
        calibration=images,
    )
    file = codec.open(path)
    (made,) = Replay(read_program(file), file).run([images])
    compiled = tersify.compile(
        model, images, precision="int8", calibration=images, threads=1
    )
    assert any(call[0] == "conv_i8" for call in read_program(file).calls)
    assert torch.equal(made, compiled(images))


def test_weights_of_a_plan_are_those_of_the_file_and_no_second_copy() -> None:
    model, images = NETWORKS["ternary"]
    program = lowered(model, images, packed(model))
    assert [weight[1][0] for weight in program.weights] == ["codes"] * 4
    weights = sum(p.numel() for p in model.parameters())
    assert len(program.numbers) < weights / 20


def test_the_networks_of_the_tests_and_of_the_fuzzer_have_every_curve() -> None:
    model, x = NETWORKS["curves"]
    calls = lowered(model, x, packed(model)).calls
    assert {call[2] for call in calls if call[0] == "curve"} == {0, 1, 2, 3}


def test_a_file_with_a_plan_loads_as_before_and_says_its_version(
    tmp_path: Path,
) -> None:
    model, images = NETWORKS["ternary"]
    path = tmp_path / "net.terse"
    tersify.save(packed(model), path, network=model, example=images, plan="fp32")
    file = codec.open(path)
    assert file.version == "1.3"
    fresh = tersify.load(path, into=Block())
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            fresh.state_dict().values(), model.state_dict().values(), strict=True
        )
    )


def test_a_plan_is_added_to_a_file_and_replaces_the_one_before(tmp_path: Path) -> None:
    model, images = NETWORKS["ternary"]
    plain, once, twice = (tmp_path / f"{n}.terse" for n in ("plain", "once", "twice"))
    codec.save(packed(model), plain)
    program = lowered(model, images, codec.open(plain).read())
    add_plan(Sections(plain), once, program.to_bytes())
    add_plan(Sections(once), twice, program.to_bytes())
    assert once.read_bytes() == twice.read_bytes()
    kept = [Sections(path).read("directory") for path in (plain, once)]
    assert kept[0] == kept[1]


POOLED = {
    "maxima_of_one_axis": (
        lambda: nn.Sequential(nn.Conv1d(4, 8, 3), nn.MaxPool1d(2), nn.Flatten()),
        (4, 18),
    ),
    "averages_in_ceil_mode_of_whole_windows": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, 3),
            nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False),
            nn.Flatten(),
        ),
        (4, 10, 8),
    ),
}


@pytest.mark.parametrize("name", POOLED)
def test_a_pool_that_one_kernel_computes_gets_a_plan(name: str) -> None:
    make, shape = POOLED[name]
    torch.manual_seed(0)
    model, example = make().eval(), torch.randn(2, *shape)
    program = lowered(model, example, packed(model))
    (made,) = Replay(program, packed(model)).run([example])
    assert torch.allclose(made, model(example), atol=1e-5)


def test_what_has_no_kernel_is_named(tmp_path: Path) -> None:
    class Sorts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).sort(-1).values

    model = Sorts().eval()
    with pytest.raises(ValueError, match="'sort' would be a call of torch"):
        tersify.save(
            packed(model),
            tmp_path / "n.terse",
            network=model,
            example=torch.randn(2, 8),
            plan="fp32",
        )
    assert not (tmp_path / "n.terse").exists()


def test_the_call_without_a_kernel_is_named_and_not_one_that_only_goes_with_it() -> (
    None
):
    class Waves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.clamp(min=0.1).sin())

    model = Waves().eval()
    with pytest.raises(ValueError, match="'sin' would be a call of torch"):
        lowered(model, torch.rand(2, 8), packed(model))


def test_a_mean_of_channels_last_gets_a_plan() -> None:
    """torch restrides its result in place."""

    class Pools(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 6)

        def forward(self, x: Tensor) -> Tensor:
            x = self.layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            return nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)

    model, x = Pools().eval(), torch.randn(2, 8, 5, 4)
    (made,) = Replay(lowered(model, x, packed(model)), packed(model)).run([x])
    assert torch.allclose(made, model(x), atol=1e-5)


def test_another_network_than_the_saved_one_gets_no_plan(tmp_path: Path) -> None:
    model, images = NETWORKS["ternary"]
    other = ternary_(seeded(Block), zeros=0.3)
    with pytest.raises(ValueError, match="is not what is saved"):
        tersify.save(
            packed(model),
            tmp_path / "n.terse",
            network=other,
            example=images,
            plan="fp32",
        )


def test_numbers_that_are_no_polynomial_of_the_batch_fix_it() -> None:
    class Mixes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.flip(0) * math.sqrt(len(x)))

    model, x = Mixes().eval(), torch.randn(4, 6)
    program = lowered(model, x, packed(model))
    assert program.batch == 4
    (made,) = Replay(program, packed(model)).run([x])
    assert torch.allclose(made, model(x), atol=1e-5)
    with pytest.raises(ValueError, match="takes float32"):
        Replay(program, packed(model)).run([x[:2]])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"plan": "int8"}, "needs the ranges"),
        ({"plan": "fp32", "floats": "fp16"}, "as they are"),
        ({"plan": "fp16"}, "precision must be"),
        ({"calibration": torch.zeros(1)}, "calibration is for"),
        ({"plan": "fp32", "network": None}, "give network="),
    ],
)
def test_what_makes_no_plan_is_said_in_one_sentence(
    given: dict[str, object], message: str, tmp_path: Path
) -> None:
    model, images = NETWORKS["ternary"]
    arguments: dict[str, object] = {"network": model, "example": images, **given}
    with pytest.raises(ValueError, match=message):
        tersify.save(packed(model), tmp_path / "n.terse", **arguments)  # type: ignore[arg-type]


def test_a_damaged_plan_is_refused_and_its_weights_still_load(tmp_path: Path) -> None:
    model, images = NETWORKS["ternary"]
    path, broken = tmp_path / "net.terse", tmp_path / "broken.terse"
    tersify.save(packed(model), path, network=model, example=images, plan="fp32")
    section = bytearray(codec.open(path).section("plan"))
    section[len(section) // 2] ^= 1
    add_plan(Sections(path), broken, bytes(section))
    with pytest.raises(TerseFileError, match="plan"):
        read_program(codec.open(broken))
    assert len(codec.open(broken).read()) == len(codec.open(path))


def test_vectors_outside_the_numbers_are_refused() -> None:
    model, images = NETWORKS["ternary"]
    tensors = packed(model)
    program = program_of(lowered(model, images, tensors).to_bytes())
    call = next(call for call in program.calls if call[0] == "conv")
    call[3][0] = [len(program.numbers) - 1, 16]
    with pytest.raises(TerseFileError, match="numbers"):
        Replay(program, tensors).run([images])


def test_numbers_survive_the_file_bit_for_bit() -> None:
    model, images = NETWORKS["dense"]
    program = lowered(model, images, packed(model))
    again = program_of(program.to_bytes())
    assert np.array_equal(
        again.numbers.view(np.uint32), program.numbers.view(np.uint32)
    )
    assert (again.calls, again.weights, again.inputs) == (
        program.calls,
        program.weights,
        program.inputs,
    )
