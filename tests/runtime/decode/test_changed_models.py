"""A model that changed after it was compiled is noticed, as far as the page says."""

import types

import pytest
import torch
from language_models import random_ids, random_model

import tersify

GREEDY = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}


def scaled_behind_torchs_back(model):
    model.model.layers[0].mlp.up_proj.weight.data.mul_(-3)


def replaced_in_numpy(model):
    model.model.norm.weight.detach().numpy()[:] = 2


def swapped(model):
    model.model.layers[1].mlp.up_proj = torch.nn.Linear(48, 80, bias=False)


def hooked(model):
    model.model.layers[1].mlp.up_proj.register_forward_hook(lambda *_: None)


def patched(model):
    inner = model.model.layers[1].mlp
    inner.forward = types.MethodType(type(inner).forward, inner)


def other_attention(model):
    transformers = pytest.importorskip("transformers")
    transformers.AttentionInterface.register("another", lambda *_, **__: None)
    model.set_attn_implementation("another")


def shorter(model):
    model.model.layers = model.model.layers[:2]


CHANGES = [
    scaled_behind_torchs_back,
    replaced_in_numpy,
    swapped,
    hooked,
    patched,
    other_attention,
    shorter,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed_by_every_call(change):
    model = random_model("llama")
    fast = tersify.compile(model, strict=True)
    ids = random_ids(1, 5)
    fast.generate(ids, **GREEDY)
    change(model)
    for call in (
        lambda: fast(ids),
        lambda: fast.generate(ids, **GREEDY),
        lambda: fast.stream(ids, max_new_tokens=3),
        lambda: model.generate(ids, custom_generate=fast.decode, **GREEDY),
    ):
        with pytest.raises(ValueError, match="changed after it was compiled"):
            call()


def test_a_generate_that_was_put_on_the_model_is_noticed():
    model = random_model("llama")
    fast = tersify.compile(model, strict=True)
    model.generate = lambda *_, **__: torch.zeros(1, 1)
    with pytest.raises(ValueError, match="changed after it was compiled"):
        fast.generate(random_ids(1, 5), **GREEDY)


def test_numbers_that_are_unlike_themselves_do_not_count_as_changed():
    model = random_model("llama")
    model.register_buffer("odd", torch.full((5,), float("nan")))
    fast = tersify.compile(model, strict=True)
    fast.generate(random_ids(1, 5), **GREEDY)


def test_models_that_were_only_used_count_as_unchanged():
    model = random_model("llama")
    fast = tersify.compile(model, strict=True)
    ids = random_ids(1, 5)
    model(ids, output_hidden_states=True)
    model.train()
    model(ids, labels=ids).loss.backward()
    model.eval()
    assert torch.equal(fast.generate(ids, **GREEDY), model.generate(ids, **GREEDY))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_other_types_are_sampled_too(kind):
    model = random_model("llama").to(kind)
    fast = tersify.compile(model, strict=True)
    fast(random_ids(1, 5))
    scaled_behind_torchs_back(model)
    with pytest.raises(ValueError, match="changed after it was compiled"):
        fast(random_ids(1, 5))


def test_weights_that_lie_the_other_way_are_sampled_too():
    model = random_model("llama")
    layer = model.model.layers[0].mlp.up_proj
    layer.weight = torch.nn.Parameter(layer.weight.detach().t().contiguous().t())
    assert not layer.weight.is_contiguous()
    fast = tersify.compile(model, strict=True)
    fast(random_ids(1, 5))
    scaled_behind_torchs_back(model)
    with pytest.raises(ValueError, match="changed after it was compiled"):
        fast(random_ids(1, 5))


def test_tensors_without_numbers_are_no_obstacle():
    model = random_model("llama")
    model.register_buffer("none", torch.empty(0))
    model.register_buffer("one", torch.tensor(3.0))
    fast = tersify.compile(model, strict=True)
    fast(random_ids(1, 5))
