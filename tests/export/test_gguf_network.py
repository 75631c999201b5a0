"""A GGUF file says all that the network and its tokenizer are, or is not written."""

import pytest
import torch

from tersify.export.gguf_file import export_gguf
from tersify.lab import language
from tersify.tensor import CompressedModel

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
LLAMA = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|")
before = tokenizers.pre_tokenizers


def split(expression, behavior="isolated"):
    return before.Sequence(
        [
            before.Split(tokenizers.Regex(expression), behavior),
            before.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def byte_level(**more):
    return before.ByteLevel(**{"add_prefix_space": False, **more})


def template(single):
    return tokenizers.processors.TemplateProcessing(
        single=single, special_tokens=[("<s>", 0), ("<end>", 1)]
    )


def words(cut=None, *, after=None, normalizer=None, whole=False):
    plain = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=whole))
    plain.pre_tokenizer = cut or byte_level()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=270,
        special_tokens=["<s>", "<end>"],
        initial_alphabet=before.ByteLevel.alphabet(),
        show_progress=False,
    )
    plain.train_from_iterator(["once upon a time there was a king"] * 4, trainer)
    plain.add_tokens(["<tool>"])
    if after is not None:
        plain.post_processor = after
    if normalizer is not None:
        plain.normalizer = normalizer
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, eos_token="<end>", bos_token="<s>"
    )


def written(path, tokenizer, family="Llama", **more):
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    count = len(tokenizer) + 2
    config = getattr(transformers, f"{family}Config")(
        **{"vocab_size": count, **sizes, **more}
    )
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    packed = language.stored(CompressedModel(model.state_dict()), model, tokenizer)
    export_gguf(packed, packed.metadata[language.METADATA], path)
    return gguf.GGUFReader(path)


def told(reader, name):
    return reader.get_field(f"tokenizer.ggml.{name}").contents()


@pytest.mark.parametrize(
    ("cut", "whole", "name"),
    [
        (byte_level(), False, "gpt-2"),
        (
            before.Sequence([before.Digits(individual_digits=True), byte_level()]),
            False,
            "smollm",
        ),
        (split(QWEN), False, "qwen2"),
        (split(LLAMA), True, "llama-bpe"),
    ],
)
def test_the_way_of_cutting_has_llama_cpps_name(tmp_path, cut, whole, name):
    reader = written(tmp_path / "m.gguf", words(cut, whole=whole))
    assert told(reader, "pre") == name


@pytest.mark.parametrize(
    ("cut", "more"),
    [
        (split(r"\p{L}+|."), {}),
        (split(QWEN, "removed"), {}),
        (split(LLAMA), {}),
        (byte_level(), {"whole": True}),
        (byte_level(add_prefix_space=True), {}),
        (byte_level(use_regex=False), {}),
        (
            before.Sequence([before.Digits(individual_digits=False), byte_level()]),
            {},
        ),
        (byte_level(), {"normalizer": tokenizers.normalizers.Lowercase()}),
    ],
)
def test_a_way_of_cutting_that_llama_cpp_may_not_have_is_refused(tmp_path, cut, more):
    with pytest.raises(
        ValueError, match=r"cuts texts in a way that llama\.cpp may not"
    ):
        written(tmp_path / "m.gguf", words(cut, **more))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("after", "begins"),
    [
        (None, False),
        (template("$A"), False),
        (template("<s> $A"), True),
        (tokenizers.processors.ByteLevel(), False),
        (
            tokenizers.processors.Sequence(
                [tokenizers.processors.ByteLevel(), template("<s> $A")]
            ),
            True,
        ),
    ],
)
def test_the_first_token_is_added_where_the_tokenizer_adds_it(tmp_path, after, begins):
    tokenizer = words(after=after)
    assert (tokenizer("a king")["input_ids"][0] == 0) is begins
    assert told(written(tmp_path / "m.gguf", tokenizer), "add_bos_token") is begins


@pytest.mark.parametrize("single", ["$A <end>", "<end> $A", "<s> <s> $A"])
def test_other_added_tokens_are_refused(tmp_path, single):
    with pytest.raises(ValueError, match="adds more to a text than its first token"):
        written(tmp_path / "m.gguf", words(after=template(single)))


def test_tokens_are_of_the_kind_that_they_are(tmp_path):
    reader = written(tmp_path / "m.gguf", words())
    texts, kinds = told(reader, "tokens"), told(reader, "token_type")
    found = dict(zip(texts, kinds, strict=True))
    assert [found[word] for word in ("<s>", "<end>", "<tool>", "a")] == [3, 3, 4, 1]
    assert kinds[-2:] == [5, 5]


@pytest.mark.parametrize(
    ("family", "more", "said"),
    [
        ("Mistral", {"sliding_window": 16}, "layers that see 16 positions back"),
        (
            "Qwen2",
            {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0},
            "layers that see 16 positions back",
        ),
        ("Llama", {"hidden_act": "gelu"}, "layers with the activation 'gelu'"),
        (
            "Llama",
            {
                "rope_parameters": {
                    "rope_type": "linear",
                    "rope_theta": 500.0,
                    "factor": 4.0,
                }
            },
            "rotations that are scaled",
        ),
    ],
)
def test_a_network_that_llama_cpp_would_run_otherwise_is_refused(
    tmp_path, family, more, said
):
    with pytest.raises(ValueError, match=f"{said} cannot be written as GGUF"):
        written(tmp_path / "m.gguf", words(), family, **more)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("Mistral", {"sliding_window": 64}),
        ("Mistral", {"sliding_window": None}),
        ("Qwen2", {"use_sliding_window": False, "sliding_window": 16}),
        ("Llama", {"sliding_window": 16}),
    ],
)
def test_windows_that_cut_nothing_are_written(tmp_path, family, more):
    written(tmp_path / "m.gguf", words(), family, **more)
