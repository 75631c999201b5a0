"""What a shell offers for names that Tersify knows. It asks at every press of a key, so
nothing is imported for the answer; tests compare the lists with what knows the names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

DATA_SETS = ("digits", "cifar10", "cifar100", "mnist", "polarity", "polarity-bytes")
NETWORKS = (
    "alexnet",
    "digits-cnn",
    "lstm",
    "minilm",
    *(f"resnet{layers}" for layers in (18, 20, 32, 34, 44, 50, 56, 101)),
    "resnet20-star",
    "speech-mlp",
    "squeezenet1_1",
    "vgg16",
)
_LANGUAGE = "lm-"
_HERE = Path(__file__).parent.parent


def _offered(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return sorted(name for name in names() if name.startswith(incomplete))

    return complete


def _recipe_names() -> list[str]:
    # inside the package when installed, beside src in a checkout
    folders = (_HERE / "recipes", _HERE.parent.parent / "recipes")
    return [path.stem for folder in folders for path in folder.glob("*.toml")]


def _of_training() -> list[str]:
    return [name for name in _recipe_names() if not name.startswith(_LANGUAGE)]


def _of_language_models() -> list[str]:
    return [name for name in _recipe_names() if name.startswith(_LANGUAGE)]


def _experiments() -> list[str]:
    return [path.stem for path in (_HERE / "lab" / "experiments").rglob("*.toml")]


data_sets = _offered(lambda: DATA_SETS)
networks = _offered(lambda: NETWORKS)
recipes = _offered(_of_training)
recipes_or_none = _offered(lambda: [*_of_training(), "none"])
language_recipes = _offered(_of_language_models)
experiments = _offered(_experiments)
