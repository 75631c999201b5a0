"""Decoders of weights by their names: no module of them is built."""

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
    with pytest.raises(ValueError, match=r"the weights have no 'model\.layers\.0"):
        from_tensors({}, random_model("llama").config)
