"""One line for training loops of others: `hf` (the Trainer), `lightning` and
`accelerate`, each with its library.
"""

from typing import Any

from tersify.lazy_modules import submodule


def __getattr__(name: str) -> Any:
    return submodule(__name__, name)
