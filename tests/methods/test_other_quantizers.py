"""What each of the other quantizers claims."""

import pytest
import torch
from torch import nn

import tersify
from method_zoo import recipe_of
from tersify import Recipe, Rule
from tersify.methods import (
    BinaryConnect,
    BitNet,
    EntropyConstrainedTernary,
    TernaryResidual,
    TernaryWeightNetwork,
    TrainedTernary,
    Uniform,
)
from tersify.methods.ec2t import edges_between
from tersify.tensor import sparsity_percent


def session_on(weight, method, **options):
    model = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    with torch.no_grad():
        model.weight.copy_(weight)
    return model, tersify.attach(
        model, Recipe(rules=[Rule(methods=[method])]), **options
    )


def gaussian(rows=40, columns=50):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(3)) * 0.1


def test_twn_scale_is_the_mean_magnitude_above_seven_tenths_of_the_mean():
    w = gaussian()
    model, _ = session_on(w, TernaryWeightNetwork())
    kept = w.abs() > 0.7 * w.abs().mean()
    assert torch.allclose(model.weight, w.sign() * kept * w.abs()[kept].mean())


def test_the_exact_threshold_of_twn_leaves_the_least_squared_error_of_all():
    w = gaussian()
    model, _ = session_on(w, TernaryWeightNetwork(exact=True))
    error = (model.weight - w).square().sum().item()
    for threshold in w.abs().flatten():  # every set that a threshold can keep
        kept = w.abs() >= threshold
        other = (w.sign() * kept * w.abs()[kept].mean() - w).square().sum().item()
        assert error <= other * (1 + 1e-5)
    approximate, _ = session_on(w, TernaryWeightNetwork())
    assert error < (approximate.weight - w).square().sum().item()


def test_a_factor_beside_the_exact_threshold_is_refused():
    with pytest.raises(
        ValueError,
        match=r"factor \(0.5\) and exact both set the threshold; give one of them",
    ):
        TernaryWeightNetwork(exact=True, factor=0.5)


def test_twn_per_channel_has_a_lower_error_than_per_tensor_when_rows_differ_in_size():
    w = gaussian() * torch.linspace(0.1, 3, 40)[:, None]
    errors = []
    for per_channel in (False, True):
        model, _ = session_on(w, TernaryWeightNetwork(per_channel=per_channel))
        errors.append((model.weight - w).square().mean().item())
    assert errors[1] < 0.8 * errors[0]


def test_bitnet_rounds_after_division_by_the_mean_magnitude():
    w = gaussian()
    model, _ = session_on(w, BitNet())
    gamma = w.abs().mean()
    assert torch.allclose(model.weight, (w / gamma).round().clamp(-1, 1) * gamma)


def test_ttq_learns_two_different_levels_and_scales_each_latents_gradient_by_its_level():
    w = gaussian()
    model, session = session_on(w, TrainedTernary(t=0.2))
    model.weight.sum().backward()
    latent = model.parametrizations.weight.original
    plus, minus = (model.weight.max().item(), -model.weight.min().item())
    expected = torch.where(
        model.weight > 0, plus, torch.where(model.weight < 0, minus, 1.0)
    )
    assert torch.allclose(latent.grad, expected)
    optimizer = torch.optim.SGD(session.param_groups(), lr=0.5)
    optimizer.step()
    codebook = session.pack()["weight"].codebook
    assert codebook[0] == 0
    assert codebook[1] < plus  # pushed down
    assert -codebook[2] > minus  # the negative level moves down too, so its size grows


def test_ec2t_zeros_grow_with_lambda():
    zeros = []
    for lam in (0.0, 0.1, 0.3):
        _, session = session_on(
            gaussian(),
            EntropyConstrainedTernary(lam=lam, warmup=0.0),
            epochs=20,
            steps_per_epoch=1,
        )
        for _ in range(20):
            session.step()
        zeros.append(sparsity_percent(session.pack().compressed().values()))
    assert zeros[0] < zeros[1] < zeros[2] < 100


def test_ec2t_counts_without_its_lambda_so_that_the_codes_settle_and_no_level_empties():
    _, session = session_on(
        gaussian(),
        EntropyConstrainedTernary(lam=0.8, warmup=0.0),
        epochs=60,
        steps_per_epoch=1,
    )
    counts = []
    for _ in range(60):
        session.step()
        counts.append(session.pack()["weight"].codes.flatten().bincount(minlength=3))
    assert torch.equal(counts[2], counts[-1])
    assert counts[-1].min() > 100


def test_ec2t_refuses_a_warmup_that_would_end_after_lambda_stands():
    with pytest.raises(ValueError, match=r"warmup .* must be in \[0, 0.75\], got 0.9"):
        EntropyConstrainedTernary(lam=0.3, warmup=0.9)


