"""The trainer: one loop for dense and compressed networks, and the run directory it
leaves.
"""

from tersify.lab.stored_networks import load_network, load_weights
from tersify.lab.trainer.config import TrainConfig
from tersify.lab.trainer.dense_twin import run_with_twin
from tersify.lab.trainer.display import Display, display_for
from tersify.lab.trainer.evaluation import check_fits, evaluate
from tersify.lab.trainer.fitting import DENSE, fitted
from tersify.lab.trainer.job import Job
from tersify.lab.trainer.loop_parts import pick_device
from tersify.lab.trainer.run import train
from tersify.lab.trainer.run_directory import RunDirectory

__all__ = [
    "DENSE",
    "Display",
    "Job",
    "RunDirectory",
    "TrainConfig",
    "check_fits",
    "display_for",
    "evaluate",
    "fitted",
    "load_network",
    "load_weights",
    "pick_device",
    "run_with_twin",
    "train",
]
