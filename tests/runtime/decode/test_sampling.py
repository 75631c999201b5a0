"""Which token comes next."""

import pytest
import torch

from tersify.runtime.decode.sampling import Sampling

LOGITS = torch.tensor([0.0, 3.0, 1.0, 2.5, -1.0])


def drawn(sampling, count=300):
    generator = torch.Generator().manual_seed(0)
    return [sampling.choose(LOGITS, generator) for _ in range(count)]


def test_the_likeliest_is_taken_where_nothing_is_drawn():
    assert Sampling().choose(LOGITS) == 1


def test_top_k_leaves_the_k_likeliest():
    assert set(drawn(Sampling(do_sample=True, temperature=5.0, top_k=3))) == {1, 2, 3}


def test_top_p_leaves_the_fewest_that_have_the_share():
    assert set(drawn(Sampling(do_sample=True, top_p=0.5))) == {1}
    assert set(drawn(Sampling(do_sample=True, top_p=0.6))) == {1, 3}


def test_shares_of_drawn_tokens_are_those_of_the_softmax():
    found = (
        torch.bincount(torch.tensor(drawn(Sampling(do_sample=True), 4000)), minlength=5)
        / 4000
    )
    torch.testing.assert_close(found, LOGITS.softmax(0), atol=0.03, rtol=0)


@pytest.mark.parametrize(
    "bad", [{"temperature": 0.0}, {"top_p": 0.0}, {"top_p": 1.1}, {"top_k": -1}]
)
def test_settings_that_cannot_be_are_refused(bad):
    (name,) = bad
    with pytest.raises(ValueError, match=f"{name} must be"):
        Sampling(do_sample=True, **bad)
