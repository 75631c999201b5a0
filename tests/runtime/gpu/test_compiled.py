"""`compile` for a module on a GPU: the reference stands for the kernels, and times are
chosen, not measured.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tersify
from tersify.runtime.check import difference
from tersify.runtime.gpu import choose
from tersify.runtime.gpu.compiled import GpuModule, compile_on_gpu
from tersify.runtime.gpu.layer import PackedLinear
from tersify.runtime.gpu.measured import Measured, Work
from tersify.runtime.gpu.packed import LISTS, TABLE, TERNARY
from tersify.runtime.inputs import example_arguments


class Stopwatch(Measured):
    """Works take as long as their names say; nothing is measured."""

    def __init__(self, microseconds: Callable[[str], float]) -> None:
        super().__init__(None)
        self.microseconds = microseconds

    def of(self, name: str, works: Callable[[], Sequence[Work]]) -> float:
        for work in list(works())[:1]:
            work()
        return self.microseconds(name)


PACKED_WINS = Stopwatch(lambda name: 9.0 if name.startswith("torch") else 1.0)


@pytest.fixture(autouse=True)
def _few_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "copies_of", lambda size_bytes: 2)


def compiled(
    model: nn.Module,
    example: object,
    *,
    precision: str = "fp32",
    strict: bool = True,
    costs: Measured = PACKED_WINS,
) -> GpuModule:
    arguments = example_arguments(example)
    return compile_on_gpu(
        model,
        arguments,
        precision=precision,
        calibration=None,
        strict=strict,
        costs=costs,
    )


def few_levels(levels: Sequence[float], *shape: int) -> Tensor:
    picked = torch.randint(
        0, len(levels), shape, generator=torch.Generator().manual_seed(sum(shape))
    )
    return torch.tensor(levels)[picked]


def network() -> nn.Module:
    """Ternary, table, sparse, many levels, a convolution of one pixel, and one of nine."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(8, 24, 1),
        nn.ReLU(),
        nn.Conv2d(24, 8, 3, padding=1),
        nn.Flatten(2),
        nn.Linear(36, 40),
        nn.Linear(40, 33, bias=False),
        nn.Linear(33, 20),
        nn.Linear(20, 5),
    ).eval()
    model[0].weight.data = few_levels([-0.5, 0.0, 0.5], 24, 8, 1, 1)
    model[4].weight.data = few_levels([-2.0, -1.0, 0.0, 0.5, 4.0], 40, 36)
    model[5].weight.data = (
        few_levels([-1.0, 1.0], 33, 40) * torch.linspace(0.1, 3, 33)[:, None]
    )
    model[6].weight.data = few_levels([0.25, -0.25, *[0.0] * 18], 20, 33)
    return model


def test_layers_of_few_levels_run_packed_and_the_network_stays_the_same() -> None:
    model, x = network(), torch.randn(3, 8, 6, 6)
    made = compiled(model, x)
    assert {c.name: c.form for c in made.plan.layers} == {
        "0": TERNARY,
        "4": TABLE,
        "5": TERNARY,
        "6": TERNARY,
        "7": "",
    }
    for batch in (1, 3, 40):
        x = torch.randn(batch, 8, 6, 6)
        torch.testing.assert_close(made(x), model(x), rtol=1e-5, atol=1e-5)
    assert made.weight_bytes() == sum(
        m.size_bytes() for m in made.modules() if isinstance(m, PackedLinear)
    )
    assert "more than 16 levels" in made.plan.describe()


def test_tensors_of_other_layers_are_shared_and_dense_weights_of_packed_ones_are_not_kept() -> (
    None
):
    model = network()
    made = compiled(model, torch.randn(2, 8, 6, 6))
    kept = {t.data_ptr() for t in (*made.parameters(), *made.buffers())}
    assert model[2].weight.data_ptr() in kept
    assert model[7].weight.data_ptr() in kept
    assert not kept & {model[i].weight.data_ptr() for i in (0, 4, 5, 6)}
    assert type(model[0]) is nn.Conv2d


def test_lists_are_chosen_where_they_cost_less() -> None:
    model = nn.Linear(33, 20)
    model.weight.data = few_levels([0.25, -0.25, *[0.0] * 18], 20, 33)
    costs = Stopwatch(
        lambda name: {"torch": 9.0, "lists": 1.0}.get(name.split()[0].rstrip(":"), 2.0)
    )
    made = compiled(model, torch.randn(4, 33), costs=costs)
    assert [choice.form for choice in made.plan.layers] == [LISTS]


