"""Law 7: importing tersify is quick, starts no CUDA and needs no compiled extension."""

import json
import subprocess
import sys

PROGRAM = """
import builtins, json, sys, time, warnings
real = builtins.__import__
def without_extensions(name, *args, **kwargs):
    if name in ("tersify._codec", "tersify._runtime"):
        raise ImportError(name)
    return real(name, *args, **kwargs)
builtins.__import__ = without_extensions
import torch
start = time.process_time()
warnings.simplefilter("ignore")
import tersify
for name in tersify.__all__:
    getattr(tersify, name)
print(json.dumps({"seconds": time.process_time() - start, "cuda": torch.cuda.is_initialized(),
                  "heavy": [m for m in ("torchvision", "onnx", "optuna", "plotly", "sklearn") if m in sys.modules]}))
"""


def test_import_is_quick_starts_no_cuda_and_needs_no_extension():
    out = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    seen = json.loads(out)
    assert not seen["cuda"]
    assert seen["heavy"] == []
    assert seen["seconds"] < 1.5
