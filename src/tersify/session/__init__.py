"""A recipe at work on a model while it is trained."""

from tersify.session.attaching import attach
from tersify.session.session import Session

__all__ = ["Session", "attach"]