def test_a_layer_that_torch_runs_faster_stays_with_torch() -> None:
    model, x = network(), torch.randn(2, 8, 6, 6)
    made = compiled(
        model, x, costs=Stopwatch(lambda name: 1.0 if name.startswith("torch") else 2.0)
    )
    assert not made.plan.packed
    assert "torch is faster" in made.plan.layers[0].reason
    assert torch.equal(made(x), model(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_module_of_16_bits_keeps_its_type(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(64, 48), nn.Linear(48, 16)).eval()
    for layer in model:
        layer.weight.data = few_levels([-1.0, 0.0, 1.0], *layer.weight.shape)
    model = model.to(dtype)
    x = torch.randn(2, 64, dtype=dtype)
    made = compiled(model, x)
    assert {c.activations for c in made.plan.layers} == {
        "fp16" if dtype == torch.float16 else "bf16"
    }
    assert made(x).dtype == dtype
    exact = copy.deepcopy(model).double()(x.double())
    torch.testing.assert_close(
        made(x).double(), exact, rtol=0, atol=2e-2 * float(exact.detach().abs().max())
    )


def test_int8_and_fp16_are_chosen_by_precision() -> None:
    model = nn.Linear(64, 48)
    model.weight.data = few_levels([-1.0, 0.1, 0.3], 48, 64)
    x = torch.randn(2, 64)
    for precision in ("int8", "fp16", "bf16"):
        made = compiled(model, x, precision=precision)
        assert [c.activations for c in made.plan.layers] == [precision]
        torch.testing.assert_close(
            made(x), model(x), rtol=0, atol=0.05 * float(model(x).detach().abs().max())
        )


def test_levels_that_fp32_activations_cannot_meet_exactly_stay_with_torch() -> None:
    model = nn.Linear(64, 48)
    model.weight.data = few_levels([-1.0, 0.1, 0.3], 48, 64)
    made = compiled(model, torch.randn(2, 64))
    assert "not exact" in made.plan.layers[0].reason


def test_auto_rounds_to_int8_only_with_calibration() -> None:
    model = nn.Linear(64, 48)
    model.weight.data = few_levels([-1.0, 0.0, 1.0], 48, 64)
    x = torch.randn(2, 64)
    cheap = Stopwatch(
        lambda name: 9.0 if name.startswith("torch") else 1.0 if "int8" in name else 2.0
    )
    arguments = example_arguments(x)
    for calibration, wanted in ((None, "bf16 parts"), ([arguments], "int8")):
        made = compile_on_gpu(
            model,
            arguments,
            precision="auto",
            calibration=calibration,
            strict=True,
            costs=cheap,
        )
        assert [c.activations for c in made.plan.layers] == [wanted]


def test_a_kernel_that_disagrees_is_left_to_torch_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Linear(64, 48)
    model.weight.data = few_levels([-1.0, 0.0, 1.0], 48, 64)
    right = PackedLinear.on_vectors
    monkeypatch.setattr(
        PackedLinear, "on_vectors", lambda self, x: right(self, x) * 1.01
    )
    with pytest.raises(ValueError, match="of the largest number away"):
        compiled(model, torch.randn(2, 64))
    x = torch.randn(2, 64)
    with pytest.warns(RuntimeWarning, match="runs in torch"):
        made = compiled(model, x, strict=False)
    assert torch.equal(made(x), model(x))


def test_a_kernel_that_cannot_be_built_is_left_to_torch_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(self: PackedLinear, x: Tensor) -> Tensor:
        raise RuntimeError("CUDA's compiler library NVRTC is missing")

    monkeypatch.setattr(PackedLinear, "on_vectors", fail)
    model = nn.Linear(64, 48)
    model.weight.data = few_levels([-1.0, 0.0, 1.0], 48, 64)
    with pytest.warns(RuntimeWarning, match="NVRTC is missing"):
        made = compiled(model, torch.randn(2, 64), strict=False)
    assert not made.plan.packed


def test_a_layer_whose_weight_is_read_without_a_call_is_not_swapped() -> None:
    model = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    model.out_proj.weight.data = few_levels([-1.0, 0.0, 1.0], 32, 32) / 8
    x = torch.randn(2, 5, 32)
    made = compiled(model, (x, x, x))
    assert not made.plan.packed
    torch.testing.assert_close(made(x, x, x)[0], model(x, x, x)[0])


class Reads(nn.Module):
    """Reads the weight of one of its layers, and a number of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 48), nn.Linear(48, 32)

    def forward(self, x: Tensor) -> Tensor:
        return (
            self.second(self.first(x.to(self.first.weight.dtype)))
            * self.second.in_features
        )


def test_a_layer_whose_weight_is_read_at_every_call_stays_with_torch() -> None:
    model, x = Reads(), torch.randn(2, 64)
    model.first.weight.data = few_levels([-1.0, 0.0, 1.0], 48, 64) * 3
    model.second.weight.data = few_levels([-1.0, 0.0, 1.0], 32, 48)
    made = compiled(model, x)
    assert [choice.name for choice in made.plan.packed] == ["second"]
    assert "reads its weight" in made.plan.layers[0].reason
    assert difference(made(x), model(x).detach()) <= 2e-5
    assert torch.equal(made.network.second.weight, model.second.weight)


def test_torchs_encoder_keeps_its_own_fast_path() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    layer.linear1.weight.data = few_levels([-1.0, 0.0, 1.0], 64, 32) / 8
    x = torch.randn(2, 5, 32)
    made = compiled(layer, x)
    assert not made.plan.packed
    torch.testing.assert_close(made(x), layer(x), rtol=1e-5, atol=1e-5)


def test_a_network_that_disagrees_as_a_whole_runs_in_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x = nn.Linear(64, 48), torch.randn(2, 64)
    model.weight.data = few_levels([-1.0, 0.0, 1.0], 48, 64)
    right = PackedLinear.forward
    monkeypatch.setattr(PackedLinear, "forward", lambda self, x: right(self, x) * 1.01)
    with pytest.raises(ValueError, match="differs from its module"):
        compiled(model, x)
    with pytest.warns(RuntimeWarning, match="all of it runs in torch"):
        made = compiled(model, x, strict=False)
    assert torch.equal(made(x), model(x))
    assert not made.plan.packed


def test_torch_compile_and_export_see_one_operator() -> None:
    model = nn.Linear(64, 48)
    model.weight.data = few_levels([-1.0, 0.0, 1.0], 48, 64)
    x = torch.randn(2, 64)
    made = compiled(model, x)
    assert torch.equal(
        torch.compile(made, backend="aot_eager", fullgraph=True)(x), made(x)
    )
    exported = torch.export.export(made, (x,))
    assert "tersify.packed_linear" in str(exported)


def test_the_operator_keeps_its_schema_and_its_shapes() -> None:
    model = nn.Linear(64, 48)
    model.weight.data = few_levels([-1.0, 0.0, 1.0], 48, 64)
    layer = compiled(model, torch.randn(2, 64)).network
    arguments = (
        layer.data,
        None,
        None,
        None,
        layer.scale,
        layer.bias,
        layer.form,
        48,
        64,
        layer.activations,
    )
    torch.library.opcheck(
        torch.ops.tersify.packed_linear,
        (torch.randn(3, 5, 64), *arguments, layer.settings.flat()),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_it_stays_in_eval_mode_and_is_neither_converted_nor_pickled() -> None:
    model = nn.Sequential(nn.Linear(64, 48), nn.Dropout())
    model[0].weight.data = few_levels([-1.0, 0.0, 1.0], 48, 64)
    made = compiled(model, torch.randn(2, 64))
    assert not any(m.training for m in made.train().modules())
    assert model.training
    with pytest.raises(TypeError, match="packed weights stay"):
        made.half()
    with pytest.raises(TypeError, match="neither copied nor pickled"):
        pickle.dumps(made)


def test_inputs_of_another_type_or_width_are_refused() -> None:
    model = nn.Linear(64, 48)
    model.weight.data = few_levels([-1.0, 0.0, 1.0], 48, 64)
    made = compiled(model, torch.randn(2, 64))
    for wrong in (torch.randn(2, 63), torch.randn(2, 64).half()):
        with pytest.raises(ValueError, match="the layer takes 64 features"):
            made(wrong)


def test_measurements_are_kept_and_a_broken_file_is_measured_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "costs.json"
    first = Measured(path, stopwatch=lambda works: 3.0)
    assert first.of("a", list) == 3.0
    first.save()
    assert Measured(path, stopwatch=lambda works: 5.0).of("a", list) == 3.0
    for broken in ("[]", '{"a": -1}', "{"):
        path.write_text(broken)
        with pytest.warns(RuntimeWarning, match="measuring again"):
            assert Measured(path, stopwatch=lambda works: 5.0).of("a", list) == 5.0


def test_bf16_is_for_gpus_and_modules_stay_on_one_kind_of_device() -> None:
    with pytest.raises(ValueError, match="runs on a GPU"):
        tersify.compile(nn.Linear(4, 4), torch.randn(1, 4), precision="bf16")
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, device="meta"))
    with pytest.raises(ValueError, match="got one on cpu and meta"):
        tersify.compile(model, torch.randn(1, 4))
