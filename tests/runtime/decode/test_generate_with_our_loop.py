"""transformers' `generate` around our loop: what it takes is honoured, by us or by
torch.
"""

import functools
import threading

import pytest
import torch
from language_models import VOCABULARY, random_ids, random_model

import tersify
from tersify.runtime.decode.compile import from_tensors

GREEDY = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}


class Listener:
    def __init__(self):
        self.heard = []

    def put(self, tokens):
        self.heard.append(tokens.flatten().tolist())

    def end(self):
        self.heard.append("end")


def word_tokenizer():
    """One word for each token: "w5" is 5."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    words = {f"w{number}": number for number in range(VOCABULARY)}
    # transformers looks for strings that stop a text behind this word
    words["abcdef"] = words.pop("w1")
    model = tokenizers.models.WordLevel(words, unk_token="abcdef")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="w0")


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_streamer_hears_the_prompt_every_token_and_the_end(family):
    model = random_model(family)
    fast = tersify.compile(model, strict=True)
    ours, theirs = Listener(), Listener()
    fast.generate(random_ids(1, 7), streamer=ours, **GREEDY)
    model.generate(random_ids(1, 7), streamer=theirs, **GREEDY)
    assert ours.heard == theirs.heard
    assert ours.heard[-1] == "end"


def test_a_streamer_bound_to_the_loop_hears_what_the_model_generates():
    model = random_model("llama")
    fast = tersify.compile(model, strict=True)
    ours, theirs = Listener(), Listener()
    loop = functools.partial(fast.decode, streamer=ours)
    model.generate(random_ids(1, 7), streamer=ours, custom_generate=loop, **GREEDY)
    model.generate(random_ids(1, 7), streamer=theirs, **GREEDY)
    assert ours.heard == theirs.heard


def test_a_text_iterator_in_another_thread_ends():
    transformers = pytest.importorskip("transformers")
    model, tokenizer = random_model("llama"), word_tokenizer()
    fast = tersify.compile(model, strict=True)
    ids = random_ids(1, 7)
    streamer = transformers.TextIteratorStreamer(
        tokenizer, skip_prompt=True, timeout=60
    )
    thread = threading.Thread(
        target=fast.generate,
        args=(ids,),
        kwargs={"streamer": streamer, **GREEDY},
        daemon=True,
    )
    thread.start()
    text = "".join(streamer)
    thread.join(60)
    assert text == tokenizer.decode(model.generate(ids, **GREEDY)[0, 7:])


def test_a_text_ends_with_a_string_that_stops_it():
    model, tokenizer = random_model("llama"), word_tokenizer()
    fast = tersify.compile(model, strict=True)
    ids = random_ids(1, 7)
    free = model.generate(ids, **GREEDY)
    stop = {"stop_strings": [f"w{int(free[0, 11])}"], "tokenizer": tokenizer}
    wanted = model.generate(ids, **stop, **GREEDY)
    assert wanted.shape[1] < free.shape[1]
    assert torch.equal(fast.generate(ids, **stop, **GREEDY), wanted)
    # a string that the model's own settings name
    model.generation_config.stop_strings = stop["stop_strings"]
    given = fast.generate(ids, tokenizer=tokenizer, **GREEDY)
    assert torch.equal(given, wanted)
    with pytest.raises(ValueError, match="tokenizer"):
        fast.generate(ids, **GREEDY)


def test_a_given_configuration_is_used_and_not_changed():
    transformers = pytest.importorskip("transformers")
    model = random_model("llama")
    fast = tersify.compile(model, strict=True)
    config = transformers.GenerationConfig(
        max_new_tokens=5, do_sample=False, pad_token_id=0, repetition_penalty=1.4
    )
    before = config.to_dict()
    assert torch.equal(
        fast.generate(random_ids(2, 6), generation_config=config),
        model.generate(random_ids(2, 6), generation_config=config),
    )
    assert config.to_dict() == before


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"num_beams": 3}, "num_beams=3"),
        ({"num_beams": 2, "num_return_sequences": 2}, "num_beams=2"),
        (
            {"return_dict_in_generate": True, "output_hidden_states": True},
            "attentions and hidden states",
        ),
    ],
)
def test_what_the_decoder_does_not_do_is_done_by_torch_which_is_said(asked, said):
    model = random_model("llama")
    fast = tersify.compile(model, strict=True)
    wanted = model.generate(random_ids(1, 6), **asked, **GREEDY)
    with pytest.warns(RuntimeWarning, match=f"torch runs this call, .*{said}"):
        given = fast.generate(random_ids(1, 6), **asked, **GREEDY)
    if not torch.is_tensor(wanted):
        assert len(given.hidden_states) == len(wanted.hidden_states)
        given, wanted = given.sequences, wanted.sequences
    assert torch.equal(given, wanted)


def test_a_given_cache_is_continued_by_torch_which_is_said():
    model = random_model("llama")
    fast = tersify.compile(model, strict=True)
    ids = random_ids(1, 9)
    caches = [model(ids[:, :5], use_cache=True).past_key_values for _ in range(2)]
    wanted = model.generate(ids, past_key_values=caches[0], **GREEDY)
    with pytest.warns(RuntimeWarning, match="past_key_values"):
        given = fast.generate(ids, past_key_values=caches[1], **GREEDY)
    assert torch.equal(given, wanted)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_other_positions_than_those_of_the_text_are_honoured_by_torch(family):
    model = random_model(family)
    fast = tersify.compile(model, strict=True)
    ids = random_ids(1, 8)
    places = torch.arange(8)[None] * 2
    wanted = model.generate(ids, position_ids=places, **GREEDY)
    with pytest.warns(RuntimeWarning, match="position_ids"):
        given = fast.generate(ids, position_ids=places, **GREEDY)
    assert torch.equal(given, wanted)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_the_positions_of_the_text_itself_may_be_given():
    model = random_model("gpt2")
    fast = tersify.compile(model, strict=True)
    ids, mask = random_ids(2, 8), torch.ones(2, 8, dtype=torch.int64)
    mask[1, :3] = 0
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    arguments = {"attention_mask": mask, "position_ids": places, **GREEDY}
    assert torch.equal(
        fast.generate(ids, **arguments), model.generate(ids, **arguments)
    )


def test_kinds_of_tokens_are_honoured_by_torch():
    model = random_model("gpt2")
    fast = tersify.compile(model, strict=True)
    ids = random_ids(1, 8)
    kinds = torch.full_like(ids, 7)
    wanted = model.generate(ids, token_type_ids=kinds, **GREEDY)
    with pytest.warns(RuntimeWarning, match="token_type_ids"):
        given = fast.generate(ids, token_type_ids=kinds, **GREEDY)
    assert torch.equal(given, wanted)


def test_an_input_that_another_mode_of_attention_needs_is_honoured_by_torch():
    model = random_model("llama")
    fast = tersify.compile(model, strict=True)
    with pytest.warns(RuntimeWarning, match="is_causal"):
        fast.generate(random_ids(1, 6), is_causal=False, **GREEDY)


def test_a_model_that_is_only_a_file_says_what_it_cannot_do(tmp_path):
    model = random_model("llama")
    tersify.save(tersify.pack(model), tmp_path / "model.terse")
    fast = from_tensors(tersify.open(tmp_path / "model.terse"), model.config)
    for asked in ({"num_beams": 2}, {"position_ids": torch.arange(6)[None] + 3}):
        with pytest.raises(ValueError, match="the decoder does not do"):
            fast.generate(random_ids(1, 6), **asked, **GREEDY)


def test_the_models_own_generate_with_our_loop_refuses_beams():
    model = random_model("llama")
    fast = tersify.compile(model, strict=True)
    with pytest.raises(ValueError, match="num_beams=2"):
        model.generate(
            random_ids(1, 6), num_beams=2, custom_generate=fast.decode, **GREEDY
        )


def test_tokens_guessed_ahead_do_not_change_the_greedy_text():
    model = random_model("llama")
    fast = tersify.compile(model, strict=True)
    assert torch.equal(
        fast.generate(random_ids(1, 6), prompt_lookup_num_tokens=3, **GREEDY),
        model.generate(random_ids(1, 6), **GREEDY),
    )


def test_the_model_is_no_other_after_generating():
    model = random_model("llama")
    fast = tersify.compile(model, strict=True)
    kind, names = type(model), set(vars(model))
    fast.generate(random_ids(1, 6), **GREEDY)
    assert type(model) is kind
    assert set(vars(model)) == names


def test_texts_by_another_name_are_ours_and_vectors_are_left_to_torch():
    model = random_model("llama")
    fast = tersify.compile(model, strict=True)
    ids = random_ids(1, 5)
    wanted = model.generate(ids, **GREEDY)
    assert torch.equal(fast.generate(inputs=ids, **GREEDY), wanted)
    assert torch.equal(fast.generate(input_ids=ids, **GREEDY), wanted)
    vectors = model.get_input_embeddings()(ids)
    with pytest.warns(RuntimeWarning, match="torch runs this call"):
        given = fast.generate(inputs_embeds=vectors, **GREEDY)
    assert torch.equal(given, model.generate(inputs_embeds=vectors, **GREEDY))
    with pytest.warns(RuntimeWarning, match="torch runs this call"):
        given = fast.generate(**GREEDY)
    assert torch.equal(given, model.generate(**GREEDY))
    alone = from_tensors(dict(model.state_dict()), model.config)
    with pytest.raises(ValueError, match="without input_ids"):
        alone.generate(inputs_embeds=vectors, **GREEDY)
