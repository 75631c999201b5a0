"""What a session asks for, tells and warns of."""

import warnings

import pytest
from torch import nn

import tersify
from method_zoo import make, recipe_of
from tersify import Recipe, Rule
from tersify.methods import BitNet, KMeans, Prune, Ternary, registered


@pytest.mark.parametrize(
    "recipe",
    ["agp-90", "ternary-log", "ternary-target", "energy", "ec2t", "deep-compression"],
)
def test_a_recipe_with_schedules_wants_to_know_the_length(recipe):
    for given in ({}, {"epochs": 3}):
        with pytest.raises(
            ValueError,
            match="must know how long training takes; give epochs= and steps_per_epoch=, or",
        ):
            tersify.attach(make("linear")[0], recipe, **given)


@pytest.mark.parametrize(
    "recipe", ["twn", "lut-4", "uniform-8", "ternary-fixed", "binary"]
)
def test_a_recipe_without_schedules_needs_no_length(recipe):
    assert tersify.attach(make("linear")[0], recipe).steps == 1


def test_the_length_is_steps_or_epochs_and_not_both():
    assert tersify.attach(make("linear")[0], "agp-90", steps=30).steps == 30
    assert (
        tersify.attach(make("linear")[0], "agp-90", epochs=3, steps_per_epoch=10).steps
        == 30
    )
    with pytest.raises(
        ValueError, match="steps, or epochs and steps_per_epoch; give one of these"
    ):
        tersify.attach(make("linear")[0], "agp-90", epochs=3, steps=30)
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        tersify.attach(make("linear")[0], "agp-90", steps=0)


def test_in_steps_a_schedule_ends_as_it_does_in_epochs():
    def zeros(**length):
        session = tersify.attach(make("linear")[0], "ternary-log", **length)
        for _ in range(20):
            session.step()
        return session.status()["zeros"]

    assert zeros(steps=20) == zeros(epochs=4, steps_per_epoch=5)


def test_every_method_says_whether_it_moves_with_time():
    assert {name for name, kind in registered().items() if kind().needs_length} == {
        "ec2t",
        "energy",
        "kmeans",
        "prune",
        "rate",
        "ternary-target",
    }
    assert Ternary(regime="log").needs_length
    assert not Prune(sparsity=0.5, schedule="one-shot").needs_length
    assert not KMeans(begin=0.0).needs_length


def test_settings_can_be_given_in_place():
    session = tersify.attach(nn.Linear(40, 40), "ternary-target", sparsity=0.8, steps=4)
    for _ in range(4):
        session.step()
    assert session.status()["zeros"] == pytest.approx(80, abs=0.2)
    assert tersify.compress_(nn.Linear(40, 40), "lut-4", n=2)["weight"].levels == 4


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        (
            "ternary-target",
            {"sparsty": 0.8},
            "no method of the recipe has a setting 'sparsty'; nearest: 'sparsity'",
        ),
        (
            "ternary-target",
            {"sparsity": "high"},
            "ternary-target: sparsity must be float, got 'high'",
        ),
        ("ternary-target", {"sparsity": 2.0}, "sparsity must be in"),
        (
            "deep-compression",
            {"begin": 0.1},
            "'begin' is a setting of prune and kmeans; write a recipe that says which",
        ),
    ],
)
def test_a_wrong_setting_is_named(recipe, settings, message):
    with pytest.raises(ValueError, match=message):
        tersify.attach(make("linear")[0], recipe, steps=10, **settings)


def test_settings_that_only_go_together_are_set_together():
    recipe = Recipe.load("ternary-log").with_settings(
        {"sparsity": None, "cap": 0.5, "regime": abs}
    )
    (method,) = recipe.rules[0].methods
    assert (method.sparsity, method.cap, method.regime) == (None, 0.5, abs)


def test_packing_before_the_first_step_and_training_past_the_end_are_told():
    session = tersify.attach(
        make("linear")[0], recipe_of((Prune(sparsity=0.5),)), steps=2
    )
    with pytest.warns(UserWarning, match=r"session\.step was never called"):
        session.pack()
    session.step()
    session.step()
    session.pack()
    with pytest.warns(UserWarning, match="past the 2 steps that attach was told"):
        session.step()
    session.step()  # once is enough


def test_packing_before_the_end_of_the_schedules_is_told_and_looking_is_not():
    session = tersify.attach(
        nn.Linear(40, 40), "ternary-target", sparsity=0.9, steps=100
    )
    for _ in range(10):
        session.step()
    with pytest.warns(UserWarning, match="packed at step 10 of 100") as told:
        zeros = session.pack().sparsity_percent()
    assert zeros < 85
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert session.status()["zeros"] == zeros
        for _ in range(90):
            session.step()
        assert session.pack().sparsity_percent() == pytest.approx(90, abs=0.1)


def test_packing_early_is_no_news_where_nothing_depends_on_the_length():
    session = tersify.attach(nn.Linear(40, 40), "twn", steps=100)
    session.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.pack()


def test_the_status_tells_progress_zeros_entropy_and_the_methods_own_figures():
    session = tersify.attach(
        nn.Linear(30, 30), recipe_of((Ternary(regime="log", spread=0.2),)), steps=4
    )
    session.step()
    told = session.status()
    assert told["progress"] == 25
    packed = session.pack()
    assert (told["zeros"], told["entropy"]) == (
        packed.sparsity_percent(),
        packed.entropy_bits(),
    )
    assert told["Δ"] == pytest.approx(0.1)


def test_a_printed_session_tells_where_it_stands_and_who_has_which_weights():
    rules = [Rule(weights="0.weight"), Rule(methods=[Prune(sparsity=0.5), BitNet()])]
    session = tersify.attach(
        make("linear")[0], Recipe(rules=rules, description="Mine"), steps=8
    )
    told = str(session)
    assert told.startswith("Session: Mine\n  step 0 of 8; 0 % done")
    assert "2.weight: prune then bitnet (48 weights, rule '*')" in told
    assert "0.weight: left as they are" in told
    assert "stay as they are: 0.weight, 0.bias, 2.bias" in told
    assert "next: session.step()" in told
    session.step()
    assert "step 1 of 8; 12 % done" in str(session)
    session.bake_()
    assert "rule" not in str(session)


def test_a_printed_packed_model_tells_what_became_of_each_weight():
    packed = tersify.compress_(nn.Linear(10, 20), recipe_of((Prune(sparsity=0.5),)))
    assert str(packed) == (
        "CompressedModel: 1 of 2 tensors compressed (200 weights, 50.0 % zeros, 17.00 bits a weight); "
        "880 bytes as dense tensors\n  weight: 20×10, own levels, 50.0 % zeros"
    )
    assert repr(packed) == "CompressedModel(2 tensors, 1 of them compressed)"
    many = tersify.compress_(
        nn.Sequential(*(nn.Linear(2, 2) for _ in range(30))), recipe_of((BitNet(),))
    )
    assert str(many).endswith("\n  and 10 more")
