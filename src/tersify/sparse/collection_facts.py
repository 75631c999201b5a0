"""What the index of a collection says of its network: the recipe, the methods of its
weights, and a hash of its state.
"""

from __future__ import annotations

import hashlib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from tersify.sparse.input_rows import Record
from tersify.sparse.matrix_statistics import fraction
from tersify.tensor.origin import file_facts
from tersify.toml import read_toml

if TYPE_CHECKING:
    from tersify.recipe import Recipe


def recipe_text(model: nn.Module, recipe: str | Path | Recipe | None) -> str | None:
    if recipe is None:
        return file_facts(model)[0]
    from tersify.recipe import Recipe

    return Recipe.load(recipe).describe()


def method_of(text: str | None, parameter: str) -> dict[str, Any]:
    """The methods of the first rule that names the weight, and the fraction of zeros they
    aim at.
    """
    for rule in read_toml(text, "the recipe").get("rules", []) if text else []:
        globs = rule.get("weights", "*")
        if any(
            fnmatchcase(parameter, glob)
            for glob in ([globs] if isinstance(globs, str) else globs)
        ):
            methods = rule.get("methods", [])
            # Several methods of a chain may name one; the first is the pruner's.
            targets = [method["sparsity"] for method in methods if "sparsity" in method]
            return {
                "method": methods,
                "target_sparsity": targets[0] if targets else None,
            }
    return {"method": None, "target_sparsity": None}


def model_facts(
    model: nn.Module, records: list[Record], recipe: str | None
) -> dict[str, Any]:
    from tersify import __version__

    weights = [each.weight for each in records]
    zeros = sum(weight.size - int(np.count_nonzero(weight)) for weight in weights)
    return {
        "class": type(model).__name__,
        "state_sha256": state_hash(model),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "collected_weights": sum(weight.size for weight in weights),
        "sparsity": fraction(zeros, sum(weight.size for weight in weights)),
        "recipe": recipe,
        "tersify": __version__,
        "torch": str(torch.__version__),
    }


def state_hash(model: nn.Module) -> str:
    """sha256 over the names, types, shapes and bytes of the state dict."""
    digest = hashlib.sha256()
    # Sorted, so that the order in which modules were made does not count.
    for name, tensor in sorted(model.state_dict().items()):
        if isinstance(tensor, Tensor):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(
                tensor.detach()
                .cpu()
                .contiguous()
                .reshape(-1)
                .view(torch.uint8)
                .numpy()
                .tobytes()
            )
    return digest.hexdigest()
