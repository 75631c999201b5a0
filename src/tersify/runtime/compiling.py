"""`compile`: a module → one that runs it with the kernels of this machine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tersify.checks import check_choice, check_whole
from tersify.cpus import usable_cpus
from tersify.runtime.after_fork import make_torch_safe
from tersify.runtime.capture.randomness import numbers_kept
from tersify.runtime.compiled import CompiledModule
from tersify.runtime.engine import Kernels
from tersify.runtime.extension import extension
from tersify.runtime.inputs import calibration_batches, example_arguments

if TYPE_CHECKING:
    from tersify.runtime.decode.language_model import LanguageModel
    from tersify.runtime.gpu.compiled import GpuModule

PRECISIONS = ("fp32", "fp16", "bf16", "int8", "auto")
MAX_THREADS = 1024


def device_of(model: nn.Module) -> str:
    """Where the module's tensors are: one kind of device, which has kernels."""
    kinds = sorted(
        {t.device.type for t in (*model.parameters(), *model.buffers())}
    ) or ["cpu"]
    if len(kinds) > 1 or kinds[0] not in ("cpu", "cuda"):
        raise ValueError(
            f"compile takes a module on the CPU or on a GPU, got one on {' and '.join(kinds)}"
        )
    return kinds[0]


def compile(
    model: nn.Module,
    example: Any = None,
    *,
    precision: str = "fp32",
    threads: int | None = None,
    calibration: Tensor | Iterable[Any] | None = None,
    strict: bool = False,
    context: int | None = None,
    cache: str = "fp32",
) -> CompiledModule | GpuModule | LanguageModel:
    """Capture `model` in eval mode, fuse it, and pack its weights for the kernels of
    this CPU.

    A module on a GPU is copied instead, with its tensors shared, and its linear layers
    and one-pixel convolutions of few levels run from packed weights where that is
    faster there (see the page on GPUs). The module is left as it is; it must not change
    afterwards. Inputs of other sizes than the example's may follow: each new set of
    sizes is captured when it is first seen.

    Precision "fp32" is exact up to the order of sums: for every layer the kernel that
    costs least by a measurement on this CPU, which is cached on disk, or a dense
    product in torch. "int8" runs convolutions and linear layers of signs or levels on
    8-bit activations, or warns that there are none; the ranges of the convolutions come
    from the `calibration` batches, or from the example. Levels become whole steps, at
    most 127 up and down (see the page on kernels). "auto" chooses among all of them by
    cost, int8 only where `calibration` batches are given. "fp16" runs convolutions on
    16-bit floats where the CPU adds them (AVX512-FP16); elsewhere it warns and stays
    fp32, unless TERSIFY_ISA names an instruction set, whose kernels then emulate the
    arithmetic, slowly.

    A causal language model of transformers needs no example: it becomes a
    `LanguageModel`, which decodes with a cache of keys and values (`generate`,
    `stream`). One whose layers have no kernels is returned as it is, with a warning. On
    a GPU its layers of few levels run packed inside transformers' own model.

    Args:
        model: a module on the CPU or on a GPU; compressed weights are found by themselves, wherever they come from.
        example: a tensor, a tuple of positional inputs, or a dict of inputs by keyword; none for a language model.
        precision: "fp32", "int8", "fp16" or "auto", of the activations; "bf16" on a GPU.
        threads: what torch uses by default, or the processors that this process may run on, if they are fewer.
        calibration: batches of inputs, from which 8-bit activations get their ranges.
        strict: every plan is compared with the module before it is used. An operation that disagrees goes back to
            torch with a warning; this makes it an error.
        context: of a language model, the longest text; what its configuration says by default.
        cache: of a language model, the numbers in its cache: "fp32" or "fp16".
    """
    # Everything is checked before the capture, which may take seconds.
    check_choice("precision", precision, PRECISIONS)
    if threads is not None:
        check_whole("threads", threads, low=1, high=MAX_THREADS)
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"compile takes a torch.nn.Module, got a {type(model).__name__}"
        )
    # TorchScript runs its own interpreter, whose operations no mode of torch sees.
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        raise ValueError(
            "TorchScript modules cannot be captured; compile the module that they were made from"
        )
    make_torch_safe()
    device = device_of(model)
    # In a container torch may count processors that this process cannot use.
    count = threads or min(torch.get_num_threads(), usable_cpus())
    if example is None:
        return _language_model(
            model, device, precision, count, strict=strict, context=context, cache=cache
        )
    if context is not None or cache != "fp32":
        raise ValueError(
            "context and cache are settings of a language model, which is compiled without an example"
        )
    arguments = example_arguments(example, device)
    batches = calibration_batches(calibration, device)
    # Imported here: a program on the CPU never needs what GPUs do.
    if device != "cpu":
        from tersify.runtime.gpu.compiled import compile_on_gpu

        return compile_on_gpu(
            model, arguments, precision=precision, calibration=batches, strict=strict
        )
    if precision == "bf16":
        raise ValueError(
            "precision 'bf16' runs on a GPU; on this CPU choose one of fp32, fp16, int8, auto"
        )
    module = extension()
    compiled = CompiledModule(
        model,
        None
        if module is None
        else Kernels(module, count, in_order=precision == "int8"),
        precision,
        strict=strict,
    )
    with numbers_kept():
        compiled.start(arguments, batches)
    return compiled


def _language_model(
    model: nn.Module,
    device: str,
    precision: str,
    threads: int,
    *,
    strict: bool,
    context: int | None,
    cache: str,
) -> LanguageModel | Any:
    from tersify.runtime.decode.compile import compile_language_model, is_language_model

    if not is_language_model(model):
        raise ValueError(
            f"compile needs an example input of {type(model).__name__}; only causal language models of transformers "
            "need none"
        )
    if device != "cpu":
        from tersify.runtime.gpu.language_model import compile_language_model_on_gpu

        if context is not None or cache != "fp32":
            raise ValueError(
                "context and cache are settings of the CPU's decoder; on a GPU transformers keeps the cache"
            )
        return compile_language_model_on_gpu(model, precision=precision, strict=strict)
    module = extension()
    kernels = None if module is None else Kernels(module, threads)
    return compile_language_model(
        model, kernels, precision, strict=strict, context=context, cache=cache
    )
