"""Whoever looks a public name up is told what it takes: every function, class and
method of `tersify`.
"""

import inspect
import re

import pytest

import tersify
from tersify.tensor import CompressedTensor

NAMES = sorted(tersify.__all__)


def arguments(doc):
    """The names that the section `Args:` describes, without their stars."""
    section = re.split(r"^Args:\n", doc or "", flags=re.MULTILINE)[1:]
    return (
        set(re.findall(r"^    \*{0,2}(\w+): \S", section[0], re.MULTILINE))
        if section
        else set()
    )


def parameters(function):
    found = inspect.signature(function).parameters.values()
    return {
        parameter.name for parameter in found if parameter.name not in ("self", "cls")
    }


def members(kind):
    """Public methods and properties that the class itself defines, by name."""
    for name, value in vars(kind).items():
        function = value.fget if isinstance(value, property) else getattr(kind, name)
        if not name.startswith("_") and inspect.isroutine(function):
            yield name, inspect.unwrap(function)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_says_what_it_is(name):
    assert (getattr(tersify, name).__doc__ or "").strip()


@pytest.mark.parametrize(
    "name", [name for name in NAMES if inspect.isroutine(getattr(tersify, name))]
)
def test_a_function_describes_each_of_its_parameters(name):
    function = inspect.unwrap(getattr(tersify, name))
    assert arguments(inspect.getdoc(function)) == parameters(function)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if inspect.isclass(getattr(tersify, name))]
)
def test_a_class_describes_what_it_is_made_of(name):
    kind = getattr(tersify, name)
    if "__init__" not in vars(kind) or "`tersify.attach` makes one" in kind.__doc__:
        return
    assert arguments(inspect.getdoc(kind)) == parameters(kind)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if inspect.isclass(getattr(tersify, name))]
)
def test_a_method_says_what_it_does_and_names_its_parameters(name):
    for member, function in members(getattr(tersify, name)):
        doc = inspect.getdoc(function) if function.__doc__ else ""
        assert doc, f"{name}.{member} has no docstring"
        told = arguments(doc) | set(re.findall(r"`(\w+)[`.]", doc))
        assert parameters(function) <= told, (
            f"{name}.{member} says nothing of {parameters(function) - told}"
        )


def test_a_parameter_without_a_word_is_noticed():
    assert arguments(
        "One line.\n\nArgs:\n    a: the first.\n    **more: others.\n"
    ) == {"a", "more"}
    assert arguments("A line about `a`.") == set()
    assert "codes" in arguments(inspect.getdoc(CompressedTensor))
