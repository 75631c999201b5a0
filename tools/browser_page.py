"""The page that runs networks in a browser, as a part of the documentation site.

MkDocs calls both functions (see mkdocs.yml). The site gets packages/run with its module,
which `make wasm` builds, and a network to begin with; ONNX Runtime Web comes along where
`npm install` has put it. A site without the module says so where the link would be.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, EXAMPLE = ROOT / "packages" / "run", ROOT / "examples" / "resnet20-star.terse"
LINK = "<!-- browser page -->"
CODE = ("*.js", "page/*.js", "page/*.html", "page/*.css", "tersify.wasm")
ONNX_RUNTIME = "node_modules/onnxruntime-web/dist"
# The runtime, and what it fetches for a session on one thread.
ONNX_FILES = (
    "ort.wasm.min.mjs",
    "ort-wasm-simd-threaded.mjs",
    "ort-wasm-simd-threaded.wasm",
)


def on_files(files: Any, *, config: Any) -> Any:
    if not is_built():
        return files
    for path in page_files():
        name = f"run/{path.relative_to(PACKAGE).as_posix()}"
        files.append(File.generated(config, name, abs_src_path=str(path)))
    name = f"run/{EXAMPLE.name}"
    files.append(File.generated(config, name, content=with_plan(EXAMPLE)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The link goes from the page's own folder to run/page/index.html."""
    up = "../" * page.file.src_uri.count("/")
    address = f"{up}run/page/index.html?terse=../{EXAMPLE.name}"
    link = f"[Open the page]({address}) with ResNet-20\\*, and drop an image on it."
    missing = (
        "This copy of the site was built without the module, so it has no such page."
    )
    return markdown.replace(LINK, link if is_built() else missing)


def is_built() -> bool:
    return (PACKAGE / "tersify.wasm").is_file()


def page_files() -> list[Path]:
    found = [path for pattern in CODE for path in PACKAGE.glob(pattern)]
    beside = [PACKAGE / ONNX_RUNTIME / name for name in ONNX_FILES]
    return found + [path for path in beside if path.is_file()]


def with_plan(path: Path) -> bytes:
    """The file with a plan in fp32, which needs no data, and the names of its classes."""
    import torch

    import tersify
    from tersify import codec
    from tersify.codec.container import Sections
    from tersify.codec.writer import add_plan
    from tersify.lab import network
    from tersify.lab.data.cifar import CIFAR10, IMAGENET_MEAN, IMAGENET_STD
    from tersify.runtime.portable import lowered

    model = tersify.load(path, into=network("resnet20-star")).eval()
    program = lowered(model, torch.zeros(2, 3, 32, 32), codec.open(path).read())
    named = replace(program, mean=IMAGENET_MEAN, std=IMAGENET_STD, labels=CIFAR10.names)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / path.name
        add_plan(Sections(path), made, named.to_bytes())
        return made.read_bytes()
