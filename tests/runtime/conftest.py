"""A test that asks for `isa` runs once on every instruction set of this machine."""

from __future__ import annotations

import importlib

import pytest


def _isas() -> list[str]:
    try:
        return list(importlib.import_module("tersify._runtime").isas())
    except ImportError:  # the files that ask skip themselves then
        return []


@pytest.fixture(params=_isas())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TERSIFY_ISA", request.param)
    return request.param
