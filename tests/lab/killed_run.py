"""Runs a training given as JSON on stdin and kills itself in the middle of an epoch.

SIGKILL leaves no chance to tidy up, as a power cut or an out-of-memory kill would.
"""

import json
import os
import signal
import sys
from pathlib import Path

from tersify.lab.trainer import Display, Job, TrainConfig
from tersify.recipe import Recipe


def job_of(spec: dict) -> Job:
    recipe = Recipe.from_toml(spec["recipe"]) if spec["recipe"] else None
    return Job(
        target="digits-cnn",
        options={"width": 0.5},
        data="digits",
        subset=300,
        config=TrainConfig(**spec["train"]),
        recipe=recipe,
    )


class KillInEpoch(Display):
    def __init__(self, epoch: int) -> None:
        self._batches_left = 10 * (epoch - 1) + 4

    def batch_done(self) -> None:
        self._batches_left -= 1
        if not self._batches_left:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    given = json.load(sys.stdin)
    job_of(given).run(Path(given["out"]), display=KillInEpoch(given["kill_in_epoch"]))
