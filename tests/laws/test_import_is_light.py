"""Law 7: importing tersify is quick, starts no CUDA and needs no compiled extension."""

import json
import subprocess
import sys

PROGRAM = """
import json, sys, time, warnings
sys.modules["tersify._codec"] = sys.modules["tersify._runtime"] = None
import torch
start = time.process_time()
warnings.simplefilter("ignore")
import tersify
for name in tersify.__all__:
    getattr(tersify, name)
tersify.save({"w": torch.arange(4.0)}, sys.argv[1])
seconds = time.process_time() - start
assert tersify.open(sys.argv[1])["w"].tolist() == [0, 1, 2, 3]
print(json.dumps({"seconds": seconds, "cuda": torch.cuda.is_initialized(),
                  "heavy": [m for m in ("torchvision", "onnx", "optuna", "plotly", "sklearn") if m in sys.modules]}))
"""


def test_import_is_quick_starts_no_cuda_and_needs_no_extension(tmp_path):
    out = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "x.terse")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    seen = json.loads(out)
    assert not seen["cuda"]
    assert seen["heavy"] == []
    assert seen["seconds"] < 1.5
