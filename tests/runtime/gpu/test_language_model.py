"""A causal model of transformers with packed layers: the same tokens, in a stream too."""

from __future__ import annotations

import warnings

import pytest
import torch
from test_compiled import PACKED_WINS
from torch import nn

from tersify.runtime.gpu import choose, language_model
from tersify.runtime.gpu.language_model import (
    GpuLanguageModel,
    compile_language_model_on_gpu,
)

transformers = pytest.importorskip("transformers")
PROMPT = [[3, 17, 40, 9]]


@pytest.fixture(autouse=True)
def _few_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "copies_of", lambda size_bytes: 2)


def model() -> nn.Module:
    """A small Llama with ternary layers."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    made = transformers.LlamaForCausalLM(config).eval()
    for layer in made.model.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data = torch.randint(-1, 2, layer.weight.shape).float() * 0.2
    return made


def packed(whole: nn.Module, *, strict: bool = False) -> GpuLanguageModel:
    return compile_language_model_on_gpu(
        whole, precision="fp32", strict=strict, costs=PACKED_WINS
    )


def test_a_packed_model_generates_the_tokens_of_its_own_and_leaves_it_as_it_was() -> (
    None
):
    whole = model()
    whole.train()
    made = packed(whole)
    assert whole.training
    whole.eval()
    assert len(made.plan.packed) == 14
    ids = torch.tensor(PROMPT)
    wanted = whole.generate(ids, max_new_tokens=12, do_sample=False)
    assert torch.equal(made.generate(ids, max_new_tokens=12, do_sample=False), wanted)
    assert list(made.stream(ids, max_new_tokens=12)) == wanted[0, 4:].tolist()
    end = int(wanted[0, 6])
    assert list(made.stream(ids, max_new_tokens=12, eos_token_id=end))[-1] == end


def test_tokens_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tokens are 0\.\.59, got 60"):
        packed(model()).stream([60], max_new_tokens=1)


def test_a_model_that_disagrees_on_a_text_is_left_to_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        language_model, "disagreement", lambda *_: "differs by too much"
    )
    whole = model()
    with pytest.warns(RuntimeWarning, match="all of it runs in torch"):
        made = packed(whole)
    assert not made.plan.packed
    ids = torch.tensor(PROMPT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(made(input_ids=ids).logits, whole(input_ids=ids).logits)
    with pytest.raises(ValueError, match="on a text"):
        packed(whole, strict=True)
