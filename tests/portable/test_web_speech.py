"""The page and the speech network: what a visitor hears is what `tersify enhance` makes,
of a sound file and of the microphone.
"""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Iterator
from pathlib import Path

import browser
import numpy as np
import pytest
import torch
from library import ROOT
from typer.testing import CliRunner

from tersify.cli.app import app
from tersify.cli.serve import package_folder, question, server_of

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("scipy")

NETWORK = ROOT / "examples" / "speech-mask.terse"
MODULE = ROOT / "packages" / "run" / "tersify.wasm"
BYTES = """fetch(document.getElementById("%s").src).then((r) => r.arrayBuffer())
.then((b) => btoa(Array.from(new Uint8Array(b), (n) => String.fromCharCode(n)).join("")))"""
FAKE = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]


def command(*given: object) -> None:
    done = CliRunner().invoke(app, [*map(str, given)])
    assert done.exit_code == 0, done.output


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    if not MODULE.is_file():
        pytest.skip("packages/run/tersify.wasm is not built (make wasm)")
    if browser.chromium() is None:
        pytest.skip("needs chromium, which is not on this machine")
    path = tmp_path / "speech.terse"
    command("plan", NETWORK, "--out", path)
    return path


@pytest.fixture
def serving() -> Iterator[object]:
    servers = []

    def serve(*files: Path) -> str:
        server = server_of(package_folder(), list(files), 0)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/page/index.html"
        return address + question(list(files))

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def spoken(path: Path, rate: int) -> Path:
    """Vowels that come and go over noise."""
    rng = np.random.default_rng(0)
    time = np.arange(rate) / rate
    tone = sum(np.sin(2 * np.pi * 140 * k * time) / k for k in range(1, 12))
    loud = tone * (np.sin(2 * np.pi * 3 * time) > 0) + 0.3 * rng.standard_normal(rate)
    soundfile.write(path, 0.9 * loud / np.abs(loud).max(), rate, subtype="PCM_16")
    return path


def heard(page: browser.Page, name: str) -> np.ndarray:
    data = base64.b64decode(page.value(BYTES % name))
    samples, rate = soundfile.read(io.BytesIO(data), dtype="float32")
    assert rate == 8000
    return np.asarray(samples)


def enhanced(sound: Path, planned: Path, *more: str) -> np.ndarray:
    out = sound.with_name("enhanced.wav")
    command("enhance", sound, out, "--model", planned, *more)
    return np.asarray(soundfile.read(out, dtype="float32")[0])


def assert_same(made: np.ndarray, wanted: np.ndarray) -> None:
    assert made.shape == wanted.shape
    assert np.abs(wanted).max() > 0.05
    # both are written in 16 bits, so numbers at an end of a step may be a step apart
    assert np.abs(made - wanted).max() <= 1e-4 * np.abs(wanted).max() + 1 / 32768


@pytest.mark.parametrize(("rate", "width"), [(8000, 1280), (44100, 390)])
def test_a_sound_is_enhanced_as_the_command_does_it(
    rate: int, width: int, planned: Path, serving, tmp_path: Path
) -> None:
    sound = spoken(tmp_path / "noisy.wav", rate)
    program = browser.chromium()
    assert program is not None
    with browser.Page(program, tmp_path / "profile", width=width) as page:
        page.open(serving(planned, sound), "document.body?.dataset.done")
        assert page.value("document.getElementById('problem').textContent") == ""
        assert_same(heard(page, "enhanced"), enhanced(sound, planned))
        assert "frames" in page.value("document.getElementById('heard').innerText")
        wide = "(e) => e.getBoundingClientRect().right > innerWidth + 1"
        found = f"[...document.querySelectorAll('main *')].filter({wide}).length"
        assert page.value(found) == 0
        page.picture(tmp_path / "page.png")


def test_the_microphone_is_enhanced_as_the_command_does_it(
    planned: Path, serving, tmp_path: Path
) -> None:
    program = browser.chromium()
    assert program is not None
    sound = spoken(tmp_path / "said.wav", 48000)
    flags = [*FAKE, f"--use-file-for-fake-audio-capture={sound}"]
    with browser.Page(program, tmp_path / "profile", flags=flags) as page:
        page.open(
            serving(planned), "document.getElementById('speech')?.hidden === false"
        )
        page.value("document.getElementById('record').click()")
        page.wait("document.getElementById('record').textContent === 'Stop'")
        page.value("new Promise((done) => setTimeout(done, 1500))")
        page.value("document.getElementById('record').click()")
        page.wait("document.body.dataset.done")
        assert page.value("document.getElementById('problem').textContent") == ""
        noisy, made = heard(page, "noisy"), heard(page, "enhanced")
    recorded = tmp_path / "recorded.wav"
    soundfile.write(recorded, noisy, 8000, subtype="PCM_16")
    assert len(noisy) > 4000
    assert_same(made, enhanced(recorded, planned))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [("song.wav", b"no sound", "no sound that this browser reads")],
)
def test_what_is_no_sound_is_told_in_one_sentence(
    name: str, content: bytes, words: str, planned: Path, serving, tmp_path: Path
) -> None:
    program = browser.chromium()
    assert program is not None
    (tmp_path / name).write_bytes(content)
    with browser.Page(program, tmp_path / "profile") as page:
        page.open(serving(planned, tmp_path / name), "document.body?.dataset.done")
        assert words in page.value("document.getElementById('problem').textContent")
        # headless and without a fake device there is no microphone
        page.value("document.getElementById('record').click()")
        page.wait("document.getElementById('problem').textContent.includes('microph')")


@pytest.mark.parametrize("head", ["mask", "spectrum", "magnitude"])
def test_every_head_has_a_plan(head: str, tmp_path: Path) -> None:
    import tersify
    from tersify import codec
    from tersify.lab.networks.speech import SpeechMlp
    from tersify.runtime.portable import Replay, read_program

    torch.manual_seed(0)
    model, frames = SpeechMlp(head).eval(), torch.rand(3, 8, 129)
    model.standardise_(frames.flatten(0, 1))
    path = tmp_path / "net.terse"
    packed = tersify.pack(model)
    tersify.save(packed, path, network=model, example=frames[:2], plan="fp32")
    file = codec.open(path)
    (made,) = Replay(read_program(file), file).run([frames])
    with torch.no_grad():
        wanted = model(frames)
    assert float((made - wanted).abs().max()) <= 2e-5 * float(wanted.abs().max())