def test_ec2t_never_empties_the_zero_class():
    _, session = session_on(
        torch.full((4, 4), 0.3),
        EntropyConstrainedTernary(lam=5.0, warmup=0.0),
        epochs=10,
        steps_per_epoch=1,
    )
    for _ in range(10):
        session.step()
    prior = session.sites[0].chain[0].prior
    assert prior.argmax() == 0


def test_ec2t_leads_lambda_to_the_share_of_zeros_that_is_wanted_while_the_latents_spread():
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 10))
    session = tersify.attach(
        model,
        recipe_of((EntropyConstrainedTernary(sparsity=0.7),)),
        epochs=200,
        steps_per_epoch=1,
    )
    fractions = []
    for _ in range(200):
        with torch.no_grad():
            session.sites[0].latent.mul_(1.0005)
        session.step()
        fractions.append(session.pack().sparsity_percent())
    # then λ stands, and the last quarter is trained around it
    assert fractions[149] == pytest.approx(70, abs=1)
    assert max(fractions) < 75
    large, small = (sparsity_percent([t]) for t in session.pack().compressed().values())
    assert large > small + 5  # zeros of a small layer save little


def test_ec2t_lets_the_last_quarter_of_training_learn_around_codes_that_stand():
    model = nn.Linear(100, 100)
    session = tersify.attach(
        model,
        recipe_of((EntropyConstrainedTernary(sparsity=0.7),)),
        epochs=200,
        steps_per_epoch=1,
    )
    told = []
    for _ in range(200):
        with torch.no_grad():
            session.sites[0].latent.mul_(1.002)
        session.step()
        transform = session.sites[0].chain[0]
        told.append((float(transform.lam), *transform.prior.tolist()))
    assert len(set(told[100:150])) > 1
    assert len(set(told[152:])) == 1


def test_ec2t_meets_the_share_without_training_too():
    packed = tersify.compress_(
        nn.Linear(100, 100), recipe_of((EntropyConstrainedTernary(sparsity=0.7),))
    )
    assert packed.sparsity_percent() == pytest.approx(70, abs=1)


def test_ec2t_refuses_lambda_and_sparsity_together():
    with pytest.raises(ValueError, match="give one of them"):
        EntropyConstrainedTernary(lam=0.3, sparsity=0.7)
    with pytest.raises(ValueError, match=r"sparsity must be in \(0, 1\), got 1\.5"):
        EntropyConstrainedTernary(sparsity=1.5)


def test_trq_is_stem_plus_residual_with_one_alpha():
    w = gaussian()
    model, _ = session_on(w, TernaryResidual())
    alpha = w.abs().mean()
    stem = alpha * w.sign()
    assert torch.allclose(model.weight, stem + alpha * (w - stem).sign())


def test_binary_connect_has_two_levels_and_the_stochastic_one_is_unbiased_in_training_only():
    w = torch.full((100, 100), 0.5)
    model, session = session_on(w, BinaryConnect(stochastic=True))
    assert model.weight.mean().item() == pytest.approx(0.5, abs=0.05)
    model.eval()
    assert (model.weight == 1).all()
    assert session.pack()["weight"].codebook.tolist() == [1.0, -1.0]


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("per_channel", [True, False])
def test_uniform_error_is_at_most_half_a_step_and_zero_is_a_level(
    bits, symmetric, per_channel
):
    w = gaussian() + 0.03
    w[0] = 0
    model, session = session_on(
        w, Uniform(bits=bits, symmetric=symmetric, per_channel=per_channel)
    )
    packed = session.pack()["weight"]
    # The rounded zero point of the asymmetric grid can shift an end of the range by
    # half a step.
    room = 0.5 if symmetric else 1.0
    assert ((model.weight - w).abs() <= packed.scale * room + 1e-6).all()
    assert (model.weight[0] == 0).all()
    assert (packed.codes[0] == 0).all()


def test_per_channel_on_a_bias_is_refused_in_words():
    model = nn.Linear(4, 4)
    with pytest.raises(
        ValueError, match="per_channel needs a weight of two dimensions"
    ):
        tersify.compress_(
            model,
            Recipe(rules=[Rule(weights="bias", methods=[Uniform(per_channel=True)])]),
        )


def test_uniform_bits_outside_2_to_8_are_refused():
    with pytest.raises(ValueError, match=r"bits must be 2\.\.8, got 11"):
        Uniform(bits=11)


