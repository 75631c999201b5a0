"""Decoders of weights by their names: no module of them is built."""

import copy

import pytest
import torch
from language_models import quantized_, random_ids, random_model

import tersify
from tersify.runtime.decode.compile import from_tensors


@pytest.mark.parametrize("family", ["llama", "smollm2", "qwen3", "bitnet", "gpt2"])
def test_a_file_decodes_as_the_model_it_was_saved_from(family, tmp_path):
    model = random_model(family)
    path = tmp_path / "model.terse"
    tersify.save(tersify.pack(quantized_(model)), path)
    fast = from_tensors(tersify.open(path), model.config, threads=2)
    ids = random_ids(2, 9)
    arguments = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(
        fast.generate(ids, **arguments), model.generate(ids, **arguments)
    )


def test_weights_of_another_model_are_refused():
    with pytest.raises(ValueError, match="name different tensors: missing in the file"):
        from_tensors({}, random_model("llama").config)


def test_nothing_that_the_weights_hold_is_left_out_without_a_word():
    model = random_model("llama")
    weights = dict(model.state_dict())
    bias = {"model.layers.0.self_attn.q_proj.bias": torch.randn(48)}
    with pytest.raises(ValueError, match=r"unknown to the module .*q_proj\.bias"):
        from_tensors(weights | bias, model.config)
    fewer = copy.deepcopy(model.config)
    fewer.num_hidden_layers = 2
    with pytest.raises(ValueError, match=r"unknown to the module .*layers\.2"):
        from_tensors(weights, fewer)


@pytest.mark.parametrize("name", ["model.embed_tokens", "lm_head", "model.norm"])
def test_weights_of_other_shapes_are_one_sentence(name):
    model = random_model("llama")
    weights = dict(model.state_dict())
    weights[f"{name}.weight"] = weights[f"{name}.weight"][:20].clone()
    with pytest.raises(ValueError, match=f"'{name}.weight' has shape .* in the module"):
        from_tensors(weights, model.config)


def test_a_tied_head_need_not_be_there_twice():
    model = random_model("smollm2")
    weights = dict(model.state_dict())
    del weights["lm_head.weight"]
    fast = from_tensors(weights, model.config)
    ids = random_ids(1, 9)
    with torch.no_grad():
        wanted = model(ids).logits
    assert (fast(ids) - wanted).abs().max() <= 2e-5 * wanted.abs().max()


@pytest.mark.parametrize("context", [0, 513, 2.5])
def test_a_context_that_cannot_be_is_refused(context):
    model = random_model("gpt2")
    with pytest.raises(ValueError, match="context must be"):
        from_tensors(dict(model.state_dict()), model.config, context=context)


def test_a_head_of_its_own_beside_a_configuration_that_ties_it_is_refused():
    model = random_model("smollm2")
    weights = dict(model.state_dict())
    weights["lm_head.weight"] = weights["lm_head.weight"] + 0.1
    with pytest.raises(ValueError, match="the configuration ties 'lm_head"):
        from_tensors(weights, model.config)
