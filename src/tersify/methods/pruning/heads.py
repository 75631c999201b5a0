"""Attention heads: rows of query, key and value, and the columns of the output
projection that read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from tersify.methods.base import Network, Site, Units

INPUTS = (
    ("query", "key", "value"),
    ("q_proj", "k_proj", "v_proj"),
    ("q_lin", "k_lin", "v_lin"),
)
OUTPUTS = ("out_proj", "o_proj", "out_lin")
COUNTS = ("num_attention_heads", "num_heads", "n_heads")


# Who owns a tensor, under which name, along which dimension its heads lie, the head of
# each index, how many.
Part = tuple[nn.Module, str, int, Tensor, int]


def names_of(sites: Sequence[Site]) -> dict[tuple[nn.Module, str], str]:
    """Who owns a site's weight → its name. What the owner itself holds may be a
    computed tensor by now.
    """
    return {place: site.name for site in sites for place in site.owners}


def head_groups(sites: Sequence[Site], network: Network) -> Iterator[dict[str, Units]]:
    """One group for each attention whose weights the rule reaches."""
    # A rule that names a bias alone does not ask for heads.
    wanted = {site.name for site in sites if site.latent.ndim > 1}
    names = names_of(network.sites)
    for path, module in network.model.named_modules():
        parts = _fused(module) or _separate(module, _parent(network.model, path)) or ()
        members = {
            names[owner, attribute]: Units(
                f"{path}.heads", dim, head, count, scored=not attribute.endswith("bias")
            )
            for owner, attribute, dim, head, count in parts
            if (owner, attribute) in names
        }
        if wanted & set(members):
            yield members


def _fused(module: nn.Module) -> list[Part] | None:
    """torch's own attention, with the three projections in one tensor where their sizes
    agree.
    """
    if not isinstance(module, nn.MultiheadAttention) or not module._qkv_same_embed_dim:
        return None
    heads = module.num_heads
    rows = _blocks(module.embed_dim, heads)
    return [
        # Query, key and value lie one below the other, so the rows' heads repeat three
        # times.
        (module, "in_proj_weight", 0, rows.repeat(3), heads),
        (module, "in_proj_bias", 0, rows.repeat(3), heads),
        (module.out_proj, "weight", 1, rows, heads),
    ]


def _separate(module: nn.Module, parent: nn.Module | None) -> list[Part] | None:
    """Query, key and value as linear layers of one module; the output beside them or in
    the module above (BERT).
    """
    # The names of BERT, Llama and DistilBERT, which most networks follow.
    for triple in INPUTS:
        layers = [getattr(module, name, None) for name in triple]
        if all(isinstance(layer, nn.Linear) for layer in layers):
            break
    else:
        return None
    heads = next(
        (
            getattr(module, name)
            for name in COUNTS
            if isinstance(getattr(module, name, None), int)
        ),
        None,
    )
    if heads is None:
        raise ValueError(
            f"{type(module).__name__} has {', '.join(triple)} and does not say how many heads; give it an attribute "
            f"{COUNTS[1]}"
        )
    parts: list[Part] = []
    queries = getattr(module, triple[0]).out_features
    for layer in layers:
        assert isinstance(layer, nn.Linear)
        if layer.out_features != queries:
            # grouped-query attention: several queries read it, so it outlives each of
            # them
            continue
        rows = _blocks(layer.out_features, heads)
        parts += [(layer, "weight", 0, rows, heads), (layer, "bias", 0, rows, heads)]
    beside = [getattr(module, name, None) for name in OUTPUTS]
    above = getattr(getattr(parent, "output", None), "dense", None)
    output = next(
        (layer for layer in (*beside, above) if isinstance(layer, nn.Linear)), None
    )
    if output is not None:
        parts.append((output, "weight", 1, _blocks(output.in_features, heads), heads))
    return parts


def _blocks(size: int, heads: int) -> Tensor:
    if size % heads:
        raise ValueError(f"{size} features do not divide into {heads} heads")
    return torch.arange(heads).repeat_interleave(size // heads)


def _parent(model: nn.Module, path: str) -> nn.Module | None:
    return model.get_submodule(path.rpartition(".")[0]) if path else None
