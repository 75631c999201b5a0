"""The papers' tables as small declarative files, trained here and set beside the
published figures.
"""

from tersify.lab.experiments.experiment_file import Experiment, Row, experiments
from tersify.lab.experiments.registry import (
    Outcome,
    Request,
    Watch,
    known,
    listed,
    run_experiment,
)
from tersify.lab.experiments.reproduce import reproduce
from tersify.lab.experiments.run_figures import draw

__all__ = [
    "Experiment",
    "Outcome",
    "Request",
    "Row",
    "Watch",
    "draw",
    "experiments",
    "known",
    "listed",
    "reproduce",
    "run_experiment",
]
