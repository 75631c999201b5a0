"""The training loop: anybody's network, a data set, a config and, unless it stays
dense, a recipe.
"""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tersify import ranks
from tersify.batchnorm_statistics import LEAST_VALUES, recalibrate_, recalibrated
from tersify.calibration import Calibration
from tersify.lab.data import Data, Stream, normalize
from tersify.lab.seeds import set_seed
from tersify.lab.trainer.average import WeightAverage
from tersify.lab.trainer.batches import Feed, StreamFeed, seed_of, to_device
from tersify.lab.trainer.config import TrainConfig
from tersify.lab.trainer.display import Display
from tersify.lab.trainer.distributed import (
    average_batch_norms_,
    check_alike,
    data_parallel,
    reduce_others_,
    start_alike,
    sum_over_ranks,
)
from tersify.lab.trainer.evaluation import check_fits, evaluate
from tersify.lab.trainer.loop_parts import (
    augmentation_of,
    freeze_,
    optimizer_of,
    pick_device,
)
from tersify.lab.trainer.mixup import mix
from tersify.lab.trainer.objective import Objective, load_teacher
from tersify.lab.trainer.plain_session import PlainSession, Training
from tersify.lab.trainer.rate import learning_rate, with_rate_of
from tersify.lab.trainer.shards import spread_over_ranks_
from tersify.methods.threshold import magnitude_quantile
from tersify.plain_names import without_plain_names
from tersify.tensor import CompressedModel, latent_histogram

if TYPE_CHECKING:
    from tersify.recipe import Recipe


CALIBRATION_IMAGES = 512
CALIBRATION_BATCH = 16
STATISTICS_BATCH = 256
STATISTICS_BATCHES = 16
STATISTICS_NUMBERS = 1 << 26  # in all images together: 256 MB


