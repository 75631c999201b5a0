import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tersify.lab import set_seed, topk_accuracy
from tersify.lab.metrics import answer_f1, f1, perplexity


@given(st.integers(0, 2**31), st.integers(1, 20), st.integers(1, 9))
def test_top_k_agrees_with_sorting(seed: int, rows: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.rand(rows, classes, generator=generator)
    labels = torch.randint(0, classes, (rows,), generator=generator)
    order = logits.argsort(1, descending=True)
    for k, percent in topk_accuracy(logits, labels).items():
        assert percent == pytest.approx(
            100 * (order[:, :k] == labels[:, None]).any(1).double().mean().item()
        )


def test_equal_logits_rank_by_class_number() -> None:
    assert topk_accuracy(torch.zeros(4, 4), torch.arange(4), ks=(1, 2)) == {
        1: 25.0,
        2: 50.0,
    }


def test_a_network_that_answers_nan_is_never_right() -> None:
    logits = torch.full((3, 3), float("nan"))
    assert topk_accuracy(logits, torch.arange(3), ks=(1, 2)) == {1: 0.0, 2: 0.0}
    logits[:, 0] = 1.0
    assert topk_accuracy(logits, torch.zeros(3, dtype=torch.int64), ks=(1,)) == {1: 0.0}


def test_logits_and_labels_must_fit() -> None:
    with pytest.raises(ValueError, match=r"got \(3, 2\) and \(4,\)"):
        topk_accuracy(torch.zeros(3, 2), torch.zeros(4, dtype=torch.int64))


def test_one_seed_repeats_every_generator() -> None:
    import random

    import numpy as np

    draws = []
    for _ in range(2):
        set_seed(11)
        draws.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert draws[0] == draws[1]
    with pytest.raises(ValueError, match="seed must be"):
        set_seed(-1)


def test_perplexity_of_an_even_guess_is_the_number_of_tokens():
    assert perplexity(
        torch.zeros(3, 5, 7), torch.randint(0, 7, (3, 5))
    ) == pytest.approx(7)
    certain = torch.tensor([[[0.0, 50.0], [50.0, 0.0]]])
    assert perplexity(certain, torch.tensor([[1, 0]])) == pytest.approx(1)


def test_f1_is_that_of_scikit_learn():
    from sklearn.metrics import f1_score

    predicted, labels = torch.randint(0, 4, (50,)), torch.randint(0, 4, (50,))
    assert f1(predicted, labels) == pytest.approx(
        100 * f1_score(labels, predicted, average="macro")
    )


def test_answers_are_compared_by_their_words():
    assert answer_f1("The Eiffel Tower!", ["eiffel tower"]) == 100
    assert answer_f1("in Paris, France", ["Paris"]) == pytest.approx(50)
    assert answer_f1("Rome", ["Paris", "rome"]) == 100
    assert answer_f1("", [""]) == 100
    assert answer_f1("Rome", [""]) == 0
    with pytest.raises(ValueError, match="at least one true answer"):
        answer_f1("x", [])
