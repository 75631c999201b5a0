"""TARGET on a command line: a network by name, from the user's file or from a model
library.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tersify.lab.names import unknown
from tersify.lab.networks import network, networks
from tersify.lab.networks.encoder import text_encoder
from tersify.userfile import call_function, names_function, refuse_bare_file


def resolve_target(target: str, /, **options: Any) -> nn.Module:
    """A reference network's name, `file.py:function`, `torchvision:NAME`, `timm:NAME`
    or `hf:PATH`.

    `hf:PATH` is a folder with a Hugging Face encoder, here a classifier of texts: token
    numbers in, logits out.
    """
    if names_function(target):
        model = call_function(target, **options)
        if not isinstance(model, nn.Module):
            raise ValueError(
                f"{target!r} returned a {type(model).__name__}; it must return a torch.nn.Module"
            )
        return model
    library, colon, name = target.partition(":")
    refuse_bare_file(target)
    if not colon:
        return network(target, **options)
    if library not in _LIBRARIES:
        raise unknown(
            "target",
            target,
            [
                *networks(),
                *(f"{known}:NAME" for known in _LIBRARIES),
                "file.py:function",
            ],
        )
    package, build = _LIBRARIES[library]
    try:
        module = importlib.import_module(package)
    except ImportError as error:
        # which may be one that the library needs itself
        missing = (error.name or package).partition(".")[0]
        raise ValueError(
            f"{target!r} needs the package {missing}, which is missing; pip install {missing}"
        ) from None
    except RuntimeError as error:
        # A torchvision built for another torch is found but cannot register its
        # operators.
        raise ValueError(
            f"{target!r} needs the package {package}, which does not fit torch {torch.__version__}: {error}; "
            f"install the {package} of that version"
        ) from error
    try:
        return build(module, name, options)
    except TypeError as error:
        raise ValueError(f"{target!r} does not take these options: {error}") from error


def _torchvision(torchvision: Any, name: str, options: dict[str, Any]) -> nn.Module:
    if name not in torchvision.models.list_models():
        raise unknown("torchvision model", name, torchvision.models.list_models())
    # No weights: fetching them would need the network, and they come by --weights.
    return torchvision.models.get_model(name, weights=None, **_num_classes(options))


def _timm(timm: Any, name: str, options: dict[str, Any]) -> nn.Module:
    if not timm.is_model(name):
        raise unknown("timm model", name, timm.list_models())
    return timm.create_model(name, pretrained=False, **_num_classes(options))


def _hugging_face(transformers: Any, path: str, options: dict[str, Any]) -> nn.Module:
    if not (Path(path) / "config.json").is_file():
        raise ValueError(
            f"'hf:{path}' names no folder with a config.json; hf: takes the path of a downloaded model"
        )
    try:
        return text_encoder(transformers, path, **options)
    except OSError as error:
        raise ValueError(
            f"'hf:{path}' holds no model: {str(error).splitlines()[0]}"
        ) from None


def _num_classes(options: dict[str, Any]) -> dict[str, Any]:
    return {
        "num_classes" if key == "classes" else key: value
        for key, value in options.items()
    }


_LIBRARIES: dict[str, tuple[str, Callable[[Any, str, dict[str, Any]], nn.Module]]] = {
    "torchvision": ("torchvision", _torchvision),
    "timm": ("timm", _timm),
    "hf": ("transformers", _hugging_face),
}
