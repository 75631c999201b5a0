"""The compiled coders against the reference decoder, which follows
docs/reference/format.md and nothing else.
"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tersify.codec import TerseFileError, native, reference
from tersify.codec.layout import Box

compiled = native.extension()
pytestmark = pytest.mark.skipif(compiled is None, reason="tersify._codec is not built")
PATHS = compiled.paths() if compiled else []
MARGIN = 64


@st.composite
def groups(draw):
    """Boxes with codes of uneven density, and the hints of an encoder."""
    levels = draw(st.sampled_from([1, 2, 3, 3, 3, 4, 5, 16, 40, 256]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    boxes, parts = [], []
    for _ in range(draw(st.integers(1, 3))):
        kernel = draw(
            st.sampled_from([(1, 1), (3, 3), (1, 7)])
            | st.tuples(st.integers(1, 5), st.integers(1, 5))
        )
        taps = kernel[0] * kernel[1]
        box = Box(
            draw(st.integers(1, 9)),
            draw(st.integers(1, 40)),
            taps,
            kernel[1] if taps > 1 else 1,
        )
        keep = rng.random((box.filters, 1, 1)) * rng.random(
            (1, box.channels, 1)
        ) ** draw(st.sampled_from([0.1, 2.0]))
        codes = rng.integers(0, levels, (box.filters, box.channels, taps)) * (
            rng.random((1, 1, taps)) < keep
        )
        if draw(st.booleans()):
            codes = np.maximum.accumulate(codes, axis=2)
        boxes.append(box)
        parts.append(codes.reshape(-1).astype(np.uint8))
    activity = np.tile(
        np.minimum(np.arange(levels) * 255 // max(1, levels - 1), 255).astype(np.uint8),
        (len(boxes), 1),
    )
    lanes_log2 = draw(st.integers(-1, 5))
    return np.concatenate(parts), boxes, levels, activity, lanes_log2


def encode(codes, boxes, levels, activity, lanes_log2):
    order = np.arange(levels, dtype=np.uint8)
    sizes = np.array(boxes, np.int64)
    return compiled.encode_codes(
        codes, sizes, levels, activity, order, lanes_log2
    ), sizes


def decode(data, sizes, levels, count, path):
    """The codes; nothing is written outside them, whatever the stream holds."""
    room = np.full(count + 2 * MARGIN, 255, np.uint8)
    out = room[MARGIN : MARGIN + count]
    try:
        compiled.decode_codes(data, sizes, levels, out, path)
    finally:
        assert (room[:MARGIN] == 255).all()
        assert (room[MARGIN + count :] == 255).all()
    return out


@given(groups())
@settings(max_examples=150, deadline=None)
def test_every_decoder_gives_back_the_codes(group):
    codes, boxes, levels, *_ = group
    data, sizes = encode(*group)
    assert reference.decode_rans(data, boxes, levels) == codes.tobytes()
    for path in PATHS:
        assert (decode(data, sizes, levels, codes.size, path) == codes).all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("levels", [2, 3])
@pytest.mark.parametrize("taps", range(1, 11))
def test_kernels_with_any_number_of_taps_come_back(taps, levels, path):
    """A kernel of two taps is shorter than a symbol of three codes."""
    rng = np.random.default_rng(taps)
    codes = rng.integers(0, levels, 7 * 9 * taps).astype(np.uint8)
    activity = np.array([[0, *[255] * (levels - 1)]], np.uint8)
    data, sizes = encode(codes, [Box(7, 9, taps, 1)], levels, activity, -1)
    assert (decode(data, sizes, levels, codes.size, path) == codes).all()


@given(groups(), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_compiled_and_reference_decoders_agree_on_damaged_streams(group, rng):
    codes, boxes, levels, *_ = group
    data, sizes = encode(*group)
    broken = bytearray(data)
    for _ in range(rng.choice([1, 1, 3])):
        at = rng.randrange(len(broken))
        broken[at] = rng.choice([broken[at] ^ (1 << rng.randrange(8)), 0, 255])
    broken = bytes(
        broken[: rng.choice([len(broken), len(broken), rng.randrange(len(broken))])]
    )
    try:
        expected = reference.decode_rans(broken, boxes, levels)
    except TerseFileError:
        expected = None
    for path in PATHS:
        try:
            out = decode(broken, sizes, levels, codes.size, path)
        except compiled.Malformed:
            assert expected is None
        else:
            assert out.tobytes() == expected


def test_ternary_kernels_with_structure_take_less_than_their_order_0_entropy():
    rng = np.random.default_rng(0)
    strength = np.exp(rng.normal(size=(128, 1, 1))) * np.exp(
        rng.normal(size=(1, 128, 1))
    )
    weights = np.cumsum(rng.normal(size=(128, 128, 9)), axis=2) * strength
    codes = np.where(
        np.abs(weights) < np.quantile(np.abs(weights), 0.9), 0, 1 + (weights > 0)
    ).astype(np.uint8)
    fractions = np.bincount(codes.reshape(-1)) / codes.size
    order_0_bytes = -(fractions * np.log2(fractions)).sum() * codes.size / 8
    data, _ = encode(
        codes.reshape(-1),
        [Box(128, 128, 9, 3)],
        3,
        np.array([[0, 255, 255]], np.uint8),
        -1,
    )
    assert len(data) < 0.75 * order_0_bytes


def test_codes_without_structure_take_at_most_one_and_a_half_percent_more_than_their_entropy():
    rng = np.random.default_rng(0)
    for zeros in (0.5, 0.9):
        codes = rng.choice(
            3, p=[zeros, (1 - zeros) / 2, (1 - zeros) / 2], size=1 << 16
        ).astype(np.uint8)
        fractions = np.bincount(codes) / codes.size
        order_0_bytes = -(fractions * np.log2(fractions)).sum() * codes.size / 8
        data, _ = encode(
            codes, [Box(256, 256, 1, 1)], 3, np.array([[0, 255, 255]], np.uint8), -1
        )
        assert len(data) <= 1.015 * order_0_bytes


def test_the_example_in_the_format_document_decodes_as_it_says():
    text = (Path(__file__).parents[2] / "docs/reference/format.md").read_text()
    data = bytes.fromhex(text.split("```hex\n")[1].split("```")[0])
    expected = np.zeros((8, 18), np.uint8)
    expected[1, 3], expected[1, 4], expected[5, 12], expected[6, 0] = 1, 2, 2, 1
    assert reference.decode_rans(data, [(8, 18, 1, 1)], 3) == expected.tobytes()
    coded, _ = encode(
        expected.reshape(-1),
        [Box(8, 18, 1, 1)],
        3,
        np.array([[0, 255, 255]], np.uint8),
        -1,
    )
    assert coded == data


def test_the_encoder_refuses_what_it_cannot_code():
    codes = np.zeros(4, np.uint8)
    activity = np.zeros((1, 3), np.uint8)
    with pytest.raises(ValueError, match="hold as many codes"):
        encode(codes, [Box(1, 5, 1, 1)], 3, activity, -1)
    with pytest.raises(ValueError, match="outside the levels"):
        encode(codes + 3, [Box(1, 4, 1, 1)], 3, activity, -1)
