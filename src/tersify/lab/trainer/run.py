"""`train`: the loop with its run directory, checkpoints, resume and final figures."""

from __future__ import annotations

import contextlib
import json
import math
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tersify import codec, ranks
from tersify.codec.atomic import write_text
from tersify.lab.data import Data, normalize
from tersify.lab.networks import networks
from tersify.lab.trainer.checkpoint import CheckpointWriter, read_checkpoint
from tersify.lab.trainer.config import TrainConfig
from tersify.lab.trainer.display import Display
from tersify.lab.trainer.distributed import check_agreement
from tersify.lab.trainer.evaluation import evaluate
from tersify.lab.trainer.loop import Loop
from tersify.lab.trainer.run_directory import RunDirectory
from tersify.lab.trainer.shards import load_shards_, remove_old_shards, save_shards
from tersify.lab.trainer.tensorboard_log import Board
from tersify.locks import DirectoryLock
from tersify.tensor import CompressedModel, CompressedTensor

if TYPE_CHECKING:
    from tersify.recipe import Recipe
    from tersify.tensor import CompressedModel


def train(
    model: nn.Module,
    data: Data,
    config: TrainConfig,
    *,
    out: str | Path,
    recipe: Recipe | None = None,
    resume: bool = False,
    metadata: Mapping[str, Any] | None = None,
    display: Display | None = None,
    tensorboard: bool = False,
    checkpoint_seconds: float = 0.0,
) -> dict[str, float]:
    """Train `model` (dense without a recipe) into the run directory `out`; returns its
    metrics.

    Stopped at any moment and called again with `resume=True` and the same arguments, it
    ends with the weights of an unbroken run. `metadata` goes into the file; with the
    recipe and the config it is the identity of the run, and a directory of another run
    is refused. A checkpoint is written after an epoch when the one before it is
    `checkpoint_seconds` old, so always unless that is given. Of several ranks only the
    first reads and writes in `out`, and shows anything.
    """
    display = display if display and ranks.is_first() else Display()
    directory = RunDirectory(Path(out))
    recipe_toml = "" if recipe is None else recipe.to_toml()
    facts = dict(metadata or {})
    # Whatever may be wrong with the arguments is found before the directory is touched.
    # what it says of itself may change
    rules = None if recipe is None else replace(recipe, description="")
    identity = {
        "metadata": facts,
        "data": data.name,
        "recipe": "" if rules is None else rules.to_toml(),
        "train": config.to_dict(),
    }
    check_agreement(identity)
    loop = Loop(model, data, config, rules)
    board = Board(
        directory.path / "tensorboard", enabled=tensorboard and ranks.is_first()
    )
    with _locked(directory, resume=resume):
        ranks.first(lambda: directory.claim(identity, resume=resume))
        finished = ranks.first(
            lambda: directory.read_metrics() if directory.metrics.is_file() else None
        )
        if finished is not None:
            return finished
        ranks.first(lambda: write_text(directory.recipe, recipe_toml))
        history = _restore(loop, directory)
        with board, display:
            display.begin(
                epochs=config.epochs, done=len(history), steps=loop.feed.steps
            )
            _run_epochs(loop, directory, history, display, board, checkpoint_seconds)
        # before the statistics are those of the sub-network that is packed
        full = loop.measure_full()
        if config.recalibrate:
            loop.recalibrate_()
        packed = loop.pack()
        packed.recipe = recipe_toml or None
        packed.metadata |= facts | {"trained_on": device_name(loop.device)}
        histograms = loop.latent_histograms()
        return ranks.first(
            lambda: _finish(directory, packed, histograms, history, loop, full)
        )


@contextlib.contextmanager
def _locked(directory: RunDirectory, *, resume: bool) -> Iterator[None]:
    """The first rank holds the directory for all of them; where it cannot, every rank
    raises.
    """
    held: list[DirectoryLock] = []
    # before a file of ours lies in it
    ranks.first(lambda: directory.check_usable(resume=resume))
    ranks.first(lambda: held.append(DirectoryLock(directory.path)))
    try:
        yield
    finally:
        for lock in held:
            lock.release()


def device_name(device: torch.device) -> str:
    return (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"CPU, {platform.machine()}"
    )


def _finish(
    directory: RunDirectory,
    packed: CompressedModel,
    histograms: Mapping[str, Any],
    history: list[dict[str, Any]],
    loop: Loop,
    full: Mapping[str, float],
) -> dict[str, float]:
    """The file and its figures."""
    _save(packed, directory.model, loop)
    if histograms:
        write_text(directory.latents, json.dumps(histograms) + "\n")
    metrics = _metrics(directory, history, loop) | {"dense_bytes": packed.dense_bytes()}
    if packed.compressed():
        metrics["kept"] = _kept_percent(packed, loop.blank)
    metrics |= full
    if loop.session.drops_units:
        metrics |= _shrunk(loop)
    directory.write_metrics(metrics)
    return metrics


