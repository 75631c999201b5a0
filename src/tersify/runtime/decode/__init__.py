"""Causal language models of transformers, decoded by the engine with a cache of keys
and values.
"""

from typing import Any

from tersify.lazy_modules import submodule


def __getattr__(name: str) -> Any:
    return submodule(__name__, name)
