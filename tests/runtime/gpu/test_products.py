"""Products of the CUDA kernels, which the C++ compiler builds for the CPU, are those of
the reference.
"""

from __future__ import annotations

import emulator
import pytest
import torch
from packed_cases import FORMS, TOLERANCES, TYPES_OF, bias_of, packed_weight, vectors

from tersify.runtime.check import difference
from tersify.runtime.gpu.launch import Tiling
from tersify.runtime.gpu.operator import reference
from tersify.runtime.gpu.packed import LISTS, TABLE, TERNARY
from tersify.runtime.gpu.products import BF16_PARTS, INT8, Settings, product, table_of

# every kernel is built for the CPU
pytestmark = [pytest.mark.usefixtures("emulated"), pytest.mark.long]
SMALL = Settings(
    tilings=tuple(
        map(Tiling.read, ((1, 2, 1, 2), (1, 2, 1, 2), (2, 2, 2, 1), (1, 2, 2, 1)))
    ),
    lists=(2, 2),
    dense_from=40,
)


def assert_right(
    form: str,
    rows: int,
    features: int,
    count: int,
    activations: str,
    dtype: torch.dtype,
    settings: Settings = SMALL,
) -> None:
    packed, bias = packed_weight(form, rows, features, activations), bias_of(rows)
    x = vectors(count, features, dtype)
    table = table_of(packed, activations)
    made = product(x, packed, table, bias, activations, settings, emulator.run)
    assert made.dtype == dtype
    assert (
        difference(made.double(), reference(x, packed, bias, activations))
        <= TOLERANCES[dtype]
    )


@pytest.mark.parametrize("activations", list(TYPES_OF))
@pytest.mark.parametrize("form", FORMS)
def test_one_vector_times_a_weight_of_odd_size_is_right(
    form: str, activations: str
) -> None:
    assert_right(form, 37, 203, 1, activations, TYPES_OF[activations])


@pytest.mark.parametrize(
    ("form", "count", "activations"),
    [
        (TERNARY, 13, INT8),
        (TERNARY, 5, "fp16"),
        (TABLE, 13, INT8),
        (TABLE, 5, "bf16"),
        (LISTS, 3, "fp16"),
        (TERNARY, 12, BF16_PARTS),
    ],
)
def test_several_vectors_are_right(form: str, count: int, activations: str) -> None:
    assert_right(form, 20, 136, count, activations, TYPES_OF[activations])


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("activations", list(TYPES_OF))
@pytest.mark.parametrize("flat", [(1, 3, 1, 0), (2, 2, 2, 0)])
def test_words_that_come_to_shared_memory_first_give_the_same(
    flat: tuple[int, ...], activations: str, count: int
) -> None:
    settings = Settings(tilings=(Tiling.read(flat),) * 4)
    dtype = TYPES_OF[activations]
    assert_right(TERNARY, 37, 523, count, activations, dtype, settings)


@pytest.mark.parametrize(
    ("activations", "count"), [(INT8, 1), ("fp16", 1), ("bf16", 5)]
)
def test_words_of_tables_come_to_shared_memory_too(
    activations: str, count: int
) -> None:
    settings = Settings(tilings=(Tiling.read((2, 3, 2, 0)),) * 4)
    dtype = TYPES_OF[activations]
    assert_right(TABLE, 37, 523, count, activations, dtype, settings)


@pytest.mark.parametrize("activations", [INT8, "fp16"])
def test_a_long_row_in_several_lists_is_right(activations: str) -> None:
    assert_right(LISTS, 21, 3300, 1, activations, TYPES_OF[activations])


def test_more_vectors_than_a_launch_takes_go_in_several() -> None:
    assert_right(TERNARY, 20, 136, 35, INT8, torch.float32)


@pytest.mark.parametrize("form", [TERNARY, TABLE])
def test_many_vectors_meet_the_weight_made_dense(form: str) -> None:
    assert_right(form, 37, 203, 40, "fp16", torch.float16)


def test_int8_steps_of_16_bit_activations_are_those_of_their_numbers() -> None:
    assert_right(TERNARY, 20, 136, 1, INT8, torch.bfloat16)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("odd", [float("inf"), float("nan")])
@pytest.mark.parametrize("activations", [INT8, BF16_PARTS])
def test_an_infinite_number_never_becomes_a_finite_result(
    form: str, odd: float, activations: str
) -> None:
    packed, x = (
        packed_weight(form, 20, 136, activations),
        vectors(1, 136, torch.float32),
    )
    x[0, 7] = odd
    made = product(
        x, packed, table_of(packed, activations), None, activations, SMALL, emulator.run
    )
    wanted = reference(x, packed, None, activations)
    assert torch.equal(made.isfinite() & wanted.isfinite(), made.isfinite())
    if activations == INT8:
        assert made.isnan().all()


@pytest.mark.parametrize("form", FORMS)
def test_no_vectors_give_no_results(form: str) -> None:
    packed = packed_weight(form, 20, 136, INT8)
    x = torch.empty(0, 136)
    assert product(
        x, packed, table_of(packed, INT8), None, INT8, SMALL, emulator.run
    ).shape == (0, 20)
