"""What each method is when nothing is said, and how far each setting goes: to its ends,
and no step beyond.
"""

import dataclasses

import pytest

from tersify.methods import from_table, registered

TINY, HUGE = 1e-9, 1e6
DEFAULTS = {
    "binary": {"stochastic": False, "scale": "none"},
    "bitnet": {},
    "ec2t": {"lam": 0.1, "warmup": 0.2, "sparsity": None, "plain": False},
    "energy": {
        "search": "de",
        "population": 8,
        "init": 0.5,
        "mutation": 0.5,
        "crossover": 0.5,
        "flip": 0.01,
        "temperature": 0.1,
        "tournament": 2,
        "objective": "margin",
        "size_weight": 0.0,
        "keep": None,
        "count": "parameters",
        "bound": "exactly",
        "thrifty": False,
        "parents": "same-batch",
        "stagnation": 0.5,
        "tolerance": 1e-5,
        "every": 1,
        "rows": 1,
        "coupled": False,
        "fold": True,
        "memory_gib": 4.0,
        "seed": 0,
    },
    "kmeans": {"bits": 5, "begin": 0.5, "learn": True},
    "lookup": {
        "n": 4,
        "m": 8,
        "fit": "optimal",
        "placement": "range-split",
        "shift": True,
        "ratio": None,
        "p_start": 0.04,
        "p_stop": 0.96,
        "k": None,
        "integer_bits": None,
        "sign_in_code": False,
        "per_channel": False,
        "force_zero": False,
        "learn": True,
    },
    "prune": {
        "sparsity": None,
        "density": None,
        "count": None,
        "score": "magnitude",
        "structure": "element",
        "scope": "layer",
        "floor": 0.0,
        "schedule": "agp",
        "start": 0.0,
        "begin": 0.0,
        "end": 0.75,
        "every": 1,
        "cycles": 3,
        "regrow": 0.5,
        "seed": 0,
        "lam": 1.0,
        "threshold": 0.1,
        "gain": 10.0,
        "head_start": 0.0,
        "lines": 0.0,
    },
    "rate": {"bytes": None, "lam": 0.1, "warmup": 0.6, "loss": 0.5},
    "ternary": {
        "regime": "fixed",
        "delta0": 0.1,
        "speed": 1.9,
        "cap": 0.9,
        "sparsity": None,
        "over": None,
        "clip": True,
        "spread": None,
        "scale": "none",
        "floor": 0.1,
    },
    "ternary-target": {
        "sparsity": 0.9,
        "start": 0.4,
        "begin": 0.0,
        "end": 0.6,
        "spread": None,
        "scale": "none",
    },
    "trq": {},
    "ttq": {"t": 0.05},
    "twn": {"factor": 0.7, "exact": False, "per_channel": False},
    "uniform": {
        "bits": 8,
        "symmetric": True,
        "per_channel": False,
        "clip": 1.0,
        "printed": False,
    },
}
# (method, setting, values at its ends, values just beyond)
ENDS = [
    ("ec2t", "lam", (0.0, 100.0), (-TINY, 100.1)),
    ("ec2t", "warmup", (0.0, 0.75), (-TINY, 0.76)),
    ("rate", "bytes", (1,), (0,)),
    ("rate", "lam", (0.0, 1000.0), (-TINY, 1000.1)),
    ("rate", "warmup", (0.0, 0.85), (-TINY, 0.86)),
    ("rate", "loss", (0.0, 1e6), (-TINY, 1e7)),
    ("ec2t", "sparsity", (TINY, 0.999), (0.0, 1.0)),
    ("energy", "population", (4,), (3,)),
    ("energy", "tournament", (2, 8), (1, 9)),
    ("energy", "every", (1,), (0,)),
    ("energy", "rows", (1,), (0,)),
    ("energy", "init", (TINY, 0.999), (0.0, 1.0)),
    ("energy", "mutation", (TINY, 1.0), (0.0, 1.01)),
    ("energy", "crossover", (TINY, 1.0), (0.0, 1.01)),
    ("energy", "flip", (TINY, 1.0), (0.0, 1.01)),
    ("energy", "stagnation", (TINY, 1.0), (0.0, 1.01)),
    ("energy", "temperature", (TINY, 1e9), (0.0, 2e9)),
    ("energy", "size_weight", (0.0, 1e9), (-TINY, 2e9)),
    ("energy", "tolerance", (0.0, 1e9), (-TINY, 2e9)),
    ("energy", "memory_gib", (TINY, HUGE), (0.0, 2 * HUGE)),
    ("energy", "keep", (TINY, 1.0), (0.0, 1.01)),
    ("kmeans", "bits", (1, 8), (0, 9)),
    ("kmeans", "begin", (0.0, 1.0), (-TINY, 1.01)),
    ("lookup", "n", (1, 8), (0, 9)),
    ("lookup", "m", (4, 10), (3, 11)),
    ("prune", "sparsity", (0.0, 0.999), (-TINY, 1.0)),
    ("prune", "density", (TINY, 1.0), (0.0, 1.01)),
    ("prune", "count", (0,), (-1,)),
    ("prune", "start", (0.0, 0.9), (-TINY, 0.91)),
    ("prune", "begin", (0.0, 0.74), (-TINY, 0.75)),
    ("prune", "end", (TINY, 1.0), (0.0, 1.01)),
    ("prune", "every", (1,), (0,)),
    ("prune", "cycles", (1,), (0,)),
    ("prune", "regrow", (0.0, 1.0), (-TINY, 1.01)),
    ("prune", "lam", (TINY, HUGE), (0.0, 2 * HUGE)),
    ("prune", "gain", (TINY, HUGE), (0.0, 2 * HUGE)),
    ("prune", "threshold", (TINY, 0.999), (0.0, 1.0)),
    ("ternary", "delta0", (TINY, 0.9), (0.0, 0.91)),
    ("ternary", "speed", (0.0, HUGE), (-TINY, 2 * HUGE)),
    ("ternary", "cap", (0.1, 1.0), (0.09, 1.01)),
    ("ternary", "sparsity", (TINY, 0.999), (0.0, 1.0)),
    ("ternary", "over", (1,), (0,)),
    ("ternary", "spread", (TINY, 1.0), (0.0, 1.01)),
    ("ternary", "floor", (0.0, 0.999), (-TINY, 1.0)),
    ("ternary-target", "sparsity", (TINY, 0.999), (0.0, 1.0)),
    ("ternary-target", "start", (TINY, 0.999), (0.0, 1.0)),
    ("ternary-target", "begin", (0.0, 0.59), (-TINY, 0.6)),
    ("ternary-target", "end", (TINY, 1.0), (0.0, 1.01)),
    ("ternary-target", "spread", (TINY, 1.0), (0.0, 1.01)),
    ("ttq", "t", (TINY, 1.0), (0.0, 1.01)),
    ("twn", "factor", (TINY, 10.0), (0.0, 10.1)),
    ("uniform", "bits", (2, 8), (1, 9)),
]


@pytest.mark.parametrize("name", registered())
def test_what_a_method_is_when_nothing_is_said(name):
    assert dataclasses.asdict(from_table({"method": name})) == DEFAULTS[name]


@pytest.mark.parametrize(
    ("name", "setting", "ends", "beyond"),
    ENDS,
    ids=[f"{end[0]}-{end[1]}" for end in ENDS],
)
def test_a_setting_goes_to_its_ends_and_no_further(name, setting, ends, beyond):
    for value in ends:
        assert getattr(from_table({"method": name, setting: value}), setting) == value
    for value in beyond:
        with pytest.raises(ValueError, match=setting):
            from_table({"method": name, setting: value})
