"""The signal path in integers: FFT, CORDIC, logarithm, and the enhancer from samples to samples."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tersify
from tersify.lab.networks.speech import SpeechMlp
from tersify.lab.speech import enhance, snr_db
from tersify.runtime.fixed import ROUNDINGS, Cordic, FixedFft, Monitor, fixed_speech
from tersify.runtime.fixed.speech import LOG_FRACTION, exp2, log2


def rows(seed: int, size: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.integers(-size, size, (5, 256)), draw.integers(-size, size, (5, 256))


def test_the_integer_fft_is_the_fft_divided_by_its_shifts():
    re, im = rows(0, 1 << 22)
    got_re, got_im = FixedFft()(re, im, Monitor())
    expected = np.fft.fft(re + 1j * im) / 256
    assert np.abs(got_re + 1j * got_im - expected).max() < 30  # of some 2^21


def test_there_and_back_is_where_it_was():
    re, im = rows(1)
    monitor = Monitor()
    spectrum = FixedFft(shifts=(0,) * 8, width=40)(re, im, monitor)
    back = FixedFft(shifts=(1,) * 8, width=40).inverse(*spectrum, monitor)
    assert np.abs(back[0] - re).max() <= 4
    assert np.abs(back[1] - im).max() <= 4
    assert monitor.overflows() == {}


def test_a_narrow_fft_counts_its_overflows():
    re, im = rows(2, 1 << 14)
    monitor = Monitor()
    FixedFft(shifts=(0,) * 8, width=16)(re, im, monitor)
    assert monitor.overflows()
    assert len(monitor.nodes) == 16


@given(st.integers(-(2**24), 2**24), st.integers(-(2**24), 2**24))
def test_cordic_finds_magnitude_and_phase_in_every_quadrant(x, y):
    cordic = Cordic()
    magnitude, phase = (int(part[0]) for part in cordic.polar(np.array([x]), np.array([y])))
    assert magnitude == pytest.approx(np.hypot(x, y), rel=1e-4, abs=2)
    if np.hypot(x, y) > 1000:
        error = np.angle(np.exp(1j * (phase / 2**20 * 2 * np.pi - np.arctan2(y, x))))
        assert abs(error) < 1e-3


@given(st.integers(0, 2**24), st.integers(-(2**19), 2**19 - 1))
def test_cordic_turns_a_magnitude_by_any_phase(magnitude, phase):
    x, y = (int(part[0]) for part in Cordic().rectangular(np.array([magnitude]), np.array([phase])))
    angle = phase / 2**20 * 2 * np.pi
    assert x == pytest.approx(magnitude * np.cos(angle), abs=2 + 1e-4 * magnitude)
    assert y == pytest.approx(magnitude * np.sin(angle), abs=2 + 1e-4 * magnitude)


def test_more_iterations_are_more_exact():
    points = np.arange(1, 1000) * 997
    errors = [np.abs(Cordic(iterations=n).polar(points, points[::-1])[0] - np.hypot(points, points[::-1])).max()
              for n in (4, 8, 16)]  # fmt: skip
    assert errors[0] > errors[1] > errors[2]


@given(st.integers(1, 2**30))
def test_the_integer_logarithm_is_close(value):
    assert int(log2(np.array([value]))[0]) / 2**LOG_FRACTION == pytest.approx(np.log2(value), abs=4e-3)


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
    noisy = 0.1 * torch.sin(2 * torch.pi * 440 * time) * (1 + torch.sin(2 * torch.pi * 3 * time)) + 0.02 * torch.randn(
        8000
    )
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
    heard, usual = (fixed_speech(packed, head="mask", rounding=r)(noisy) for r in (rounding, "half-up"))
    assert np.abs(heard - usual).max() < 100
    assert (rounding == "half-up") == np.array_equal(heard, usual)


def test_bad_settings_and_signals_are_told():
    packed = tersify.compress_(SpeechMlp().eval(), "lut-3")
    with pytest.raises(ValueError, match="head must be mask or spectrum"):
        fixed_speech(packed, head="both")
    with pytest.raises(ValueError, match="one row of samples"):
        fixed_speech(packed, head="mask")(np.zeros(0))
    with pytest.raises(ValueError, match="a power of two"):
        FixedFft(points=100)
    with pytest.raises(ValueError, match="8 shifts"):
        FixedFft(shifts=(1,))
    with pytest.raises(ValueError, match="iterations must be"):
        Cordic(iterations=0)
