"""A compiled network that is called again: nothing is checked twice, and whoever stands
around it is asked.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tersify.runtime import compile
from tersify.runtime.network import Network

pytest.importorskip("tersify._runtime")
pytestmark = pytest.mark.usefixtures("kernels_win")  # a layer in torch has no short way
HAS_SHORT_WAY = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
needs_short_way = pytest.mark.skipif(
    not HAS_SHORT_WAY, reason="torch before 2.10 does not describe tensors to C"
)


class Watching(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(function)
        return function(*args, **(kwargs or {}))


def run_once() -> tuple[nn.Module, torch.Tensor]:
    x = torch.randn(2, 64)
    fast = compile(nn.Linear(64, 8), x, threads=1)
    fast(x)
    return fast, x


@pytest.fixture
def took_the_short_way(monkeypatch) -> Callable[[nn.Module, torch.Tensor], bool]:
    """Whether a call ends in C++: the ordinary one runs the network's stages from
    Python.
    """
    entered, run = [], Network.run

    def counted(self, inputs):
        entered.append(1)
        return run(self, inputs)

    monkeypatch.setattr(Network, "run", counted)

    def took(fast, *x) -> bool:
        entered.clear()
        fast(*x)
        return not entered

    return took


def test_inputs_unlike_the_last_are_still_checked_and_right():
    layer = nn.Linear(6, 5)
    fast = compile(layer, torch.randn(2, 6), threads=1)
    x = torch.randn(3, 6)
    fast(x)
    with torch.no_grad():
        for other in (
            torch.randn(3, 6),
            torch.randn(4, 6),
            torch.randn(6, 3).T,
            nn.Parameter(torch.randn(3, 6)),
        ):
            assert torch.allclose(fast(other), layer(other), atol=1e-6)
            fast(x)
    for wrong in (torch.randn(3, 7), x.double(), x.to_sparse(), x.to("meta")):
        with pytest.raises(ValueError, match="input"):
            fast(wrong)
        fast(x)
    with pytest.raises(
        ValueError, match="Linear does not take an input of 3×6 and 3×6"
    ):
        fast(x, x)


def test_tensors_whose_memory_says_something_else_are_resolved():
    fast, x = run_once()
    for other in (torch._neg_view(x), torch._efficientzerotensor(x.shape)):
        wanted = fast(other.clone())
        assert torch.equal(fast(other), wanted)
        assert torch.equal(fast(other), wanted)


@needs_short_way
def test_a_repeated_call_takes_the_short_way_where_its_input_is_like_the_last_and_only_there(
    took_the_short_way,
):
    fast, x = run_once()
    rows = torch.cat([torch.zeros(3, 64), x, torch.zeros(1, 64)])
    for like in (x, x.clone(), rows[3:5], torch.randn(2, 64)):
        assert took_the_short_way(fast, like)
    wanted = fast(x)
    for like in (x.clone(), rows[3:5]):
        assert torch.equal(fast(like), wanted)
    strided, shifted = x.T.contiguous().T, x.repeat(1, 2)[:, :64]
    for other in (strided, shifted, nn.Parameter(x), torch._neg_view(-x)):
        assert not took_the_short_way(fast, other)
        assert torch.equal(fast(other), wanted)
    assert not took_the_short_way(fast, x[:1])
    assert took_the_short_way(fast, x[:1])


@needs_short_way
def test_sizes_that_alternate_all_take_the_short_way(took_the_short_way):
    fast, x = run_once()
    sizes = [torch.randn(n, 64) for n in (1, 2, 5, 8)]
    for size in sizes:
        fast(size)
    for _ in range(3):
        assert all(took_the_short_way(fast, size) for size in (*sizes, x))


@needs_short_way
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_no_kernel_s_business(took_the_short_way, bad):
    layer, x = nn.Linear(64, 8), torch.randn(2, 64)
    layer.weight.data[:, ::2] = 0
    fast = compile(layer, x, threads=1)
    x[1, 4] = bad
    assert not took_the_short_way(fast, x)
    with torch.no_grad():
        assert torch.equal(fast(x).isnan(), layer(x).isnan())


def test_a_tensor_without_memory_is_an_error_and_not_the_end_of_the_process():
    fast, x = run_once()
    wanted = fast(x)
    assert torch.equal(torch.func.functionalize(fast)(x), wanted)
    empty = x.clone()
    empty.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="memory"):
        fast(empty)
    assert fast.profile(torch._efficientzerotensor(x.shape))


def test_zeros_without_memory_are_right_while_somebody_watches():
    fast, x = run_once()
    with Watching():
        assert torch.equal(
            fast(torch._efficientzerotensor(x.shape)), fast(torch.zeros_like(x))
        )


def test_an_output_of_another_kind_is_not_written_to():
    class Halves(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            return made.half() if func is torch.empty_like else made

    fast, x = run_once()
    wanted = fast(x)
    with Halves():
        assert torch.equal(fast(x), wanted)


def test_a_tensor_without_memory_of_its_own_is_told_apart():
    fast, x = run_once()
    wanted = fast(x)
    with pytest.raises((RuntimeError, ValueError)):
        torch.func.vmap(fast)(x[None].expand(2, 2, 64))
    assert torch.equal(fast(x), wanted)


@pytest.mark.parametrize("inference", [False, True])
def test_what_a_repeated_call_returns_is_an_ordinary_tensor(inference):
    fast, x = run_once()
    with torch.inference_mode(inference):
        made, other = fast(x.requires_grad_(not inference)), fast(x)
    assert type(made) is torch.Tensor
    assert made.is_contiguous()
    assert not made.requires_grad
    assert made.is_inference() == inference
    assert made.untyped_storage().nbytes() == made.nbytes
    assert made.data_ptr() != other.data_ptr()
    assert torch.equal(made, other)
    if not inference:
        assert made.add_(1).resize_(4, 8).shape == (4, 8)


def test_one_output_in_a_tuple_stays_in_it():
    class InATuple(nn.Linear):
        def forward(self, x):
            return (super().forward(x),)

    layer, x = InATuple(64, 8), torch.randn(2, 64)
    fast = compile(layer, x, threads=1)
    for _ in range(2):
        (made,) = fast(x)
        assert torch.allclose(made, layer(x)[0], atol=1e-5)


def test_without_torchs_c_functions_every_call_is_an_ordinary_one(
    monkeypatch, took_the_short_way
):
    monkeypatch.delattr(torch.Tensor, "__dlpack_c_exchange_api__", raising=False)
    fast, x = run_once()
    assert not took_the_short_way(fast, x)
    assert torch.equal(fast(x), fast(x))


def test_hooks_of_a_compiled_network_are_called_at_every_run():
    layer, x, seen = nn.Linear(64, 8), torch.randn(2, 64), []
    fast = compile(layer, x, threads=1)
    fast(x)
    handle = fast.register_forward_hook(lambda module, given, made: seen.append(made))
    assert fast(x) is seen[0]
    handle.remove()
    for register in (
        torch.nn.modules.module.register_module_forward_pre_hook,
        torch.nn.modules.module.register_module_forward_hook,
    ):
        with register(lambda *given: seen.append(given)):
            fast(x)
    assert len(seen) == 3


def test_hooks_are_found_where_torch_keeps_them_now():
    fast, x = run_once()
    fast._forward_hooks = OrderedDict()
    fast.register_forward_hook(lambda *given: "hooked")
    assert fast(x) == "hooked"


def test_a_hook_that_knows_its_network_does_not_keep_it_alive():
    fast, _ = run_once()
    fast.register_forward_hook(lambda *given, fast=fast: None)
    gone = weakref.ref(fast)
    del fast
    gc.collect()
    assert gone() is None


def test_a_replaced_forward_is_called():
    fast, x = run_once()
    fast.forward = lambda x: "replaced"
    assert fast(x) == "replaced"


@needs_short_way
def test_who_watches_in_between_sees_one_operator_and_does_not_slow_the_next_run(
    took_the_short_way,
):
    fast, x = run_once()
    wanted = fast(x)
    with Watching() as watch:
        assert torch.equal(fast(x), wanted)
    assert torch.ops.tersify.run.default in watch.seen
    assert took_the_short_way(fast, x)


def test_a_subclass_of_tensor_keeps_its_class():
    class Named(torch.Tensor):
        pass

    fast, x = run_once()
    wanted = fast(x)
    made = fast(x.as_subclass(Named))
    assert torch.equal(torch.Tensor(made), wanted)


def test_torch_compile_after_a_run_sees_the_network_and_gives_the_same():
    fast, x = run_once()
    wanted = fast(x)
    compiled = torch.compile(lambda x: fast(x) * 2, backend="eager")
    assert torch.equal(compiled(x), wanted * 2)
    assert torch.equal(fast(x), wanted)


def test_a_network_is_freed_when_nobody_holds_it():
    fast, _ = run_once()
    gone = weakref.ref(fast)
    del fast
    gc.collect()
    assert gone() is None


def test_threads_that_meet_many_sizes_at_once_all_get_their_own_results():
    layer = nn.Linear(64, 8)
    fast = compile(layer, torch.randn(2, 64), threads=2)
    inputs = [[torch.randn(1 + (i + j) % 5, 64) for j in range(200)] for i in range(8)]
    with torch.no_grad():
        wanted = [[layer(x) for x in mine] for mine in inputs]
    found: dict[int, list[torch.Tensor]] = {}
    start = threading.Barrier(8)

    def work(i):
        start.wait()
        with torch.no_grad():
            # other calls give the lock away in between
            found[i] = [fast(x) for x in inputs[i] if len(layer(x))]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads change places wherever they can
    try:
        workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
    for i, mine in enumerate(wanted):
        for made, right in zip(found[i], mine, strict=True):
            assert made.shape == right.shape
            assert torch.allclose(made, right, atol=1e-5)


class Views(nn.Module):
    def __init__(self, order: int) -> None:
        super().__init__()
        self.order, self.first, self.second = order, nn.Linear(12, 24), nn.Linear(24, 6)

    def forward(self, x):
        made = self.first(x)
        view = made.reshape(-1, 4, 6)
        if self.order == 0:
            return view, self.second(made)
        if self.order == 1:
            return view, made, self.second(view.flatten(1))
        return view.reshape(-1, 2, 12), view, torch.relu(view)


@pytest.mark.parametrize("order", range(3))
def test_outputs_that_are_others_under_another_shape_are_right_and_stay(order):
    plain = Views(order).eval()
    fast = compile(plain, torch.randn(2, 12), threads=2)
    kept = []
    for batch in (1, 5, 5, 0, 17):
        x = torch.randn(batch, 12)
        with torch.no_grad():
            kept.append((fast(x), plain(x)))
    for found, wanted in kept:
        assert all(
            torch.allclose(a, b, atol=1e-5) and a.shape == b.shape
            for a, b in zip(found, wanted, strict=True)
        )


class Weighed(nn.Module):
    """Attention that also returns its weights: some of its calls are torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)


