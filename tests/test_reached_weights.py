"""Which weights a glob reaches, and which it leaves alone."""

import pytest
import torch
from torch import nn

import tersify
from method_zoo import recipe_of
from tersify import Recipe, Rule
from tersify.methods import BitNet


class Reader(nn.Module):
    """An embedding, a table of positions that no layer owns, a norm with a matrix, and
    two linear layers.
    """

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.pos_embed = nn.Parameter(torch.randn(1, 3, 6))
        self.norm = nn.LayerNorm((3, 6))
        self.hidden = nn.Linear(6, 6)
        self.head = nn.Linear(6, 4)

    def forward(self, tokens):
        return self.head(
            self.hidden(self.norm(self.words(tokens) + self.pos_embed)).mean(1)
        )


def compressed(model, weights="*"):
    return set(
        tersify.compress_(
            model, Recipe(rules=[Rule(weights=weights, methods=[BitNet()])])
        ).compressed()
    )


def test_a_glob_leaves_embeddings_and_norms_alone():
    assert compressed(Reader()) == {"hidden.weight", "head.weight"}


def test_a_glob_leaves_frozen_weights_alone():
    model = Reader()
    model.hidden.weight.requires_grad_(False)
    assert compressed(model) == {"head.weight"}


def test_a_network_that_is_frozen_as_a_whole_is_compressed_as_a_whole():
    assert compressed(Reader().requires_grad_(False)) == {
        "hidden.weight",
        "head.weight",
    }


@pytest.mark.parametrize(
    ("weights", "what"),
    [
        ("words.weight", r"'words\.weight' \(an embedding\)"),
        ("words.*", r"'words\.weight' \(an embedding\)"),
        ("pos_embed", r"'pos_embed' \(an embedding\)"),
        ("norm.weight", r"'norm\.weight' \(normalization\)"),
    ],
)
def test_a_rule_that_names_nothing_else_catches_them_and_says_so(weights, what):
    with pytest.warns(
        UserWarning,
        match=rf"rule '{weights.replace('*', '.')}' names {what}".replace(
            "..'", r"\.\*'"
        ),
    ):
        found = compressed(Reader(), weights)
    assert found == {"words.weight"} if weights.startswith("words") else {weights}


def test_a_rule_that_names_a_frozen_weight_says_so():
    model = Reader()
    model.hidden.weight.requires_grad_(False)
    with pytest.warns(
        UserWarning,
        match=r"names 'hidden\.weight' \(frozen\), which a wider glob leaves alone",
    ):
        assert compressed(model, "hidden.weight") == {"hidden.weight"}


def test_a_network_with_nothing_but_embeddings_is_an_error_that_says_why():
    with pytest.raises(
        ValueError,
        match=r"rule '\*' leaves embeddings.* has no others: 'weight' \(an embedding\)",
    ):
        tersify.compress_(nn.Embedding(4, 4), recipe_of((BitNet(),)))


def test_a_matrix_that_an_embedding_shares_with_a_linear_layer_is_that_layers_weight():
    model = Reader()
    model.tail = nn.Linear(6, 11, bias=False)
    model.tail.weight = model.words.weight
    assert "words.weight" in compressed(model)


TABLES = [
    "pos",
    "positions",
    "pos_emb",
    "rel_pos_h",
    "relative_position_table",
    "cls",
    "class_token",
    "pe",
]
BIASES = ["rel_pos_bias", "attention_biases", "relative_bias"]


class WithParameter(nn.Module):
    """A linear layer, and a parameter that no layer owns."""

    def __init__(self, name):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_parameter(name, nn.Parameter(torch.randn(4, 6)))


@pytest.mark.parametrize("name", [*TABLES, *BIASES])
def test_a_glob_leaves_tables_and_biases_that_no_layer_owns_alone(name):
    assert compressed(WithParameter(name)) == {"layer.weight"}
    kind = "a bias" if name in BIASES else "an embedding"
    with pytest.warns(UserWarning, match=rf"names '{name}' \({kind}\)"):
        assert compressed(WithParameter(name), name) == {name}


@pytest.mark.parametrize(
    "name", ["position_weight", "class_weight", "compose", "experts", "pos_proj_weight"]
)
def test_a_glob_reaches_matrices_that_no_layer_owns(name):
    assert compressed(WithParameter(name)) == {"layer.weight", name}


def test_a_list_of_tables_is_left_alone_by_its_own_name():
    model = WithParameter("head")
    model.positions = nn.ParameterList([torch.randn(4, 6), torch.randn(3, 6)])
    model.experts = nn.ParameterList([torch.randn(4, 6), torch.randn(3, 6)])
    found = {"layer.weight", "head", "experts.0", "experts.1"}
    assert compressed(model) == found


class Scaled(nn.Module):
    """As attention has a temperature for each head, and ConvNeXt a γ for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(1, 8)
        self.temperature = nn.Parameter(torch.ones(4, 1, 1))
        self.gamma = nn.Parameter(torch.ones(1, 8, 1, 1))

    def forward(self, x):
        return self.first(x) * self.gamma.flatten() * self.temperature.mean()


def test_a_glob_leaves_scales_alone_and_a_name_reaches_them():
    # A layer's weight is one, however narrow the layer is.
    assert compressed(Scaled()) == {"first.weight"}
    with pytest.warns(UserWarning, match="a scale"):
        assert compressed(Scaled(), "temperature") == {"temperature"}
