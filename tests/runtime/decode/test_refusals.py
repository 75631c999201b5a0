"""What a decoder does not do is one sentence, or torch does it."""

import pytest
import torch
from language_models import VOCABULARY, random_ids, random_model

import tersify


def test_tokens_that_do_not_exist_are_refused():
    fast = tersify.compile(random_model("llama"), strict=True)
    for token in (-1, VOCABULARY):
        with pytest.raises(ValueError, match=r"tokens are 0\.\.96, got"):
            fast.generate(torch.tensor([[3, token]]), max_new_tokens=2, do_sample=False)
        with pytest.raises(ValueError, match=r"tokens are 0\.\.96, got"):
            fast.stream([3, token], max_new_tokens=2)


def test_a_text_that_is_not_yet_tokens_is_refused():
    fast = tersify.compile(random_model("llama"), strict=True)
    for call in (fast.generate, fast.stream):
        with pytest.raises(ValueError, match="numbers of tokens, as a tokenizer"):
            call("Once upon a time", max_new_tokens=2)
    with pytest.raises(ValueError, match="numbers of tokens, as a tokenizer"):
        fast(["Once upon a time"])


def test_a_prompt_without_tokens_is_refused():
    fast = tersify.compile(random_model("llama"), strict=True)
    with pytest.raises(ValueError, match="at least one each"):
        fast.stream([], max_new_tokens=2)
    with pytest.raises(ValueError, match="at least one each"):
        fast(torch.zeros(1, 0, dtype=torch.int64))
    with pytest.raises(ValueError, match="at least one each"):
        fast.generate(torch.zeros(1, 0, dtype=torch.int64), max_new_tokens=2)


def test_a_text_that_is_no_row_of_several_is_one_sentence():
    fast = tersify.compile(random_model("llama"), strict=True)
    for call in (fast, fast.generate):
        with pytest.raises(ValueError, match=r"\[texts, tokens\]"):
            call(random_ids(5))


def test_a_prompt_longer_than_the_cache_is_one_sentence():
    fast = tersify.compile(random_model("llama"), strict=True, context=20)
    with pytest.raises(
        ValueError, match="a text of 21 tokens does not fit the cache of 20"
    ):
        fast.generate(random_ids(1, 21), max_new_tokens=1, do_sample=False)
    with pytest.raises(
        ValueError, match="a text of 21 tokens does not fit the cache of 20"
    ):
        fast.stream(random_ids(1, 21), max_new_tokens=2)
    # the last token that fits the cache
    assert len(list(fast.stream(random_ids(1, 20), max_new_tokens=5))) == 1


@pytest.mark.parametrize("context", [0, 513, 2.5])
def test_a_context_that_cannot_be_is_refused(context):
    with pytest.raises(ValueError, match="context must be"):
        tersify.compile(random_model("gpt2"), context=context)


