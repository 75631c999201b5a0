"""Top-1/3/5 accuracy of a model on a split, in percent, its loss, and the perplexity of
a language model.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tersify.lab.data import Data, Split, Stream, normalize
from tersify.lab.data.stream import TEST_BATCH, checked_batch
from tersify.lab.metrics import perplexity, topk_accuracy
from tersify.modes import eval_mode

EVAL_BATCH = 1000
CPU_BATCH = 64  # what a layer gives then stays in the caches


def evaluate(
    model: nn.Module, data: Data, split: Split, *, device: torch.device, amp: bool
) -> dict[str, float]:
    """`{"accuracy", "top3", "top5", "test_loss"}` of `model` in eval mode; its mode is
    put back afterwards.

    Of every token for a language model, and its `perplexity`.
    """
    logits, wanted = [], []
    with (
        eval_mode(model),
        torch.no_grad(),
        torch.autocast(device.type, torch.bfloat16, enabled=amp),
    ):
        for images, labels in _batches(
            split, CPU_BATCH if device.type == "cpu" else EVAL_BATCH
        ):
            logits.append(
                # (samples, classes), or (samples · tokens, classes) of a language
                # model.
                model(normalize(images.to(device), data)).float().flatten(0, -2)
            )
            wanted.append(labels.to(device).flatten())
    every, labels = torch.cat(logits), torch.cat(wanted)
    scores = topk_accuracy(every, labels, (1, 3, 5))
    loss = float(F.cross_entropy(every, labels))
    figures = {
        "accuracy": scores[1],
        "top3": scores[3],
        "top5": scores[5],
        "test_loss": loss,
    }
    return figures | (
        {"perplexity": perplexity(every, labels)} if split.labels.ndim == 2 else {}
    )


def _batches(split: Split, size: int) -> Iterable[tuple[Tensor, Tensor]]:
    if not isinstance(split, Stream):
        return zip(split.images.split(size), split.labels.split(size), strict=True)
    return map(checked_batch, split.batches(TEST_BATCH))


def check_fits(model: nn.Module, data: Data) -> int:
    """One image through the network (both on the CPU), so that a mismatch is told
    before anything starts.

    Returns how many logits the network gives.
    """
    image = data.test.images[:1]
    shape, kind = (
        "×".join(map(str, data.shape)),
        "texts" if data.test.is_text else "images",
    )
    try:
        with eval_mode(model), torch.no_grad():
            logits = model(normalize(image, data))
    except Exception as error:  # anybody's forward: what it raises is not known here
        why = str(error).partition("\n")[0]
        raise ValueError(
            f"{type(model).__name__} does not take the {shape} {kind} of {data.name!r} "
            f"({type(error).__name__}: {why}); choose another network or data set, or give its options"
        ) from error
    if not isinstance(logits, Tensor):
        raise ValueError(
            f"the network must return logits as one tensor, got a {type(logits).__name__}"
        )
    labelled = tuple(data.test.labels.shape[1:])
    # More logits than classes are fine: pretrained heads often have some to spare.
    if logits.shape[1:-1] != labelled or logits.shape[-1] < data.classes:
        raise ValueError(
            f"the network gives {tuple(logits.shape)} for one sample of {data.name!r}, which has {data.classes} "
            f"classes for {'every token' if labelled else 'each'}; give the option classes={data.classes}"
        )
    return logits.shape[-1]
