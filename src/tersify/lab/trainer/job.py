"""Job: a training run described by names, as the command line and the experiments give
it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from tersify import ranks
from tersify.codec import DEFAULT_MAX_DECODED_BYTES
from tersify.lab.data import Data, dataset
from tersify.lab.data.roots import data_root
from tersify.lab.networks import options_of
from tersify.lab.seeds import set_seed
from tersify.lab.stored_networks import load_weights
from tersify.lab.targets import resolve_target
from tersify.lab.trainer.batches import seed_of
from tersify.lab.trainer.config import TrainConfig
from tersify.lab.trainer.display import Display
from tersify.lab.trainer.loop import Loop
from tersify.lab.trainer.run import train
from tersify.lab.trainer.run_directory import RunDirectory
from tersify.userfile import names_function

if TYPE_CHECKING:
    from tersify.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Job:
    """Which network, data, recipe (None: dense) and settings; `subset` keeps the first
    images of each split.

    `weights` is a path, from here or from the data root. With `validate` part of the
    training split is the test.
    """

    target: str
    data: str
    config: TrainConfig
    recipe: Recipe | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    weights: Path | None = None
    data_root: Path | None = None
    subset: int | None = None
    validate: bool = False
    max_decoded_bytes: int = DEFAULT_MAX_DECODED_BYTES

    def run(
        self,
        out: Path,
        *,
        resume: bool = False,
        display: Display | None = None,
        tensorboard: bool = False,
        checkpoint_seconds: float = 0.0,
        data: Data | None = None,
    ) -> dict[str, float]:
        """Train into `out`; `data` is what `load_data` gave, where it is at hand."""
        ranks.first(lambda: RunDirectory(out).check_usable(resume=resume))
        data = self.load_data() if data is None else data
        options = self.network_options(data)
        metadata: dict[str, Any] = {
            "target": {"name": self.target, "options": options},
            "data": self.data,
            "input": list(data.shape),
        }
        model = self._model(options)
        if (weights := self._start()) is not None:
            # The digest tells one file from another of the same name when the run is
            # resumed.
            digest = hashlib.sha256(weights.read_bytes()).hexdigest()
            metadata["weights"] = {"name": weights.name, "sha256": digest}
        return train(
            model,
            data,
            self.config,
            out=out,
            recipe=self.recipe,
            resume=resume,
            metadata=metadata,
            display=display,
            tensorboard=tensorboard,
            checkpoint_seconds=checkpoint_seconds,
        )

    def check(self, data: Data) -> None:
        """Raise what `run` would raise at its start, before hours go into what it
        needs.
        """
        Loop(self.network(data), data, self.config, self.recipe)

    def network(self, data: Data) -> nn.Module:
        """The network as training finds it."""
        return self._model(self.network_options(data))

    def load_data(self) -> Data:
        data = dataset(self.data, root=self.data_root)
        if self.subset is not None:
            data = replace(
                data, train=data.train[: self.subset], test=data.test[: self.subset]
            )
        return data.for_choosing() if self.validate else data

    def network_options(self, data: Data) -> dict[str, Any]:
        """The network fits the data unless told otherwise; a user's own function gets
        only what was asked.
        """
        if names_function(self.target):
            fitting = {}
        elif ":" in self.target:
            fitting = {"classes": data.classes}
        else:
            known = options_of(self.target)
            fitting = {"classes": data.classes, "in_channels": data.shape[0]}
            fitting = {key: value for key, value in fitting.items() if key in known}
        return fitting | dict(self.options)

    def _model(self, options: Mapping[str, Any]) -> nn.Module:
        set_seed(seed_of(self.config.seed, 0, "init"))
        model = resolve_target(self.target, **options)
        weights = self._start()
        return (
            model
            if weights is None
            else load_weights(model, weights, max_decoded_bytes=self.max_decoded_bytes)
        )

    def _start(self) -> Path | None:
        """The file that the network's weights come from."""
        if self.weights is None or self.weights.is_file():
            return self.weights
        under_root = data_root(self.data_root) / self.weights
        return under_root if under_root.is_file() else self.weights
