"""Settings that a configuration carries and its family ignores change nothing."""

import pytest
import torch
from language_models import FAMILIES, LLAMA_LIKE, random_ids, random_model

import tersify
from tersify.runtime.decode import architecture, compile
from tersify.runtime.decode.compile import from_tensors

WINDOW = 40
KINDS = ["sliding_attention", "full_attention", "full_attention"]


def with_settings(family, **settings):
    """A random model of the family whose configuration says more."""
    transformers = pytest.importorskip("transformers")
    model = random_model(family)
    if family != "gpt2":
        name, changes = FAMILIES[family]
        told = {**LLAMA_LIKE, **changes, **settings}
        config = getattr(transformers, f"{name}Config")(**told)
        other = getattr(transformers, f"{name}ForCausalLM")(config)
        other.load_state_dict(model.state_dict())
        model = other.eval()
    else:
        for key, value in settings.items():
            setattr(model.config, key, value)
    return model


def error_of(fast, model, length=90):
    ids = random_ids(1, length)
    with torch.no_grad():
        wanted = model(ids).logits
    return float((fast(ids) - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {"sliding_window": WINDOW}),
        ("llama", {"sliding_window": WINDOW, "layer_types": KINDS}),
        ("llama", {"no_rope_layers": [1, 0, 1]}),
        ("bitnet", {"sliding_window": WINDOW}),
        ("gpt2", {"sliding_window": WINDOW}),
        ("mistral", {"sliding_window": WINDOW, "layer_types": KINDS}),
        ("mistral", {"sliding_window": WINDOW, "use_sliding_window": False}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {"use_sliding_window": False, "sliding_window": WINDOW}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": WINDOW}),
        (
            "qwen3",
            {
                "use_sliding_window": True,
                "sliding_window": WINDOW,
                "layer_types": KINDS,
            },
        ),
        ("qwen3", {"no_rope_layers": [1, 0, 1]}),
    ],
)
def test_windows_and_rotations_are_those_that_the_family_has(family, settings):
    model = with_settings(family, **settings)
    fast = tersify.compile(model, strict=True)
    assert error_of(fast, model) <= 2e-5
    # a file has no module to compare with
    fast = from_tensors(dict(model.state_dict()), model.config)
    assert error_of(fast, model) <= 2e-5


def test_the_check_reads_a_text_longer_than_the_window(monkeypatch):
    model = with_settings("llama")
    windows = [WINDOW] * model.config.num_hidden_layers
    monkeypatch.setattr(architecture, "windows_of_layers", lambda config: windows)
    assert compile.CHECK_TOKENS < WINDOW
    with pytest.raises(ValueError, match="logits differ from the model's"):
        tersify.compile(model, strict=True)
