"""Many settings, one front: a space of recipe and trainer fields, searched by Optuna,
run here or by Ray.
"""

from tersify.lab.sweep.sweep_file import Sweep
from tersify.lab.sweep.trials import SweepDisplay, check_any_complete, sweep

__all__ = ["Sweep", "SweepDisplay", "check_any_complete", "sweep"]
