"""A causal model of transformers → a LanguageModel, checked against the model; or the
model itself, with a warning.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tersify.checks import check_choice, check_whole
from tersify.cpus import usable_cpus
from tersify.modes import eval_mode
from tersify.runtime.decode.ahead import ReadAhead, reading_order
from tersify.runtime.decode.architecture import (
    Architecture,
    UnknownModelError,
    architecture_of,
)
from tersify.runtime.decode.decoder import Decoder, Rotation
from tersify.runtime.decode.known_code import unknown_part
from tersify.runtime.decode.language_model import LanguageModel
from tersify.runtime.decode.network import Network
from tersify.runtime.decode.source import (
    ROUNDING_CLASSES,
    MappingSource,
    ModuleSource,
    dense_of,
)
from tersify.runtime.engine import Kernels
from tersify.runtime.extension import extension
from tersify.runtime.ops.rounding import rounded_vectors
from tersify.tensor import CompressedTensor
from tersify.tensor.blocks import shapes_of
from tersify.tensor.model import check_names

CACHES, PRECISIONS = ("fp32", "fp16"), ("fp32", "int8")
# of the largest logit; numbers of 8 or 16 bits round either way
TOLERANCE, ROUNDED_TOLERANCE = 2e-5, 5e-2
CHECK_TOKENS, LARGEST_CHECKED_WINDOW = 24, 512


def is_language_model(model: nn.Module) -> bool:
    """Whether it is a causal model of transformers."""
    return (
        # By its methods, so that transformers need not be imported.
        hasattr(model, "generate")
        and hasattr(model, "config")
        and hasattr(model, "prepare_inputs_for_generation")
    )


def compile_language_model(
    model: Any,
    kernels: Kernels | None,
    precision: str,
    *,
    context: int | None,
    cache: str,
    strict: bool,
) -> LanguageModel | Any:
    """Raises where `strict`, else warns, for a model that the decoder does not know,
    and returns the model itself.
    """
    check_choice("cache", cache, CACHES)
    if precision not in PRECISIONS:
        raise ValueError(
            f"language models run with precision 'fp32' or 'int8', got {precision!r}"
        )
    try:
        # Treated like an unknown model: torch runs it, with a warning that says why.
        if kernels is None:
            raise UnknownModelError("the compiled kernels are missing")
        return _compiled(model, kernels, precision, context, cache)
    except UnknownModelError as reason:
        if strict:
            raise
        say_torch_runs_it(reason, stacklevel=5)
        return model


def say_torch_runs_it(reason: UnknownModelError, stacklevel: int = 2) -> None:
    warnings.warn(
        f"torch runs this model, and nothing is faster: {reason}",
        RuntimeWarning,
        stacklevel=stacklevel,
    )


def _compiled(
    model: Any, kernels: Kernels, precision: str, context: int | None, cache: str
) -> LanguageModel:
    architecture = architecture_of(model.config)
    unknown = unknown_part(model)
    if unknown is not None:
        raise UnknownModelError(unknown)
    _check_context(architecture, context)
    network = Network(kernels, architecture, ModuleSource(model), precision)
    rotation = (
        None
        if architecture.positions is not None
        else rotation_of(model.model.rotary_emb)
    )
    decoder = Decoder(
        network, rotation, context=context or architecture.context, half=cache == "fp16"
    )
    made = LanguageModel(decoder, model)
    _check(made, model, cache=cache)
    if precision == "int8" and not made.int8_layers():
        warnings.warn(
            "no layer holds signs or few levels, so precision 'int8' changes nothing; compress the model first",
            RuntimeWarning,
            stacklevel=5,
        )
    return made


def _check_context(architecture: Architecture, context: int | None) -> None:
    if context is not None:
        # Learned positions end with their table; rotations go on.
        most = architecture.context if architecture.positions is not None else None
        check_whole("context", context, low=1, high=most)


def from_tensors(
    tensors: Mapping[str, Tensor | CompressedTensor],
    config: Any,
    *,
    precision: str = "fp32",
    threads: int | None = None,
    context: int | None = None,
    cache: str = "fp32",
    generation: Any = None,
) -> LanguageModel:
    """A decoder of weights by their names, such as an opened file: no module of them is
    ever built.

    There is no module to compute with, so the configuration must be the weights' own:
    their names and shapes must be those of the module that it describes.
    """
    check_choice("cache", cache, CACHES)
    check_choice("precision", precision, PRECISIONS)
    module = extension()
    if module is None:
        raise ValueError(
            "decoding from packed weights needs the compiled kernels; reinstall tersify with a compiler"
        )
    architecture = architecture_of(config)
    _check_context(architecture, context)
    # transformers' `generate` needs a module; this one has no memory.
    with torch.device("meta"):
        model = importlib.import_module(
            "transformers"
        ).AutoModelForCausalLM.from_config(config)
    model.generation_config = generation or model.generation_config
    # What the decoder does not ask for, such as a bias, would be left out of the sums.
    tied = (f"{architecture.head}.weight",) if architecture.tied else ()
    check_names(shapes_of(tensors), model, may_lack=tied)
    _check_tied(tensors, architecture)
    count = threads or min(torch.get_num_threads(), usable_cpus())
    kernels = Kernels(module, count)
    if count > 1:
        with ReadAhead(tensors, reading_order(architecture)) as ahead:
            source = MappingSource(ahead, config)
            network = Network(kernels, architecture, source, precision)
        module.release_free_memory()  # that of the threads
    else:
        source = MappingSource(tensors, config)
        network = Network(kernels, architecture, source, precision)
    rotation = None
    if architecture.positions is None:
        rotation = rotation_of(type(model.model.rotary_emb)(config))
    decoder = Decoder(
        network, rotation, context=context or architecture.context, half=cache == "fp16"
    )
    return LanguageModel(decoder, model.eval())


def _check_tied(
    tensors: Mapping[str, Tensor | CompressedTensor], architecture: Architecture
) -> None:
    """A tied configuration computes with the embedding alone; another head beside it
    would be left out.
    """
    head, embedding = f"{architecture.head}.weight", f"{architecture.embedding}.weight"
    if not architecture.tied or head not in tensors:
        return
    aliases = getattr(tensors, "aliases", {})
    if aliases.get(head) == embedding or aliases.get(embedding) == head:
        return
    if not torch.equal(dense_of(tensors[head]), dense_of(tensors[embedding])):
        raise ValueError(
            f"the configuration ties {head!r} to {embedding!r}, and the weights have another one; "
            "set tie_word_embeddings to False"
        )


def rotation_of(rotary: Any) -> Rotation:
    """Cosines and sines as the model itself computes them."""

    def rotation(positions: int) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            cosines, sines = rotary(
                torch.zeros(1, dtype=torch.float32), torch.arange(positions)[None]
            )
        # transformers repeats the cosines for both halves of a head.
        pairs = cosines.shape[-1] // 2
        return cosines[0, :, :pairs].float(), sines[0, :, :pairs].float()

    return rotation


def _check(made: LanguageModel, model: Any, *, cache: str) -> None:
    """The logits of a random text against the model's own, which rounds what our
    kernels round.
    """
    int8 = made.int8_layers()
    # A text that is shorter than a window would not show it; a very long one would take
    # too long.
    windows = {layer.window for layer in made.architecture.layers}
    seen = max((w for w in windows if w <= LARGEST_CHECKED_WINDOW), default=0)
    count = min(seen + CHECK_TOKENS, made.context)
    ids = torch.randint(
        model.config.vocab_size, (1, count), generator=torch.Generator().manual_seed(0)
    )
    layers = [model.get_submodule(name) for name in int8]
    # The model must round its inputs where our kernels do, or the comparison would
    # measure the rounding instead of mistakes.
    hooks = [
        x.register_forward_pre_hook(_round_input)
        for x in layers
        if type(x).__name__ not in ROUNDING_CLASSES
    ]
    try:
        with torch.no_grad(), eval_mode(model):
            wanted = model(ids, use_cache=False).logits[0].float()
    finally:
        for hook in hooks:
            hook.remove()
    given = made(ids)[0]
    exact = cache == "fp32" and all(
        p.dtype == torch.float32 for p in model.parameters()
    )
    allowed = ROUNDED_TOLERANCE if int8 or not exact else TOLERANCE
    error = float((given - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))
    if not error <= allowed:
        raise UnknownModelError(
            f"the decoder's logits differ from the model's by {error:.1e} of the largest, more than {allowed:.0e}"
        )


def _round_input(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (rounded_vectors(inputs[0]), *inputs[1:])
