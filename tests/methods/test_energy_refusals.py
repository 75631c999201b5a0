"""Energy-based pruning: what it refuses, and with which words; what it takes."""

import pytest
import torch
from searching import Residual, batch, session_of, trained_a_little
from torch import nn

import tersify
from tersify import Recipe, Rule
from tersify.methods import Energy


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"population": 3},
            "population \\(S\\) must be a whole number of at least 4, got 3",
        ),
        ({"init": 1.0}, r"init \(P\) must be in \(0, 1\), got 1.0"),
        ({"init": 0.0}, "init"),
        ({"mutation": 0.0}, "mutation"),
        ({"search": "gradient"}, "search must be one of de, annealing"),
        ({"objective": "accuracy"}, "objective must be one of margin"),
        ({"keep": 1.5}, "keep"),
        ({"parents": "old"}, "parents must be one of same-batch, stored"),
        ({"bound": "below"}, "bound must be one of"),
        ({"tournament": 9}, "tournament"),
        (
            {"population": 4.5},
            "population .S. must be a whole number of at least 4, got 4.5",
        ),
        ({"tournament": 2.5}, "tournament must be 2..8, got 2.5"),
        ({"every": 1.5}, "every must be a whole number of at least 1, got 1.5"),
        ({"rows": True}, "rows must be a whole number of at least 1, got True"),
        ({"seed": 0.5}, "seed must be a whole number, got 0.5"),
    ],
)
def test_a_wrong_setting_is_refused_at_birth(settings, message):
    with pytest.raises(ValueError, match=message):
        Energy(**settings)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (lambda logits, targets: logits, "one energy for each of the"),
        (lambda logits, targets: 1.0, "got a float"),
        (lambda logits, targets: logits[:, 0] * float("nan"), "not finite"),
        (lambda logits, targets: logits.mean() / 0, "not finite"),
    ],
)
def test_an_objective_of_wrong_shape_or_without_a_number_is_refused(objective, message):
    model = trained_a_little()
    session = session_of(model, objective=objective)
    with pytest.raises(ValueError, match=message):
        session.step(*batch())
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.randn(4, 3, 6, 6), None), "got no targets"),
        ((None, torch.arange(4)), "got no inputs"),
        (
            (torch.randn(4, 3, 6, 6), torch.arange(3)),
            "same nonzero length, got 4 and 3",
        ),
        (
            (torch.randn(0, 3, 6, 6), torch.arange(0)),
            "same nonzero length, got 0 and 0",
        ),
        (({"x": 1}, torch.arange(3)), "inputs must be one tensor, got a dict"),
    ],
)
def test_a_batch_without_labels_or_of_unequal_parts_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        session_of(trained_a_little()).step(*arguments)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([0, -100, 1, 2]), "targets must be classes 0..3, got -100..2"),
        (torch.tensor([0, 4, 1, 2]), "targets must be classes 0..3, got 0..4"),
        (
            torch.eye(4),
            "one class number for each sample, whole numbers of shape .4,., got torch.float32 of .4, 4.",
        ),
        (torch.zeros(4, 1, dtype=torch.int64), "got torch.int64 of .4, 1."),
    ],
)
def test_targets_that_are_no_classes_are_refused_before_the_device_sees_them(
    targets, message
):
    with pytest.raises(ValueError, match=message):
        session_of(trained_a_little()).step(torch.randn(4, 3, 6, 6), targets)


def test_cross_entropy_takes_shares_of_classes_and_leaves_out_what_is_marked():
    for targets in (torch.eye(4), torch.tensor([0, -100, 1, 2])):
        session_of(trained_a_little(), objective="cross-entropy").step(
            torch.randn(4, 3, 6, 6), targets
        )
    with pytest.raises(
        ValueError, match=r"targets must be classes 0..3 \(-100: left out\), got 4..4"
    ):
        session_of(trained_a_little(), objective="cross-entropy").step(
            torch.randn(1, 3, 6, 6), torch.tensor([4])
        )


def test_a_share_that_the_network_cannot_come_down_to_is_told_with_the_least_it_can():
    # 8 units of 5 parameters beside 90 of none
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 10))
    for keep in (0.3, 0.73):
        with pytest.raises(
            ValueError,
            match=rf"keep must be at least 0\.731 here: .* 1 layers .*, got {keep}",
        ):
            session_of(net, keep=keep)
    session_of(net, keep=0.731)


def test_compression_without_training_is_refused():
    with pytest.raises(ValueError, match="searches while the network trains"):
        tersify.compress_(trained_a_little(), Recipe(rules=[Rule(methods=[Energy()])]))


def test_a_network_that_cannot_be_traced_is_refused():
    class Branches(Residual):
        def forward(self, x):
            return super().forward(x if x.sum() > 0 else -x)

    with pytest.raises(ValueError, match="cannot trace"):
        session_of(Branches())


def test_an_objective_comes_from_a_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "def energy(logits, targets):\n    return -logits.gather(1, targets[:, None])[:, 0]\n"
    )
    session = session_of(trained_a_little(), objective=f"{path}:energy")
    session.step(*batch())
    assert "mine.py:energy" in session.recipe.to_toml()
