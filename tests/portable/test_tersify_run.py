"""tersify-run at a desk: it writes only what is meant to be written, and says what it
does with images.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from library import Network, built
from plan_networks import networks, packed
from torch import Tensor, nn

import tersify
from tersify import codec
from tersify.codec.container import Sections
from tersify.codec.writer import add_plan
from tersify.runtime.portable import read_program

pytestmark = pytest.mark.long  # builds the library
MODEL, IMAGES = networks()["ternary"]
PIXELS = np.random.default_rng(0).integers(0, 256, (12, 12, 3), np.uint8)


def told(*given: object) -> tuple[int, str, str]:
    """The exit status, what was printed, and what was said of errors."""
    done = subprocess.run(
        [built() / "csrc" / "run" / "tersify-run", *map(str, given)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


def sentence(said: str) -> str:
    """What comes before the usage."""
    return said.splitlines()[0] if said else ""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "net.terse"
    tersify.save(packed(MODEL), path, network=MODEL, example=IMAGES, plan="fp32")
    np.save(tmp_path / "in.npy", IMAGES.numpy())
    return path


def with_images(file: Path, mean: tuple[float, ...], std: tuple[float, ...]) -> Path:
    """The file, with a word on how images become numbers."""
    out = file.with_name("images.terse")
    program = replace(read_program(codec.open(file)), mean=mean, std=std)
    add_plan(Sections(file), out, program.to_bytes())
    return out


def chunk(kind: bytes, content: bytes) -> bytes:
    """A piece of a PNG, with its checksum."""
    end = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + end


def png(pixels: np.ndarray, stream: bytes | None = None) -> bytes:
    """An image of 8-bit colours; `stream` stands for its compressed rows."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    inside = zlib.compress(rows) if stream is None else stream
    parts = [chunk(b"IHDR", head), chunk(b"IDAT", inside), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("name", ["second.png", "second", "", "second.terse"])
def test_an_output_that_is_no_npy_is_refused(
    name: str, file: Path, tmp_path: Path
) -> None:
    out = tmp_path / name if name else ""
    if name:
        Path(out).write_bytes(b"precious")
    status, _, said = told(file, tmp_path / "in.npy", out)
    assert status == 1
    assert "ends in .npy" in sentence(said)
    assert not name or Path(out).read_bytes() == b"precious"


@pytest.mark.parametrize("how", ["itself", "symlink", "hard link", "another way"])
@pytest.mark.parametrize("which", ["in.npy", "net.terse"])
def test_an_output_that_is_an_input_or_the_network_is_refused(
    which: str, how: str, file: Path, tmp_path: Path
) -> None:
    same, out = tmp_path / which, tmp_path / "out.npy"
    if how == "symlink":
        out.symlink_to(same)
    elif how == "hard link":
        out.hardlink_to(same)
    elif which == "net.terse":
        file = file.rename(tmp_path / "net.npy")  # then its name would do
        same = out = file
    else:
        out = same
    if how == "another way":
        (tmp_path / "folder").mkdir()
        out = Path(f"{tmp_path}/folder/../{out.name}")
    before = same.read_bytes()
    status, _, said = told(file, tmp_path / "in.npy", out)
    assert status == 1
    assert "is also read" in sentence(said)
    assert same.read_bytes() == before


def test_only_a_regular_file_is_replaced(file: Path, tmp_path: Path) -> None:
    (tmp_path / "folder.npy").mkdir()
    os.mkfifo(tmp_path / "pipe.npy")
    for name in ("folder.npy", "pipe.npy"):
        status, _, said = told(file, tmp_path / "in.npy", tmp_path / name)
        assert status == 1
        assert f"{name} is no regular file" in sentence(said)
    old = tmp_path / "old.npy"
    old.write_bytes(b"old")
    assert told(file, tmp_path / "in.npy", old)[0] == 0
    wanted = Network(file.read_bytes()).run(IMAGES.numpy())
    assert np.array_equal(np.load(old), wanted)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 4), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(x), self.two(x)


