"""The papers' tables as small declarative files, trained here and set beside the published figures."""

from tersify.lab.experiments.definition import Experiment, Row, experiments
from tersify.lab.experiments.figures import draw
from tersify.lab.experiments.runner import reproduce

__all__ = ["Experiment", "Row", "draw", "experiments", "reproduce"]
