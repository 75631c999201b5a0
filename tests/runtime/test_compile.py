"""tersify.compile: the same results, one C++ call, and clear words for what it cannot
do.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tersify.lab import network
from tersify.runtime import compile, compiling, run_reference
from tersify.runtime import extension as extension_module
from tersify.runtime.weights import WeightKind
from tersify.tensor import CompressedModel, CompressedTensor
from tersify.tensor.model import load_state

pytest.importorskip("tersify._runtime")


def sparse_(model: nn.Module, zeros: float = 0.9) -> nn.Module:
    """Ternary weights with that fraction of zeros, and batch norms that have seen data."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            kept = (torch.rand_like(parameter) >= zeros).float()
            parameter.data = parameter.data.sign() * kept
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2)
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_(0, 0.3)
    return model.eval()


def close(fast: nn.Module, plain: nn.Module, x: torch.Tensor) -> bool:
    with torch.no_grad():
        wanted = plain(x)
    return bool((fast(x) - wanted).abs().max() <= 1e-5 * wanted.abs().max())


@pytest.fixture
def star(kernels_win):
    torch.manual_seed(0)
    model = sparse_(network("resnet20-star", inflate=1))
    return model, compile(model, torch.randn(1, 3, 32, 32), threads=2)


@pytest.mark.parametrize("n", [1, 2, 5, 16])
def test_resnet20_star_equals_the_plain_module_for_every_batch_size(star, n):
    model, fast = star
    assert close(fast, model, torch.randn(n, 3, 32, 32))


def test_resnet20_star_is_one_call_without_loose_norms_additions_activations_or_means(
    star,
):
    _, fast = star
    kinds = [node.kind for node in fast.plan.nodes]
    assert kinds == ["conv"] * 15 + ["linear"]
    assert len(fast._sizes.first.network.stages) == 1
    assert "16 operations with kernels, 0 torch calls" in fast.plan.describe()


def test_packed_ternary_weights_take_less_than_an_eighth_of_dense_ones(star):
    model, fast = star
    dense_bytes = sum(4 * p.numel() for p in model.parameters() if p.ndim > 1)
    assert fast.weight_bytes() <= dense_bytes / 8


def test_the_plan_in_float64_is_the_function_of_the_module(star):
    model, fast = star
    x = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        wanted = model.double()(x)
    model.float()
    assert torch.allclose(
        run_reference(fast.plan, [x])[0], wanted, rtol=1e-9, atol=1e-9
    )


class Mixed(nn.Module):
    """Layers with kernels around one without, tuple results, and sizes that no lane
    divides.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 5, stride=2, padding=2)
        self.norm = nn.BatchNorm2d(12)
        self.depthwise = nn.Conv2d(12, 12, 3, padding="same", groups=12)
        self.point = nn.Conv2d(12, 20, 1)
        self.last = nn.Conv2d(32, 32, 1)
        self.head = nn.Linear(32, 7)

    def forward(self, x):
        x = F.silu(self.norm(self.stem(x)))
        y = F.gelu(self.point(F.hardtanh(self.depthwise(x))))
        y = torch.cat([y, x], 1)
        y = F.max_pool2d(y, 3, 2, 1)
        # cumsum has no kernel, and what it reads is fused away
        y = torch.cumsum(F.relu(self.last(y)), 1)
        y = F.relu6(y) * y
        pooled = F.adaptive_avg_pool2d(y, 1).flatten(1)
        return {"logits": self.head(pooled).softmax(-1), "features": pooled}


@pytest.mark.usefixtures("kernels_win")
def test_a_layer_without_a_kernel_stays_a_torch_call_and_is_named():
    torch.manual_seed(1)
    model = sparse_(Mixed(), zeros=0.5)
    fast = compile(model, torch.randn(2, 3, 37, 29), threads=2)
    x = torch.randn(3, 3, 37, 29)
    with torch.no_grad():
        wanted = model(x)
    given = fast(x)
    assert list(given) == ["logits", "features"]
    for name, tensor in wanted.items():
        assert torch.allclose(given[name], tensor, rtol=1e-4, atol=1e-5), name
    assert "torch call" in fast.plan.describe()
    assert "cumsum" in fast.plan.describe()
    assert sum(node.in_torch for node in fast.plan.nodes) == 1


@pytest.mark.usefixtures("kernels_win")
@pytest.mark.parametrize("size", [(4, 2), (3, 1), (5, 2)])
def test_adaptive_pooling_has_a_kernel_where_its_windows_are_equal(size):
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.AdaptiveAvgPool2d(size)
    ).eval()
    fast = compile(model, torch.randn(2, 3, 12, 8))
    x = torch.randn(3, 3, 12, 8)
    assert close(fast, model, x)
    assert any(node.in_torch for node in fast.plan.nodes) == (size == (5, 2))


class Tokens(nn.Module):
    """Conv1d, a sequence through linear layers, layer norm and an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.conv = nn.Conv1d(8, 16, 3, padding=1, dilation=1)
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 24)
        self.down = nn.Linear(24, 16)

    def forward(self, tokens):
        x = self.conv(self.table(tokens).transpose(1, 2)).transpose(1, 2)
        return self.norm(x + self.down(F.gelu(self.up(x))))


