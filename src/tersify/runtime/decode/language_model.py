"""A causal language model, compiled: logits, `generate` and streams of tokens from our
kernels.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tersify.runtime.after_fork import Lock, make_torch_safe
from tersify.runtime.decode import hf_loop
from tersify.runtime.decode.architecture import Architecture
from tersify.runtime.decode.decoder import Decoder
from tersify.runtime.decode.generating import say_torch_runs, with_loop
from tersify.runtime.decode.sampling import Sampling
from tersify.runtime.decode.streaming import Streaming
from tersify.runtime.decode.unchanged import Snapshot


class LanguageModel(Streaming):
    """What `compile` makes of a causal model of transformers.

    Called with `input_ids` it gives the logits of every token. `generate` takes
    transformers' arguments; `stream` gives one token after the other. The model it was
    made from is left as it is and must not change afterwards.
    """

    def __init__(self, decoder: Decoder, model: Any) -> None:
        self._decoder = decoder
        self._model = model
        self._compiled_from = Snapshot(model)
        self._lock = Lock()
        self._generating: Any = None  # made when it is first needed
        # the tokens of slot 0: a text that goes on need not be read again
        self._seen: list[int] = []

    @property
    def config(self) -> Any:
        return self._model.config

    @property
    def generation_config(self) -> Any:
        return self._model.generation_config

    @property
    def architecture(self) -> Architecture:
        return self._decoder.network.architecture

    @property
    def context(self) -> int:
        """The longest text, prompt and new tokens together."""
        return self._decoder.context

    @property
    def threads(self) -> int:
        return int(self._decoder.network.kernels.workspace.threads)

    def int8_layers(self) -> list[str]:
        """The names of the layers that see vectors of 8 bits."""
        return sorted(self._decoder.network.int8_names())

    def weight_bytes(self) -> int:
        """Bytes of the packed weights that the kernels read."""
        return self._decoder.network.weight_bytes()

    def cache_bytes(self) -> int:
        """Bytes of the keys and values, by now."""
        return self._decoder.cache_bytes

    def __call__(
        self, input_ids: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        """The logits of every token, [texts, tokens, vocabulary], as the model called with
        the same mask gives them; zeros where the mask hides one.
        """
        self._check_unchanged()
        a = self.architecture
        input_ids = hf_loop.tensor_of(input_ids)
        texts = hf_loop.prompts_of(input_ids, attention_mask, a.vocabulary)
        tokens = input_ids.shape[1]
        # Learned positions count the padding, too, unless generate says otherwise.
        if a.positions is not None and tokens > a.context:
            raise ValueError(
                f"{tokens:,} tokens, padding among them, are more than the model's {a.context:,} positions"
            )
        out = torch.zeros(*input_ids.shape, a.vocabulary)
        with self._lock:
            # The call overwrites slot 0 of the cache.
            self._seen = []
            for number, text in enumerate(texts):
                padding = tokens - len(text)
                out[number, padding:] = self._decoder.prompt(
                    0, text, all_logits=True, padding=padding
                )
        return out

    def generate(self, input_ids: Tensor | None = None, **arguments: Any) -> Any:
        """transformers' `generate`, with its arguments, its processors of logits and
        its criteria to stop.
        """
        make_torch_safe()
        input_ids = arguments.pop("inputs", input_ids)
        if input_ids is None or arguments.get("inputs_embeds") is not None:
            self._check_unchanged()
            say_torch_runs(
                self._model, hf_loop.LeftToTorchError("a text without input_ids alone")
            )
            return self._model.generate(input_ids, **arguments)
        input_ids = hf_loop.tensor_of(input_ids)
        hf_loop.check_texts(input_ids)
        if self._generating is None:
            self._generating = with_loop(self._model, self.decode)
        with warnings.catch_warnings():
            # A model that is only a configuration has no device, and needs none.
            warnings.filterwarnings("ignore", "You are calling .generate")
            # That of the class: one put on the model later would not come to our loop.
            generate = type(self._generating).generate
            return generate(self._generating, input_ids, **arguments)

    def decode(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """For `model.generate(..., custom_generate=compiled.decode)`.

        transformers gives a streamer to no such function: bind it with
        `functools.partial(compiled.decode, streamer=…)`, or call `compiled.generate`.
        """
        if model is not self._model:
            raise ValueError(
                "this was compiled from another model; compile the one that generates"
            )
        self._check_unchanged()
        settings = {
            "logits_processor": logits_processor,
            "stopping_criteria": stopping_criteria,
            "generation_config": generation_config,
            "streamer": streamer,
            **model_kwargs,
        }
        try:
            with self._lock:
                self._seen = []
                return hf_loop.decode(self._decoder, input_ids, **settings)
        except hf_loop.LeftToTorchError as reason:
            # The inputs of a search with beams are of another form.
            if generation_config.num_beams and generation_config.num_beams > 1:
                raise
            say_torch_runs(model, reason)
            return type(model)._sample(
                model, input_ids, synced_gpus=synced_gpus, **settings
            )

    @property
    def _vocabulary(self) -> int:
        return self.architecture.vocabulary

    def _begin(
        self,
        text: list[int],
        count: int,
        sampling: Sampling,
        ends: set[int],
        generator: torch.Generator | None,
    ) -> Iterator[int]:
        self._check_unchanged()
        self._decoder.room_for(1, min(len(text) + count, max(self.context, len(text))))
        return self._streamed(text, count, sampling, ends, generator)

    def _streamed(
        self,
        text: list[int],
        count: int,
        sampling: Sampling,
        ends: set[int],
        generator: torch.Generator | None,
    ) -> Iterator[int]:
        """A prompt that begins with what the last stream saw is only read from where
        they part.
        """
        for number in range(count):
            if len(text) > self.context:
                return
            with self._lock:
                # At least the last token runs, because its logits are needed.
                shared = _common(self._seen, text[:-1])
                logits = self._decoder.prompt(0, text[shared:], shared)
                self._seen = list(text)
            token = sampling.choose(logits[-1], generator)
            yield token
            if token in ends or number == count - 1:
                return
            text = [*text, token]

    def _check_unchanged(self) -> None:
        make_torch_safe()
        # The parent may have been forked in the middle of a text.
        if self._lock.was_forked:
            self._seen = []
        difference = self._compiled_from.difference()
        if difference is not None:
            raise ValueError(
                f"{difference} changed after it was compiled; compile it again"
            )


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    shared = 0
    # Up to the end of the shorter one.
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        shared += 1
    return shared
