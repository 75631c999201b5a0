"""On a GPU: the kernels themselves, compiled networks, graphs, torch.compile, and
memory. `make test-gpu` runs them.
"""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from packed_cases import FORMS, TOLERANCES, TYPES_OF, bias_of, packed_weight, vectors
from torch import nn

import tersify
from tersify.runtime.check import difference
from tersify.runtime.gpu import driver, rounding
from tersify.runtime.gpu.compiled import GpuModule
from tersify.runtime.gpu.operator import reference
from tersify.runtime.gpu.packed import Packed
from tersify.runtime.gpu.products import Settings, product, table_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def moved(packed: Packed) -> Packed:
    made = copy.copy(packed)
    for name in ("data", "scale", "starts", "levels"):
        tensor = getattr(packed, name)
        object.__setattr__(made, name, None if tensor is None else tensor.cuda())
    return made


def ternary_network(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 2048)
    ).eval()
    for layer in (model[0], model[2]):
        layer.weight.data = torch.randint(-1, 2, layer.weight.shape).float() / 32
    return model.to("cuda", dtype)


def compiled(model: nn.Module, x: torch.Tensor, **options: object) -> GpuModule:
    made = tersify.compile(model, x, **options)
    assert isinstance(made, GpuModule)
    return made


@pytest.mark.parametrize("activations", list(TYPES_OF))
@pytest.mark.parametrize("form", FORMS)
def test_products_are_right_for_every_class_of_vectors(
    form: str, activations: str
) -> None:
    dtype = TYPES_OF[activations]
    for rows, features in ((37, 203), (1000, 1111), (640, 2560)):
        packed = moved(packed_weight(form, rows, features, activations))
        bias = bias_of(rows).cuda()
        for count in (1, 3, 13, 32, 70, 130):
            x = vectors(count, features, dtype).cuda()
            made = product(
                x,
                packed,
                table_of(packed, activations),
                bias,
                activations,
                Settings(),
                lambda launch, x=x: driver.run(launch, x.device),
            )
            wanted = reference(x, packed, bias, activations)
            assert difference(made.double(), wanted) <= TOLERANCES[dtype], (
                rows,
                features,
                count,
            )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_steps_are_those_of_the_cpu(dtype: torch.dtype) -> None:
    x = vectors(32, 4096, dtype)
    made = rounding.empty(32, 4096, torch.device("cuda"))
    on_gpu = x.cuda()
    driver.run(rounding.launch(on_gpu, made, swapped=False), on_gpu.device)
    wanted = rounding.reference(x, swapped=False)
    assert torch.equal(made.steps.cpu(), wanted.steps)
    assert torch.equal(made.scale.cpu(), wanted.scale)
    assert torch.equal(made.sum.cpu(), wanted.sum)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_compiled_network_equals_its_module(dtype: torch.dtype) -> None:
    model = ternary_network(dtype)
    x = torch.randn(1, 2048, device="cuda", dtype=dtype)
    made = compiled(model, x, strict=True)
    print(made.plan.describe())
    assert len(made.plan.packed) == 2
    exact = copy.deepcopy(model).double()
    for count in (1, 7, 40, 200):
        x = torch.randn(count, 2048, device="cuda", dtype=dtype)
        with torch.no_grad():
            assert (
                difference(made(x).double(), exact(x.double())) <= 4 * TOLERANCES[dtype]
            ), count


def test_int8_sums_are_those_of_the_rounded_vectors() -> None:
    model = ternary_network(torch.float32)[:1]
    x = torch.randn(3, 2048, device="cuda")
    made = compiled(model, x, precision="int8", strict=True)
    steps = rounding.reference(x.cpu(), swapped=False)
    weight, bias = model[0].weight.detach().cpu(), model[0].bias.detach().cpu()
    signs = (weight * 32).double()
    wanted = (steps.steps.double() @ signs.T).float() * steps.scale[:, None] / 32 + bias
    assert difference(made(x).cpu(), wanted) <= 1e-6


def test_a_graph_and_torch_compile_hold_a_compiled_network() -> None:
    x = torch.randn(1, 2048, device="cuda", dtype=torch.float16)
    made = compiled(ternary_network(torch.float16), x)
    wanted = made(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = made(x)
    out.fill_(7)
    graph.replay()
    assert torch.equal(out, wanted)
    traced = torch.compile(made, backend="aot_eager", fullgraph=True)
    assert torch.equal(traced(x), wanted)


def test_ternary_weights_take_a_seventh_of_bf16_in_memory() -> None:
    x = torch.randn(1, 2048, device="cuda", dtype=torch.bfloat16)
    gc.collect()
    before = torch.cuda.memory_allocated()
    model = ternary_network(torch.bfloat16)
    dense = torch.cuda.memory_allocated() - before
    made = compiled(model, x)
    assert len(made.plan.packed) == 2
    del model
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() - before <= dense / 7
    assert made(x).isfinite().all()
