"""Reference networks by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from tersify.checks import check_given, check_range, check_whole
from tersify.lab.names import check_known, unknown
from tersify.lab.networks.alexnet import alexnet
from tersify.lab.networks.digits_cnn import digits_cnn
from tersify.lab.networks.minilm import minilm
from tersify.lab.networks.resnet_cifar import cifar_resnet
from tersify.lab.networks.resnet_imagenet import LAYERS, imagenet_resnet
from tersify.lab.networks.resnet_star import resnet20_star
from tersify.lab.networks.scaling import compound
from tersify.lab.networks.speech import speech_mlp
from tersify.lab.networks.squeezenet import squeezenet1_1
from tersify.lab.networks.token_lstm import lstm
from tersify.lab.networks.vgg import vgg16

_BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "alexnet": alexnet,
    "digits-cnn": digits_cnn,
    "lstm": lstm,
    "minilm": minilm,
    "resnet20-star": resnet20_star,
    "speech-mlp": speech_mlp,
    "squeezenet1_1": squeezenet1_1,
    "vgg16": vgg16,
    **{f"resnet{layers}": partial(cifar_resnet, layers) for layers in (20, 32, 44, 56)},
    **{f"resnet{layers}": partial(imagenet_resnet, layers) for layers in LAYERS},
}


def networks() -> list[str]:
    """The names `network` knows."""
    return sorted(_BUILDERS)


def options_of(name: str) -> list[str]:
    """The options that a reference network takes; none for a name that is not one."""
    if name not in _BUILDERS:
        return []
    return [
        p.name
        for p in inspect.signature(_BUILDERS[name]).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    ]


def network(name: str, /, **options: Any) -> nn.Module:
    """A fresh reference network. For images all take `classes`, `in_channels`, most
    `width`, `depth`.

    Those with both also take `compound` in their place, the one coefficient of EC2T's
    over-parametrized networks.
    """
    if name not in _BUILDERS:
        raise unknown("network", name, _BUILDERS)
    build, known = _BUILDERS[name], options_of(name)
    # EfficientNet's scaling: one coefficient sets width and depth together.
    if "compound" in options and {"width", "depth"} <= set(known):
        if given := {"width", "depth"} & options.keys():
            raise ValueError(
                f"compound sets width and depth; leave {' and '.join(sorted(given))} out"
            )
        coefficient = options.pop("compound")
        options |= compound(coefficient)
    check_known(f"option of {name}", options, known)
    for option in ("classes", "in_channels"):
        if option in options:
            check_whole(option, options[option], low=1)
    check_given(
        check_range, "dropout", options.get("dropout"), low=0, high=1, high_open=True
    )
    return build(**options)


__all__ = ["network", "networks", "options_of"]
