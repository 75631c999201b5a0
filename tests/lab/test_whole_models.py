"""A causal model is read whole or refused in one sentence: transformers draws what it
misses at random and leaves out what it does not know.
"""

import json

import pytest
import torch

from tersify.cli import main
from tersify.export.gguf_file import export_gguf
from tersify.lab import language
from tersify.tensor import CompressedModel

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
gguf = pytest.importorskip("gguf")
safetensors = pytest.importorskip("safetensors.torch")

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def words():
    plain = tokenizers.Tokenizer(tokenizers.models.BPE())
    plain.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=270,
        special_tokens=["<end>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    plain.train_from_iterator(["once upon a time there was a king"] * 4, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, eos_token="<end>", bos_token="<end>"
    )


def network(family="Llama", **more):
    torch.manual_seed(0)
    tokenizer = words()
    config = getattr(transformers, f"{family}Config")(
        vocab_size=len(tokenizer), **SIZES, **more
    )
    return getattr(transformers, f"{family}ForCausalLM")(config).eval(), tokenizer


@pytest.fixture
def folder(tmp_path):
    model, tokenizer = network()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def gguf_file(path, family="Llama", **more):
    model, tokenizer = network(family, **more)
    packed = language.stored(CompressedModel(model.state_dict()), model, tokenizer)
    export_gguf(packed, packed.metadata[language.METADATA], path)
    return path


def rewritten(path, *, settings=None, without=(), tensors=()):
    """The file with other settings and without some tensors."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(path.with_suffix(".new"), "llama")
    changed = {
        f.name: f.contents() for f in reader.fields.values() if f.name not in without
    } | (settings or {})
    for name, value in changed.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kinds = reader.fields[name].types if name in reader.fields else None
        if kinds is None:
            kinds = [gguf.GGUFValueType.get_type(value)]
        inner = kinds[-1] if kinds[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, kinds[0], inner)
    for tensor in reader.tensors:
        if tensor.name not in tensors:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".new").rename(path)
    return path


def refused(capsys, *command):
    assert main([str(word) for word in command]) == 2
    told = [
        line
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("tersify: ")
    ]
    assert len(told) == 1
    return told[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tensors": ["token_embd.weight"]}, "lacks 1 of the model's weights"),
        (
            {"tensors": ["blk.0.ffn_up.weight"]},
            "'model.layers.0.mlp.up_proj.weight' among them",
        ),
        ({"settings": {"llama.block_count": 3}}, "lacks 9 of the model's weights"),
        (
            {"settings": {"llama.block_count": 1}},
            "holds 'blk.1.attn_q.weight', which transformers leaves out",
        ),
        (
            {"settings": {"llama.feed_forward_length": 64}},
            "transformers reads its settings as [64, 32]",
        ),
        (
            {"settings": {"llama.attention.sliding_window": 16}},
            "sets attention.sliding_window to 16, which transformers does not read",
        ),
        (
            {"settings": {"llama.rope.scaling.type": "yarn"}},
            "sets rope.scaling.type to 'yarn', which transformers does not read",
        ),
        ({"settings": {"llama.attention.head_count": 3}}, "holds no causal model: "),
        ({"without": ["tokenizer.ggml.merges"]}, "holds no tokenizer: KeyError: "),
        ({"without": ["tokenizer.ggml.tokens"]}, "holds no tokenizer: KeyError: "),
    ],
)
def test_a_gguf_file_that_is_not_the_whole_model_is_refused(
    tmp_path, capsys, changes, said
):
    path = rewritten(gguf_file(tmp_path / "m.gguf"), **changes)
    out = tmp_path / "m.terse"
    assert said in refused(capsys, "convert", path, "--out", out)
    assert not out.exists()
    assert said in refused(capsys, "generate", path, "--prompt", "a")


@pytest.mark.parametrize(
    ("family", "more", "said"),
    [
        ("Llama", {"attention_bias": True}, "'blk.0.attn_q.bias', which transformers"),
        ("Qwen3", {"head_dim": 16}, "transformers reads its settings as [512, 32]"),
    ],
)
def test_a_gguf_file_of_which_transformers_makes_another_model_is_refused(
    tmp_path, capsys, family, more, said
):
    path = gguf_file(tmp_path / "m.gguf", family, **more)
    out = tmp_path / "m.terse"
    assert said in refused(capsys, "convert", path, "--out", out)


def edited_weights(folder, edit):
    file = folder / "model.safetensors"
    weights = safetensors.load_file(file)
    edit(weights)
    safetensors.save_file(weights, file, metadata={"format": "pt"})


def without_one(folder):
    edited_weights(folder, lambda w: w.pop("model.layers.1.mlp.up_proj.weight"))


def with_a_short_one(folder):
    name = "model.layers.1.mlp.up_proj.weight"
    edited_weights(folder, lambda w: w.update({name: w[name][:20].clone()}))


def cut_off(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def with_three_heads(folder):
    config = json.loads((folder / "config.json").read_text())
    config["num_attention_heads"] = 3
    (folder / "config.json").write_text(json.dumps(config))


def without_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (without_one, "lacks 1 of the model's weights, 'model.layers.1.mlp.up_proj"),
        (with_a_short_one, "of other shapes than its configuration says"),
        (cut_off, "holds no causal model: "),
        (with_three_heads, "is not a multiple of the number of attention heads"),
        (without_tokenizer, "holds no tokenizer: "),
    ],
)
def test_a_folder_that_is_not_the_whole_model_is_refused(
    folder, tmp_path, capsys, damage, said
):
    damage(folder)
    assert said in refused(capsys, "generate", folder, "--prompt", "a")
    (tmp_path / "text.txt").write_text("once upon a time " * 40)
    given = ["--calibrate", tmp_path / "text.txt", "--out", tmp_path / "m.terse"]
    assert said in refused(capsys, "compress-lm", folder, *given, "--length", "16")


def test_a_small_folder_of_transformers_generates_its_own_text(
    folder, tmp_path, capsys
):
    """In a process that has not met Tersify's method: transformers would draw all weights."""
    import subprocess
    import sys

    from tersify.integrations.hf_quantizer import TersifyConfig

    small = transformers.AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=TersifyConfig("lut-4")
    )
    small.save_pretrained(tmp_path / "small")
    tokenizer = words()
    tokenizer.save_pretrained(tmp_path / "small")
    ids = torch.tensor([tokenizer("once upon")["input_ids"]])
    made = small.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None)
    command = ["generate", str(tmp_path / "small"), "--prompt", "once upon"]
    done = subprocess.run(
        [sys.executable, "-m", "tersify", *command, "--max-new-tokens", "6"],
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)
    assert done.stdout.strip() == wanted.strip()
