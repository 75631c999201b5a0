"""`tersify generate` and `tersify chat`, on a tiny model in each kind of file."""

import json

import pytest
import torch

import tersify
from tersify.cli import main
from tersify.tensor import CompressedModel

transformers = pytest.importorskip(
    "transformers", reason="needs the package transformers"
)
tokenizers = pytest.importorskip("tokenizers", reason="needs the package tokenizers")

WORDS = [
    "<end>",
    "once",
    "upon",
    "a",
    "time",
    "there",
    "was",
    "king",
    "queen",
    "who",
    "lived",
    "far",
    "away",
]
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


@pytest.fixture(scope="module")
def tokenizer():
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(
            {word: i for i, word in enumerate(WORDS)}, unk_token="<end>"
        )
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<end>"
    )


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    made = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    return made


@pytest.fixture(scope="module")
def folder(model, tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def terse_file(path, model, tokenizer, template=None):
    about = {
        "config": json.loads(json.dumps(model.config.to_dict(), default=str)),
        "tokenizer": tokenizer.backend_tokenizer.to_str(),
        "special_tokens": {"eos_token": "<end>"},
        "chat_template": template,
    }
    tersify.save(
        CompressedModel(dict(model.state_dict()), metadata={"language_model": about}),
        path,
    )
    return path


def wanted(model, tokenizer, prompt, count):
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    text = model.generate(ids, max_new_tokens=count, do_sample=False)
    return tokenizer.decode(text[0, ids.shape[1] :], skip_special_tokens=True)


def test_a_folder_and_a_file_go_on_as_transformers_does(
    folder, model, tokenizer, tmp_path, capsys
):
    text = wanted(model, tokenizer, "once upon a time", 12)
    assert text.strip()
    for path in (folder, terse_file(tmp_path / "m.terse", model, tokenizer)):
        assert (
            main(
                [
                    "generate",
                    str(path),
                    "--prompt",
                    "once upon a time",
                    "--max-new-tokens",
                    "12",
                ]
            )
            == 0
        )
        shown = capsys.readouterr()
        assert shown.out.strip() == text.strip()
        assert "[4 + " in shown.err


def test_drawn_texts_are_those_of_their_seed(folder, capsys):
    texts = []
    for seed in ("1", "1", "2"):
        told = [
            "generate",
            str(folder),
            "--prompt",
            "there was",
            "--temperature",
            "3",
            "--seed",
            seed,
        ]
        assert main([*told, "--max-new-tokens", "30"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_a_talk_goes_on_with_what_was_said(
    model, tokenizer, tmp_path, monkeypatch, capsys
):
    path = terse_file(tmp_path / "m.terse", model, tokenizer, TEMPLATE)
    lines = iter(["once upon", "a queen", ""])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    assert main(["chat", str(path), "--max-new-tokens", "5"]) == 0
    first = wanted(model, tokenizer, "once upon", 5)
    second = wanted(model, tokenizer, f"once upon {first} a queen", 5)
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == [
        first.strip(),
        second.strip(),
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["generate", "NOWHERE", "--prompt", "a"], "no folder with a config.json"),
        (["generate", "FOLDER", "--prompt", ""], "--prompt has no tokens"),
        (
            ["generate", "FOLDER", "--prompt", "a time", "--context", "1"],
            "does not fit the cache of 1",
        ),
        (["generate", "OTHER", "--prompt", "a"], "holds no language model"),
        (["chat", "FOLDER"], "has no chat template"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments, sentence, folder, tmp_path, capsys):
    tersify.save({"w": torch.zeros(3)}, tmp_path / "other.terse")
    places = {
        "NOWHERE": tmp_path / "no",
        "FOLDER": folder,
        "OTHER": tmp_path / "other.terse",
    }
    assert main([str(places.get(word, word)) for word in arguments]) == 2
    shown = capsys.readouterr().err
    assert sentence in shown
    assert sum(line.startswith("tersify: ") for line in shown.splitlines()) == 1


@pytest.fixture(scope="module")
def unknown():
    """Of a family that the decoder does not know."""
    torch.manual_seed(0)
    config = transformers.GPTNeoXConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    made = transformers.GPTNeoXForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    # no part of what stream does, wherever it runs
    made.generation_config.repetition_penalty = 9.0
    return made


def test_torch_runs_a_model_without_a_decoder_and_the_command_says_so(
    unknown, tokenizer, tmp_path, monkeypatch, capsys
):
    plain = transformers.GenerationConfig(eos_token_id=0, pad_token_id=0)
    ids = tokenizer("once upon a time", return_tensors="pt")["input_ids"]
    text = unknown.generate(
        ids, generation_config=plain, max_new_tokens=12, repetition_penalty=1.0
    )
    text = tokenizer.decode(text[0, 4:], skip_special_tokens=True)
    assert text.strip()
    folder = tmp_path / "unknown"
    unknown.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    file = terse_file(tmp_path / "m.terse", unknown, tokenizer, TEMPLATE)
    for path in (folder, file):
        command = ["generate", str(path), "--prompt", "once upon a time"]
        assert main([*command, "--max-new-tokens", "12"]) == 0
        shown = capsys.readouterr()
        assert shown.out.strip() == text.strip()
        told = [line for line in shown.err.splitlines() if "gpt_neox" in line]
        assert len(told) == 1
        assert told[0].startswith("tersify: torch runs this model")
    lines = iter(["once upon", ""])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    assert main(["chat", str(file), "--max-new-tokens", "5"]) == 0
    assert main([*command, "--context", "3"]) == 2
    assert "longer than the 3 that the model may see" in capsys.readouterr().err


def stopped(*_, **__):
    raise KeyboardInterrupt


def test_ctrl_c_is_told_on_a_line_of_its_own(
    model, tokenizer, tmp_path, monkeypatch, capsys
):
    path = str(terse_file(tmp_path / "m.terse", model, tokenizer, TEMPLATE))
    monkeypatch.setattr("builtins.input", stopped)
    assert main(["chat", path]) == 130
    assert capsys.readouterr().err == "\ntersify: stopped\n"
    monkeypatch.setattr("tersify.cli.generate._stream", stopped)
    assert main(["generate", path, "--prompt", "once"]) == 130
    assert capsys.readouterr().err == "\ntersify: stopped\n"


def test_the_end_of_the_input_ends_its_line(
    model, tokenizer, tmp_path, monkeypatch, capsys
):
    path = terse_file(tmp_path / "m.terse", model, tokenizer, TEMPLATE)

    def ended(_):
        raise EOFError

    monkeypatch.setattr("builtins.input", ended)
    assert main(["chat", str(path)]) == 0
    assert capsys.readouterr().out == "\n"