def _save(packed: CompressedModel, path: Path, loop: Loop) -> None:
    """A network that is not ours goes into the file as a graph too, where torch.export
    follows it.
    """
    target = packed.metadata.get("target")
    if not isinstance(target, dict) or target.get("name") not in networks():
        with contextlib.suppress(ValueError):
            codec.save(
                packed,
                path,
                network=loop.blank,
                example=normalize(loop.data.test.images[:2], loop.data),
            )
            return
    codec.save(packed, path)


def _restore(loop: Loop, directory: RunDirectory) -> list[dict[str, Any]]:
    """The history up to the last checkpoint, with the loop in the state it had there."""
    history: list[dict[str, Any]] = []
    state = ranks.first(
        lambda: (
            read_checkpoint(directory.checkpoint)
            if directory.checkpoint.is_file()
            else None
        )
    )
    if state is not None:
        try:
            if loop.is_sharded:
                load_shards_(loop, directory.checkpoint.parent, state)
            else:
                loop.load_state_dict(state)
        except (KeyError, TypeError, RuntimeError) as error:
            why = str(error).partition("\n")[0]
            raise ValueError(
                f"{directory.checkpoint} does not fit this network ({type(error).__name__}: {why}); "
                "resume with the network it was made with, or give another --out"
            ) from error
        history = state["history"]
    ranks.first(lambda: directory.write_history(history))
    return history


def _run_epochs(
    loop: Loop,
    directory: RunDirectory,
    history: list[dict[str, Any]],
    display: Display,
    board: Board,
    checkpoint_seconds: float,
) -> None:
    writer = CheckpointWriter(directory.checkpoint)
    written = time.monotonic()
    try:
        for epoch in range(len(history) + 1, loop.config.epochs + 1):
            row = loop.run_epoch(epoch, display)
            # Before the checkpoint: a resumed run must not begin from NaN.
            if not math.isfinite(row["loss"]):
                raise ValueError(
                    f"the loss became {row['loss']} in epoch {epoch}; start again with a learning rate "
                    f"below {loop.config.lr:g} (lr)"
                )
            history.append(row)
            home = directory.checkpoint.parent
            state = save_shards(loop, home, epoch) if loop.is_sharded else None
            if ranks.is_first():
                directory.append_history(row)
                due = (
                    time.monotonic() - written >= checkpoint_seconds
                    or epoch == loop.config.epochs
                )
                if due or state is not None:
                    written = time.monotonic()
                    writer.write(
                        (state or loop.state_dict())
                        | {"epoch": epoch, "history": history}
                    )
                if state is not None:
                    # Old shards may go only when the checkpoint that names the new ones
                    # is on the disk.
                    writer.wait()
                    remove_old_shards(home, epoch)
            board.add(row)
            display.epoch_done(row)
    finally:
        writer.close()


def _kept_percent(packed: CompressedModel, network: nn.Module) -> float:
    """The parameters that no method set to zero, over all."""
    stored = {name: packed[name] for name, _ in network.named_parameters()}
    kept = sum(
        int(t.codes.count_nonzero()) if isinstance(t, CompressedTensor) else t.numel()
        for t in stored.values()
    )
    return 100.0 * kept / sum(t.numel() for t in stored.values())


def _shrunk(loop: Loop) -> dict[str, float]:
    """How many parameters are left when the dropped units are really gone; nothing
    where that cannot be told.
    """
    from tersify.shrinking import shrink

    try:
        small = shrink(
            loop.blank.cpu(), normalize(loop.data.test.images[:2].cpu(), loop.data)
        )
    except (ValueError, RuntimeError):
        # a network that torch.export does not follow trains and packs all the same
        return {}
    return {"shrunk_parameters": sum(p.numel() for p in small.parameters())}


def _metrics(
    directory: RunDirectory, history: list[dict[str, Any]], loop: Loop
) -> dict[str, float]:
    """The figures of the file as it lies on the disk, loaded into a fresh module and
    run in fp32.
    """
    net = codec.load(directory.model, into=loop.blank).to(loop.device)
    final = evaluate(net, loop.data, loop.data.test, device=loop.device, amp=False)
    last = history[-1]
    # The file itself counts as well: recalibrated or rounded it may be better than any
    # epoch.
    best = max([*history, last | final], key=lambda row: row["accuracy"])
    return (
        final
        | {key: last[key] for key in ("sparsity", "entropy_bits") if key in last}
        | {
            "accuracy_best": best["accuracy"],
            "best_epoch": best["epoch"],
            "file_bytes": directory.model.stat().st_size,
            "train_seconds": sum(row["seconds"] for row in history),
            "epochs": len(history),
            "parameters": sum(p.numel() for p in loop.blank.parameters()),
        }
    )
