"""The hardware's view of a codebook: words, steps, shifts and bytes."""

import numpy as np
import pytest
import torch

from tersify import CompressedTensor
from tersify.tensor import Table, TableFormat


def test_the_papers_example_is_stored_as_01010110():
    form = TableFormat(n=4, m=8, k=4, sign_in_code=True)
    words, internal = form.words(np.array([0.02099609375]))
    assert internal.all()
    assert format(int(words[0]), "08b") == "01010110"


def test_twos_complement_steps_are_those_of_the_text():
    form = TableFormat(n=4, m=8, k=3)
    assert form.step == 2.0**-7
    assert form.fine_step == 2.0**-10
    words, internal = form.words(np.array([-0.125, 0.125, -1.0, 127 / 1024]))
    assert words.tolist() == [-128, 16, -128, 127]
    assert internal.tolist() == [True, False, False, True]


def test_rounding_keeps_to_the_grid_and_saturates_at_the_largest_words():
    form = TableFormat(n=4, m=6, k=2, integer_bits=1)
    rounded = form.round(np.linspace(-3, 3, 1001))
    assert set(rounded) <= set(form.grid())
    assert rounded.min() == -2.0
    assert rounded.max() == 2 - form.step


def test_a_level_between_the_words_is_refused():
    with pytest.raises(ValueError, match="do not fit 8-bit words"):
        TableFormat(n=4, m=8, k=1).words(np.array([0.001]))


def test_hardware_codes_ascend_with_their_levels_and_keep_the_weights():
    codebook = torch.tensor([0.0, 0.25, 0.5, -0.125])
    codes = torch.tensor([[0, 1], [2, 3]], dtype=torch.uint8)
    tensor = CompressedTensor(
        shape=(2, 2),
        codes=codes,
        codebook=codebook,
        format=TableFormat(n=2, m=8, k=1).to_mapping(),
    )
    table = Table.of(tensor)
    assert (np.diff(table.fine_words()[0]) > 0).all()
    assert np.array_equal(
        table.fine_words()[0][table.codes] * table.format.fine_step,
        tensor.to_dense().numpy(),
    )
    assert table.code_bytes() == 1
    assert table.table_bytes() == 5  # four words of 8 bits and their partition bits


def test_a_tensor_of_another_method_is_no_table():
    plain = CompressedTensor(
        shape=(2,),
        codes=torch.zeros(2, dtype=torch.uint8),
        codebook=torch.tensor([0.0, 1.0]),
        format={"n": 1},
    )
    with pytest.raises(ValueError, match="method 'lookup'"):
        Table.of(plain)
