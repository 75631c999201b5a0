"""Training with a part of the network on each rank: every rank writes and reads its own
part of a checkpoint.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tersify import ranks
from tersify.lab.trainer.plain_session import Training

if TYPE_CHECKING:
    from tersify.lab.trainer.loop import Loop


def spread_over_ranks_(session: Training) -> None:
    from tersify.session import Session
    from tersify.sharding import shard_

    if not isinstance(session, Session):
        raise ValueError(
            "parallel 'sharded' is for compressed training; name a recipe, or leave parallel out"
        )
    shard_(session)


def save_shards(loop: Loop, home: Path, epoch: int) -> dict[str, Any]:
    """Write the parts beside the checkpoint; what the checkpoint itself must hold then."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.checkpoint.state_dict_saver import save

    model, optimizer = get_state_dict(loop.model, loop.optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            save(
                {"model": model, "optimizer": optimizer},
                checkpoint_id=_folder(home, epoch),
            )
        except CheckpointException as error:
            # torch gathers what went wrong on the ranks, with their tracebacks
            causes = [
                cause
                for cause, _ in error.failures.values()
                if isinstance(cause, OSError)
            ]
            if not causes:
                raise
            raise OSError(
                causes[0].errno, causes[0].strerror, str(_folder(home, epoch))
            ) from error
    return {
        "model": {},
        "optimizer": {},
        "average": {},
        "session": loop.session.state_dict(),
    }


def remove_old_shards(home: Path, epoch: int) -> None:
    """Only after the checkpoint names the new ones."""
    for folder in home.glob("shards-*"):
        if folder != _folder(home, epoch):
            shutil.rmtree(folder)


def load_shards_(loop: Loop, home: Path, state: dict[str, Any]) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load

    folder = _folder(home, state["epoch"])
    if not ranks.first(folder.is_dir):
        raise ValueError(
            f"{home} holds the checkpoint of a run that was not sharded; go on with parallel 'replicated'"
        )
    model, optimizer = get_state_dict(loop.model, loop.optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load({"model": model, "optimizer": optimizer}, checkpoint_id=folder)
        set_state_dict(
            loop.model,
            loop.optimizer,
            model_state_dict=model,
            optim_state_dict=optimizer,
        )
    loop.session.load_state_dict(state["session"])


def _folder(home: Path, epoch: int) -> Path:
    return home / f"shards-{epoch}"
