"""A shell that asks what may come next is answered, and can be told to ask."""

import os
import subprocess
import sys

import pytest
import typer

from tersify.cli import completion
from tersify.cli.app import app


def ask(words, shell="complete_bash"):
    asked = {
        "_TERSIFY_COMPLETE": shell,
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    command = [sys.executable, "-c", "from tersify.cli import main; main()"]
    done = subprocess.run(
        command, env=os.environ | asked, capture_output=True, text=True, timeout=120
    )
    return done.stdout.split()


def test_commands_that_begin_so_are_offered():
    assert ask("tersify comp") == ["compress", "compress-lm"]
    assert ask("tersify export f") == ["fpga"]


def test_flags_of_a_command_are_offered():
    assert ask("tersify inspect --max") == ["--max-decoded-bytes"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_asks_the_command(shell):
    assert "_TERSIFY_COMPLETE=complete_" + shell in " ".join(
        ask("tersify", f"source_{shell}")
    )


def test_names_of_recipes_data_networks_and_experiments_are_offered():
    compress = "tersify compress digits-cnn --data digits --recipe "
    assert ask(compress + "ternary-l") == ["ternary-linear", "ternary-log"]
    assert ask(compress + "no") == ["none"]
    assert ask("tersify compress digits-cnn --data cifar") == ["cifar10", "cifar100"]
    assert ask("tersify compress resnet20") == ["resnet20", "resnet20-star"]
    assert ask("tersify eval net.terse --target vgg") == ["vgg16"]
    assert ask("tersify reproduce lut-t") == ["lut-table3"]
    assert ask("tersify compress-lm model --recipe lm-2") == ["lm-2bit"]


def test_the_names_offered_are_those_that_are_known():
    from tersify.lab import networks
    from tersify.lab.data import _LOADERS
    from tersify.lab.experiments import known
    from tersify.recipe import language_recipes, ready_recipes

    def stems(files):
        return sorted(path.stem for path in files)

    assert completion.data_sets("") == sorted(_LOADERS)
    assert completion.networks("") == sorted(networks())
    assert completion.experiments("") == known()
    assert completion.recipes("") == stems(ready_recipes())
    assert completion.recipes_or_none("") == sorted([*stems(ready_recipes()), "none"])
    assert completion.language_recipes("") == stems(language_recipes())


def test_names_are_offered_without_waiting_for_torch():
    program = (
        "import sys; from tersify.cli import completion; completion.recipes(''); "
        "completion.experiments(''); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize(
    ("flag", "commands"),
    [
        ("data", {"allocate", "compress", "eval", "plan", "squeeze"}),
        (
            "target",
            {"allocate", "bench", "collect", "compress", "eval"}
            | {"plan", "shrink", "squeeze"},
        ),
        ("recipe", {"collect", "compress", "compress-lm"}),
        ("experiment", {"reproduce"}),
    ],
)
def test_every_command_that_takes_such_a_name_completes_it(flag, commands):
    every = typer.main.get_command(app).commands
    takes = {
        name: parameter
        for name, command in every.items()
        for parameter in command.params
        if parameter.name == flag
    }
    assert set(takes) >= commands
    for name in commands:
        assert takes[name]._custom_shell_complete is not None, name
