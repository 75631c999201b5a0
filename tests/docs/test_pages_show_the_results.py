"""Pages show what results/*.json hold: writing their tables and pictures again changes
nothing.
"""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "results").glob("*.md"))]


@pytest.fixture(autouse=True)
def _scripts_of_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "results")


def script(name: str):
    return importlib.import_module(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_of_a_page_are_those_of_the_results(page):
    text = page.read_text(encoding="utf-8")
    assert script("pages").filled(text) == text, (
        "the tables are not those of results/*.json; run `make pages`"
    )


def test_every_table_has_a_place():
    pages = script("pages")
    pages.check_places(
        {page: page.read_text(encoding="utf-8") for page in pages.pages()}
    )
    with pytest.raises(
        ValueError, match="no page has a place for the table 'architectures'"
    ):
        pages.check_places({})


def test_a_place_for_a_table_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="there is no table 'nothing'"):
        script("pages").filled("<!-- begin nothing -->\n<!-- end nothing -->")


def test_pictures_are_those_of_the_results():
    pages, figures = script("pages"), script("figures")
    assert pages.PICTURE.read_text(encoding="utf-8") == script("tables").picture(), (
        "run `make pages`"
    )
    kept = {
        path.stem: path.read_text(encoding="utf-8")
        for path in figures.FOLDER.glob("*.svg")
    }
    assert kept == figures.drawn(), (
        "docs/figures are not those of results/*.json; run `make pages`"
    )
    assert {
        "ternary-fig3-accuracy",
        "ternary-fig4-sparsity",
        "ternary-fig5",
    } <= kept.keys()


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 900
    assert text.count("\n|---") <= 2


def test_collected_runs_become_rows_and_leave_the_others_as_they_are(tmp_path):
    from tersify.lab.experiments import Experiment

    for number, accuracy in enumerate((93.0, 94.0)):
        run = tmp_path / str(number)
        run.mkdir()
        (run / "metrics.json").write_text(
            f'{{"accuracy": {accuracy}, "sparsity": 92.0, "epochs": 3}}'
        )
        (run / "recipe.toml").write_text("")
        history = (
            f'{{"epoch": {epoch}, "accuracy": {80 + epoch}, "sparsity": 90.0}}'
            for epoch in (1, 2, 3)
        )
        (run / "history.jsonl").write_text("\n".join(history))
        (run / "latents.json").write_text(
            '{"a": {"edges": [-1, 0, 1], "counts": [1, 2]}}'
        )
    kept = {"id": "linear", "name": "linear regime"}
    provenance = {"machine": "here", "versions": {}, "commit": "c"}
    found = script("collect").merged(
        Experiment.load("ternary-table2"),
        {"rows": [kept]},
        {"best": [tmp_path / "0", tmp_path / "1"]},
        provenance,
    )
    linear, best = found["rows"]
    assert linear == kept
    assert best["ours"]["accuracy"] == {
        "mean": 93.5,
        "std": pytest.approx(0.5**0.5),
        "seeds": [93.0, 94.0],
    }
    assert (best["seeds"], best["machine"]) == (2, "here")
    assert best["curve"] == {
        "epoch": [1, 2, 3],
        "accuracy": [81, 82, 83],
        "sparsity": [90.0] * 3,
    }
    assert best["latents"] == {"edges": [-1, 0, 1], "counts": [1, 2]}


def test_the_energy_table_says_where_a_simple_baseline_is_better_and_what_was_reached(
    tmp_path, monkeypatch
):
    def row(key, accuracy, kept, published=None):
        figures = {
            "accuracy": accuracy,
            "kept": kept,
            "epochs": 80.0,
            "shrunk_parameters": 5e6,
        }
        return {
            "id": key,
            "name": key,
            "published": published or {},
            "ours": {
                k: {"mean": v, "std": None, "seeds": [v]} for k, v in figures.items()
            },
        }

    published = {"accuracy": 90.96, "kept": 49.66}
    rows = [
        row("resnet18-energy", 87.0, 49.6, published),
        row("resnet18-filter", 88.5, 49.5),
        row("resnet18-energy-80", 85.0, 49.6),
        row("resnet18-agp-80", 86.0, 49.5),
        row("resnet18-best", 91.0, 49.6, published),
        row("resnet18-best-filter", 90.5, 49.5),
        row("resnet18-best-agp", 91.5, 49.5),
        row("resnet50-filter", 80.0, 46.0),
    ]
    rows[4]["ours"]["accuracy"] |= {"std": 0.25, "seeds": [90.75, 91.0, 91.25]}
    (tmp_path / "energy-table1.json").write_text(json.dumps({"rows": rows}))
    tables = script("tables")
    monkeypatch.setattr(tables, "HERE", tmp_path)
    told = [line.split(" | ") for line in tables.energy().splitlines()[2:]]
    best = "**91.00 ± 0.25 % (3 seeds)**"
    assert [line[2] for line in told] == [
        "87.00 %",
        "88.50 %",
        "85.00 %",
        "86.00 %",
        best,
        "90.50 %",
        "91.50 %",
        "80.00 %",
    ]
    # The search has three seeds there and each baseline one, so its first one counts.
    once = ", equal R (1 of 3 seeds)"
    beside = [
        "",
        "**better by 1.50**, equal R",
        "",
        "**better by 1.00**, equal R",
        "",
        f"0.25 less{once}",
        f"**better by 0.75**{once}",
        "",
    ]
    assert [line[6] for line in told] == beside
    assert told[0][1:5] == ["90.96 % at 49.66 %", "87.00 %", "49.60 %", "5,000,000"]


def test_the_energy_table_has_no_column_of_comparisons_where_none_can_be_made(
    tmp_path, monkeypatch
):
    figures = {"accuracy": 90.0, "kept": 49.6, "epochs": 80.0}
    ours = {k: {"mean": v, "std": None} for k, v in figures.items()}
    rows = [{"id": "resnet18-best", "name": "ours", "published": {}, "ours": ours}]
    (tmp_path / "energy-table1.json").write_text(json.dumps({"rows": rows}))
    tables = script("tables")
    monkeypatch.setattr(tables, "HERE", tmp_path)
    assert tables.energy().splitlines() == [
        "| | published | ours | R | shrunk to | all units (F) | epochs |",
        "|---|---|---|---|---|---|---|",
        "| ours | – | 90.00 % | 49.60 % |  |  | 80 |",
    ]


def test_movement_is_compared_with_magnitude_seed_by_seed(tmp_path, monkeypatch):
    accuracies = {
        "movement-85": [83.0, 84.0, 82.0],
        "magnitude-85": [82.0, 82.0, 82.0],
        "movement-85-alone": [80.0, 81.0, 82.0],
        "magnitude-85-alone": [81.0, 81.0, 83.0],
    }
    rows = [
        {"id": key, "ours": {"accuracy": {"seeds": seeds}}}
        for key, seeds in accuracies.items()
    ]
    (tmp_path / "sparse-bert.json").write_text(json.dumps({"rows": rows}))
    tables = script("tables")
    monkeypatch.setattr(tables, "HERE", tmp_path)
    told = tables.movement()
    assert (
        "**+1.00 ± 0.58** points with the dense network as a teacher (better in 2 of 3 seeds)"
        in told
    )
    assert "−0.67 ± 0.33 without one (0 of 3)" in told
