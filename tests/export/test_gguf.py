"""GGUF files out and in: without rounding, and with one sentence where that cannot be."""

import json
import struct

import numpy as np
import pytest
import torch

import tersify
from tersify.cli import main
from tersify.export.gguf_blocks import encoded, parts_of
from tersify.export.gguf_file import export_gguf
from tersify.export.gguf_names import gguf_name, in_order
from tersify.lab import language
from tersify.lab.gguf import packed_gguf
from tersify.tensor import CompressedModel
from tersify.tensor.blocks import Joined, joined

gguf = pytest.importorskip("gguf", reason="needs the package gguf")
transformers = pytest.importorskip(
    "transformers", reason="needs the package transformers"
)
tokenizers = pytest.importorskip("tokenizers", reason="needs the package tokenizers")


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def dequantized(kind, data):
    return gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])


def ternary(*shape, scale=0.125):
    return np.random.default_rng(0).integers(-1, 2, shape).astype(np.float32) * scale


def stepped(*shape, most, bits):
    """Whole steps of a scale for each row, in numbers of few bits."""
    rng = np.random.default_rng(1)
    scale = rng.integers(1 << (bits - 1), 1 << bits, (shape[0], 1)) / 2.0**14
    return (rng.integers(-most, most + 1, shape) * scale).astype(np.float32)


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        (ternary(4, 512), "TQ2_0"),
        (ternary(4, 96), "Q4_0"),
        (stepped(6, 64, most=7, bits=8), "Q4_0"),
        (-8 * np.abs(stepped(2, 32, most=1, bits=8)), "Q4_0"),
        (stepped(6, 64, most=127, bits=8), "Q8_0"),
        (numbers(4, 64).astype(np.float16).astype(np.float32), "F16"),
        (numbers(4, 64), "F32"),
        (stepped(6, 40, most=7, bits=8), "F16"),
        (numbers(8), "F32"),
        (np.zeros((2, 256), np.float32), "TQ2_0"),
    ],
)
def test_a_matrix_gets_the_smallest_type_that_holds_it_exactly(rows, kind):
    found, data = encoded(rows, "TQ2_0")
    assert found == kind
    assert np.array_equal(dequantized(kind, data), rows)


def test_ternary_matrices_are_smaller_still_as_tq1_0():
    rows = ternary(4, 512)
    kind, data = encoded(rows, "TQ1_0")
    assert kind == "TQ1_0"
    assert data.nbytes < encoded(rows, "TQ2_0")[1].nbytes
    assert np.array_equal(dequantized(kind, data), rows)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "TQ1_0", "TQ2_0"])
def test_the_parts_of_blocks_are_what_they_decode_to(kind):
    data = gguf.quants.quantize(numbers(3, 512), gguf.GGMLQuantizationType[kind])
    parts = parts_of(kind, data)
    made = parts.wholes * parts.scale
    made = made if parts.added is None else made + parts.added
    assert np.array_equal(made.reshape(3, 512), dequantized(kind, data))


@pytest.fixture(scope="module")
def tokenizer():
    words = tokenizers.Tokenizer(tokenizers.models.BPE())
    words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<end>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words.train_from_iterator(["once upon a time there was a king"] * 4, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<end>", bos_token="<end>"
    )


def language_model(tokenizer, *, hidden=256, tied=True):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=hidden,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def signs(tokenizer):
    """A model of signs, in half precision where it is none."""
    model = language_model(tokenizer)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "proj" in name:
                weight.copy_(weight.sign() * (weight.abs() > 0.01) * 0.03125)
            elif weight.ndim == 2:
                weight.copy_(weight.half().float())
    return model


def written(model, tokenizer, path, **given):
    packed = language.stored(tersify.pack(model), model, tokenizer)
    about = packed.metadata[language.METADATA]
    return export_gguf(Joined(packed), about, path, **given)


