"""Random modules against torch, other ones in every run; and the fuzzer itself, which
must see what it looks for.
"""

from __future__ import annotations

import copy
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import fuzz_check
import fuzz_runs
import pytest
import torch
from fuzz_check import Setting, cut_down, tried
from fuzz_inputs import odd
from fuzz_modules import STRUCTURES, Case, Program, build, runs, smaller
from fuzz_runs import chunk
from fuzz_steps import KINDS, Step
from torch import Tensor, nn

from tersify.runtime import compile

pytest.importorskip("tersify._runtime")

CHUNKS, MODULES = 2, 150
EXACT = Setting(precision="fp32", isa=None, threads=1)


@pytest.mark.parametrize("part", range(CHUNKS))
def test_random_modules_are_right_or_refused(part):
    seed = 1000 * part
    if os.environ.get("CI") or os.environ.get("TERSIFY_RANDOM"):
        seed = time.time_ns() // 1000 % 10**9
    found = chunk(seed, MODULES)
    print(f"part {part}, seed {seed}: {found.describe()}")
    assert not found.wrong, (
        f"python tests/runtime/fuzz_runs.py 1 SEED shows one again\n{found.describe()}"
    )
    assert found.modules == MODULES
    assert found.right > found.refused


def test_a_seed_gives_the_same_module_with_the_same_weights():
    for seed in range(20):
        one, other = build(seed), build(seed)
        assert one.program.text() == other.program.text()
        states = one.program.state_dict(), other.program.state_dict()
        assert all(
            torch.equal(a, b)
            for a, b in zip(*(s.values() for s in states), strict=True)
        )


def test_every_kind_of_step_and_of_odd_input_is_drawn(monkeypatch):
    seen: Counter[str] = Counter()
    kinds = dict(KINDS)

    def counting(name):
        def draw(rng, value):
            drawn = kinds[name](rng, value)
            seen[name] += drawn is not None
            return drawn

        return draw

    for name in kinds:
        monkeypatch.setitem(KINDS, name, counting(name))
    structures, thinnings = set(), set()
    for seed in range(200):
        case = build(seed)
        structures.add(case.program.structure)
        thinnings.add(case.weights)
    assert set(seen) == set(kinds)
    assert structures == {"tensor", *STRUCTURES}
    assert len(thinnings) >= 8


def test_modules_run_at_other_batches_and_sizes_more_often_than_not():
    ran = sum(
        runs(case.program, case.inputs(5, 1)) is not None
        for case in map(build, range(60))
    )
    assert ran > 30


def test_torch_itself_is_never_wrong(monkeypatch):
    monkeypatch.setattr(fuzz_check, "compile", lambda model, example, **options: model)
    outcomes = [tried(build(seed), EXACT) for seed in range(40)]
    assert [outcome.why for outcome in outcomes if outcome.kind != "right"] == []
    assert sum(outcome.calls for outcome in outcomes) > 200


def wrong_beside(fast: nn.Module, change: str) -> nn.Module:
    """A compiled network with one mistake."""

    class Wrong(nn.Module):
        calls = 0

        def forward(self, *inputs: Tensor) -> object:
            self.calls += 1
            given = fast(*inputs)
            if change == "another type":
                raise KeyError("lost")
            if change == "a small error":
                return given * (1 + 1e-3)
            if change == "another shape":
                return given.unsqueeze(0)
            return torch.full_like(given, float("nan")) if self.calls > 6 else given

    return Wrong()


def two_layers() -> Case:
    """A module in which only the convolution can be wrong, behind and before layers
    that cannot.
    """
    conv = nn.Conv1d(3, 4, 3)
    steps = [
        Step(name="tanh", reads=(0,), run=lambda m, x: x.tanh()),
        Step(name="conv", reads=(1,), run=lambda m, x: m(x), layer=conv),
        Step(name="relu", reads=(2,), run=lambda m, x: x.relu()),
        Step(name="twice", reads=(3,), run=lambda m, x: x * 2),
    ]
    return Case(
        seed=0,
        program=Program(steps, [4], "tensor", None).eval(),
        inputs=lambda batch, shift: (torch.randn(batch, 3, 8 + shift),),
        weights="dense",
    )


@pytest.mark.parametrize(
    "change", ["a small error", "another shape", "another type", "late"]
)
def test_a_planted_mistake_is_found(monkeypatch, change):
    def plain(model, example, **options):
        return copy.deepcopy(model)

    monkeypatch.setattr(fuzz_check, "compile", plain)
    assert tried(two_layers(), EXACT).kind == "right"
    monkeypatch.setattr(
        fuzz_check,
        "compile",
        lambda *given, **options: wrong_beside(plain(*given, **options), change),
    )
    assert tried(two_layers(), EXACT).kind == "wrong"


def test_rounding_may_move_what_jumps_and_nothing_else():
    torch.manual_seed(0)
    norm = nn.Sequential(nn.Linear(3, 2, bias=False), nn.LayerNorm(2)).eval()
    with torch.no_grad():
        # the sign of the difference of two numbers
        x = torch.randn(500, 3)
        assert fuzz_check.shaken(norm, (x,), 1 / 64, {}) > 1
        layers = two_layers()
        for step, most in ((1 / 64, 0.15), (1 / 1024, 0.01)):
            moved = fuzz_check.shaken(layers.program, layers.inputs(2, 0), step, {})
            assert 0 < moved < most