def test_weights_that_changed_must_be_compiled_again():
    model = random_model("llama")
    fast = tersify.compile(model, strict=True)
    ids = random_ids(1, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    for use in (
        lambda: fast(ids),
        lambda: fast.stream(ids, max_new_tokens=3),
        lambda: fast.generate(ids, max_new_tokens=3),
    ):
        with pytest.raises(ValueError, match="changed after it was compiled"):
            use()
    again = tersify.compile(model, strict=True)
    arguments = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(
        again.generate(ids, **arguments), model.generate(ids, **arguments)
    )


def test_padding_behind_a_prompt_is_refused():
    fast = tersify.compile(random_model("llama"), strict=True)
    ids = random_ids(2, 6)
    mask = torch.ones_like(ids)
    mask[0, -1] = 0
    with pytest.raises(ValueError, match="pad texts on the left"):
        fast.generate(ids, attention_mask=mask, max_new_tokens=2, do_sample=False)


def test_a_model_of_an_unknown_kind_stays_with_torch_and_says_so():
    transformers = pytest.importorskip("transformers")
    config = transformers.BloomConfig(
        vocab_size=50, hidden_size=16, n_layer=1, n_head=2
    )
    model = transformers.BloomForCausalLM(config).eval()
    with pytest.warns(RuntimeWarning, match="'bloom' have no decoder"):
        assert tersify.compile(model) is model
    with pytest.raises(ValueError, match="'bloom' have no decoder"):
        tersify.compile(model, strict=True)


def test_a_model_whose_layers_were_rewritten_is_found_out_by_its_logits():
    model = random_model("llama")
    model.model.layers[1].mlp.act_fn = torch.nn.Tanh()
    with pytest.raises(ValueError, match="logits differ from the model's"):
        tersify.compile(model, strict=True)


def test_a_module_that_is_no_language_model_needs_an_example():
    with pytest.raises(ValueError, match="compile needs an example input of Linear"):
        tersify.compile(torch.nn.Linear(3, 4))


def test_settings_of_language_models_are_refused_for_others():
    with pytest.raises(ValueError, match="settings of a language model"):
        tersify.compile(torch.nn.Linear(3, 4), torch.randn(1, 3), context=5)


def test_new_tokens_that_would_not_fit_are_refused_before_the_first():
    fast = tersify.compile(random_model("llama"), strict=True, context=20)
    with pytest.raises(
        ValueError, match="a text of 21 tokens does not fit the cache of 20"
    ):
        fast.generate(random_ids(1, 12), max_new_tokens=10, do_sample=False)
    assert fast.generate(
        random_ids(1, 12), max_new_tokens=9, do_sample=False
    ).shape == (1, 21)


def test_int8_says_where_it_changes_nothing():
    with pytest.warns(RuntimeWarning, match="'int8' changes nothing"):
        fast = tersify.compile(random_model("llama"), precision="int8", strict=True)
    assert not fast.int8_layers()


def test_a_model_in_training_mode_is_compiled_as_it_evaluates():
    model = random_model("gpt2").train()
    fast = tersify.compile(model, strict=True)
    assert model.training
    with torch.no_grad():
        wanted = model.eval()(random_ids(1, 9)).logits
    assert (fast(random_ids(1, 9)) - wanted).abs().max() <= 2e-5 * wanted.abs().max()


def test_a_stream_of_two_texts_is_refused():
    fast = tersify.compile(random_model("llama"), strict=True)
    for given in (random_ids(2, 5), [[3, 4], [5, 6]], random_ids(1, 2, 5)):
        with pytest.raises(ValueError, match="a stream is of one text"):
            fast.stream(given, max_new_tokens=2)
    one = list(fast.stream(random_ids(1, 5), max_new_tokens=3))
    assert list(fast.stream(random_ids(1, 5)[0], max_new_tokens=3)) == one
    assert list(fast.stream(random_ids(1, 5).tolist(), max_new_tokens=3)) == one


@pytest.mark.parametrize("bad", ["a", 2.5, [3, "a"], [None], True, {"id": 3}])
def test_tokens_that_end_a_stream_are_whole_numbers(bad):
    fast = tersify.compile(random_model("llama"), strict=True)
    with pytest.raises(ValueError, match="eos_token_id is the number of a token"):
        fast.stream(random_ids(1, 5), max_new_tokens=2, eos_token_id=bad)


def test_tokens_that_end_a_stream_may_be_a_tensor_or_none():
    fast = tersify.compile(random_model("llama"), strict=True)
    text = list(fast.stream(random_ids(1, 12), max_new_tokens=9))
    wanted = text[: text.index(text[2]) + 1]
    ends = (torch.tensor(text[2]), torch.tensor([text[2]]), (text[2],), text[2])
    for end in ends:
        given = fast.stream(random_ids(1, 12), max_new_tokens=9, eos_token_id=end)
        assert list(given) == wanted
    for none in (None, [], torch.tensor([], dtype=torch.int64)):
        given = fast.stream(random_ids(1, 12), max_new_tokens=9, eos_token_id=none)
        assert list(given) == text


def test_settings_of_a_stream_of_another_kind_are_one_sentence():
    fast = tersify.compile(random_model("llama"), strict=True)
    for name, bad, said in (
        ("generator", 3, "generator is a torch.Generator"),
        ("do_sample", "no", "do_sample is True or False"),
    ):
        with pytest.raises(ValueError, match=said):
            fast.stream(random_ids(1, 5), max_new_tokens=2, **{name: bad})


def test_a_mask_may_be_a_list_and_is_refused_where_it_is_none():
    fast = tersify.compile(random_model("llama"), strict=True)
    ids = random_ids(1, 4)
    assert torch.equal(
        fast(ids, [[0, 1, 1, 1]]), fast(ids, torch.tensor([[0, 1, 1, 1]]))
    )
    with pytest.raises(ValueError, match="an attention_mask is 1 for each token"):
        fast(ids, "left")
