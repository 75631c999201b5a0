import pytest

from tersify.lab.trainer.demo import run_demo


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_demo_s_ternary_network_is_85_percent_sparse_and_within_a_point_of_its_twin(
    seed, tmp_path
):
    rows = run_demo(tmp_path, seed=seed)
    dense, terse = rows["dense twin"], rows["ternary-log"]
    assert terse["sparsity"] >= 85
    assert terse["accuracy"] >= dense["accuracy"] - 1.0
    assert terse["file_bytes"] < dense["file_bytes"] / 10