def test_a_pipe_is_no_network_and_is_not_waited_for(file: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.terse")
    code, _, said = told(tmp_path / "pipe.terse", file.with_name("in.npy"))
    assert code == 1
    assert "pipe.terse is not a file" in said


def test_the_second_output_overwrites_no_input_either(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = TwoHeads().eval(), torch.randn(2, 6)
    path = tmp_path / "net.terse"
    tersify.save(packed(model), path, network=model, example=x, plan="fp32")
    given, out = tmp_path / "out.npy.1", tmp_path / "out.npy"
    with given.open("wb") as stream:
        np.save(stream, x.numpy())
    before = given.read_bytes()
    status, _, said = told(path, given, out)
    assert (status, "is also read" in sentence(said)) == (1, True)
    assert given.read_bytes() == before
    assert not out.exists()


def test_a_png_with_any_one_flipped_byte_is_refused(file: Path, tmp_path: Path) -> None:
    whole, image = png(PIXELS), tmp_path / "in.png"
    image.write_bytes(whole)
    assert told(file, image)[0] == 0
    rng = np.random.default_rng(1)
    for at in [*range(60), *rng.integers(60, len(whole), 60), *range(-16, 0)]:
        broken = bytearray(whole)
        broken[at] ^= 1 << int(rng.integers(8))
        image.write_bytes(broken)
        status, printed, said = told(file, image)
        assert (status, printed) == (1, ""), at
        assert "in.png" in sentence(said), at


@pytest.mark.parametrize(
    "how", ["another sum", "no sum", "no zlib", "a dictionary", "too many rows"]
)
def test_a_png_whose_rows_are_damaged_inside_is_refused(
    how: str, file: Path, tmp_path: Path
) -> None:
    rows = b"".join(b"\0" + row.tobytes() for row in PIXELS)
    stream = zlib.compress(rows)
    damaged = {
        "another sum": stream[:-1] + bytes([stream[-1] ^ 1]),
        "no sum": stream[:-4],
        "no zlib": b"\0\0" + stream[2:],
        "a dictionary": b"\x78\xbb" + stream[2:],
        "too many rows": zlib.compress(rows + b"\0"),
    }[how]
    (tmp_path / "in.png").write_bytes(png(PIXELS, damaged))
    status, _, said = told(file, tmp_path / "in.png")
    assert status == 1
    assert "in.png is damaged" in sentence(said)


def test_a_png_that_ends_before_its_end_is_refused_and_more_behind_it_is_not(
    file: Path, tmp_path: Path
) -> None:
    image = tmp_path / "in.png"
    image.write_bytes(png(PIXELS)[:-12])
    status, _, said = told(file, image)
    assert (status, "cut short" in sentence(said)) == (1, True)
    image.write_bytes(png(PIXELS) + b"what a camera adds")
    assert told(file, image)[0] == 0


def test_bytes_without_a_word_on_images_are_divided_by_255_and_it_is_said(
    file: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.png").write_bytes(png(PIXELS))
    np.save(tmp_path / "bytes.npy", PIXELS.transpose(2, 0, 1)[None])
    for name in ("in.png", "bytes.npy"):
        status, _, said = told(file, tmp_path / name)
        assert status == 0
        assert said.count("\n") == 1
        assert "divided by 255" in said
    assert told(file, tmp_path / "in.npy")[2] == ""


def test_the_mean_and_spread_of_images_are_taken_without_a_word(
    file: Path, tmp_path: Path
) -> None:
    mean, spread = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    file, image = with_images(file, mean, spread), tmp_path / "in.png"
    image.write_bytes(png(PIXELS))
    status, _, said = told(file, image, tmp_path / "out.npy")
    assert (status, said) == (0, "")
    floats = PIXELS.transpose(2, 0, 1)[None].astype(np.float32) / np.float32(255)
    shape = (1, 3, 1, 1)
    centred = floats - np.array(mean, np.float32).reshape(shape)
    given = centred / np.array(spread, np.float32).reshape(shape)
    wanted = Network(file.read_bytes()).run(given.astype(np.float32))
    assert np.array_equal(np.load(tmp_path / "out.npy"), wanted)


def test_a_mean_for_other_channels_than_the_bytes_have_is_refused(
    file: Path, tmp_path: Path
) -> None:
    file, image = with_images(file, (0.5, 0.5), (0.2, 0.2)), tmp_path / "in.png"
    image.write_bytes(png(PIXELS))
    status, _, said = told(file, image)
    assert status == 1
    assert "the mean of 2 channels" in sentence(said)


class EveryStep(nn.Module):
    """Depthwise and strided layers, a concatenation, norms, sums, products and means."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.slopes = nn.PReLU(8)
        self.group = nn.GroupNorm(2, 8)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.slopes(self.stem(x))
        y = torch.sigmoid(self.group(self.depthwise(x))) * x
        both = torch.cat([x, y], 1).mean((2, 3))
        return torch.softmax(self.head(self.norm(both)), -1)


class ManySigns(nn.Module):
    """A layer that one vector at a time meets as signs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(512, 256, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x)) + 1


def every_network() -> dict[str, tuple[nn.Module, Tensor]]:
    torch.manual_seed(0)
    signs = ManySigns()
    signs.layer.weight.data = signs.layer.weight.data.sign()
    return {
        **networks(),
        "every step": (EveryStep(), torch.randn(1, 3, 12, 12)),
        "depthwise": (
            nn.Sequential(nn.Conv2d(3, 6, 3, groups=3), nn.AdaptiveAvgPool2d(1)),
            torch.randn(1, 3, 12, 12),
        ),
        "signs": (signs, torch.randn(1, 512)),
    }


@pytest.mark.parametrize("name", every_network())
def test_every_line_of_a_profile_names_a_kernel(name: str, tmp_path: Path) -> None:
    model, example = every_network()[name]
    path, given = tmp_path / "net.terse", tmp_path / "in.npy"
    tersify.save(
        packed(model.eval()), path, network=model, example=example, plan="fp32"
    )
    np.save(given, example.numpy())
    status, printed, said = told(path, given, tmp_path / "out.npy", "--profile")
    assert (status, said) == (0, "")
    assert printed
    for line in printed.splitlines():
        assert re.fullmatch(r" *[\d.]+ µs  \w.*\w", line), printed
