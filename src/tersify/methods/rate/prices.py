"""What each weight of a session costs in the file: from the coder's own tables, one
weight at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tersify.codec.costs import PricedFile
from tersify.methods.base import Site
from tersify.methods.rate.transform import RateTransform
from tersify.tensor import CompressedTensor

# a weight that would save nothing, or cost less than a zero, still pays a little
LEAST_BITS = 0.25
# of the layer's weights that are there: one that stands alone must be able to return
MOST_TIMES_THE_MEAN = 2.0
MOST_BITS_OF_A_CHANNEL = 32.0
# of a weight that is stored as it is: the mantissa's bits are noise, sign and exponent
# are not
VALUE_BITS = 28.0


@torch.no_grad()
def bits_of_weights(
    sites: Sequence[Site],
    transforms: Sequence[RateTransform],
    packed: Mapping[str, CompressedTensor | Tensor],
    file: PricedFile,
) -> list[Tensor]:
    """For each weight of each site the bits that it takes, or would take if it were no
    zero, all others as they are.
    """
    channel_bits = _bits_of_a_channel(packed)
    made = []
    for site, transform in zip(sites, transforms, strict=True):
        tensor = packed[site.name]
        assert isinstance(tensor, CompressedTensor)
        codes = tensor.codes
        flat, other = (
            codes.reshape(-1),
            _code_if_kept(site, transform, tensor).reshape(-1),
        )
        there = flat != 0
        # The one change that is priced: a kept weight becomes zero, a zero becomes what
        # it would be.
        wanted = torch.where(there, 0, other)
        bits = torch.empty(flat.shape, dtype=torch.float32, device=flat.device)
        for box in file.boxes_of(site.name, flat.device):
            part = slice(box.begin, box.begin + box.box.elements)
            bits[part] = box.change(flat[part], wanted[part])
        # What a removal saves is what the weight takes: minus the change of the file.
        bits = torch.where(there, -bits, bits).reshape(codes.shape)
        if tensor.values is not None:
            bits += VALUE_BITS
        if codes.ndim > 1:
            # The first weight of a filter brings the numbers of its channel with it,
            # and the last takes them away.
            # How many weights of its channel share the channel's numbers: those there
            # now, plus itself where it is a zero. Shape (channels, weights of a
            # channel).
            alive = there.reshape(len(codes), -1).sum(1, keepdim=True) + (
                ~there
            ).reshape(len(codes), -1)
            bits += (channel_bits / alive.clamp(min=1)).reshape(codes.shape)
        # Mean over kept weights only; `clamp` saves an empty layer from 0/0.
        mean = (bits * there.reshape(codes.shape)).sum() / there.sum().clamp(min=1)
        most = torch.where(there.any(), MOST_TIMES_THE_MEAN * mean, bits.amax()).clamp(
            min=LEAST_BITS
        )
        made.append(bits.clamp(min=LEAST_BITS).minimum(most))
    return made


def coded_bits(
    names: Sequence[str],
    packed: Mapping[str, CompressedTensor | Tensor],
    file: PricedFile,
) -> float:
    """What the codes and values of these tensors take of the file."""
    held = [t for name in names if isinstance(t := packed[name], CompressedTensor)]
    values = sum(t.values.numel() for t in held if t.values is not None)
    # A group is coded as one stream, so it counts whole where any of its boxes belongs
    # to these tensors.
    groups = [
        group for group in file.groups if any(box.name in names for box in group.boxes)
    ]
    return 8.0 * sum(group.size_bytes for group in groups) + VALUE_BITS * values


def _code_if_kept(
    site: Site, transform: RateTransform, packed: CompressedTensor
) -> Tensor:
    """What the rest of the chain makes of each weight where nothing is put to zero; 1
    where that is zero too.
    """
    at = site.chain.index(transform)
    value: Tensor | CompressedTensor = site.latent.detach()
    # What enters this transform, as the file would hold it.
    for link in site.chain[:at]:
        value = link.pack(value)
    whole = value.to_dense() if isinstance(value, CompressedTensor) else value
    codes = (whole != 0).to(torch.uint8)
    made: Tensor | CompressedTensor = whole
    for link in site.chain[at + 1 :]:
        made = link.pack(made)
    if isinstance(made, CompressedTensor):
        codes = made.codes
    # A level other than zero is needed to price the weight's return; a codebook of one
    # level has none.
    return codes.clamp(min=1) if packed.levels is None or packed.levels > 1 else codes


def _bits_of_a_channel(packed: Mapping[str, CompressedTensor | Tensor]) -> float:
    """Mean bits that a channel takes beside its weights: its bias, and the parameters
    and statistics of its batch norm.
    """
    vectors = [
        t
        for t in packed.values()
        if isinstance(t, Tensor) and t.ndim == 1 and t.is_floating_point()
    ]
    rows = sum(
        len(t.codes)
        for t in packed.values()
        if isinstance(t, CompressedTensor) and t.codes.ndim > 1
    )
    # A vector of equal numbers takes next to nothing in the file.
    distinct = [t for t in vectors if len(t) and bool((t != t[0]).any())]
    bits = 8.0 * sum(t.numel() * t.element_size() for t in distinct) / max(rows, 1)
    return min(bits, MOST_BITS_OF_A_CHANNEL)
