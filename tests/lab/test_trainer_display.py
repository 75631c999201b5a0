import io

from rich.console import Console

from tersify.lab.trainer import display_for

ROWS = [
    {
        "epoch": e,
        "loss": 1 / e,
        "accuracy": 90.0 + e,
        "lr": 0.1,
        "sparsity": 50.0,
        "Δ": 0.1 * e,
        "seconds": 1.0,
    }
    for e in (2, 3)
]


def shown(*, terminal):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=150)
    with display_for(console, "log") as display:
        display.begin(epochs=3, done=1, steps=2)
        for row in ROWS:
            display.batch_done()
            display.batch_done()
            display.epoch_done(row)
    return stream.getvalue()


def test_a_pipe_gets_one_plain_line_for_each_epoch():
    lines = shown(terminal=False).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(
        "log: epoch 2/3 · loss 0.5000 · accuracy 92.00 % · sparsity 50.0 % · Δ 0.2 · 1.0 s"
    )
    assert "\x1b" not in "".join(lines)


def test_a_terminal_gets_bars_with_the_same_figures():
    text = shown(terminal=True)
    assert "\x1b[" in text
    assert "3/3" in text
    assert "accuracy 93.00 %" in text
    assert "Δ 0.3" in text
