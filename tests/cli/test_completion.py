"""A shell that asks what may come next is answered, and can be told to ask."""

import os
import subprocess
import sys

import pytest


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
