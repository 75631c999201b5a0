"""scipy comes with the extras that need it; without it everything else works, and what
needs it says so.
"""

import subprocess
import sys

import pytest
import torch
from torch import nn

import tersify
from tersify.sparse.backends import MissingBackendError

LOADS = """
import sys
sys.modules["scipy"] = None
import tersify.lab.speech.audio, tersify.lab.speech.programs
import tersify.lab.experiments, tersify.lab.sweep.fig4, tersify.cli.app
for name in tersify.__all__:
    getattr(tersify, name)
assert tersify.lab.experiments.known()
"""


@pytest.fixture
def collection(tmp_path, monkeypatch):
    layer = nn.Linear(8, 8)
    layer.weight.data[:, :4] = 0
    found = tersify.collect(layer, torch.randn(2, 8), out=tmp_path / "c")
    for name in [name for name in sys.modules if name.partition(".")[0] == "scipy"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "scipy", None)
    return found


def test_everything_else_is_imported_without_it():
    subprocess.run([sys.executable, "-c", LOADS], check=True)


def test_its_backends_are_left_out_of_a_comparison_and_named_when_asked_for(collection):
    with pytest.raises(
        MissingBackendError, match=r"scipy; pip install 'tersify\[sparse\]'"
    ):
        collection.bench(["scipy-csr"], rounds=1)
    (operation,) = collection
    with pytest.raises(MissingBackendError, match="need the package scipy"):
        operation.run("scipy-csr")
    assert "torch-csr" in {
        timing.backend for timing in collection.bench(["torch-csr"], rounds=1)
    }


def test_matrix_market_files_say_what_they_need(collection, tmp_path):
    with pytest.raises(
        ValueError, match=r"Matrix Market.*scipy; pip install 'tersify\[sparse\]'"
    ):
        collection.export("mtx", tmp_path / "out")


def test_sound_of_another_rate_says_what_it_needs(collection, tmp_path):
    soundfile = pytest.importorskip("soundfile")
    from tersify.lab.speech import audio

    soundfile.write(tmp_path / "a.wav", torch.zeros(100).numpy(), 16000)
    with pytest.raises(
        ValueError, match=r"16000 Hz is resampled.*pip install 'tersify\[speech\]'"
    ):
        audio.read(tmp_path / "a.wav")
