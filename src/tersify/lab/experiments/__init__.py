"""The papers' tables as small declarative files, trained here and set beside the published figures."""

from tersify.lab.experiments.definition import Experiment, Row, experiments
from tersify.lab.experiments.figures import draw
from tersify.lab.experiments.registry import Outcome, Request, Watch, known, listed, run_experiment
from tersify.lab.experiments.runner import reproduce

__all__ = ["Experiment", "Outcome", "Request", "Row", "Watch", "draw", "experiments", "known", "listed", "reproduce",
           "run_experiment"]  # fmt: skip
