"""`stream`: one token after the other, whoever computes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

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
        eos_token_id: int | Sequence[int] | None = None,
        generator: torch.Generator | None = None,
    ) -> Iterator[int]:
        """One token after the other of one text, up to the one that ends it, which is
        the last, or to a full cache.
        """
        check_whole("max_new_tokens", max_new_tokens, low=1)
        sampling = Sampling(
            do_sample=do_sample, temperature=temperature, top_k=top_k, top_p=top_p
        )
        ids = tensor_of(input_ids).reshape(1, -1)
        (text,) = prompts_of(ids, None, self._vocabulary)
        ends = (
            {eos_token_id} if isinstance(eos_token_id, int) else set(eos_token_id or ())
        )
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
