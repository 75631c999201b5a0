"""Which weights a rule reaches: a glob passes by what is usually left alone, a name
reaches anything.
"""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Sequence

from torch import nn

from tersify.methods import Site, nearest

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
# In the names of parameters that no layer owns, as ViT's pos_embed and cls_token: within
# a word, and as words of their own.
_PARTS_OF_TABLES = ("embed", "token")
_WORDS_OF_TABLES = {
    *("pos", "position", "positions", "positional", "pe"),
    *("emb", "posemb", "relpos", "cls"),
}


def reached_by(glob: str, sites: Sequence[Site]) -> list[Site]:
    """The sites that `glob` names, with a warning where these are weights that are
    usually left alone.

    Those are embeddings, normalization, scales and frozen parameters. They are meant
    only by their full name, or by a glob that matches nothing else.
    """
    in_full = [site for site in sites if glob in (site.name, *site.aliases)]
    matrices = [site for site in sites if site.latent.ndim >= 2]
    matched = [site for site in matrices if _matches(glob, site)]
    # A network in which nothing trains is frozen for inference, not in parts.
    some_train = any(site.latent.requires_grad for site in sites)
    kinds = {id(site): _kind(site, some_train) for site in (*in_full, *matched)}
    ordinary = [site for site in matched if not kinds[id(site)]]
    # A full name wins; then ordinary weights; special ones only if the glob matches
    # nothing else.
    named = in_full or ordinary or matched
    if not named:
        remedy = nearest(glob, [site.name for site in matrices])
        raise ValueError(
            f"rule {glob!r} matches no weight of two dimensions or more; {remedy}"
        )
    caught = [f"{site.name!r} ({kinds[id(site)]})" for site in named if kinds[id(site)]]
    if caught:
        _tell_of_special_weights(glob, caught)
    return named


def _tell_of_special_weights(glob: str, caught: Sequence[str]) -> None:
    """`*` never means weights that are usually left alone; a narrower glob may."""
    some = ", ".join(caught[:3])
    if glob == "*":
        raise ValueError(
            "rule '*' leaves embeddings, normalization, scales and frozen weights alone, and the network has no "
            f"others: {some}; name those to be compressed"
        )
    warnings.warn(
        f"rule {glob!r} names {some}{' and more' if len(caught) > 3 else ''}, which a wider glob "
        "leaves alone; it is compressed because the rule names nothing else",
        stacklevel=3,
    )


def _matches(glob: str, site: Site) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for name in (site.name, *site.aliases))


def _kind(site: Site, some_train: bool) -> str:
    """Why a glob leaves the site alone, in a word; nothing for an ordinary weight."""
    # of one dimension: a glob reaches none, and nobody need be told
    if site.latent.ndim > 1 and all("bias" in name for name in _own_names(site)):
        return "a bias"
    if _is_embedding(site):
        return "an embedding"
    if all(_is_normalization(module) for module, _ in site.owners):
        return "normalization"
    if all(_is_scale(site, attribute) for _, attribute in site.owners):
        return "a scale"
    if some_train and not site.latent.requires_grad:
        return "frozen"
    return ""


def _is_embedding(site: Site) -> bool:
    """Whether it is an embedding wherever it stands.

    A matrix that an embedding shares with another layer is that layer's weight.
    """
    if all(isinstance(module, _EMBEDDINGS) for module, _ in site.owners):
        return True
    return all(map(_names_a_table, _own_names(site)))


def _names_a_table(name: str) -> bool:
    if name != "weight" and any(part in name for part in _PARTS_OF_TABLES):
        return True
    words = set(name.lower().split("_"))
    return bool(words & _WORDS_OF_TABLES) and "weight" not in words


def _own_names(site: Site) -> list[str]:
    """What the layers call it: the last word of each name, or that of the list it is
    in.
    """
    words = [name.split(".") for name in (site.name, *site.aliases)]
    return [w[-2] if len(w) > 1 and w[-1].isdigit() else w[-1] for w in words]


def _is_scale(site: Site, attribute: str) -> bool:
    """Numbers along one dimension that multiply activations, as a temperature of each
    head or ConvNeXt's γ: a bias by its nature, in the shape that broadcasting wants.
    """
    shape = site.latent.shape
    is_vector = len(shape) > 1 and site.latent.numel() == max(shape)
    return is_vector and "weight" not in attribute


def _is_normalization(module: nn.Module) -> bool:
    """By the name of its class too: transformers have many of their own."""
    own = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
    return isinstance(module, own) or any(
        kind.__name__.endswith("Norm") for kind in type(module).__mro__
    )
