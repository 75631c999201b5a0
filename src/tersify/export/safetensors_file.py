"""The dense network as a plain safetensors file, for programs that know nothing of
ours.
"""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save

from tersify.codec.atomic import replacing
from tersify.tensor import CompressedModel


def export_safetensors(packed: CompressedModel, path: Path) -> int:
    """Every parameter and buffer, dense in its own dtype under each of its names;
    returns how many there are.

    The file lies at `path` whole or not at all. Tied tensors are written once for each
    name, since the format has no word for them.
    """
    state = packed.state_dict()
    state |= {alias: state[alias].clone() for alias in packed.aliases}
    data = save(
        {name: tensor.contiguous() for name, tensor in state.items()},
        metadata={"format": "pt"},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(data)
    return len(state)
