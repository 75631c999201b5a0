"""The signal path in integers: FFT and CORDIC."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tersify.runtime.fixed import Cordic, FixedFft, Monitor


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
    magnitude, phase = (
        int(part[0]) for part in cordic.polar(np.array([x]), np.array([y]))
    )
    assert magnitude == pytest.approx(np.hypot(x, y), rel=1e-4, abs=2)
    if np.hypot(x, y) > 1000:
        error = np.angle(np.exp(1j * (phase / 2**20 * 2 * np.pi - np.arctan2(y, x))))
        assert abs(error) < 1e-3


@given(st.integers(0, 2**24), st.integers(-(2**19), 2**19 - 1))
def test_cordic_turns_a_magnitude_by_any_phase(magnitude, phase):
    x, y = (
        int(part[0])
        for part in Cordic().rectangular(np.array([magnitude]), np.array([phase]))
    )
    angle = phase / 2**20 * 2 * np.pi
    assert x == pytest.approx(magnitude * np.cos(angle), abs=2 + 1e-4 * magnitude)
    assert y == pytest.approx(magnitude * np.sin(angle), abs=2 + 1e-4 * magnitude)


def test_more_iterations_are_more_exact():
    points = np.arange(1, 1000) * 997
    errors = [
        np.abs(
            Cordic(iterations=n).polar(points, points[::-1])[0]
            - np.hypot(points, points[::-1])
        ).max()
        for n in (4, 8, 16)
    ]
    assert errors[0] > errors[1] > errors[2]


def test_bad_settings_are_told():
    with pytest.raises(ValueError, match="a power of two"):
        FixedFft(points=100)
    with pytest.raises(ValueError, match="8 shifts"):
        FixedFft(shifts=(1,))
    with pytest.raises(ValueError, match="iterations must be"):
        Cordic(iterations=0)
