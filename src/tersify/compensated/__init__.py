"""Post-training compression that compensates: what a rounded column does, the columns
after it take over.
"""

from tersify.compensated.budget import compensate_within_
from tersify.compensated.compensation import compensate_
from tersify.compensated.settings import Compensation
from tersify.compensated.statistics import next_token_loss

__all__ = ["Compensation", "compensate_", "compensate_within_", "next_token_loss"]
