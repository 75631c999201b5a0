"""Recipes: TOML and Python say the same, the first match wins, mistakes are named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import tersify
from method_zoo import all_legal_chains
from tersify import Recipe, Rule
from tersify.methods import BitNet, Ternary, Uniform
from tersify.recipe import ready_recipes

PLAIN = st.text(st.characters(blacklist_categories=("Cs",)), max_size=20)


@given(
    st.lists(
        st.tuples(PLAIN.filter(bool), st.sampled_from(all_legal_chains())),
        min_size=1,
        max_size=4,
    ),
    PLAIN,
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
        st.floats(allow_nan=False) | st.integers() | PLAIN,
    ),
)
def test_toml_round_trip_gives_the_same_recipe(rules, description, train):
    recipe = Recipe(
        rules=[Rule(weights=glob, methods=chain) for glob, chain in rules],
        description=description,
        train=train,
    )
    assert Recipe.from_toml(recipe.to_toml()) == recipe


@pytest.mark.parametrize("path", ready_recipes(), ids=lambda p: p.stem)
def test_every_ready_recipe_loads_by_name_and_round_trips(path):
    recipe = Recipe.load(path.stem)
    assert (
        recipe
        == Recipe.load(f"recipes/{path.name}")
        == Recipe.from_toml(recipe.to_toml())
    )
    assert recipe.description


def two_layers():
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


def test_first_match_wins_and_a_rule_without_methods_leaves_weights_alone():
    model = two_layers()
    recipe = Recipe(rules=[Rule(weights="0.*"), Rule(weights="*", methods=[BitNet()])])
    packed = tersify.attach(model, recipe).pack()
    assert set(packed.compressed()) == {"2.weight"}


def test_a_wildcard_never_reaches_biases_or_normalisation_but_a_full_name_does():
    packed = tersify.attach(
        two_layers(), Recipe(rules=[Rule(methods=[BitNet()])])
    ).pack()
    assert set(packed.compressed()) == {"0.weight", "2.weight"}
    packed = tersify.attach(
        two_layers(), Recipe(rules=[Rule(weights="2.bias", methods=[BitNet()])])
    ).pack()
    assert set(packed.compressed()) == {"2.bias"}


def test_different_rules_give_different_methods():
    recipe = Recipe(
        rules=[
            Rule(weights=["0.weight", "0.w*"], methods=[Uniform(bits=4)]),
            Rule(methods=[Ternary(spread=0.2)]),
        ]
    )
    packed = tersify.attach(two_layers(), recipe).pack()
    assert packed["0.weight"].levels == 16
    assert packed["2.weight"].levels == 3


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (
            '[[rules]]\nmethods = [{ method = "ternry" }]',
            "unknown method 'ternry'; nearest: 'ternary'",
        ),
        (
            '[[rules]]\nmethods = [{ method = "ternary", sped = 1 }]',
            "'ternary' has no setting 'sped'; nearest: 'speed'",
        ),
        (
            '[[rules]]\nmethods = [{ method = "ternary", regime = "quick" }]',
            "regime must be one of",
        ),
        ("[[rules]]\nweight = 3", "a rule has no key 'weight'; nearest: 'weights'"),
        ("rules = 3", r"needs \[\[rules\]\] tables"),
        ("[[rule]]", "a recipe has no key 'rule'; nearest: 'rules'"),
        ("[[rules]]\nmethods = 3", "methods must be a list of tables"),
        ("train = 5\n[[rules]]", r"train is a table \[train\], got 5"),
        ("description = 5\n[[rules]]", "description is text, got 5"),
        ("[[rules]]\nweights = 5", "weights must be a glob or a list of globs, got 5"),
        (
            '[[rules]]\nmethods = [{ method = "ternary", regime = 5 }]',
            "ternary: regime must be str, got 5",
        ),
        (
            '[[rules]]\nmethods = [{ method = "ternary", over = "x" }]',
            "ternary: over must be int, got 'x'",
        ),
        (
            '[[rules]]\nmethods = [{ method = "ternary", clip = "no" }]',
            "ternary: clip must be bool, got 'no'",
        ),
        ('[[rules]]\nmethods = [{ method = "ternary", speed = inf }]', "speed"),
        (
            '[[rules]]\nmethods = [{ method = "prune", sparsity = "high" }]',
            "sparsity must be float, got 'high'",
        ),
        (
            '[[rules]]\nmethods = [{ method = "uniform", bits = 8.0 }]',
            r"bits must be int, got 8.0",
        ),
        ('[[rules]]\nweights = ""\nmethods = []', "weights must be a glob"),
        ("[[rules]]\nmethods = []", "at least one rule with a method"),
        ("= 3", "not valid TOML"),
    ],
)
def test_a_mistake_in_the_toml_is_named_with_its_remedy(toml, message):
    with pytest.raises(ValueError, match=message):
        Recipe.from_toml(toml)


def test_a_rule_that_matches_nothing_names_the_nearest_weights():
    model = nn.ModuleDict({"conv1": nn.Conv2d(1, 1, 1)})
    with pytest.raises(
        ValueError,
        match=r"rule 'conv1.weigth' matches no weight of two dimensions or more; nearest: 'conv1.weight'",
    ):
        tersify.attach(
            model, Recipe(rules=[Rule(weights="conv1.weigth", methods=[BitNet()])])
        )


def test_a_glob_of_a_list_that_matches_nothing_is_named():
    recipe = Recipe(rules=[Rule(weights=["0.weight", "2.wieght"], methods=[BitNet()])])
    with pytest.raises(ValueError, match=r"rule '2\.wieght' matches no weight"):
        tersify.attach(two_layers(), recipe)


@pytest.mark.parametrize("first", [[], [BitNet()]])
def test_a_rule_whose_weights_are_all_taken_is_refused(first):
    recipe = Recipe(
        rules=[Rule(methods=first), Rule(weights="2.*", methods=[BitNet()])]
    )
    with pytest.raises(
        ValueError, match=r"rule '2\.\*' gets no weight: rules before it take all"
    ):
        tersify.attach(two_layers(), recipe)


def test_a_missing_file_never_becomes_a_ready_recipe_of_the_same_name(tmp_path):
    with pytest.raises(ValueError, match="no recipe file"):
        Recipe.load(tmp_path / "ternary-log.toml")


def test_keys_that_are_no_bare_words_are_quoted():
    recipe = Recipe(rules=[Rule(methods=[BitNet()])], train={"a b": 1})
    assert Recipe.from_toml(recipe.to_toml()) == recipe


def test_a_failed_attach_leaves_the_model_as_it_was():
    model = two_layers()
    names = list(model.state_dict())
    with pytest.raises(ValueError, match="matches no weight"):
        tersify.attach(
            model,
            Recipe(
                rules=[
                    Rule(methods=[BitNet()]),
                    Rule(weights="nothing", methods=[BitNet()]),
                ]
            ),
        )
    assert list(model.state_dict()) == names


def test_an_unknown_ready_recipe_names_the_nearest():
    with pytest.raises(
        ValueError, match=r"no recipe file 'ternary-lok'.*nearest: 'ternary-log'"
    ):
        Recipe.load("ternary-lok")


def test_a_function_without_a_name_cannot_be_written_as_toml():
    with pytest.raises(
        ValueError,
        match=r"cannot be written as TOML; name a function as 'file\.py:function'",
    ):
        Recipe(rules=[Rule(methods=[Ternary(regime=lambda e: e)])]).to_toml()


@pytest.mark.parametrize("methods", ["twn", ["twn"], BitNet(), [BitNet]])
def test_a_rule_takes_methods_and_a_recipe_takes_rules(methods):
    with pytest.raises(
        ValueError,
        match=r"a rule's methods must be a list of objects such as Prune\(sparsity=0\.9\)",
    ):
        Rule(methods=methods)
    with pytest.raises(
        ValueError, match="a recipe's rules must be a list of objects such as Rule"
    ):
        Recipe(rules=methods)
