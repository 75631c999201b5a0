"""Methods of other packages, found by the entry point `tersify.methods`."""

import sys
import textwrap

import pytest
import torch

import tersify
from tersify.cli import main
from tersify.methods import registry

SIGN = """
    from dataclasses import dataclass
    import torch
    import tersify
    from tersify.methods.base import straight_through

    class Sign(tersify.Transform):
        def forward(self, latent):
            return straight_through(torch.where(latent < 0, -1.0, 1.0), latent)

        def pack(self, upstream):
            codes = (upstream.detach() < 0).to(torch.uint8)
            return tersify.CompressedTensor(
                shape=tuple(codes.shape), codes=codes, codebook=torch.tensor([1.0, -1.0]), values=None, scale=None
            )

    @dataclass(frozen=True, kw_only=True)
    class SignOnly(tersify.Method):
        keeps_zeros = False
        strength: float = 1.0

        def transform(self, site):
            return Sign()

    something = 3
"""
RECIPE = '[[rules]]\nmethods = [{{ method = "{}" }}]\n'


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a distribution that offers methods on the path; the registry forgets it
    afterwards.
    """
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(package, entries, source=SIGN):
        (tmp_path / f"{package}.py").write_text(textwrap.dedent(source))
        facts = tmp_path / f"{package}-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        lines = [
            f"{name} = {package}:{attribute}" for name, attribute in entries.items()
        ]
        (facts / "entry_points.txt").write_text(
            "\n".join(["[tersify.methods]", *lines, ""])
        )
        imported.append(package)

    imported = []
    yield put
    for package in imported:
        sys.modules.pop(package, None)


def test_a_recipe_uses_the_method_of_an_installed_package(install, tmp_path):
    install("faraway", {"sign-only": "SignOnly"})
    (tmp_path / "mine.toml").write_text(RECIPE.format("sign-only"))
    assert "faraway" not in sys.modules
    recipe = tersify.Recipe.load(tmp_path / "mine.toml")
    assert "faraway" in sys.modules
    assert recipe.to_toml() == tersify.Recipe.from_toml(recipe.to_toml()).to_toml()
    model = torch.nn.Linear(6, 4)
    packed = tersify.compress_(model, recipe)
    assert set(model.weight.unique().tolist()) == {-1.0, 1.0}
    tersify.save(packed, tmp_path / "net.terse")
    again = tersify.load(tmp_path / "net.terse", into=torch.nn.Linear(6, 4))
    assert torch.equal(again.weight, model.weight)


def test_the_command_line_knows_it_too(install, tmp_path):
    install("faraway", {"sign-only": "SignOnly"})
    (tmp_path / "mine.toml").write_text(RECIPE.format("sign-only"))
    flags = [
        "--data",
        "digits",
        "--epochs",
        "1",
        "--device",
        "cpu",
        "--option",
        "width=0.25",
    ]
    arguments = [
        "compress",
        "digits-cnn",
        "--recipe",
        str(tmp_path / "mine.toml"),
        "--out",
        str(tmp_path / "run"),
    ]
    assert main([*arguments, *flags]) == 0
    assert (tmp_path / "run" / "model.terse").is_file()


def test_a_package_that_nobody_names_is_not_imported(install):
    install(
        "faraway", {"sign-only": "SignOnly"}, source="raise RuntimeError('imported')"
    )
    tersify.Recipe.from_toml(RECIPE.format("twn"))
    assert "faraway" not in sys.modules


def test_a_class_that_registers_itself_keeps_its_name(install):
    registering = textwrap.dedent(SIGN).replace(
        "@dataclass", '@tersify.register("sign-only")\n@dataclass', 1
    )
    install("faraway", {"sign-only": "SignOnly"}, source=registering)
    (rule,) = tersify.Recipe.from_toml(RECIPE.format("sign-only")).rules
    assert rule.methods[0].name == "sign-only"


@pytest.mark.parametrize(
    ("source", "attribute", "sentence"),
    [
        (
            "import no_such_module",
            "SignOnly",
            "'sign-only' of faraway cannot be imported from 'faraway:SignOnly'",
        ),
        (SIGN, "Absent", r"cannot be imported from 'faraway:Absent' \(AttributeError"),
        (SIGN, "something", r"must name a subclass of Method, got 3"),
        (SIGN, "Sign", r"must name a subclass of Method, got <class 'faraway.Sign'>"),
    ],
)
def test_a_package_that_does_not_keep_its_promise_is_named(
    source, attribute, sentence, install
):
    install("faraway", {"sign-only": attribute}, source=source)
    with pytest.raises(ValueError, match=sentence):
        tersify.Recipe.from_toml(RECIPE.format("sign-only"))


def test_a_name_that_two_packages_offer_is_refused(install):
    install("faraway", {"sign-only": "SignOnly"})
    install("nearby", {"sign-only": "SignOnly"})
    with pytest.raises(
        ValueError,
        match="'sign-only' is offered by faraway and nearby; uninstall all but one",
    ):
        tersify.Recipe.from_toml(RECIPE.format("sign-only"))


def test_our_own_names_come_first(install):
    install("faraway", {"twn": "SignOnly"})
    (rule,) = tersify.Recipe.from_toml(RECIPE.format("twn")).rules
    assert type(rule.methods[0]).__module__ == "tersify.methods.twn"
    assert "faraway" not in sys.modules


def test_a_mistyped_name_is_told_the_nearest_on_offer(install):
    install("faraway", {"sign-only": "SignOnly"})
    with pytest.raises(
        ValueError, match="unknown method 'sign-onyl'; nearest: 'sign-only'"
    ):
        tersify.Recipe.from_toml(RECIPE.format("sign-onyl"))
