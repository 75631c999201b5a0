"""A shell that asks what may come next is answered, and can be told to ask."""

import os
import subprocess
import sys

import pytest


def ask(words, shell="complete_bash"):
    asked = {"_TERSIFY_COMPLETE": shell, "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    command = [sys.executable, "-c", "from tersify.cli import main; main()"]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, timeout=120)
    return done.stdout.split()


def test_commands_that_begin_so_are_offered():
    assert ask("tersify comp") == ["compress"]
    assert ask("tersify export f") == ["fpga"]


def test_flags_of_a_command_are_offered():
    assert ask("tersify inspect --max") == ["--max-decoded-bytes"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_names_the_command(shell):
    command = [sys.executable, "-m", "tersify", "--show-completion", shell]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "_TERSIFY_COMPLETE" in shown.stdout, shown.stderr
