"""The paper's Figure 1: the intervals are those of the range split, and the figure
shows every one of them.
"""

import numpy as np
import pytest

from tersify.lab.speech.partitions import draw, partition


@pytest.fixture(scope="module")
def found():
    return partition(np.random.default_rng(0).normal(0.0, 0.4, 20_000))


def test_sixteen_intervals_with_the_middle_92_percent_in_the_internal_partition(found):
    edges = found["edges"]
    assert len(edges) == 15
    assert edges == sorted(edges)
    low, high = found["internal"]
    inside = np.interp([low, high], found["weights"], found["shares"])
    assert inside == pytest.approx([0.04, 0.96], abs=0.005)


def test_weights_beyond_one_are_clamped_and_counted(found):
    assert max(map(abs, found["weights"])) == 1.0
    assert found["clamped"] > 0


def test_the_figure_has_a_line_for_each_edge(found):
    assert draw(found).standalone("layer").count("stroke-opacity=") == 15
