"""Figures as PNG: drawn by a browser where there is one, refused with a reason where
there is none.
"""

import shutil

import pytest

from tersify.report import raster
from tersify.report.raster import write_png
from tersify.report.svg import Drawing, tag


def test_a_figure_becomes_a_png_of_twice_its_size(tmp_path):
    if not any(map(shutil.which, raster.BROWSERS)):
        pytest.skip("needs chromium")
    image = pytest.importorskip("PIL.Image", reason="needs pillow")
    svg = tmp_path / "figure.svg"
    svg.write_text(
        Drawing(
            tag("rect", x=0, y=0, width=400, height=250, fill="var(--s0)")
        ).standalone("blue")
    )
    with image.open(write_png(svg)) as drawn:
        assert drawn.size == (800, 556)
        assert drawn.convert("RGB").getpixel((400, 400)) == (0x25, 0x63, 0xC9)


def test_without_a_browser_it_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(raster, "BROWSERS", ("no-such-browser",))
    with pytest.raises(
        ValueError, match="none of no-such-browser is installed; use the SVG"
    ):
        write_png(tmp_path / "figure.svg")


def test_a_browser_that_fails_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(raster, "BROWSERS", ("false",))
    svg = tmp_path / "figure.svg"
    svg.write_text(Drawing("").standalone("nothing"))
    with pytest.raises(
        ValueError,
        match=r"false could not draw .*figure.svg \(CalledProcessError\); use the SVG",
    ):
        write_png(svg)
