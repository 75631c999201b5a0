import pytest

from tersify.lab.trainer.demo import demo_job


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_demo_s_ternary_network_is_85_percent_sparse_and_within_a_point_of_its_twin(seed, tmp_path):
    job = demo_job(seed=seed)
    dense = job.dense_twin().run(tmp_path / "dense")
    terse = job.run(tmp_path / "ternary")
    assert terse["sparsity"] >= 85
    assert terse["accuracy"] >= dense["accuracy"] - 1.0
    assert terse["file_bytes"] < dense["file_bytes"] / 10