@pytest.mark.parametrize("kind", ["TQ1_0", "TQ2_0"])
def test_a_ternary_model_goes_out_and_comes_back_bit_for_bit(
    signs, tokenizer, tmp_path, kind
):
    counts = written(signs, tokenizer, tmp_path / "m.gguf", ternary=kind)
    assert counts[kind] == 7
    assert counts["F16"] == 1
    packed = packed_gguf(tmp_path / "m.gguf")
    tersify.save(packed, tmp_path / "m.terse")
    model, again = language.load_language_model(tmp_path / "m.terse")
    for name, tensor in signs.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    assert again("a king")["input_ids"] == tokenizer("a king")["input_ids"]
    small = (tmp_path / "m.terse").stat().st_size
    assert small < (tmp_path / "m.gguf").stat().st_size


def in_steps(model, most):
    """Its projections in whole steps of a scale in half precision for each row."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "proj" in name:
                scale = (weight.abs().amax(1, keepdim=True) / most).half().float()
                weight.copy_((weight / scale).round().clamp(-most, most) * scale)
            elif weight.ndim == 2:
                weight.copy_(weight.half().float())
    return model


@pytest.mark.parametrize("kind", ["TQ2_0", "TQ1_0", "Q4_0", "Q8_0"])
def test_the_package_gguf_reads_every_weight_of_our_file_exactly(
    signs, tokenizer, tmp_path, kind
):
    model = signs
    if most := {"Q4_0": 7, "Q8_0": 127}.get(kind):
        model = in_steps(language_model(tokenizer), most)
    path = tmp_path / "m.gguf"
    ternary = kind if kind.startswith("TQ") else "TQ2_0"
    counts = written(model, tokenizer, path, ternary=ternary)
    assert (counts[kind], counts["F16"]) == (7, 1)
    read = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    config = model.config.to_dict()
    weights = dict(model.named_parameters())
    assert len(read) == len(weights)
    for name, weight in weights.items():
        found = read[gguf_name(name)]
        dense = gguf.quants.dequantize(found.data, found.tensor_type)
        wanted = in_order(weight.detach(), name, config, there=True)
        assert np.array_equal(dense.reshape(wanted.shape), wanted.numpy()), name


@pytest.mark.parametrize("kind", ["TQ2_0", "TQ1_0"])
def test_our_blocks_are_those_that_the_quantizer_makes_of_the_same_weights(kind):
    rows = ternary(8, 1024)
    theirs = gguf.quants.quantize(rows, gguf.GGMLQuantizationType[kind])
    assert np.array_equal(encoded(rows, kind)[1], theirs)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks_become_a_smaller_terse_file_losslessly(tokenizer, tmp_path, kind):
    dense = language_model(tokenizer, tied=False)
    path = quantized_gguf(dense, tokenizer, tmp_path / "m.gguf", kind)
    wanted, _ = language.language_model(path)
    assert main(["convert", str(path), "--out", str(tmp_path / "m.terse")]) == 0
    model, _ = language.load_language_model(tmp_path / "m.terse")
    for name, tensor in wanted.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    assert (tmp_path / "m.terse").stat().st_size < path.stat().st_size
    # and out again, in the type it came in
    out = tmp_path / "again.gguf"
    assert main(["export", "gguf", str(tmp_path / "m.terse"), "--out", str(out)]) == 0
    kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(out).tensors}
    assert kinds["blk.0.attn_q.weight"] == kind
    again, _ = language.language_model(out)
    for name, tensor in wanted.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def quantized_gguf(model, tokenizer, path, kind):
    """Its projections rounded to blocks of `kind` by the package gguf."""
    written(model, tokenizer, path)
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(path.with_suffix(".new"), "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value, kinds = field.contents(), field.types
        inner = kinds[-1] if kinds[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, kinds[0], inner)
    for tensor in reader.tensors:
        if tensor.name.startswith("blk.") and "norm" not in tensor.name:
            wide = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            data = gguf.quants.quantize(wide, gguf.GGMLQuantizationType[kind])
            writer.add_tensor(
                tensor.name, data, raw_dtype=gguf.GGMLQuantizationType[kind]
            )
        else:
            writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".new").rename(path)
    return path


def test_a_converted_file_generates(signs, tokenizer, tmp_path, capsys):
    written(signs, tokenizer, tmp_path / "m.gguf")
    tersify.save(packed_gguf(tmp_path / "m.gguf"), tmp_path / "m.terse")
    given = ["--prompt", "a king", "--max-new-tokens", "4"]
    assert main(["generate", str(tmp_path / "m.terse"), *given]) == 0
    told = capsys.readouterr().out
    assert main(["generate", str(tmp_path / "m.gguf"), *given]) == 0
    assert capsys.readouterr().out == told


def test_matrices_that_fit_no_type_are_told_of(tokenizer, tmp_path, capsys):
    model = language_model(tokenizer)
    packed = language.stored(tersify.pack(model), model, tokenizer)
    tersify.save(packed, tmp_path / "m.terse")
    out = tmp_path / "m.gguf"
    assert main(["export", "gguf", str(tmp_path / "m.terse"), "--out", str(out)]) == 0
    assert "8 matrices fit no smaller type" in capsys.readouterr().out


def test_a_family_that_llama_cpp_calls_otherwise_is_refused(tokenizer, tmp_path):
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=len(tokenizer), n_embd=32, n_layer=1, n_head=2, n_positions=32
        )
    )
    with pytest.raises(ValueError, match="'gpt2' cannot be written as GGUF"):
        written(model, tokenizer, tmp_path / "m.gguf")
    assert not list(tmp_path.iterdir())


def test_a_tokenizer_of_another_kind_is_refused(tokenizer, tmp_path):
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    model = language_model(tokenizer)
    other = transformers.PreTrainedTokenizerFast(tokenizer_object=words)
    with pytest.raises(ValueError, match="no byte-level BPE"):
        written(model, other, tmp_path / "m.gguf")


def test_a_file_that_is_cut_off_is_told_of_in_one_sentence(
    signs, tokenizer, tmp_path, capsys
):
    written(signs, tokenizer, tmp_path / "m.gguf")
    whole = (tmp_path / "m.gguf").read_bytes()
    short = tmp_path / "short.gguf"
    for size in (0, 3, 20, 200, len(whole) // 2, len(whole) - 1):
        short.write_bytes(whole[:size])
        for command in (
            ["convert", str(short), "--out", str(tmp_path / "m.terse")],
            ["generate", str(short), "--prompt", "a"],
        ):
            assert main(command) == 2, size
            told = capsys.readouterr().err.strip()
            why = (
                f"its header does not fit its {size:,} bytes"
                if size > 3
                else "it does not begin with GGUF"
            )
            assert told.endswith(f"is damaged, cut off or no GGUF file: {why}")
            assert len(told.splitlines()) == 1


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (999, "holds tensors of the unknown type 999; convert it"),
        (15, "holds tensors of type Q8_K, which cannot be read; convert it"),
    ],
)
def test_a_type_that_nobody_knows_is_told_of_in_one_sentence(
    signs, tokenizer, tmp_path, capsys, number, said
):
    written(signs, tokenizer, tmp_path / "m.gguf")
    data = bytearray((tmp_path / "m.gguf").read_bytes())
    name = b"blk.0.attn_q.weight"
    # behind the name: the number of dimensions, the dimensions, the type
    at = data.index(name) + len(name) + 4 + 2 * 8
    data[at : at + 4] = struct.pack("<I", number)
    path = tmp_path / "odd.gguf"
    path.write_bytes(data)
    assert main(["convert", str(path), "--out", str(tmp_path / "m.terse")]) == 2
    told = capsys.readouterr().err.strip()
    assert said in told
    assert len(told.splitlines()) == 1


def test_blocks_join_to_the_matrix_under_every_name():
    from tersify.tensor import CompressedTensor

    codes = torch.randint(0, 3, (4, 2, 8), dtype=torch.uint8)
    blocks = CompressedTensor(
        shape=codes.shape,
        codes=codes,
        codebook=torch.tensor([0.0, 1.0, -1.0]),
        scale=torch.rand(4, 2, 1),
    )
    added = torch.rand(4, 2, 1)
    model = CompressedModel(
        {"w": blocks, "w.added": added, "b": torch.ones(4)},
        aliases={"v": "w"},
        metadata={"blocks": ["w"]},
    )
    whole = joined(model)
    wanted = (blocks.to_dense() + added).reshape(4, 16)
    assert torch.equal(whole["w"], wanted)
    assert torch.equal(whole["v"], wanted)
    assert sorted(Joined(model)) == ["b", "w"]
    assert "w.added" not in Joined(model)
    assert json.dumps(whole.metadata["blocks"]) == '["w"]'
