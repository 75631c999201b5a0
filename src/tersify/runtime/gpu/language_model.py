"""A causal language model on a GPU: packed layers inside transformers' own model, its
cache of keys and values in torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tersify.modes import eval_mode, without_tf32
from tersify.runtime.decode.sampling import Sampling
from tersify.runtime.decode.streaming import Streaming
from tersify.runtime.gpu.compiled import (
    GpuModule,
    compile_on_gpu,
    disagreement,
    left_to_torch,
)
from tersify.runtime.gpu.measured import Measured

CHECK_TOKENS = 24


class GpuLanguageModel(Streaming, GpuModule):
    """Called like the model it was made from; `generate` takes transformers' arguments,
    `stream` gives one token after the other.

    `generate(..., cache_implementation="static")` lets transformers compile the step
    into a CUDA graph.
    """

    @property
    def config(self) -> Any:
        return self.network.config

    @property
    def generation_config(self) -> Any:
        return self.network.generation_config

    def generate(self, input_ids: Tensor, **arguments: Any) -> Any:
        network: Any = self.network
        return network.generate(input_ids, **arguments)

    @property
    def _vocabulary(self) -> int:
        return int(self.config.vocab_size)

    def _begin(
        self,
        text: list[int],
        count: int,
        sampling: Sampling,
        ends: set[int],
        generator: torch.Generator | None,
    ) -> Iterator[int]:
        device = next(self.network.parameters()).device
        ids, cache = torch.tensor([text]), None
        for _ in range(count):
            out = self(input_ids=ids.to(device), past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            token = sampling.choose(out.logits[0, -1].float().cpu(), generator)
            yield token
            if token in ends:
                return
            ids = torch.tensor([[token]])


def compile_language_model_on_gpu(
    model: Any, *, precision: str, strict: bool, costs: Measured | None = None
) -> GpuLanguageModel:
    """Layers are chosen for one token at a time, as decoding calls them, and the whole
    is compared with the model on a text as well.
    """
    device = next(model.parameters()).device
    ids = torch.randint(
        model.config.vocab_size,
        (1, CHECK_TOKENS),
        generator=torch.Generator().manual_seed(0),
    ).to(device)
    step, text = (((), {"input_ids": x, "use_cache": False}) for x in (ids[:, :1], ids))
    compiled = compile_on_gpu(
        model, step, precision=precision, calibration=None, strict=strict, costs=costs
    )
    made = GpuLanguageModel(compiled.network, compiled.plan)
    with torch.no_grad(), eval_mode(model), without_tf32():
        problem = disagreement(made, text, model(**text[1]))
    if problem:
        if strict:
            raise ValueError(f"the model with packed layers {problem} on a text")
        warnings.warn(
            f"the model with packed layers {problem} on a text; all of it runs in torch",
            RuntimeWarning,
            stacklevel=3,
        )
        compiled = left_to_torch(model, compiled.plan, "a text disagreed")
        return GpuLanguageModel(compiled.network, compiled.plan)
    return made
