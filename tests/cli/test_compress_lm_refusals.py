"""What `tersify compress-lm` cannot store is told before any work, and nothing that it
reads is lost.
"""

import json

import pytest
import torch
from test_compress_lm import WORDS, folder, run  # noqa: F401

from tersify.lab import language
from tersify.tensor import CompressedModel

transformers = pytest.importorskip("transformers")


@pytest.fixture
def no_work(monkeypatch):
    def never(*given, **named):
        raise AssertionError("the work began")

    monkeypatch.setattr("tersify.compensated.compensate_", never)


def bitnet(folder, place, mode):  # noqa: F811
    """A folder whose layers transformers makes BitLinear or AutoBitLinear."""
    torch.manual_seed(0)
    _, tokenizer = language.language_model(folder)
    config = transformers.BitNetConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    model = transformers.BitNetForCausalLM(config)
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    about = json.loads((place / "config.json").read_text())
    about["quantization_config"] = {
        "quant_method": "bitnet",
        "linear_class": "autobitlinear",
        "quantization_mode": mode,
    }
    (place / "config.json").write_text(json.dumps(about))
    for name in ("text.txt", "other.txt"):
        (place / name).write_text((folder / name).read_text())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what transformers asks
def test_layers_of_another_quantizer_are_refused(folder, tmp_path, no_work):  # noqa: F811
    place = tmp_path / "model"
    bitnet(folder, place, "online")
    done = run(place, tmp_path / "m.terse")
    assert done.exit_code != 0
    assert "quantized by 'bitnet', and a file holds no layers" in str(done.exception)
    model, tokenizer = language.language_model(place)
    with pytest.raises(ValueError, match="quantized by 'bitnet'"):
        language.stored(CompressedModel(model.state_dict()), model, tokenizer)


def test_a_tokenizer_without_a_backend_is_refused(
    folder,  # noqa: F811
    tmp_path,
    no_work,
    monkeypatch,
):
    model, _ = language.language_model(folder)
    other = transformers.ByT5Tokenizer()
    monkeypatch.setattr(language, "language_model", lambda path: (model, other))
    done = run(folder, tmp_path / "m.terse")
    assert "a ByT5Tokenizer is no tokenizer of the package" in str(done.exception)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "text.txt"])
def test_what_is_read_is_never_replaced(folder, no_work, name):  # noqa: F811
    before = (folder / name).read_bytes()
    done = run(folder, folder / name, "--overwrite")
    assert "is read by this command; give it another name" in str(done.exception)
    assert (folder / name).read_bytes() == before


def test_a_file_that_cannot_be_written_is_told_of_first(
    folder,  # noqa: F811
    tmp_path,
    no_work,
):
    (tmp_path / "file").write_text("")
    done = run(folder, tmp_path / "file" / "m.terse")
    assert isinstance(done.exception, OSError)


def test_the_file_that_was_written_is_measured(folder, tmp_path, monkeypatch):  # noqa: F811
    load, read = language.load_language_model, []

    def loaded(file, **limits):
        model, tokenizer = load(file, **limits)
        with torch.no_grad():
            model.lm_head.weight.zero_()
        read.append(file)
        return model, tokenizer

    monkeypatch.setattr(language, "load_language_model", loaded)
    out, text = tmp_path / "m.terse", folder / "text.txt"
    done = run(folder, out, "--tune-steps", "0", "--measure", str(text))
    assert done.exit_code == 0, done.output
    assert read == [out]
    assert (
        f": {len(set(WORDS)) + 2}.00, " in done.output
    )  # a head of zeros says nothing


def test_a_file_keeps_what_ends_a_text(folder, tmp_path):  # noqa: F811
    from tersify.lab.texts import ends_of, open_text_model

    model, tokenizer = language.language_model(folder)
    model.generation_config.eos_token_id = [2, 0]
    model.generation_config.repetition_penalty = 1.3
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    for name in ("text.txt", "other.txt"):
        (tmp_path / "model" / name).write_text((folder / name).read_text())
    out = tmp_path / "m.terse"
    assert run(tmp_path / "model", out, "--tune-steps", "0").exit_code == 0
    settings = {"precision": "fp32", "threads": 1, "context": None}
    opened = [open_text_model(out, **settings), language.load_language_model(out)]
    for net, tokenizer in opened:
        assert ends_of(net, tokenizer) == [2, 0]
        assert net.generation_config.repetition_penalty == 1.3


def test_inspect_does_not_print_the_tokenizer(folder, tmp_path):  # noqa: F811
    import tersify
    from tersify.codec.inspection import inspect

    model, tokenizer = language.language_model(folder)
    packed = language.stored(tersify.pack(model), model, tokenizer)
    tersify.save(packed, tmp_path / "m.terse")
    shown = inspect(tmp_path / "m.terse")["metadata"][language.METADATA]
    assert shown["tokenizer"].endswith(" characters")
    assert shown["config"]["hidden_size"] == 32
