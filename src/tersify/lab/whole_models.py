"""Whether transformers read all of a causal model: what it does not find it draws at
random, and what it does not know it leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tersify.export.gguf_names import ARCHITECTURES, gguf_name

# settings of GGUF that transformers does not read, and what they mean where they are
# not there
UNREAD = {"attention.sliding_window": 0, "rope.scaling.type": "none"}


def check_whole(path: Path, found: Mapping[str, Any]) -> None:
    """Raises where the loading info of transformers tells of weights that are missing or
    of another shape.
    """
    if missing := sorted(found["missing_keys"]):
        raise ValueError(
            f"{str(path)!r} lacks {len(missing)} of the model's weights, {missing[0]!r} among them; download it anew, "
            "or convert it with a tool that knows the model"
        )
    if odd := sorted(found["mismatched_keys"]):
        name, there, here = odd[0]
        raise ValueError(
            f"{str(path)!r} has weights of other shapes than its configuration says: {name!r} is {list(there)} and "
            f"not {list(here)}; give the configuration of these weights"
        )


def check_all_read(path: Path, reader: Any, model: Any) -> None:
    """Raises where the model is not all that a GGUF file says, as far as we know its
    family.
    """
    config, state = model.config, model.state_dict()
    with torch.device("meta"):
        described = type(model)(config).state_dict()
    # transformers takes any shape from such a file
    if odd := [name for name in state if state[name].shape != described[name].shape]:
        there, here = list(state[odd[0]].shape), list(described[odd[0]].shape)
        raise ValueError(
            f"{path} holds {odd[0]!r} of {there}, and transformers reads its settings as {here}; "
            "give a folder of transformers"
        )
    if config.model_type not in ARCHITECTURES:
        return
    known = set(map(gguf_name, state))
    if lost := [each.name for each in reader.tensors if each.name not in known]:
        raise ValueError(
            f"{path} holds {lost[0]!r}, which transformers leaves out of this model of type {config.model_type!r}; "
            "give a folder of transformers"
        )
    family = ARCHITECTURES[config.model_type]
    for setting, default in UNREAD.items():
        field = reader.get_field(f"{family}.{setting}")
        if field is not None and field.contents() != default:
            raise ValueError(
                f"{path} sets {setting} to {field.contents()!r}, which transformers does not read; "
                "give a folder of transformers"
            )
