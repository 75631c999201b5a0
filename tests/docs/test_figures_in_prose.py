"""A figure in the README or the docs is in a record that its paragraph names."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def prose():
    spec = importlib.util.spec_from_file_location(
        "results_prose", ROOT / "results" / "prose.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", prose().PAGES, ids=lambda page: page.name)
def test_every_figure_of_a_page_is_in_a_record_it_names(page):
    found = [
        figure
        for figure, _ in prose().unheld(page.read_text(encoding="utf-8"), page.name)
    ]
    assert found == [], (
        "name the record beside the figure, or say in results/prose.json what it is"
    )


@pytest.mark.parametrize(
    "sentence",
    [
        "With 300 training steps 91.75 % (`python benchmarks/lookup_resnet20.py`).",
        "It was no better, −0.41 ± 0.48 points (`tersify reproduce sparse-bert`).",
        "It is 4.64 times as fast.",  # true, and no record is named
        "It takes 5 minutes (`python benchmarks/fpga_bit_exact.py`).",
    ],
)
def test_a_figure_that_no_named_record_holds_is_found(sentence):
    assert list(prose().unheld(sentence, "README.md"))


def test_a_figure_of_a_named_record_passes_as_it_is_rounded():
    sentence = "It is 4.64 times as fast, 36 µs (`results/cpu-inference.json`), and `0.123` is code."
    assert list(prose().unheld(sentence, "README.md")) == []
    assert (
        list(
            prose().unheld(
                "Before.\n\n<!-- begin x -->\n99.99 %\n<!-- end x -->", "README.md"
            )
        )
        == []
    )


def test_a_table_belongs_to_the_paragraph_in_front_of_it():
    named = "See `results/cpu-inference.json`:\n\n| a |\n|---|\n| 4.64 |"
    assert list(prose().unheld(named, "README.md")) == []
    assert list(prose().unheld(named + "\n\nIt is 4.64.", "README.md"))
