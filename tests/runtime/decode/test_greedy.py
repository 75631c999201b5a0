"""Greedy texts are those of transformers, token for token."""

import pytest
import torch
from language_models import FAMILIES, random_ids, random_model

import tersify

ALL = [*FAMILIES, "gpt2"]


def greedy(model, ids, **arguments):
    return model.generate(ids, do_sample=False, pad_token_id=0, **arguments)


@pytest.mark.parametrize("family", ALL)
def test_texts_of_every_family_are_those_of_transformers(family):
    model = random_model(family)
    fast = tersify.compile(model, threads=2, strict=True)
    for length in (1, 2, 17):
        ids = random_ids(1, length, seed=length)
        assert torch.equal(
            greedy(fast, ids, max_new_tokens=40), greedy(model, ids, max_new_tokens=40)
        )


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3", "gpt2"])
def test_several_texts_of_different_lengths_decode_side_by_side(family):
    model = random_model(family)
    fast = tersify.compile(model, threads=2, strict=True)
    ids = random_ids(3, 21)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    mask[2, :13] = 0
    ids = ids * mask
    arguments = {"attention_mask": mask, "max_new_tokens": 30}
    assert torch.equal(greedy(fast, ids, **arguments), greedy(model, ids, **arguments))


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_prompts_longer_than_a_chunk_and_a_first_cache_are_read_whole(family):
    model = random_model(family)
    fast = tersify.compile(model, threads=2, strict=True)
    ids = random_ids(2, 300)
    assert torch.equal(
        greedy(fast, ids, max_new_tokens=8), greedy(model, ids, max_new_tokens=8)
    )


def test_logits_of_all_tokens_are_the_models():
    model = random_model("qwen2")
    fast = tersify.compile(model, strict=True)
    ids = random_ids(2, 200)
    with torch.no_grad():
        wanted = model(ids).logits
    assert (fast(ids) - wanted).abs().max() <= 2e-5 * wanted.abs().max()


def test_a_stream_is_the_greedy_text_and_goes_on_where_two_prompts_part():
    model = random_model("llama")
    fast = tersify.compile(model, strict=True)
    ids = random_ids(1, 12)
    wanted = greedy(model, ids, max_new_tokens=20)[0, 12:].tolist()
    assert list(fast.stream(ids, max_new_tokens=20)) == wanted
    longer = torch.cat([ids, random_ids(1, 5, seed=9)], 1)
    assert (
        list(fast.stream(longer, max_new_tokens=6))
        == greedy(model, longer, max_new_tokens=6)[0, 17:].tolist()
    )
    assert list(fast.stream(ids, max_new_tokens=20)) == wanted


def test_a_stream_ends_with_the_token_that_ends_it():
    fast = tersify.compile(random_model("llama"), strict=True)
    text = list(fast.stream(random_ids(1, 12), max_new_tokens=20))
    assert (
        list(fast.stream(random_ids(1, 12), max_new_tokens=20, eos_token_id=text[3]))
        == text[: text.index(text[3]) + 1]
    )


def test_texts_that_end_early_are_padded_as_transformers_does():
    model = random_model("llama")
    fast = tersify.compile(model, strict=True)
    ids = random_ids(3, 9)
    free = greedy(model, ids, max_new_tokens=12)
    ends = {"eos_token_id": [int(free[0, 12]), int(free[1, 15])], "max_new_tokens": 12}
    assert torch.equal(greedy(fast, ids, **ends), greedy(model, ids, **ends))


def test_processors_of_logits_and_scores_are_those_of_transformers():
    model = random_model("qwen3")
    fast = tersify.compile(model, strict=True)
    ids = random_ids(2, 9)
    arguments = {
        "max_new_tokens": 12,
        "repetition_penalty": 1.7,
        "no_repeat_ngram_size": 2,
    }
    arguments |= {
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
    }
    given, wanted = greedy(fast, ids, **arguments), greedy(model, ids, **arguments)
    assert torch.equal(given.sequences, wanted.sequences)
    assert len(given.scores) == len(given.logits) == 12
    torch.testing.assert_close(
        torch.stack(given.logits), torch.stack(wanted.logits), rtol=1e-4, atol=1e-4
    )


def test_the_model_generates_with_the_decoders_loop():
    model = random_model("gpt2")
    fast = tersify.compile(model, strict=True)
    ids = random_ids(1, 5)
    assert torch.equal(
        greedy(model, ids, custom_generate=fast.decode, max_new_tokens=9),
        greedy(model, ids, max_new_tokens=9),
    )


def test_sampled_texts_are_those_of_the_same_seed():
    model = random_model("llama")
    fast = tersify.compile(model, strict=True)
    arguments = {
        "max_new_tokens": 15,
        "do_sample": True,
        "temperature": 0.8,
        "top_p": 0.9,
        "pad_token_id": 0,
    }
    texts = []
    for each in (fast, model):
        torch.manual_seed(3)
        texts.append(each.generate(random_ids(2, 6), **arguments))
    assert torch.equal(*texts)


def test_a_cache_of_halves_gives_nearly_the_same_logits():
    model = random_model("llama")
    exact = tersify.compile(model, strict=True)
    half = tersify.compile(model, strict=True, cache="fp16")
    ids = random_ids(1, 60)
    difference = (half(ids) - exact(ids)).abs().max() / exact(ids).abs().max()
    assert 0 < difference < 5e-3
    assert 2 * half.cache_bytes() == exact.cache_bytes()


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral"])
def test_logits_behind_padding_are_those_of_the_model_with_the_same_mask(family):
    model = random_model(family)
    fast = tersify.compile(model, strict=True)
    ids = random_ids(3, 20)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    mask[2, :13] = 0
    with torch.no_grad():
        wanted = model(ids, attention_mask=mask).logits * mask[..., None]
    assert (fast(ids, mask) - wanted).abs().max() <= 2e-5 * wanted.abs().max()


def test_padding_beyond_the_last_learned_position_is_refused():
    fast = tersify.compile(random_model("gpt2"), strict=True)
    mask = torch.zeros(1, 513, dtype=torch.int64)
    mask[0, -4:] = 1
    with pytest.raises(ValueError, match="513 tokens, padding among them"):
        fast(random_ids(1, 513), mask)