def largest_token(tokens: Callable[[Tensor], Tensor]) -> Case:
    """Marks which of four tokens is the largest behind a linear layer."""
    steps = [
        Step(
            name="linear",
            reads=(0,),
            run=lambda m, x: m(tokens(x)),
            layer=nn.Linear(6, 5),
        ),
        Step(
            name="scatter(1)",
            reads=(1,),
            run=lambda m, x: torch.zeros_like(x).scatter(
                1, x.argmax(1, keepdim=True), 1.0
            ),
        ),
    ]
    return Case(
        seed=0,
        program=Program(steps, [2], "tensor", None).eval(),
        inputs=lambda batch, shift: (torch.randn(batch, 1, 6),),
        weights="dense",
    )


def test_rounding_decides_which_of_equal_numbers_is_the_largest(monkeypatch):
    def other_way_round(model, example, **options):
        return lambda *inputs: model(*inputs).flip(1)

    monkeypatch.setattr(fuzz_check, "compile", other_way_round)
    equal = largest_token(lambda x: x.expand(-1, 4, -1))
    assert tried(equal, EXACT).kind == "right"
    growing = largest_token(lambda x: x * torch.arange(1.0, 5.0)[:, None])
    assert tried(growing, EXACT).kind == "wrong"


def test_a_wrong_module_is_cut_down_to_the_step_that_is_wrong(monkeypatch):
    def worse(model, example, **options):
        fast = copy.deepcopy(model)
        for layer in fast.modules():
            if isinstance(layer, nn.Conv1d):
                layer.weight.data.mul_(1.5)
        return fast

    monkeypatch.setattr(fuzz_check, "compile", worse)
    case, outcome = cut_down(two_layers(), EXACT)
    assert [step.name for step in case.program.steps] == ["conv"]
    assert outcome.kind == "wrong"
    assert len(smaller(two_layers())) == 4


def test_a_compile_that_changes_the_module_is_found(monkeypatch):
    def meddling(model, example, **options):
        fast = copy.deepcopy(model)
        model.layers[0].bias.data.add_(1)
        return fast

    monkeypatch.setattr(fuzz_check, "compile", meddling)
    assert "module after compile" in tried(two_layers(), EXACT).why


def test_refusals_are_counted_and_are_no_mistakes(monkeypatch):
    def refusing(model, example, **options):
        raise ValueError("this is not for us")

    monkeypatch.setattr(fuzz_check, "compile", refusing)
    outcome = tried(two_layers(), EXACT)
    assert (outcome.kind, outcome.why) == ("refused", "this is not for us")


def test_a_crash_and_a_hang_are_findings_with_their_seed(monkeypatch, tmp_path):
    script = tmp_path / "child.py"
    script.write_text(
        "import os, sys, time, json\n"
        "first = int(sys.argv[2])\n"
        "if sys.argv[1] == '--torch':\n"
        "    os.abort() if first == 2 else sys.exit()\n"
        "for seed in range(first, 5):\n"
        "    print(json.dumps({'start': seed, 'text': 'a module'}), flush=True)\n"
        "    if seed in (1, 2): os.abort()\n"
        "    if seed == 3: time.sleep(60)\n"
        "    facts = {'kind': 'right', 'why': '', 'calls': 9, 'refused': 0}\n"
        "    print(json.dumps({'end': seed, 'text': 'a module', **facts}), flush=True)\n"
        "print(json.dumps({'done': True}), flush=True)\n"
    )
    monkeypatch.setattr(fuzz_runs, "__file__", str(script))
    monkeypatch.setattr(fuzz_runs, "PER_MODULE_S", 6)
    found = chunk(0, 5)
    assert found.right == 2
    assert found.refusals == {"torch itself ends the process": 1}
    assert [text.split(":")[0] for text in found.wrong] == ["seed 1", "seed 3"]
    assert "hangs" in found.wrong[1]


def test_a_running_mean_of_normed_numbers_may_differ_by_their_rounding():
    # The mean of what a norm gives is zero; a buffer of it holds rounding alone.
    assert tried(build(20265311), replace(EXACT, isa="portable")).kind == "right"


def test_every_module_also_runs_in_doubles_which_tell_how_far_off_torch_is():
    with torch.no_grad():
        for seed in range(120):
            case = build(seed)
            if runs(case.program, case.inputs(2, 0)) is not None:
                exact = fuzz_check._exact(case.program, case.inputs(2, 0))
                assert exact is not None, f"seed {seed}\n{case.program.text()}"


def test_a_tiny_sigmoid_of_a_huge_mean_may_differ_by_the_rounding_of_the_mean():
    # The bilinear samples behind it took no doubles, so nothing told torch's own error.
    assert tried(build(917350805), replace(EXACT, isa="portable")).kind == "right"


def test_odd_inputs_hold_the_shape_and_several_layouts():

    names = {
        odd(random.Random(seed), torch.randn(2, 3, 4, 5))[0] for seed in range(200)
    }
    assert {
        "transposed",
        "expanded",
        "channels last",
        "every second",
        "negated view",
    } <= names
    for seed in range(50):
        assert odd(random.Random(seed), torch.randn(2, 3, 4))[1].shape == (2, 3, 4)


def test_compile_itself_is_what_is_tried():
    assert fuzz_check.compile is compile
