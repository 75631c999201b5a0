"""Embeddings of what is no token: rows that the calibration did not look up matter as
much as the others.
"""

import pytest
import torch

from tersify.calibration import Calibration
from tersify.compensated import Compensation, compensate_, next_token_loss

transformers = pytest.importorskip("transformers")
TOKENS, PLACES, WINDOW = 40, 96, 24


def gpt2():
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=TOKENS, n_embd=32, n_layer=1, n_head=2, n_positions=PLACES
        )
    ), "transformer.wpe.weight"


def opt():
    # its table of places is an Embedding that is not called with places alone
    return transformers.OPTForCausalLM(
        transformers.OPTConfig(
            vocab_size=TOKENS,
            hidden_size=32,
            word_embed_proj_dim=32,
            ffn_dim=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=PLACES,
        )
    ), "model.decoder.embed_positions.weight"


@pytest.mark.parametrize("make", [gpt2, opt])
def test_places_beyond_the_windows_keep_as_much_as_those_within(make):
    torch.manual_seed(0)
    model, name = make()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.2)
    before = model.get_parameter(name).detach().clone()
    batches = [(ids, ids) for ids in torch.randint(TOKENS, (6, 1, WINDOW))]
    packed = compensate_(
        model.eval(),
        Compensation(bits=3.5),
        calibration=Calibration(batches, next_token_loss),
        frequencies=torch.ones(TOKENS),
    )
    assert name in packed.compressed()
    errors = (model.get_parameter(name).detach() - before).square().mean(1)
    within, beyond = errors[:WINDOW].mean(), errors[WINDOW + 4 :].mean()
    assert 0.5 * within < beyond < 2 * within