class Loop:
    """A network in training. `run_epoch` is a function of the state and the epoch's
    number alone.
    """

    def __init__(
        self, model: nn.Module, data: Data, config: TrainConfig, recipe: Recipe | None
    ) -> None:
        self._outputs = check_fits(model, data)
        if config.mixup and data.train.is_text:
            raise ValueError(
                f"mixup lays images over each other and {data.name!r} holds texts; leave mixup out"
            )
        teacher = load_teacher(config, data, self._outputs)
        if config.freeze:
            freeze_(model, config.freeze)
        self.config = config = with_rate_of(model, config)
        # The finished file goes into it. Lazy layers have their shapes only after the
        # check.
        self.blank = copy.deepcopy(model)
        self.device = pick_device(config.device)
        on_cuda = self.device.type == "cuda"
        self.amp = on_cuda if config.amp is None else config.amp
        channels_last = (
            on_cuda if config.channels_last is None else config.channels_last
        )
        self.model = start_alike(model.to(self.device), self.device)
        if channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        how: dict[str, Any] = {
            "batch_size": config.batch_size,
            "seed": config.seed,
            "device": self.device,
        }
        how["augmentation"] = augmentation_of(data, config)
        self.feed = (
            StreamFeed(data, **how)
            if isinstance(data.train, Stream)
            else Feed(
                data,
                **how,
                channels_last=channels_last,
                compiled=config.compile != "off",
            )
        )
        self.data = data
        self._test = to_device(data.test, self.device)
        self.session = self._attach(recipe)
        self.is_sharded = config.parallel == "sharded" and ranks.together()
        if self.is_sharded:
            spread_over_ranks_(self.session)
        self.optimizer = optimizer_of(self.session, config, fused=on_cuda)
        self.average = WeightAverage(self.model, config.ema) if config.ema else None
        memory_format = torch.channels_last if channels_last else torch.preserve_format
        if teacher is not None:
            teacher.to(self.device, memory_format=memory_format)  # type: ignore[call-overload]
        self._objective = Objective(
            config, self._compiled(teacher) if teacher else None
        )
        self._forward = (
            self.model
            if self.is_sharded
            else self._compiled(data_parallel(self.model, self.device))
        )

    def _compiled(self, model: nn.Module) -> Callable[[Tensor], Tensor]:
        return (
            model
            if self.config.compile == "off"
            else torch.compile(model, mode=self.config.compile)
        )

    def _attach(self, recipe: Recipe | None) -> Training:
        if recipe is None:
            return PlainSession(self.model)
        from tersify.session import attach

        return attach(
            self.model,
            recipe,
            epochs=self.config.epochs,
            steps_per_epoch=self.feed.steps,
            calibration=self._calibration() if recipe.needs_data else None,
            example=normalize(self.data.test.images[:1].to(self.device), self.data),
        )

    def _calibration(
        self, most: int = CALIBRATION_IMAGES, batch: int = CALIBRATION_BATCH
    ) -> list[tuple[Tensor, Tensor]]:
        """A few batches of the training images as they are, spread over all of them,
        which may be sorted by class.
        """
        picked = torch.linspace(
            0, len(self.data.train) - 1, min(len(self.data.train), most)
        ).long()
        picked = picked[
            torch.randperm(len(picked), generator=torch.Generator().manual_seed(0))
        ]
        images = normalize(self.data.train.images[picked].to(self.device), self.data)
        labels = self.data.train.labels[picked].to(self.device)
        # a last small batch would count as much as the others
        whole = max(len(picked) // batch, 1) * batch
        return list(
            zip(images[:whole].split(batch), labels[:whole].split(batch), strict=True)
        )

    def run_epoch(self, epoch: int, display: Display) -> dict[str, Any]:
        """Train the epoch (from 1) and measure the network after it: one row of the
        history.
        """
        start = time.perf_counter()
        set_seed(seed_of(self.config.seed, epoch, "global"))
        self.model.train()
        loss_sum = torch.zeros((), device=self.device)
        hits = torch.zeros((), device=self.device, dtype=torch.int64)
        for step, (images, labels) in enumerate(self.feed.batches(epoch)):
            # Before the forward pass: it moves thresholds and prepares the weights of
            # this batch.
            self.session.step(images, labels)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(
                    self.config, epoch - 1 + step / self.feed.steps
                )
            targets = labels
            if self.config.mixup:
                images, targets = mix(
                    images, labels, classes=self._outputs, fraction=self.config.mixup
                )
                # For the training accuracy alone: the class with the larger part.
                labels = targets.argmax(1)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.amp):
                logits = self._forward(images)
                loss = self._objective(images, logits, targets)
            self.optimizer.zero_grad(set_to_none=True)
            # Ranks are averaged, so a larger fraction of the batch must count for more.
            (
                loss * (self.feed.fraction * ranks.world()) + self.session.penalty()
            ).backward()
            reduce_others_(self.optimizer, self.model, self.is_sharded)
            self.optimizer.step()
            if self.average:
                self.average.update_()
            # Summed on the device; reading it in each step would wait for the GPU.
            loss_sum += loss.detach() * self.feed.fraction
            hits += (logits.detach().argmax(-1) == labels).sum()
            display.batch_done()
        average_batch_norms_(self.model)
        # Ranks that differ by one bit drift apart without a word, so it is checked each
        # epoch.
        check_alike(self.model.state_dict().items(), f"after epoch {epoch}")
        total = sum_over_ranks(
            {"loss": loss_sum.item(), "hits": hits.item()}, self.device
        )
        row = {
            "epoch": epoch,
            "loss": total["loss"] / self.feed.steps,
            "train_accuracy": 100.0 * total["hits"] / self.feed.samples,
            "lr": learning_rate(self.config, epoch - 1),
        }
        row |= self.measure() | self.session.figures()
        return row | {"seconds": time.perf_counter() - start}

    def measure(self) -> dict[str, float]:
        """Accuracy on the test set and, where anything is compressed, sparsity and
        entropy.
        """
        # What is measured is what is saved: the averaged weights.
        with self._averaged():
            figures = evaluate(
                self.model, self.data, self._test, device=self.device, amp=self.amp
            )
            if self.session.sites:
                status = self.session.status()
                figures["sparsity"] = status["zeros"]
                figures["entropy_bits"] = status["entropy"]
        return figures

    def measure_full(self) -> dict[str, float]:
        """Where a search drops units: the figures with all of them active, (F) of paper
        4.

        Its batch norms have seen the pruned network alone, so `full_reestimated_…` has
        their statistics measured again.
        """
        from tersify.methods.energy import full_network

        def figures(prefix: str) -> dict[str, float]:
            found = evaluate(
                self.model, self.data, self._test, device=self.device, amp=False
            )
            return {f"{prefix}_{name}": value for name, value in found.items()}

        with self._averaged(), full_network(self.model) as gates:
            if not gates:
                return {}
            as_it_is = figures("full")
            if len(self.data.train) < LEAST_VALUES:
                return as_it_is
            with recalibrated(self.model, self._statistics()):
                return as_it_is | figures("full_reestimated")

    def recalibrate_(self) -> None:
        """Batch norms get the statistics of the weights as they are at the end of
        training, where data suffice.
        """
        if len(self.data.train) < LEAST_VALUES:
            return
        with self._averaged():
            recalibrate_(self.model, self._statistics())
            average_batch_norms_(self.model)

    def _statistics(self) -> Calibration:
        """As many training images as tell a batch norm's statistics, where memory
        allows.
        """
        fitting = STATISTICS_NUMBERS // (math.prod(self.data.shape) * STATISTICS_BATCH)
        batches = min(max(fitting, 1), STATISTICS_BATCHES)
        return Calibration(
            self._calibration(batches * STATISTICS_BATCH, STATISTICS_BATCH)
        )

    def pack(self) -> CompressedModel:
        with self._averaged():
            return self.session.pack()

    def latent_histograms(self) -> dict[str, dict[str, list[float]]]:
        """One histogram for each compressed weight, all with the same bins."""
        with self._averaged():
            latents = self.session.latents()
            values = [t.float() for t in latents.values() if t.numel()]
            if not values:
                return {}
            # The few far beyond the others may share the outermost bins; clipped ones,
            # many at ±1, end there.
            limit = float(magnitude_quantile(values, 0.999)) or max(
                float(t.abs().max()) for t in values
            )
            return {
                name: latent_histogram(t, limit=limit or 1.0)
                for name, t in latents.items()
            }

    def _averaged(self) -> contextlib.AbstractContextManager[None]:
        return self.average.in_place() if self.average else contextlib.nullcontext()

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": without_plain_names(self.model, self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "session": self.session.state_dict(),
            "average": self.average.state_dict() if self.average else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.session.load_state_dict(state["session"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average:
            self.average.load_state_dict(state["average"])
