"""The module for browsers: the bits of the Python runtime, a page that shows them, and a
small download.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import browser
import numpy as np
import pytest
import torch
from library import ROOT
from plan_networks import networks, packed
from test_plan_lengths import seeded

import tersify
from tersify import codec
from tersify.cli.serve import package_folder, question, server_of
from tersify.runtime.portable import Replay, read_program

PACKAGE = ROOT / "packages" / "run"
MODULE = PACKAGE / "tersify.wasm"
NETWORKS = networks()
MAX_PACKED = 200_000
SCRIPT = """
import { readFileSync } from "node:fs";
import { runtime } from "PACKAGE/index.js";
const [file, numbers, batch, ids] = process.argv.slice(2);
const made = (await runtime(readFileSync("PACKAGE/tersify.wasm"))).open(readFileSync(file));
const bytes = readFileSync(numbers), exact = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
const given = ids === "true" ? new BigInt64Array(exact) : new Float32Array(exact);
console.log(JSON.stringify(Array.from(made.run([given], Number(batch))[0])));
"""


@pytest.fixture(autouse=True)
def built() -> None:
    if not MODULE.is_file():
        pytest.skip("packages/run/tersify.wasm is not built (make wasm)")


def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not installed")
    return found


def save(name: str, path: Path, precision: str) -> torch.Tensor:
    """Writes the network; returns its example."""
    model, example = NETWORKS[name]
    more: dict[str, object] = {"plan": precision}
    if precision == "int8":
        more["calibration"] = example
    tersify.save(packed(model), path, network=model, example=example, **more)  # type: ignore[arg-type]
    return example


def replayed(path: Path, given: torch.Tensor) -> np.ndarray:
    file = codec.open(path)
    return Replay(read_program(file), file).run([given])[0].numpy()


def made_by_the_module(path: Path, given: torch.Tensor, folder: Path) -> np.ndarray:
    numbers, script = folder / "numbers", folder / "run.mjs"
    numbers.write_bytes(given.numpy().tobytes())
    script.write_text(SCRIPT.replace("PACKAGE", str(PACKAGE)))
    ids = json.dumps(not given.is_floating_point())
    command = [node(), *map(str, (script, path, numbers, len(given))), ids]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return np.array(json.loads(done.stdout), np.float32)


def test_the_module_takes_the_length_of_its_input(tmp_path: Path) -> None:
    path = tmp_path / "net.terse"
    model, example, first, other = seeded("convolutions")
    tersify.save(model, path, example=example(2, first), other=example(2, other))
    for length in (first, 31):
        given = example(2, length)
        made, wanted = made_by_the_module(path, given, tmp_path), replayed(path, given)
        assert np.allclose(made, wanted.reshape(-1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [*NETWORKS, "ternary in int8"])
def test_the_module_makes_what_the_runtime_makes(name: str, tmp_path: Path) -> None:
    int8 = name.endswith(" in int8")
    path = tmp_path / "net.terse"
    given = save(name.split()[0], path, "int8" if int8 else "fp32")
    made = made_by_the_module(path, given, tmp_path)
    wanted = replayed(path, given).reshape(-1)
    if int8:
        assert np.array_equal(made, wanted)
    else:
        assert np.abs(made - wanted).max() <= 1e-5 * np.abs(wanted).max()


WRONG_CALLS = """
import { readFileSync } from "node:fs";
import { runtime } from "PACKAGE/index.js";
const own = await runtime(readFileSync("PACKAGE/tersify.wasm"));
const network = own.open(readFileSync(process.argv[2])), image = new Float32Array(432);
const calls = [
  () => own.open("a name"),
  () => own.open(null),
  () => own.open(readFileSync(process.argv[2]), { maxBytes: 1.5 }),
  () => own.open(readFileSync(process.argv[2]), { maxBytes: -1 }),
  () => network.run(null),
  () => network.run([]),
  () => network.run([new Float64Array(432)]),
  () => network.run([image], 0),
  () => network.run([image], -1),
  () => network.run([image], 1.5),
  () => network.run([image], 2 ** 32),
  () => network.run([image], 1e12),
];
for (const call of calls) {
  try {
    console.log("taken", call()[0].length);
  } catch (problem) {
    console.log(problem.name, problem.message);
  }
}
"""


def test_a_wrong_call_is_told_in_one_sentence(tmp_path: Path) -> None:
    save("ternary", tmp_path / "net.terse", "fp32")
    script = tmp_path / "wrong.mjs"
    script.write_text(WRONG_CALLS.replace("PACKAGE", str(PACKAGE)))
    done = subprocess.run(
        [node(), script, tmp_path / "net.terse"],
        capture_output=True,
        text=True,
        check=True,
    )
    told = done.stdout.splitlines()
    assert len(told) == 12
    assert all(line.startswith("TersifyError ") for line in told), told
    assert "maxBytes must be a whole number, 0 or more, got 1.5" in told[2]
    assert "whole number, 1 or more, got -1" in told[8]
    assert "no memory" in told[10]
    assert "no memory" in told[11]


# As a program that has installed the package writes it.
INSTALLED = """
import { readFile } from "node:fs/promises";
import { runtime } from "@tersify/run";
const network = (await runtime()).open(await readFile(process.argv[2]));
console.log(JSON.stringify(Array.from(network.run([new Float32Array(432).fill(0.25)])[0])));
const other = await runtime("file:///there/is/none.wasm").catch((problem) => problem);
console.log(other.name, other.message);
"""


def test_an_installed_package_finds_its_module_in_node(tmp_path: Path) -> None:
    path = tmp_path / "net.terse"
    save("ternary", path, "int8")
    (tmp_path / "node_modules" / "@tersify").mkdir(parents=True)
    (tmp_path / "node_modules" / "@tersify" / "run").symlink_to(PACKAGE)
    script = tmp_path / "run.mjs"
    script.write_text(INSTALLED)
    done = subprocess.run(
        [node(), script, path], capture_output=True, text=True, check=True
    )
    made, problem = done.stdout.splitlines()
    wanted = replayed(path, torch.full((1, 3, 12, 12), 0.25))[0]
    assert np.array_equal(np.array(json.loads(made), np.float32), wanted)
    assert problem.startswith("TersifyError the module cannot be read: ")


def test_the_package_names_its_files() -> None:
    told = json.loads((PACKAGE / "package.json").read_text())
    assert all((PACKAGE / name).is_file() for name in told["files"])


def test_npm_packs_no_more_than_200_kilobytes() -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    command = [npm, "pack", "--dry-run", "--json"]
    told = subprocess.run(
        command, cwd=PACKAGE, capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(told)[0]["size"] <= MAX_PACKED


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """The page's address with a network and an image, and what the runtime makes."""
    image = pytest.importorskip("PIL.Image")
    path, picture = tmp_path / "net.terse", tmp_path / "in.png"
    save("ternary", path, "int8")
    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3), np.uint8)
    image.fromarray(pixels).save(picture)
    numbers = (pixels.transpose(2, 0, 1)[None] / np.float32(255)).astype(np.float32)
    server = server_of(package_folder(), [path, picture], 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/page/index.html"
    yield (
        address + question([path, picture]),
        replayed(path, torch.from_numpy(numbers))[0],
    )
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("width", [1200, 380])
def test_the_page_shows_the_largest_outputs_and_fits_its_screen(
    width: int, served: tuple[str, np.ndarray], tmp_path: Path
) -> None:
    program = browser.chromium()
    if program is None:
        pytest.skip("needs chromium, which is not on this machine")
    address, wanted = served
    with browser.Page(program, tmp_path / "profile", width=width) as page:
        page.open(address, "document.body?.dataset.done")
        assert page.value("document.getElementById('problem').textContent") == ""
        shown = page.value("document.getElementById('largest').innerText")
        first = int(wanted.argmax())
        assert shown.splitlines()[0] == f"{first}: {_six(wanted[first])}"
        assert page.value("document.querySelectorAll('#rows tr').length") == 1
        told = page.value("document.getElementById('facts').innerText")
        assert "bytes divided by 255, since the plan does not say" in told
        wide = "(e) => e.getBoundingClientRect().right > innerWidth + 1"
        found = f"[...document.querySelectorAll('main *')].filter({wide}).length"
        assert page.value(found) == 0


def _six(number: np.float32) -> str:
    """Six digits, as JavaScript's toPrecision(6) writes them."""
    return np.format_float_positional(
        np.float64(number), precision=6, fractional=False, trim="k"
    )


SHOWN = """[...document.querySelectorAll("section")]
  .filter((e) => e.getClientRects().length).map((e) => e.id)"""


@contextmanager
def page_of(files: list[Path], profile: Path, width: int) -> Iterator[browser.Page]:
    program = browser.chromium()
    if program is None:
        pytest.skip("needs chromium, which is not on this machine")
    server = server_of(package_folder(), files, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/page/index.html{question(files)}"
    with browser.Page(program, profile, width=width) as page:
        page.open(address, "document.readyState == 'complete'")
        yield page
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("width", [1200, 380])
def test_the_page_shows_no_card_before_it_has_something_to_say(
    width: int, tmp_path: Path
) -> None:
    with page_of([], tmp_path / "empty", width) as page:
        assert page.value(SHOWN) == []
    save("ternary", tmp_path / "net.terse", "int8")
    with page_of([tmp_path / "net.terse"], tmp_path / "one", width) as page:
        page.wait("document.getElementById('status').textContent == 'Now an image.'")
        assert page.value(SHOWN) == ["network"]


def test_the_page_shows_our_result_where_the_other_engine_cannot_run(
    tmp_path: Path,
) -> None:
    image = pytest.importorskip("PIL.Image")
    path, picture = tmp_path / "net.terse", tmp_path / "in.png"
    other = tmp_path / "net.onnx"
    save("ternary", path, "int8")
    image.new("RGB", (12, 12)).save(picture)
    other.write_bytes(b"no graph at all")
    with page_of([path, other, picture], tmp_path / "profile", 380) as page:
        page.wait("document.body?.dataset.done")
        assert page.value("document.getElementById('problem').textContent") != ""
        assert page.value(SHOWN) == ["network", "result", "times"]
        assert page.value("document.querySelectorAll('#rows tr').length") == 1


def test_a_damaged_file_is_told_on_the_page(tmp_path: Path) -> None:
    broken = tmp_path / "net.terse"
    broken.write_bytes(b"no network at all")
    with page_of([broken], tmp_path / "profile", 1200) as page:
        page.wait("document.body?.dataset.done")
        assert "header" in page.value("document.getElementById('problem').textContent")
        assert page.value(SHOWN) == []


@pytest.mark.parametrize(
    ("name", "words"), [("there-is-none.terse", "no file"), ("notes.txt", "neither")]
)
def test_what_cannot_be_served_is_said_in_one_sentence(
    name: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ValueError, match=words):
        server_of(package_folder(), [tmp_path / name], 0)
