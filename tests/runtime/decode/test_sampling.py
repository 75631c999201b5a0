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


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999, 1.0])
def test_of_many_tokens_those_remain_that_sorting_all_leaves(top_p, spread):
    logits = torch.randn(3000, generator=torch.Generator().manual_seed(1)) * spread
    shares, order = logits.double().softmax(-1).sort(descending=True)
    wanted = shares * (shares.cumsum(-1) - shares < top_p)
    wanted = torch.zeros_like(wanted).scatter_(0, order, wanted / wanted.sum())
    sampling = Sampling(do_sample=True, top_p=top_p)
    generator = torch.Generator().manual_seed(0)
    found = torch.zeros_like(wanted)
    for _ in range(2000):
        found[sampling.choose(logits, generator)] += 1 / 2000
    assert found[wanted == 0].sum() == 0
    # quarters of the tokens, by how likely they are, are drawn as often as they should
    for part in order[: int((wanted > 0).sum())].chunk(4):
        assert float(found[part].sum()) == pytest.approx(
            float(wanted[part].sum()), abs=0.04
        )


@pytest.mark.parametrize("temperature", [1e-6, 1e-40, 5e-324])
def test_a_cold_text_is_the_likeliest(temperature):
    for top_p in (0.5, 1.0):
        sampling = Sampling(do_sample=True, temperature=temperature, top_p=top_p)
        assert set(drawn(sampling, 20)) == {1}


def test_tokens_that_cannot_be_are_never_drawn():
    logits = torch.tensor([-torch.inf, 0.0, -torch.inf, 1.0])
    for settings in ({}, {"top_k": 3}, {"top_p": 1.0 - 1e-12}):
        sampling = Sampling(do_sample=True, **settings)
        generator = torch.Generator().manual_seed(0)
        assert {sampling.choose(logits, generator) for _ in range(99)} == {1, 3}


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_logits_that_are_no_numbers_are_one_sentence(bad):
    logits = torch.tensor([0.0, bad, bad])
    for settings in ({}, {"top_k": 2}, {"top_p": 0.5}):
        with pytest.raises(ValueError, match="logits are no numbers"):
            Sampling(do_sample=True, **settings).choose(logits)


@pytest.mark.parametrize(
    "bad", [{"temperature": 0.0}, {"top_p": 0.0}, {"top_p": 1.1}, {"top_k": -1}]
)
def test_settings_that_cannot_be_are_refused(bad):
    (name,) = bad
    with pytest.raises(ValueError, match=f"{name} must be"):
        Sampling(do_sample=True, **bad)
