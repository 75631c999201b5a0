from __future__ import annotations

import pytest
from emulator import COMPILER


@pytest.fixture
def emulated() -> None:
    """The CUDA sources run on the CPU, built by the C++ compiler."""
    if COMPILER is None:
        pytest.skip("the kernels are emulated by g++, which is missing")
