"""The session of a network that is not compressed, so that the loop knows one kind of
training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from tersify.tensor import CompressedModel
from tersify.tensor.inputs import METADATA, facts_of
from tersify.tensor.model import tied


class Training(Protocol):
    """What the loop asks of a session."""

    @property
    def drops_units(self) -> bool: ...
    @property
    def sites(self) -> Sequence[object]: ...
    def step(
        self, inputs: Tensor | None = None, targets: Tensor | None = None
    ) -> None: ...
    def penalty(self) -> Tensor: ...
    def pack(self) -> CompressedModel: ...
    def param_groups(self, **defaults: Any) -> list[dict[str, Any]]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
    def figures(self) -> dict[str, float]: ...
    def status(self) -> dict[str, float]: ...
    def latents(self) -> dict[str, Tensor]: ...


class PlainSession:
    """Nothing is compressed: the dense twin trains through the same loop and packs as
    it is.
    """

    drops_units = False
    sites: Sequence[object] = ()

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def step(self, inputs: Tensor | None = None, targets: Tensor | None = None) -> None:
        return None

    def penalty(self) -> Tensor:
        return next(self._model.parameters()).new_zeros(())

    def pack(self) -> CompressedModel:
        """Every parameter and buffer as it is; the names of a tied tensor become
        aliases of its first.
        """
        tensors, aliases = tied(self._model.state_dict(keep_vars=True))
        held = {name: t.detach().cpu().clone() for name, t in tensors.items()}
        facts = facts_of(self._model)
        return CompressedModel(
            held, aliases=aliases, metadata={METADATA: facts} if facts else None
        )

    def param_groups(self, **defaults: Any) -> list[dict[str, Any]]:
        return [
            {
                "params": [p for p in self._model.parameters() if p.requires_grad],
                **defaults,
            }
        ]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return None

    def figures(self) -> dict[str, float]:
        return {}

    def status(self) -> dict[str, float]:
        return {}

    def latents(self) -> dict[str, Tensor]:
        return {}
