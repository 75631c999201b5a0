"""One list of experiments: every one is described, takes what it says, and runs by the
same call.
"""

import json

import pytest

from tersify.cli import main
from tersify.lab import experiments as lab
from tersify.lab.experiments import registry


def test_every_experiment_of_the_package_is_on_the_list_once(capsys):
    names = lab.known()
    assert names == sorted(set(names))
    assert {
        "lut-fig1",
        "lut-table3",
        "ternary-fig4",
        "ternary-table2",
        "energy-time",
    } <= set(names)
    assert set(lab.experiments()) < set(names)
    assert main(["reproduce", "--list"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in told] == names
    assert any(
        line.startswith("ternary-table1: ") and line.endswith(")") for line in told
    )


@pytest.mark.parametrize("name", registry._programs())
def test_a_program_names_a_function_that_exists(name):
    program = registry._load(name)
    module, _, function = program.run.partition(":")
    assert callable(getattr(registry.importlib.import_module(module), function))
    assert program.title
    assert program.source


def test_an_experiment_runs_by_its_name_and_tells_what_it_wrote(tmp_path):
    request = lab.Request(
        out=tmp_path / "out",
        smoke=True,
        rows=["log"],
        seeds=[5],
        settings={"device": "cpu"},
    )
    outcome = lab.run_experiment("ternary-table2", request)
    assert outcome.shows == "rows"
    assert outcome.results["seeds"] == [5]
    assert (
        json.loads(outcome.files[0].read_text())["figures"]
        == outcome.results["figures"]
    )
    assert (tmp_path / "out" / "log" / "seed-5" / "model.terse").is_file()


def test_a_program_gets_the_request_and_the_watch(tmp_path, monkeypatch):
    seen = []

    def run(request, watch):
        seen.append(request.out)
        watch.tell("going")
        return {"a": 1}, [request.out / "a.json"]

    monkeypatch.setattr("tersify.lab.speech.programs.figure1", run)
    lines = []
    watch = lab.Watch(tell=lines.append)
    outcome = lab.run_experiment("lut-fig1", lab.Request(out=tmp_path), watch)
    assert (seen, lines) == ([tmp_path], ["going"])
    assert (outcome.shows, outcome.results, outcome.files) == (
        "nothing",
        {"a": 1},
        [tmp_path / "a.json"],
    )


def test_an_unknown_experiment_is_told_the_nearest_of_all_kinds(tmp_path):
    with pytest.raises(ValueError, match="'lut-table3'"):
        lab.run_experiment("lut-table4", lab.Request(out=tmp_path))


def test_a_program_that_takes_what_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="'epoch'"):
        registry.Program(name="x", title="x", source="x", run="a:b", takes=("epoch",))
