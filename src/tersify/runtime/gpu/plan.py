"""What runs each product of a network on the GPU, and why: plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One layer. `form`: of its packed weight, empty where torch runs it;
    `activations`: what they are rounded to.
    """

    name: str
    reason: str
    form: str = ""
    activations: str = ""

    def describe(self) -> str:
        kernel = (
            f"{self.form}, {self.activations} activations" if self.form else "torch"
        )
        return f"{self.name}: {kernel} ({self.reason})"


@dataclass(frozen=True, kw_only=True)
class GpuPlan:
    """The linear layers and one-pixel convolutions of a network, in the order of its
    modules. The rest is torch's.
    """

    layers: tuple[Choice, ...]

    @property
    def packed(self) -> tuple[Choice, ...]:
        return tuple(layer for layer in self.layers if layer.form)

    def describe(self) -> str:
        """One line a layer."""
        return "\n".join(layer.describe() for layer in self.layers)