def test_the_symmetric_scale_as_printed_divides_the_clipping_range_into_all_steps():
    w = gaussian()
    model, _ = session_on(w, Uniform(bits=4, printed=True, clip=0.8))
    beta = 0.8 * w.abs().max()
    scale = 2 * beta / (2**4 - 1)  # paper 1, eq. 1, with |α| = |β|
    assert torch.allclose(model.weight, (w / scale).round().clamp(-8, 7) * scale)


def test_a_narrower_clipping_range_gives_weights_with_outliers_a_smaller_error_at_few_bits():
    w = torch.cat([gaussian(), torch.full((1, 50), 2.0)])
    errors = []
    for clip in (1.0, 0.2):
        model, _ = session_on(w, Uniform(bits=3, clip=clip))
        errors.append((model.weight - w)[:-1].square().mean().item())
    assert errors[1] < errors[0]


def test_plain_ec2t_is_equation_4_as_printed():
    w, lam = gaussian(), 0.001
    model, session = session_on(
        w, EntropyConstrainedTernary(plain=True, lam=lam, warmup=0.0), steps=4
    )
    session.step()
    session.step()
    transform = model.parametrizations.weight[0]
    plus, minus = transform.levels().detach()
    levels = torch.stack([torch.zeros(()), plus, -minus])
    costs = (w[..., None] - levels).square() - lam * transform.prior.log2()
    assert torch.equal(model.weight, levels[costs.argmin(-1)])
    codes = torch.stack([(model.weight == level).float().mean() for level in levels])
    session.step()  # P counts the codes that λ itself has moved
    assert torch.allclose(transform.prior, codes)


@pytest.mark.parametrize(
    ("method", "weights", "pattern"),
    [
        (
            TrainedTernary(t=0.5),
            [1.0, 0.5, -0.5, 0.5001, -1.0, 0.0],
            [1, 0, 0, 1, -1, 0],
        ),
        # |w| = 2 on average
        (
            TernaryWeightNetwork(factor=1.0),
            [1.0, -1.0, 1.0, 3.0, -3.0, 3.0],
            [0, 0, 0, 1, -1, 1],
        ),
        (
            TernaryWeightNetwork(factor=1.0),
            [2.0, -2.0, 1.0, 3.0, -2.0, 2.0],
            [0, 0, 0, 1, 0, 0],
        ),
        # α starts at the mean magnitude
        (TernaryResidual(), [2.0, -2.0, 1.0, 3.0, -2.0, 2.0], [0, 0, 0, 1, 0, 0]),
        # a half of γ = 2 is rounded to even
        (BitNet(), [1.0, -1.0, 3.0, 1.0001, 3.0, -2.9999], [0, 0, 1, 1, 1, -1]),
        (BinaryConnect(), [0.0, -0.1, 1.0, -1.0, 0.5, -0.0], [1, -1, 1, -1, 1, 1]),
    ],
)
def test_a_weight_on_the_border_itself_is_the_lesser(method, weights, pattern):
    model = nn.Linear(6, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([weights]))
    session = tersify.attach(model, recipe_of((method,)))
    assert session.pack()["weight"].to_dense().sign().tolist() == [pattern]
    session.step()
    assert model.weight.sign().tolist() == [pattern]


def test_scaled_binary_weights_keep_the_mean_magnitude_of_each_channel():
    weight = torch.tensor([[0.5, -1.0], [0.0, 0.2]])
    model, session = session_on(weight, BinaryConnect(scale="channel"))
    assert torch.allclose(model.weight, torch.tensor([[0.75, -0.75], [0.1, 0.1]]))
    packed = session.pack()["weight"]
    assert packed.levels == 2
    assert torch.equal(packed.to_dense(), model.weight)


@pytest.mark.parametrize("plain", [False, True])
def test_the_edges_of_ec2t_part_the_cheapest_levels_of_equation_4(plain):
    torch.manual_seed(0)
    w = torch.linspace(-4, 4, 1001, dtype=torch.float64)
    for _ in range(200):
        plus, minus = torch.rand(2, dtype=torch.float64) + 0.05
        # Also where zero is rare: then nothing may be coded as zero.
        bits = 3 * torch.rand(3, dtype=torch.float64)
        zero, up, down = bits
        more_bits = torch.stack([up - zero, down - zero, up - down])
        low, high = edges_between(torch.stack([plus, minus]), more_bits, plain=plain)
        unit = 1.0 if plain else (plus**2 + minus**2) / 2
        levels = torch.stack([torch.zeros_like(plus), plus, -minus])
        costs = (w[:, None] - levels) ** 2 / unit + bits
        best = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)[costs.argmin(1)]
        cheapest_two = costs.sort(1).values
        clear = cheapest_two[:, 1] - cheapest_two[:, 0] > 1e-9
        coded = (w > high).double() - (w < low).double()
        assert torch.equal(coded[clear], best[clear])
