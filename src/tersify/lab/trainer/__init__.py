"""The trainer: one loop for dense and compressed networks, and the run directory it leaves."""

from tersify.lab.trainer.config import TrainConfig
from tersify.lab.trainer.display import Display, display_for
from tersify.lab.trainer.evaluation import evaluate
from tersify.lab.trainer.run import train

__all__ = ["Display", "TrainConfig", "display_for", "evaluate", "train"]
