"""Streams of a model that torch runs are those of transformers."""

import threading

import pytest
import torch
from language_models import FAMILIES, random_ids, random_model

from tersify.runtime.decode.torch_stream import TorchLanguageModel


def names():
    return {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("family", [*FAMILIES, "gpt2"])
def test_greedy_streams_are_the_greedy_texts(family):
    model = random_model(family)
    ids = random_ids(1, 11)
    wanted = model.generate(ids, max_new_tokens=9, do_sample=False, pad_token_id=0)
    stream = TorchLanguageModel(model, None).stream
    assert list(stream(ids, max_new_tokens=9)) == wanted[0, 11:].tolist()


def test_a_model_with_another_kind_of_cache_streams_its_text():
    transformers = pytest.importorskip("transformers")
    config = transformers.MambaConfig(
        vocab_size=50, hidden_size=16, state_size=4, num_hidden_layers=2
    )
    torch.manual_seed(0)
    model = transformers.MambaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.3)
    ids = random_ids(1, 6) % 50
    wanted = model.generate(
        ids, max_new_tokens=8, do_sample=False, pad_token_id=0, eos_token_id=None
    )[0, 6:].tolist()
    stream = TorchLanguageModel(model, None).stream
    assert list(stream(ids, max_new_tokens=8)) == wanted


def test_a_stream_ends_with_its_token_and_draws_those_of_its_seed():
    model = random_model("llama")
    stream = TorchLanguageModel(model, None).stream
    ids = random_ids(1, 11)
    text = list(stream(ids, max_new_tokens=9))
    ended = list(stream(ids, max_new_tokens=9, eos_token_id=text[3]))
    assert ended == text[: text.index(text[3]) + 1]
    drawn = [
        list(
            stream(
                ids,
                max_new_tokens=9,
                do_sample=True,
                temperature=3.0,
                generator=torch.Generator().manual_seed(seed),
            )
        )
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_whoever_stops_asking_leaves_no_thread():
    before = names()
    stream = TorchLanguageModel(random_model("llama"), None).stream
    tokens = stream(random_ids(1, 11), max_new_tokens=400)
    next(tokens)
    tokens.close()
    assert names() == before


def test_a_text_ends_where_the_model_sees_no_more():
    stream = TorchLanguageModel(random_model("gpt2"), 20).stream
    assert len(list(stream(random_ids(1, 20), max_new_tokens=5))) == 1
    with pytest.raises(ValueError, match="21 tokens is longer than the 20"):
        stream(random_ids(1, 21), max_new_tokens=5)


def test_what_goes_wrong_in_the_model_is_told_to_whoever_asks(monkeypatch):
    model = random_model("llama")

    def broken(*_, **__):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(type(model), "forward", broken)
    stream = TorchLanguageModel(model, None).stream
    with pytest.raises(RuntimeError, match="no such kernel"):
        list(stream(random_ids(1, 4), max_new_tokens=5))
