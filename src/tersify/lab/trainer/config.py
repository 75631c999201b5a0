"""TrainConfig: everything the trainer can be told, checked at birth."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tersify.checks import check_choice, check_range, is_number_of
from tersify.lab.names import check_known

OPTIMIZERS = ("adam", "adamw", "sgd", "adadelta")
SCHEDULES = ("constant", "step", "multistep", "cosine")
PARALLEL = ("replicated", "sharded")
COMPILE_MODES = ("off", "default", "reduce-overhead", "max-autotune")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train. Epochs count from 1, so milestone 101 is the first epoch at the
    next rate.

    `lr_size` is the root mean square of the weights that `lr` was chosen for; on a
    network whose weights are larger or smaller the rate goes with the square root of
    their ratio. `over` is the number of epochs the milestones, step length and warm-up
    were written for; when it is given they shrink or stretch with `epochs`. `amp` and
    `channels_last` left at None mean yes on CUDA and no on the CPU. `mixup` is the
    fraction of images that are laid over another one. `teacher` is a .terse file of a
    reference network to learn from. Parameters that the glob `freeze` names stay as
    they are. `recalibrate` takes batch-norm statistics anew when training ends. Where
    several ranks train, `parallel` says whether each holds the whole network or, of
    linear layers, a part of it.
    """

    epochs: int
    batch_size: int = 256
    optimizer: str = "adam"
    lr: float = 1e-3
    lr_size: float | None = None
    weight_decay: float = 0.0
    momentum: float = 0.9
    nesterov: bool = False
    schedule: str = "constant"
    milestones: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    gamma: float = 0.1
    step_epochs: int = 30
    over: int | None = None
    final_lr: float = 0.0
    warmup_epochs: float = 0.0
    label_smoothing: float = 0.0
    mixup: float = 0.0
    freeze: str = ""
    teacher: str = ""
    teacher_weight: float = 0.5
    teacher_temperature: float = 4.0
    augment: bool = True
    augmentation: Mapping[str, Any] = field(default_factory=dict)
    amp: bool | None = None
    channels_last: bool | None = None
    compile: str = "off"
    ema: float = 0.0
    recalibrate: bool = True
    seed: int = 0
    device: str = "auto"
    parallel: str = "replicated"

    def __post_init__(self) -> None:
        for name in ("milestones", "rates"):
            if not isinstance(getattr(self, name), (list, tuple)):
                raise ValueError(
                    f"{name} must be a list of numbers, got {getattr(self, name)!r}"
                )
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not isinstance(self.augmentation, Mapping):
            raise ValueError(
                f"augmentation must be a table such as {{ cutout = 8 }}, got {self.augmentation!r}"
            )
        object.__setattr__(
            self, "augmentation", MappingProxyType(dict(self.augmentation))
        )
        # Types before values: comparing a text with a number would raise an error
        # without a remedy.
        for spec in dataclasses.fields(self):
            _check_type(spec.name, str(spec.type), getattr(self, spec.name))
        _at_least("epochs", self.epochs, 1)
        _at_least("batch_size", self.batch_size, 1)
        _at_least("step_epochs", self.step_epochs, 1)
        _at_least("over", self.over, 1)
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("compile", self.compile, COMPILE_MODES)
        check_choice("parallel", self.parallel, PARALLEL)
        if self.parallel == "sharded" and (self.ema or self.compile != "off"):
            raise ValueError(
                "parallel 'sharded' goes neither with ema nor with compile; leave those out"
            )
        for name in ("lr", "lr_size", "gamma", "teacher_temperature"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("weight_decay", "final_lr", "warmup_epochs", "seed"):
            _at_least(name, getattr(self, name), 0)
        for name in ("momentum", "label_smoothing", "ema"):
            check_range(name, getattr(self, name), low=0, high=1, high_open=True)
        for name in ("teacher_weight", "mixup"):
            check_range(name, getattr(self, name), low=0, high=1)
        self._check_milestones()

    def _check_milestones(self) -> None:
        if self.schedule != "multistep":
            if self.milestones or self.rates:
                raise ValueError(
                    f"milestones and rates belong to schedule 'multistep', got {self.schedule!r}"
                )
            return
        if not self.milestones:
            raise ValueError(
                "schedule 'multistep' needs milestones: the epochs at which the rate changes"
            )
        if (
            # Rising, and none twice.
            list(self.milestones) != sorted(set(self.milestones))
            or self.milestones[0] < 2
        ):
            raise ValueError(
                f"milestones must rise and start at 2 or later, got {list(self.milestones)}"
            )
        if self.rates and len(self.rates) != len(self.milestones):
            raise ValueError(
                f"rates holds the learning rate from each milestone on: {len(self.milestones)} milestones "
                f"need as many rates, got {len(self.rates)}"
            )
        if any(rate <= 0 for rate in self.rates):
            raise ValueError(f"rates must be above 0, got {list(self.rates)}")

    @classmethod
    def from_mapping(cls, defaults: Mapping[str, Any], **overrides: Any) -> TrainConfig:
        """A config from a recipe's `[train]` table; an override that is None leaves the
        default.
        """
        merged = dict(defaults) | {
            key: value for key, value in overrides.items() if value is not None
        }
        known = [spec.name for spec in dataclasses.fields(cls)]
        check_known("training setting", merged, known)
        if "epochs" not in merged:
            raise ValueError(
                "the number of epochs is not given and the recipe names none; give --epochs N"
            )
        return cls(**merged)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, the inverse of `from_mapping`."""
        values = {
            spec.name: getattr(self, spec.name) for spec in dataclasses.fields(self)
        }
        lists = {key: list(values[key]) for key in ("milestones", "rates")}
        return values | lists | {"augmentation": dict(self.augmentation)}


# what a value may be, by its annotation
NUMBERS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float)}
OTHERS: dict[str, type] = {"str": str, "bool": bool}


def _at_least(name: str, value: float | None, low: int) -> None:
    if value is not None and value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")


def _check_type(name: str, annotation: str, value: object) -> None:
    """The fields hold few types, so their annotation is enough to check a value from
    TOML or a flag.
    """
    if value is None and annotation.endswith("| None"):
        return
    kind = annotation.removesuffix(" | None")
    if kind.startswith("tuple"):
        assert isinstance(value, tuple)
        inner = kind.removeprefix("tuple[").split(",")[0]
        for entry in value:
            _check_type(name, inner, entry)
        return
    # True is an int for Python; a field that wants a number must not take it.
    fits = (
        is_number_of(value, NUMBERS[kind])
        if kind in NUMBERS
        else isinstance(value, OTHERS.get(kind, object))
    )
    if not fits:
        raise ValueError(f"{name} must be of type {kind}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value}")
