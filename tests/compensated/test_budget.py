"""A budget in bytes of the whole file: kept, nearly used, and by the coder's own bytes."""

from __future__ import annotations

import pytest
import torch
from small_language_model import SmallModel, calibration, trained

import tersify
from tersify.codec.writer import encoded
from tersify.compensated import Compensation, budget, compensate_, compensate_within_

STEPS = Compensation(bits=8.0)


def size_of(packed):
    return encoded(packed).size_bytes


def within(limit, settings=STEPS, **given):
    model = trained()
    packed = compensate_within_(
        model,
        settings,
        limit,
        size_of=size_of,
        calibration=calibration(16),
        **given,
    )
    return model, packed


def wanted_bytes(bits):
    return size_of(
        compensate_(trained(), Compensation(bits=bits), calibration=calibration(16))
    )


@pytest.mark.parametrize("bits", [2.0, 3.3])
def test_the_file_takes_at_most_the_bytes_and_nearly_all_of_them(bits, tmp_path):
    limit = wanted_bytes(bits) + 20
    model, packed = within(limit)
    size = tersify.save(packed, tmp_path / "net.terse")
    assert limit * (1 - 2 * budget.SLACK) < size <= limit
    loaded = tersify.load(tmp_path / "net.terse", into=SmallModel()).state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(value, loaded[name]), name


@pytest.mark.parametrize(
    "settings",
    [
        Compensation(tune_steps=3, tune_codes=True),
        Compensation(code="table", bits=4.0, coded_bits=3.0),
    ],
)
def test_tuned_codes_and_tables_with_a_price_keep_to_the_bytes_too(settings):
    limit = wanted_bytes(3.0)
    model, packed = within(limit, settings)
    assert 0.95 * limit < size_of(packed) <= limit
    for name, tensor in packed.compressed().items():
        assert torch.equal(tensor.to_dense(), model.get_parameter(name)), name


def test_sizes_that_were_tried_are_kept_and_end_the_same(tmp_path, monkeypatch):
    limit = wanted_bytes(2.5)
    first, _ = within(limit, folder=tmp_path)
    made = []
    monkeypatch.setattr(
        budget,
        "compensate_",
        lambda *given, **named: made.append(1) or compensate_(*given, **named),
    )
    again, _ = within(limit, folder=tmp_path)
    assert len(made) == 1
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_more_bytes_than_the_finest_steps_need_are_left_over():
    _, packed = within(10_000_000)
    assert size_of(packed) < 10_000_000


def test_bytes_that_no_steps_fit_in_are_told_of():
    with pytest.raises(ValueError, match=r"^900 bytes are too few: with 0.50 bits a"):
        within(900)


def test_a_code_without_bits_of_its_own_takes_no_budget():
    with pytest.raises(ValueError, match="is for code steps and for tables with"):
        within(9000, Compensation(code="ternary"))
