"""Rate and distortion after training: every code is decided by its bits and by the
damage it does.
"""

from tersify.rate_distortion.squeezer import Squeezer

__all__ = ["Squeezer"]
