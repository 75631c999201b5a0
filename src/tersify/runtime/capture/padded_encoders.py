"""Encoders of torch that give zeros at padded positions only where nobody records
gradients or operations.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from tersify.runtime.capture.refusal import refuse


@contextlib.contextmanager
def refuse_nested_paddings(model: nn.Module) -> Iterator[None]:
    """Inside, such an encoder that is given a padding mask is refused: it would take
    torch's nested tensors.
    """
    nested = [
        m
        for m in model.modules()
        if isinstance(m, nn.TransformerEncoder) and m.use_nested_tensor
    ]
    # Hooks see the arguments of encoders anywhere inside the model.
    handles = [
        module.register_forward_pre_hook(_refuse_padding_mask, with_kwargs=True)
        for module in nested
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _refuse_padding_mask(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    # forward(src, mask, src_key_padding_mask).
    mask = args[2] if len(args) > 2 else kwargs.get("src_key_padding_mask")
    if mask is not None:
        raise refuse(
            "an nn.TransformerEncoder with a padding mask gives zeros at padded positions by nested tensors, whose "
            "sizes depend on the mask",
            "build it with enable_nested_tensor=False, or set its use_nested_tensor to False",
        )
