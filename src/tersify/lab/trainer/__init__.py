"""The trainer: one loop for dense and compressed networks, and the run directory it leaves."""

from tersify.lab.trainer.config import TrainConfig
from tersify.lab.trainer.directory import RunDirectory
from tersify.lab.trainer.display import Display, display_for
from tersify.lab.trainer.evaluation import check_fits, evaluate
from tersify.lab.trainer.job import Job
from tersify.lab.trainer.loop import pick_device
from tersify.lab.trainer.run import train
from tersify.lab.trainer.stored import load_network, load_weights

__all__ = [
    "Display",
    "Job",
    "RunDirectory",
    "TrainConfig",
    "check_fits",
    "display_for",
    "evaluate",
    "load_network",
    "load_weights",
    "pick_device",
    "train",
]
