"""Points that papers published, for the planes accuracy–sparsity and accuracy–entropy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Published:
    """Shares and accuracies in percent; a sparsity that the paper gives as a range is one here too."""

    name: str
    accuracy: float
    sparsity: float | tuple[float, float]
    entropy_bits: float | None = None


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    source: str
    data: str
    points: tuple[Published, ...]


TERNARY_TABLE_2 = PublishedTable(
    source="Dordoni et al., MLSP 2024, Table 2 (CIFAR-10)",
    data="cifar10",
    points=(
        Published(name="ResNet-20 FP", accuracy=91.67, sparsity=0.0),
        Published(name="TTQ", accuracy=91.13, sparsity=(30.0, 50.0)),
        Published(name="EC2T-1", accuracy=91.16, sparsity=45.17),
        Published(name="EC2T-2", accuracy=90.76, sparsity=73.26),
        Published(name="ResNet-20* FP", accuracy=93.61, sparsity=0.0),
        Published(name="binary", accuracy=91.22, sparsity=0.0, entropy_bits=1.0),
        Published(name="linear", accuracy=92.30, sparsity=84.25, entropy_bits=0.78),
        Published(name="log", accuracy=93.27, sparsity=89.75, entropy_bits=0.57),
    ),
)
TABLES = (TERNARY_TABLE_2,)
