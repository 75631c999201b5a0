"""SVG figures as PNG files, drawn by a browser: the only program here that draws them
just as the page shows them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tersify.codec.atomic import replacing

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_SIZE = re.compile(r'<svg[^>]* width="(\d+)"[^>]* height="(\d+)"')


def write_png(svg: Path, *, scale: int = 2) -> Path:
    """The figure as a PNG beside it, `scale` pixels for each of its units."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise ValueError(
            f"PNG files are drawn by a browser and none of {', '.join(BROWSERS)} is installed; use the SVG"
        )
    size = _SIZE.search(svg.read_text(encoding="utf-8"))
    if size is None:
        raise ValueError(
            f"{svg} gives no width and height in whole numbers; only figures of ours can be drawn"
        )
    png = svg.with_suffix(".png")
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder) / "drawn.png"
        command = [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--disable-background-networking",
            f"--user-data-dir={folder}/profile",
            f"--force-device-scale-factor={scale}",
            f"--window-size={size[1]},{size[2]}",
            f"--screenshot={drawn}",
            svg.resolve().as_uri(),
        ]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=60)
        except subprocess.SubprocessError as error:
            raise ValueError(
                f"{browser} could not draw {svg} ({type(error).__name__}); use the SVG"
            ) from error
        with replacing(png) as file:
            file.write(drawn.read_bytes())
    return png
