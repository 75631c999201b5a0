"""Triangular compensation: the outputs of a layer, with the codes of each kind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tersify.compensated.steps import Steps, packed_steps, rounded
from tersify.compensated.tables import Pruned, Table, Ternary
from tersify.compensated.triangular import BLOCK_COLUMNS, compensate, spread_of

COLUMNS = BLOCK_COLUMNS + 30  # more than one block


def layer() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    inputs = (
        torch.randn(2000, COLUMNS)
        @ torch.randn(COLUMNS, COLUMNS)
        * (torch.rand(COLUMNS) + 0.1)
    )
    return torch.randn(60, COLUMNS), inputs


def damage(weight: Tensor, other: Tensor, inputs: Tensor) -> float:
    return float(((weight - other) @ inputs.T).square().mean())


CODES = {
    "steps": lambda: Steps(torch.full((60,), 3.0), dead_zone=0.0),
    "table": lambda: Table(3, torch.ones(60)),
    "ternary": Ternary,
    "pruned": lambda: Pruned(0.5),
}


@pytest.mark.parametrize("kind", CODES)
def test_compensation_does_less_damage_than_rounding(kind):
    weight, inputs = layer()
    upper = spread_of(inputs.T @ inputs / len(inputs), 0.001)
    independent = torch.diag(upper.diagonal())  # errors are passed on to nobody
    better = damage(weight, compensate(weight, upper, CODES[kind]()), inputs)
    plain = damage(weight, compensate(weight, independent, CODES[kind]()), inputs)
    assert better < 0.85 * plain


@pytest.mark.parametrize("kind", CODES)
def test_the_packed_form_is_what_the_errors_were_measured_with(kind):
    weight, inputs = layer()
    code = CODES[kind]()
    made = compensate(weight, spread_of(inputs.T @ inputs, 0.01), code)
    assert torch.equal(code.packed().to_dense(), made)


def test_the_damage_of_a_column_is_its_error_over_its_spread():
    """What makes steps ∝ U_jj right: each column of unit error then does the same
    damage.
    """
    weight, inputs = layer()
    upper = spread_of(inputs.T @ inputs / len(inputs), 1e-6)
    code = Steps(torch.full((60,), 0.5), dead_zone=0.0)
    made = compensate(weight, upper, code)
    steps = (code.rows[:, None] * code.columns / upper.diagonal().float()).square()
    assert damage(weight, made, inputs) == pytest.approx(
        float(steps.mean()) / 12 * COLUMNS, rel=0.1
    )


def test_an_input_that_is_always_zero_does_no_harm():
    weight, inputs = layer()
    inputs[:, 5] = 0.0
    made = compensate(
        weight,
        spread_of(inputs.T @ inputs / len(inputs), 0.01),
        Table(4, torch.ones(60)),
    )
    assert bool(made.isfinite().all())


def test_fewer_tokens_than_columns_are_enough():
    weight, inputs = layer()
    few = inputs[:20]
    upper = spread_of(few.T @ few / len(few), 0.01)
    plain = compensate(weight, torch.diag(upper.diagonal()), Table(4, torch.ones(60)))
    assert damage(
        weight, compensate(weight, upper, Table(4, torch.ones(60))), few
    ) < damage(weight, plain, few)


def test_inputs_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="not finite"):
        spread_of(torch.full((3, 3), torch.nan), 0.01)


def test_a_dead_zone_gives_more_zeros_and_touches_nothing_else():
    values = torch.linspace(-4, 4, 1001)
    plain, dead = rounded(values, 0.0), rounded(values, 0.2)
    assert int((dead == 0).sum()) > int((plain == 0).sum())
    assert torch.equal(dead[values.abs() > 0.7], plain[values.abs() > 0.7])


def test_steps_beyond_the_alphabet_are_cut_off():
    assert rounded(torch.tensor([-1e9, 1e9]), 0.1).tolist() == [-127, 127]


def test_whole_numbers_become_codes_with_zero_first():
    packed = packed_steps(
        torch.tensor([[-2, 0, 1]], dtype=torch.int8), torch.ones(1), torch.ones(3)
    )
    assert packed.to_dense().tolist() == [[-2.0, 0.0, 1.0]]
    assert packed.codes[0, 1] == 0


def test_pruning_leaves_the_asked_share_of_zeros():
    weight, inputs = layer()
    made = compensate(weight, spread_of(inputs.T @ inputs, 0.01), Pruned(0.7))
    assert float((made == 0).float().mean()) == pytest.approx(0.7, abs=0.01)
