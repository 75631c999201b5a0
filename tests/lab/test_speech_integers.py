"""The speech network and its signal path in integers: logarithm, power, and the
enhancer from samples to samples.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tersify
from tersify.lab.networks.speech import SpeechMlp
from tersify.lab.speech import enhance, snr_db
from tersify.lab.speech.integers import LOG_FRACTION, exp2, fixed_speech, log2
from tersify.runtime.fixed import ROUNDINGS, Monitor


@given(st.integers(1, 2**30))
def test_the_integer_logarithm_is_close(value):
    assert int(log2(np.array([value]))[0]) / 2**LOG_FRACTION == pytest.approx(
        np.log2(value), abs=4e-3
    )


@given(st.integers(-20 * 2**LOG_FRACTION, 5 * 2**LOG_FRACTION))
def test_the_integer_power_of_two_is_close(power):
    assert int(exp2(np.array([power]))[0]) / 2**14 == pytest.approx(
        2.0 ** (power / 2**LOG_FRACTION), rel=3e-3, abs=1e-4
    )


@pytest.mark.parametrize("head", ["mask", "spectrum"])
def test_the_integer_enhancer_follows_the_real_one(head):
    torch.manual_seed(0)
    model = SpeechMlp(head).eval()
    time = torch.arange(8000) / 8000
    noisy = 0.1 * torch.sin(2 * torch.pi * 440 * time) * (
        1 + torch.sin(2 * torch.pi * 3 * time)
    ) + 0.02 * torch.randn(8000)
    model.mean.fill_(-2.0)
    model.spread.fill_(1.5)
    packed = tersify.compress_(model, "lut-4")
    monitor = Monitor(dump=True)
    fixed = fixed_speech(packed, head=head, sample=noisy.numpy())
    heard = fixed(noisy.numpy(), monitor)
    assert len(heard) == len(noisy)
    assert snr_db(enhance(model, noisy), torch.from_numpy(heard / 2**15).float()) > 20
    assert monitor.overflows() == {}
    assert np.array_equal(monitor.nodes["output"].dump, heard)


@pytest.mark.parametrize("rounding", sorted(ROUNDINGS))
def test_every_rounding_reaches_every_node(rounding):
    torch.manual_seed(0)
    packed = tersify.compress_(SpeechMlp().eval(), "lut-4")
    noisy = 0.1 * np.random.default_rng(0).standard_normal(1000)
    heard, usual = (
        fixed_speech(packed, head="mask", rounding=r)(noisy)
        for r in (rounding, "half-up")
    )
    assert np.abs(heard - usual).max() < 100
    assert (rounding == "half-up") == np.array_equal(heard, usual)


def test_bad_settings_and_signals_are_told():
    packed = tersify.compress_(SpeechMlp().eval(), "lut-3")
    with pytest.raises(ValueError, match="head must be mask or spectrum"):
        fixed_speech(packed, head="both")
    with pytest.raises(ValueError, match="one row of samples"):
        fixed_speech(packed, head="mask")(np.zeros(0))
