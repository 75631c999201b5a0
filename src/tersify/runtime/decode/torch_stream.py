"""A causal model that torch runs, in transformers' own loop, for a model without a
decoder.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.decode.sampling import Sampling
from tersify.runtime.decode.streaming import Streaming


class TorchLanguageModel(Streaming):
    """Streams the tokens of a model that nothing is compiled of."""

    def __init__(self, model: Any, context: int | None) -> None:
        self._model = model.eval()
        # Some models have no longest text.
        self._context = context or getattr(
            model.config, "max_position_embeddings", None
        )

    @property
    def generation_config(self) -> Any:
        return self._model.generation_config

    @property
    def _vocabulary(self) -> int:
        return int(self._model.config.get_text_config().vocab_size)

    def _begin(
        self,
        text: list[int],
        count: int,
        sampling: Sampling,
        ends: set[int],
        generator: torch.Generator | None,
    ) -> Iterator[int]:
        if self._context is not None:
            if len(text) > self._context:
                raise ValueError(
                    f"a text of {len(text):,} tokens is longer than the {self._context:,} that the model may see; "
                    "shorten the prompt"
                )
            count = min(count, self._context - len(text) + 1)
        return self._streamed(
            text, count, ends, lambda logits: sampling.choose(logits, generator)
        )

    def _streamed(
        self,
        text: list[int],
        count: int,
        ends: set[int],
        choose: Callable[[Tensor], int],
    ) -> Iterator[int]:
        # transformers' loop tells of its tokens from inside, hence the thread.
        made: SimpleQueue[int | BaseException | None] = SimpleQueue()
        stopped = Event()

        def choose_and_tell(_: Tensor, scores: Tensor) -> Tensor:
            token = choose(scores[0].float())
            made.put(token)
            if token in ends:
                stopped.set()
            # the loop takes the likeliest
            return torch.full_like(scores, -torch.inf).index_fill_(
                1, torch.tensor([token]), 0.0
            )

        def run() -> None:
            try:
                self._run(text, count, choose_and_tell, stopped)
                made.put(None)
            except BaseException as problem:  # told where the tokens are asked for
                made.put(problem)

        thread = Thread(target=run, daemon=True)
        thread.start()
        try:
            while (told := made.get()) is not None:
                if isinstance(told, BaseException):
                    raise told
                yield told
        finally:
            # Whoever stops asking does not wait for the rest of the text.
            stopped.set()
            thread.join()

    def _run(self, text: list[int], count: int, processor: Any, stopped: Event) -> None:
        """The loop with our choice of a token alone: penalties and ends that a model's
        generation_config names are no part of `stream`.
        """
        ids = torch.tensor([text])

        def ended(input_ids: Tensor, _: Any, **__: Any) -> Tensor:
            done = stopped.is_set() or input_ids.shape[1] >= len(text) + count
            return torch.tensor([done])

        def loop(model: Any, input_ids: Tensor, **settings: Any) -> Any:
            # By name, so that tersify does not depend on transformers.
            lists: Any = importlib.import_module("transformers.generation")
            settings |= {
                "logits_processor": processor,
                "stopping_criteria": lists.StoppingCriteriaList([ended]),
            }
            return type(model)._sample(model, input_ids, **settings)

        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
            custom_generate=loop,
        )