@needs_short_way
def test_a_network_with_torch_calls_is_recognised_in_c_too(monkeypatch):
    model, x = Weighed().eval(), torch.randn(2, 8, 16)
    fast = compile(model, x, threads=1)
    assert fast._sizes.first.network.calls_torch

    def ask(*_):
        raise AssertionError("the call went through Python's checks")

    with monkeypatch.context() as patched, torch.no_grad():
        patched.setattr("tersify.runtime.compiled.key_of_call", ask)
        for _ in range(3):
            x = torch.randn(2, 8, 16)
            for made, wanted in zip(fast(x), model(x), strict=True):
                assert torch.allclose(made, wanted, atol=1e-6)
        with pytest.raises(AssertionError, match="Python's checks"):
            fast(x[:1])
    gone = weakref.ref(fast)
    del fast
    gc.collect()
    assert gone() is None


def test_keywords_of_the_example_are_not_taken_for_positions():
    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(6, 5), nn.Linear(6, 5)

        def forward(self, second, first):
            return self.one(first) - 2 * self.two(second)

    model, a, b = Takes(), torch.randn(2, 6), torch.randn(2, 6)
    fast = compile(model, {"first": a, "second": b}, threads=1)
    with torch.no_grad():
        wanted = model(b, a)
        assert torch.allclose(fast(first=a, second=b), wanted, atol=1e-6)
        for _ in range(2):
            assert torch.allclose(fast(b, a), wanted, atol=1e-6)


def test_tensors_in_a_list_are_not_taken_for_positions():
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 5)

        def forward(self, parts):
            return self.layer(parts[0]) + self.layer(parts[1])

    model, a, b = Sums(), torch.randn(2, 6), torch.randn(2, 6)
    fast = compile(model, ([a, b],), threads=1)
    with torch.no_grad():
        assert torch.allclose(fast([a, b]), model([a, b]), atol=1e-6)
    with pytest.raises(ValueError, match="does not take an input"):
        fast(a, b)
