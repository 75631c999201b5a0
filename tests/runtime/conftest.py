"""`isa` runs a test once on every instruction set of this machine; `costs` makes
choices of kernels sure.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest

from tersify.runtime import planner
from tersify.runtime.costs import Costs, keys


def _isas() -> list[str]:
    try:
        return list(importlib.import_module("tersify._runtime").isas())
    except ImportError:  # the files that ask skip themselves then
        return []


@pytest.fixture(params=_isas())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TERSIFY_ISA", request.param)
    return request.param


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Every kernel costs a nanosecond a weight, but for those that are named, as
    class_kernel; no machine matters.
    """

    def set_costs(**changed: float) -> None:
        given = {
            key: changed.get(key.split("@")[0].replace(".", "_"), 1.0) for key in keys()
        }
        monkeypatch.setattr(
            planner, "costs_of_this_cpu", lambda module: Costs(nanoseconds=given)
        )

    return set_costs


@pytest.fixture
def kernels_win(costs: Callable[..., None]) -> None:
    """Dense products cost so much that every layer takes the kernels for its levels and
    zeros.
    """
    lanes = {f"{call}_dense-lanes": 1e6 for call in ("conv", "rows", "vector")}
    costs(conv_dense=1e6, rows_dense=1e6, vector_dense=1e6, **lanes)
