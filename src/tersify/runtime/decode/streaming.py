"""`stream`: one token after the other, whoever computes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tersify.checks import check_whole
from tersify.runtime.decode.hf_loop import prompts_of, tensor_of
from tersify.runtime.decode.sampling import Sampling


class Streaming(ABC):
    """Arguments are checked when `stream` is called, not when its first token is asked
    for.
    """

    def stream(
        self,
        input_ids: Tensor | Sequence[int],
        *,
        max_new_tokens: int,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        eos_token_id: int | Sequence[int] | Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Iterator[int]:
        """One token after the other of one text, up to the one that ends it, which is
        the last, or to a full cache.
        """
        check_whole("max_new_tokens", max_new_tokens, low=1)
        sampling = Sampling(
            do_sample=do_sample, temperature=temperature, top_k=top_k, top_p=top_p
        )
        _check_kind("do_sample is True or False", do_sample, bool)
        if generator is not None:
            _check_kind("generator is a torch.Generator", generator, torch.Generator)
        ids = tensor_of(input_ids)
        # One text may come as a row of its own.
        if ids.ndim != 1 and ids.shape[:-1] != (1,):
            raise ValueError(
                f"a stream is of one text, got input_ids of {tuple(ids.shape)}; generate takes several"
            )
        (text,) = prompts_of(ids.reshape(1, -1), None, self._vocabulary)
        ends = _ends(eos_token_id)
        return self._begin(text, max_new_tokens, sampling, ends, generator)

    @property
    @abstractmethod
    def _vocabulary(self) -> int:
        """How many tokens there are."""

    @abstractmethod
    def _begin(
        self,
        text: list[int],
        count: int,
        sampling: Sampling,
        ends: set[int],
        generator: torch.Generator | None,
    ) -> Iterator[int]:
        """The tokens behind `text`; what cannot be is refused before the first."""


def _check_kind(rule: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{rule}, got {value!r:.40}")


def _ends(eos_token_id: Any) -> set[int]:
    """The tokens that end a text, however they were given."""
    if isinstance(eos_token_id, Tensor):
        eos_token_id = eos_token_id.tolist()
    if eos_token_id is None:
        return set()
    several = isinstance(eos_token_id, (list, tuple, set))
    ends = list(eos_token_id) if several else [eos_token_id]
    # True is a whole number to Python.
    if not all(type(token) is int for token in ends):
        raise ValueError(
            f"eos_token_id is the number of a token, or several, got {eos_token_id!r:.40}"
        )
    return set(ends)
