"""How far the latents of each layer spread, so that one threshold leaves small layers
more of their weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

MOST_DENSE = 0.6  # of a layer's weights: a ternary one has use for some zeros
_NORMAL = NormalDist()


def layer_spreads(shapes: Sequence[Sequence[int]], sparsity: float) -> list[float]:
    """For each weight the factor of its latents' spread, which bell-shaped latents and
    one threshold turn into fractions.

    The densities are in the ratio of the Erdős-Rényi kernel (Evci et al., RigL): a
    layer keeps weights in number like its inputs and outputs, not like their product,
    so that a small classifier is not emptied with the rest.
    """
    # One threshold cuts all layers. A layer with density d needs a spread such that
    # this threshold is its own d-quantile.
    wanted = _quantile(1.0 - sparsity)
    return [
        wanted / _quantile(density)
        for density in layer_densities(shapes, 1.0 - sparsity)
    ]


def layer_densities(shapes: Sequence[Sequence[int]], density: float) -> list[float]:
    """Each layer's fraction of weights that stay, none above the most, for this fraction of
    all of them.
    """
    most = max(MOST_DENSE, density)
    sizes = [math.prod(shape) for shape in shapes]
    # Erdős-Rényi kernel: density proportional to (inputs + outputs + window) / their
    # product.
    ratios = [sum(shape) / size for shape, size in zip(shapes, sizes, strict=True)]
    kept = density * sum(sizes)
    found = [most] * len(sizes)
    rest = set(range(len(sizes)))
    # A layer that would have more than the most gets just that, and the others share
    # what is left, which may push one of them above it: at most once for each layer.
    while rest:
        taken = most * sum(size for i, size in enumerate(sizes) if i not in rest)
        factor = (kept - taken) / sum(ratios[i] * sizes[i] for i in rest)
        over = {i for i in rest if factor * ratios[i] > most}
        if not over:
            for i in rest:
                found[i] = factor * ratios[i]
            break
        rest -= over
    return found


def _quantile(density: float) -> float:
    """The magnitude beyond which this fraction of a standard normal distribution lies."""
    # almost no zeros: a ratio of the two must exist
    return max(_NORMAL.inv_cdf(1.0 - density / 2.0), 1e-6)
