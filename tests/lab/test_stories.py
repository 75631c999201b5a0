"""stories260K, a Llama of llama2.c: read in either order of its matrices, and told by
our decoder.
"""

import importlib.util
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tersify

pytest.importorskip("transformers", reason="needs the package transformers")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def llama2c():
    spec = importlib.util.spec_from_file_location(
        "llama2c", ROOT / "benchmarks/llama2c.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["llama2c"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def file(shared):
    return shared / "lm/stories260K.bin"


@pytest.fixture(scope="module")
def model(llama2c, file):
    return llama2c.load_llama2c(file)


def test_the_greedy_story_is_that_of_llama2c_in_torch_and_in_our_decoder(
    llama2c, model
):
    begin = torch.ones(1, 1, dtype=torch.long)
    given = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0}
    story = model.generate(begin, **given, eos_token_id=None)
    assert tuple(story[0, : len(llama2c.OPENING)].tolist()) == llama2c.OPENING
    fast = tersify.compile(model, strict=True)
    assert torch.equal(fast.generate(begin, **given, eos_token_id=None), story)


def test_a_plain_forward_pass_of_llama2c_tells_the_same_story(llama2c, model):
    ids = torch.tensor([llama2c.OPENING])
    with torch.no_grad():
        wanted = model(ids).logits[0].numpy()
    given = plain_logits(model, ids[0].numpy())
    assert np.abs(given - wanted).max() < 1e-3


def test_a_file_in_the_order_of_llama2c_is_read_too(llama2c, model, file, tmp_path):
    data = file.read_bytes()
    dim, hidden, layers, heads, key_heads, tokens, _ = sizes = struct.unpack_from(
        llama2c.HEADER, data
    )
    numbers = np.frombuffer(data[28:], "<f4").copy()
    keys, at = dim // heads * key_heads, tokens * dim + layers * dim
    shapes = [(dim, dim), (keys, dim), (keys, dim), (dim, dim), None]
    shapes += [(hidden, dim), (dim, hidden), (hidden, dim)]
    for shape in shapes:
        if shape is None:
            at += layers * dim
            continue
        count = layers * shape[0] * shape[1]
        part = numbers[at : at + count].reshape(layers, *shape)
        for _ in range(layers):
            part = part.swapaxes(1, 2).reshape(layers, *shape)
        numbers[at : at + count] = part.ravel()
        at += count
    path = tmp_path / "stories.bin"
    path.write_bytes(struct.pack(llama2c.HEADER, *sizes) + numbers.tobytes())
    again = llama2c.load_llama2c(path)
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_a_file_of_other_numbers_is_refused(llama2c, file, tmp_path):
    data = bytearray(file.read_bytes())
    data[28 : 28 + 4 * 512 * 64] = bytes(4 * 512 * 64)
    (tmp_path / "other.bin").write_bytes(data)
    with pytest.raises(ValueError, match="another order"):
        llama2c.load_llama2c(tmp_path / "other.bin")


def plain_logits(model, ids):
    """The forward pass in numpy, as llama2.c computes it on halves."""
    weights = {name: t.detach().numpy() for name, t in model.state_dict().items()}
    config = model.config
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    width = config.hidden_size // heads

    def norm(x, name):
        scaled = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        return scaled * weights[name]

    angles = np.outer(np.arange(len(ids)), 1e4 ** -(np.arange(0, width, 2) / width))
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]

    def rotated(x):
        one, other = x[..., : width // 2], x[..., width // 2 :]
        return np.concatenate([one * cos - other * sin, one * sin + other * cos], -1)

    x = weights["model.embed_tokens.weight"][ids].astype(np.float64)
    seen = np.tril(np.ones((len(ids), len(ids))))
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}."

        def times(y, name, at=at):
            return y @ weights[f"{at}{name}_proj.weight"].T

        y = norm(x, f"{at}input_layernorm.weight")
        q, k, v = (
            times(y, f"self_attn.{part}").reshape(len(ids), -1, width) for part in "qkv"
        )
        q, k = rotated(q), rotated(k)
        k, v = (np.repeat(part, heads // groups, 1) for part in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(width)
        scores = np.exp(scores - scores.max(-1, keepdims=True)) * seen
        scores /= scores.sum(-1, keepdims=True)
        mixed = np.einsum("hij,jhd->ihd", scores, v).reshape(len(ids), -1)
        x = x + times(mixed, "self_attn.o")
        y = norm(x, f"{at}post_attention_layernorm.weight")
        gate = times(y, "mlp.gate")
        x = x + times(gate / (1 + np.exp(-gate)) * times(y, "mlp.up"), "mlp.down")
    return norm(x, "model.norm.weight") @ weights["model.embed_tokens.weight"].T
