"""Deep Compression's weight sharing: clusters of weights whose common value is trained."""

import contextlib

import pytest
import torch
from torch import nn

import tersify
from tersify import Recipe, Rule
from tersify.methods import KMeans, Prune
from tersify.methods.kmeans import SharedTransform, nearest_means


def trained(methods, epochs=20, lr=0.05):
    torch.manual_seed(0)
    model = nn.Linear(20, 20, bias=False)
    session = tersify.attach(
        model, Recipe(rules=[Rule(methods=methods)]), epochs=epochs, steps_per_epoch=1
    )
    optimizer = torch.optim.SGD(session.param_groups(), lr=lr)
    seen = []
    for _ in range(epochs):
        session.step()
        seen.append(model.weight.detach().clone())
        loss = (model(torch.randn(8, 20)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, session, seen


def test_weights_train_freely_until_they_are_clustered_and_share_values_from_then_on():
    _, _, seen = trained([KMeans(bits=3, begin=0.5)])
    assert len(seen[9].unique()) == 400
    assert all(len(weight.unique()) <= 7 for weight in seen[10:])


def test_a_cluster_keeps_its_members_while_its_value_is_trained():
    _, session, seen = trained([KMeans(bits=3, begin=0.5)])
    first, last = seen[10], session.pack()["weight"].to_dense()
    assert not torch.equal(first, last)
    for value in first.unique():
        assert len(last[first == value].unique()) == 1


def test_without_learning_the_values_stay():
    _, session, seen = trained([KMeans(bits=3, begin=0.5, learn=False)])
    assert torch.equal(seen[10], session.pack()["weight"].to_dense())


def test_what_was_pruned_stays_zero_and_costs_no_cluster():
    _, session, _ = trained([Prune(sparsity=0.75, end=0.3), KMeans(bits=2, begin=0.5)])
    packed = session.pack()["weight"]
    assert packed.codebook[0] == 0
    assert (packed.codes == 0).float().mean() == pytest.approx(0.75)
    assert packed.levels == 4


def test_compression_without_training_clusters_at_once():
    model = nn.Linear(30, 30)
    packed = tersify.compress_(
        model, Recipe(rules=[Rule(methods=[Prune(sparsity=0.5), KMeans(bits=4)])])
    )
    assert packed["weight"].levels == 16
    assert torch.equal(packed["weight"].to_dense(), model.weight)


def test_lloyds_steps_lower_the_error_of_an_even_grid():
    values = torch.randn(2000)
    centres = nearest_means(values, 7)
    grid = torch.linspace(float(values.min()), float(values.max()), 7)

    def error(levels):
        return (values[:, None] - levels).abs().amin(1).square().mean()

    assert error(centres) < 0.5 * error(grid)
    assert torch.equal(centres, centres.sort().values)


def test_tensors_of_zeros_and_of_few_values_are_clustered_too():
    assert nearest_means(torch.zeros(0), 3).tolist() == [0, 0, 0]
    assert set(nearest_means(torch.tensor([1.0, 2.0, 1.0]), 3).tolist()) >= {1.0, 2.0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"bits": 9}, r"bits must be 1..8, got 9"), ({"begin": 2}, "begin")],
)
def test_a_wrong_setting_is_refused_at_birth(settings, message):
    with pytest.raises(ValueError, match=message):
        KMeans(**settings)


@pytest.mark.parametrize(
    ("begin", "first"), [(0.0, 0), (0.5, 5), (0.6, 6), (0.99, 9), (1.0, 9)]
)
def test_clustering_happens_once_and_is_never_missed(monkeypatch, begin, first):
    clustered = []
    cluster_ = SharedTransform.cluster_
    monkeypatch.setattr(
        SharedTransform,
        "cluster_",
        lambda self, w: (clustered.append(session._steps_done), cluster_(self, w)),
    )
    session = tersify.attach(
        nn.Linear(8, 8, bias=False),
        Recipe(rules=[Rule(methods=[KMeans(begin=begin)])]),
        steps=10,
    )
    for _ in range(10):
        session.step()
    with (
        pytest.warns(UserWarning, match="past the 10 steps")
        if begin
        else contextlib.nullcontext()
    ):
        for _ in range(3):
            session.step()
    assert clustered == [first]
    assert session.pack()["weight"].codebook is not None


def test_what_is_pruned_after_the_clustering_is_zero_too():
    model, session, _ = trained(
        [Prune(sparsity=0.75, end=0.9), KMeans(bits=3, begin=0.2)]
    )
    packed = session.pack()["weight"]
    assert (model.weight == 0).float().mean() == pytest.approx(0.75)
    assert torch.equal(packed.codes == 0, model.weight == 0)
    assert torch.equal(packed.to_dense(), model.eval().weight)