def test_sequences_with_an_integer_input():
    model = sparse_(Tokens(), zeros=0.5)
    tokens = torch.randint(0, 11, (4, 9))
    fast = compile(model, tokens, threads=1)
    with torch.no_grad():
        for other in (tokens[:3], torch.randint(0, 11, (2, 17))):
            assert torch.allclose(fast(other), model(other), rtol=1e-4, atol=1e-5)


def test_torch_compile_and_export_see_one_operator(star):
    _, fast = star
    x = torch.randn(2, 3, 32, 32)
    fast(x)  # a tracer has no numbers to capture this size with
    program = torch.export.export(fast, (x,))
    calls = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert torch.ops.tersify.run.default in calls
    assert torch.equal(program.module()(x), fast(x))
    assert torch.equal(
        torch.compile(fast, backend="aot_eager", fullgraph=True)(x), fast(x)
    )


def test_the_module_may_be_in_training_mode_and_stays_so(star):
    model, _ = star
    model.train()
    try:
        fast = compile(model, torch.randn(1, 3, 32, 32))
        assert model.training
    finally:
        model.eval()
    assert close(fast, model, torch.randn(2, 3, 32, 32))


def test_channels_last_and_strided_inputs_are_taken(star):
    model, fast = star
    x = torch.randn(4, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    assert close(fast, model, x)
    assert close(fast, model, torch.randn(8, 3, 32, 32)[::2])


@pytest.mark.usefixtures("kernels_win")
def test_the_packed_form_tells_levels_and_row_scales():
    layer = nn.Linear(6, 4, bias=False)
    codes = torch.randint(0, 4, (4, 6), dtype=torch.uint8)
    packed = CompressedTensor(
        shape=(4, 6),
        codes=codes,
        codebook=torch.tensor([0.0, -1.0, 0.5, 2.0]),
        scale=torch.rand(4, 1) + 0.5,
    )
    load_state(CompressedModel({"weight": packed}), into=layer)
    fast = compile(layer, torch.randn(2, 6))
    weight = fast.plan.nodes[0].op.weight
    assert weight.kind is WeightKind.TABLE
    assert weight.row_scale is not None
    assert close(fast, layer, torch.randn(3, 6))


@pytest.mark.usefixtures("kernels_win")
@pytest.mark.parametrize("scale", [1.0, 0.37])
def test_a_plain_ternary_weight_is_recognised(scale):
    layer = sparse_(nn.Linear(30, 8), zeros=0.6)
    layer.weight.data *= scale
    fast = compile(layer, torch.randn(2, 30))
    assert fast.plan.nodes[0].op.weight.kind is WeightKind.SIGN
    assert close(fast, layer, torch.randn(3, 30))


def test_weights_behind_a_parametrization_are_constants():
    class Halve(nn.Module):
        def forward(self, w):
            return w / 2

    layer = nn.Linear(6, 4)
    torch.nn.utils.parametrize.register_parametrization(layer, "weight", Halve())
    fast = compile(layer.eval(), torch.randn(2, 6))
    assert [node.kind for node in fast.plan.nodes] == ["linear"]
    assert close(fast, layer, torch.randn(3, 6))


def test_without_the_extension_the_plan_runs_in_torch(monkeypatch):
    monkeypatch.setattr(compiling, "extension", lambda: None)
    layer = nn.Linear(4, 3)
    assert close(compile(layer, torch.randn(1, 4)), layer, torch.randn(5, 4))


def test_a_missing_extension_warns_once(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tersify._runtime", None)
    monkeypatch.delattr("tersify._runtime", raising=False)
    extension_module.extension.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="compiled kernels are missing"):
            assert extension_module.extension() is None
        assert extension_module.extension() is None
    finally:
        monkeypatch.undo()
        extension_module.extension.cache_clear()
    assert extension_module.extension() is not None


def test_the_default_device_of_the_caller_is_not_where_the_results_go():
    layer = nn.Linear(6, 5)
    x = torch.randn(3, 6)
    fast = compile(layer, x, threads=1)
    with torch.no_grad(), torch.device("meta"):
        for _ in range(2):  # the second call takes the short way
            assert torch.allclose(fast(x), layer(x), atol=1e-6)
