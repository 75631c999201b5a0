"""ResNet-20* in a page of a headless browser: our module and ONNX Runtime Web in turns, on
one thread, in the same page.
"""

from __future__ import annotations

import gzip
import json
import statistics
import tempfile
import threading
from pathlib import Path

import browser  # type: ignore[import-not-found]
import torch
from machines import ROOT  # type: ignore[import-not-found]

import tersify
from tersify import codec
from tersify.cli.serve import package_folder, server_of
from tersify.export.onnx_graph import export_onnx
from tersify.lab import network

ROUNDS, REPEATS = 40, 5
IN_TURNS = """
(async () => {
  const { runtime } = await import("/index.js");
  const { onnxNetwork } = await import("/page/onnx.js");
  const bytes = async (name) => (await fetch(`/given/${name}`)).arrayBuffer();
  const numbers = new Float32Array(NUMBERS), own = await runtime(), ours = {};
  for (const name of ["fp32", "int8"]) ours[name] = own.open(await bytes(`${name}.terse`));
  const onnx = await onnxNetwork(await bytes("dense.onnx"));
  const works = {
    fp32: () => ours.fp32.run([numbers], 1),
    int8: () => ours.int8.run([numbers], 1),
    onnx: async () => (await onnx.run(numbers, [1, 3, 32, 32], 1)).outputs,
  };
  const outputs = {}, times = { fp32: [], int8: [], onnx: [] };
  for (let round = 0; round < ROUNDS; ++round)
    for (const name of round % 2 ? Object.keys(works) : Object.keys(works).reverse()) {
      const start = performance.now();
      for (let i = 0; i < REPEATS; ++i) outputs[name] = Array.from((await works[name]())[0]);
      times[name].push((performance.now() - start) / REPEATS);
    }
  return { times, outputs };
})()
"""


def measured(
    paths: dict[str, Path], example: Path, image: torch.Tensor, work: Path
) -> dict[str, float]:
    dense = work / "dense.onnx"
    model = tersify.load(example, into=network("resnet20-star")).eval()
    dense.unlink(missing_ok=True)
    export_onnx(model, codec.open(example), image, dense, dense=True)
    made = _in_page([*paths.values(), dense], image)
    kept = {
        name: numbers[5:] for name, numbers in made["times"].items()
    }  # warm by then
    onnx = kept.pop("onnx")
    wanted = made["outputs"]["onnx"]
    figures = {"onnxruntime_web_ms": statistics.median(onnx)}
    for name, own in kept.items():
        ratios = [b / a for a, b in zip(own, onnx, strict=True)]
        apart = [abs(a - b) for a, b in zip(made["outputs"][name], wanted, strict=True)]
        figures[f"browser_{name}_ms"] = statistics.median(own)
        figures[f"browser_{name}_times_as_fast"] = statistics.median(ratios)
        figures[f"browser_{name}_apart"] = max(apart) / max(map(abs, wanted))
    package = ROOT / "packages" / "run"
    files = json.loads((package / "package.json").read_text())["files"]
    sent = [package / name for name in files if not name.endswith(".d.ts")]
    figures["package_gzipped_bytes"] = sum(
        len(gzip.compress(path.read_bytes(), 9)) for path in sent
    )
    return figures


def _in_page(
    files: list[Path], image: torch.Tensor
) -> dict[str, dict[str, list[float]]]:
    program = browser.chromium()
    assert program is not None, "chromium is not installed"
    server = server_of(package_folder(), files, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    script = IN_TURNS.replace("NUMBERS", json.dumps(image.flatten().tolist()))
    script = script.replace("ROUNDS", str(ROUNDS)).replace("REPEATS", str(REPEATS))
    with (
        tempfile.TemporaryDirectory() as profile,
        browser.Page(program, Path(profile)) as page,
    ):
        page.open(
            f"http://127.0.0.1:{server.server_port}/page/index.html",
            "document.readyState === 'complete'",
        )
        made = page.value(script)
    server.shutdown()
    server.server_close()
    return dict(made)
