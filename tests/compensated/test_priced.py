"""Tables whose codes have a price: fewer bytes for what they lose, and never more levels
than a code has numbers.
"""

from __future__ import annotations

import pytest
import torch
from small_language_model import SmallModel, calibration, loss_of, trained

import tersify
from tersify.compensated import Compensation, compensate_, priced
from tersify.compensated.priced import PRICE, Levels, priced_levels


def laplacian(count: int, size: float, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (count,), generator=g) * 2.0 - 1
    return -signs * size * torch.rand(count, generator=g).clamp(min=1e-9).log()


def cost(values: torch.Tensor, levels: Levels) -> float:
    """Squared errors, and the price of the entropy of the codes."""
    counts = torch.bincount(levels.ranks(values) + levels.zero).double()
    fractions = counts[counts > 0] / counts.sum()
    bits = float(-(fractions * fractions.log2()).sum())
    return float((values - levels(values)).square().mean()) + PRICE * bits


@pytest.mark.parametrize("size", [0.5, 2.0, 6.0])
def test_priced_levels_cost_less_than_uniform_steps_and_than_the_nearest(size):
    values = laplacian(20_000, size)
    found = priced_levels(values, 16)
    assert len(found.values) <= 16
    for width in (0.8, 1.0, 1.3, size / 3):
        uniform = torch.arange(-8.0, 8.0) * width
        nearest = (values[:, None] - uniform).abs().argmin(1)
        counts = torch.bincount(nearest, minlength=16).float()
        assert cost(values, found) < cost(values, Levels(uniform, counts))


def test_a_level_lies_at_zero_and_codes_begin_with_it():
    found = priced_levels(laplacian(5_000, 3.0) + 0.3, 8)
    codes, codebook = found.coded(found.ranks(torch.tensor([0.0, 50.0, -50.0])))
    assert codebook[0] == 0
    assert codes[0] == 0
    assert codebook[codes.int()].tolist() == [0, found.values[-1], found.values[0]]


def test_one_value_and_none_but_zeros_have_tables():
    for values in (torch.zeros(40), torch.full((40,), 2.5)):
        found = priced_levels(values, 4)
        assert torch.equal(found(values), values)


def test_a_rare_level_gives_way_to_a_frequent_one():
    values = torch.tensor([-1.0, 0.0, 1.0])
    even = Levels(values, torch.tensor([10, 10, 10]))
    rare = Levels(values, torch.tensor([1, 98, 1]))
    assert even.limits.tolist() == pytest.approx([-0.5, 0.5])
    assert rare.limits[0] < -0.6
    assert rare.limits[1] > 0.6


def saved(tmp_path, **settings) -> tuple[int, float, int]:
    """Bytes, what the loss grows by, and the most levels of a matrix."""
    model = trained()
    packed = compensate_(model, Compensation(**settings), calibration=calibration(32))
    size = tersify.save(packed, tmp_path / "net.terse")
    loaded = tersify.load(tmp_path / "net.terse", into=SmallModel())
    for name, value in model.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name]), name
    levels = max(tensor.levels or 0 for tensor in packed.compressed().values())
    return size, loss_of(loaded) - loss_of(trained()), levels


def test_a_priced_table_is_smaller_than_a_plain_one_and_holds_its_levels(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(priced, "BINS", 96)  # coarser, and quicker
    plain, _, _ = saved(tmp_path, code="table", bits=4.0)
    small, lost, levels = saved(tmp_path, code="table", bits=4.0, coded_bits=2.8)
    assert levels <= 16
    assert small < 0.85 * plain
    tuning = {"tune_steps": 50, "tune_rate": 0.005, "tune_codes": True}
    tuned, less, levels = saved(
        tmp_path, code="table", bits=4.0, coded_bits=2.8, **tuning
    )
    assert levels <= 16
    assert tuned < 1.05 * small
    assert less < 0.9 * lost


def test_a_price_is_for_tables_alone():
    with pytest.raises(ValueError, match="coded_bits is for code table"):
        Compensation(coded_bits=3.0)
    with pytest.raises(ValueError, match="tables with coded_bits"):
        Compensation(code="table", bits=4.0, tune_codes=True)
