"""`tersify serve`: the page that runs .terse files in a browser, on this machine alone."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, unquote, urlsplit

import typer

GIVEN = "/given/"
PAGE = "page/index.html"
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")
SOUNDS = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a")
KINDS = {
    ".terse": "terse",
    ".onnx": "onnx",
    **dict.fromkeys(IMAGES, "image"),
    **dict.fromkeys(SOUNDS, "sound"),
}


def serve(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="A .terse file, an image or a sound, and an .onnx file to begin with."
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="0 lets the system choose one.")
    ] = 8000,
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder of the package @tersify/run, if it is elsewhere."),
    ] = None,
) -> None:
    """Open the page in a browser: drop a .terse file and an image, or speak to the
    speech network, and see result, size and milliseconds.
    """
    given = files or []
    server = server_of(folder or package_folder(), given, port)
    typer.echo(f"http://127.0.0.1:{server.server_port}/{PAGE}{question(given)}")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


def package_folder() -> Path:
    """Beside the installed package, or in a checkout."""
    here = Path(__file__).resolve()
    places = (here.parents[1] / "web", here.parents[3] / "packages" / "run")
    found = next((place for place in places if (place / PAGE).is_file()), None)
    if found is None:
        raise ValueError(
            "this installation has no page; give --folder, a folder of @tersify/run"
        )
    return found


def question(files: list[Path]) -> str:
    """What the page's address says of the files: ?terse=…&image=…"""
    parts = [f"{_kind(file)}={GIVEN}{quote(file.name)}" for file in files]
    return "?" + "&".join(parts) if parts else ""


def server_of(folder: Path, files: list[Path], port: int) -> ThreadingHTTPServer:
    if not (folder / "tersify.wasm").is_file():
        raise ValueError(
            f"{folder} has no tersify.wasm; build it with emscripten: docs/how-to/without-python.md says how"
        )
    for file in files:
        if not file.is_file():
            raise ValueError(f"{file} is no file; give one that exists")
        _kind(file)
    handler = partial(
        _Handler, {file.name: file for file in files}, directory=str(folder)
    )
    return ThreadingHTTPServer(("127.0.0.1", port), handler)


def _kind(file: Path) -> str:
    kind = KINDS.get(file.suffix)
    if kind is None:
        raise ValueError(
            f"{file} is neither a .terse file nor an image, a sound or an .onnx file; give one of those"
        )
    return kind


class _Handler(SimpleHTTPRequestHandler):
    """The package's folder, and the files that were named; no listing of folders."""

    def __init__(self, given: dict[str, Path], *args: object, **more: object) -> None:
        self._given = given
        super().__init__(*args, **more)  # type: ignore[arg-type]

    def translate_path(self, path: str) -> str:
        asked = unquote(urlsplit(path).path)
        if not asked.startswith(GIVEN):
            return super().translate_path(path)
        # what was not named does not exist
        found = self._given.get(asked.removeprefix(GIVEN))
        return str(found) if found else super().translate_path("/nothing")

    def list_directory(self, path: object) -> None:
        self.send_error(404, "No listing")

    def log_message(self, format: str, *args: object) -> None:
        """A page asks for many files; only errors would matter, and it shows them."""
