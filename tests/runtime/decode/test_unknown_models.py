"""A model that computes what the decoder does not know stays with torch, and says so;
also where no short text could show it.
"""

import types

import pytest
import torch
from language_models import FAMILIES, random_ids, random_model

import tersify

GREEDY = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}


def stays(model, said):
    with pytest.warns(RuntimeWarning, match=said):
        assert tersify.compile(model) is model
    with pytest.raises(ValueError, match=said):
        tersify.compile(model, strict=True)


def short_sighted(module, query, key, value, mask, **settings):
    """Sees 32 tokens: the same as any other attention on a shorter text."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    settings.pop("is_causal", None)
    at = torch.arange(key.shape[2])
    rows = at[-query.shape[2] :, None]
    near = ((at <= rows) & (at > rows - 32))[None, None]
    return sdpa_attention_forward(module, query, key, value, near, **settings)


def test_a_registered_attention_stays_with_torch():
    transformers = pytest.importorskip("transformers")
    transformers.AttentionInterface.register("short_sighted", short_sighted)
    model = random_model("llama")
    model.set_attn_implementation("short_sighted")
    stays(model, "the attention 'short_sighted'")


def test_an_attention_registered_under_a_known_name_stays_with_torch(monkeypatch):
    utils = pytest.importorskip("transformers.modeling_utils")
    model = random_model("llama")
    functions = utils.ALL_ATTENTION_FUNCTIONS
    monkeypatch.setitem(functions._global_mapping, "sdpa", short_sighted)
    stays(model, "the attention 'sdpa' is a function of")


def test_a_mask_registered_under_a_known_name_stays_with_torch(monkeypatch):
    masks = pytest.importorskip("transformers.masking_utils")
    model = random_model("llama")
    known = masks.ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]
    other = types.FunctionType(known.__code__, known.__globals__, "mask")
    other.__kwdefaults__, other.__defaults__ = known.__kwdefaults__, known.__defaults__
    other.__module__ = "mine"
    functions = masks.ALL_MASK_ATTENTION_FUNCTIONS
    monkeypatch.setitem(functions._global_mapping, "sdpa", other)
    stays(model, "the mask of 'sdpa' is a function of")


@pytest.mark.parametrize("name", ["eager", "sdpa"])
def test_attentions_of_transformers_are_known(name):
    model = random_model("llama")
    model.set_attn_implementation(name)
    fast = tersify.compile(model, strict=True)
    ids = random_ids(1, 40)
    assert torch.equal(fast.generate(ids, **GREEDY), model.generate(ids, **GREEDY))


@pytest.mark.parametrize("part", ["model", "layers.0.self_attn", "rotary_emb", "norm"])
def test_a_part_with_a_forward_of_its_own_stays_with_torch(part):
    model = random_model("llama")
    module = model.model.get_submodule("" if part == "model" else part)
    forward = type(module).forward

    class Own(type(module)):
        def forward(self, *inputs, **settings):
            return forward(self, *inputs, **settings)

    module.__class__ = Own
    stays(model, "forward of its own")


def test_a_model_of_a_subclass_that_adds_only_methods_is_compiled():
    model = random_model("llama")

    class Mine(type(model)):
        def name_of_it(self):
            return "mine"

    model.__class__ = Mine
    fast = tersify.compile(model, strict=True)
    ids = random_ids(1, 9)
    assert torch.equal(fast.generate(ids, **GREEDY), model.generate(ids, **GREEDY))


def test_a_forward_that_was_put_in_place_stays_with_torch():
    model = random_model("llama")
    attention = model.model.layers[1].self_attn
    attention.forward = types.MethodType(type(attention).forward, attention)
    stays(model, "forward of its own")


@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_model_with_hooks_stays_with_torch(kind):
    model = random_model("llama")
    getattr(model.model.layers[1].mlp.up_proj, kind)(lambda *_: None)
    stays(model, "a hook on 'model.layers.1.mlp.up_proj'")


def test_a_hook_on_all_modules_keeps_them_with_torch():
    model = random_model("llama")
    hook = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        stays(model, "a hook on all modules")
    finally:
        hook.remove()


def test_hooks_of_transformers_itself_are_no_obstacle():
    model = random_model("llama")
    model(random_ids(1, 4), output_hidden_states=True)
    model.enable_input_require_grads()
    tersify.compile(model, strict=True)


def test_a_generate_of_its_own_stays_with_torch():
    model = random_model("llama")
    model.generate = lambda *_, **__: None
    stays(model, "generate of its own")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("Gemma2", {"head_dim": 16}),
        ("Mixtral", {}),
        ("GptOss", {"head_dim": 16, "num_local_experts": 2, "num_experts_per_tok": 1}),
        ("Falcon", {"alibi": True}),
        ("Olmo2", {}),
        ("Cohere", {}),
        ("Granite", {}),
        ("Qwen3Moe", {"num_experts": 2, "num_experts_per_tok": 1}),
    ],
)
def test_softcaps_sinks_experts_and_other_norms_are_of_types_without_a_decoder(
    name, settings
):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        **settings,
    )
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    stays(model, "have no decoder")


def test_angles_that_grow_with_the_text_stay_with_torch_whatever_they_are_called():
    model = random_model("llama")
    model.config.rope_parameters = {
        **model.config.rope_parameters,
        "rope_type": "my_dynamic",
    }
    stays(model, "rotations of type 'my_dynamic'")


@pytest.mark.parametrize("family", [*FAMILIES, "gpt2"])
def test_nothing_in_models_of_transformers_is_an_obstacle(family):
    tersify.compile(random_model(family), strict=True)


def test_an_adapter_stays_with_torch():
    peft = pytest.importorskip("peft")
    model = random_model("llama")
    model.add_adapter(peft.LoraConfig(target_modules=["q_proj"], r=2))
    stays(model, r"is a peft\.Linear with a forward of its own")
