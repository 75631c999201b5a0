"""What each way to quantize activations claims."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tersify
from tersify import Recipe, Rule
from tersify.lab import dataset, network
from tersify.lab.trainer import TrainConfig, train
from tersify.methods import TernaryWeightNetwork
from tersify.methods.inputs import SignInputs, TernaryInputs, TokenInputs, UniformInputs
from tersify.recipe import InputRule
from tersify.tensor.inputs import facts_of, from_plain, quantizer_of


def attached(model, method, x, activations="*", **options):
    recipe = Recipe(
        rules=[], inputs=[InputRule(activations=activations, methods=[method])]
    )
    return tersify.attach(model, recipe, calibration=[(x, None)], **options)


def input_of(layer, model, x):
    """What the layer itself is given."""
    seen = []
    hook = layer.register_forward_hook(
        lambda module, args, output: seen.append(args[0])
    )
    with torch.no_grad():
        model(x)
    hook.remove()
    return seen[0]


def test_inputs_behind_a_relu_are_unsigned_and_others_signed():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    attached(model, UniformInputs(), torch.randn(32, 8))
    facts = facts_of(model)
    assert (facts["0"]["low"], facts["0"]["high"]) == (-127, 127)
    assert (facts["2"]["low"], facts["2"]["high"]) == (0, 255)


@pytest.mark.parametrize("bits", [2, 5, 8])
def test_a_uniform_input_has_no_more_levels_than_its_bits_allow(bits):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(50, 3)), torch.randn(200, 50)
    attached(model, UniformInputs(bits=bits, range="observed"), x)
    assert len(input_of(model[0], model, x).unique()) <= 2**bits - 1


def test_an_observed_range_follows_the_batches_in_training_and_stands_in_eval_mode():
    model, x = nn.Sequential(nn.Linear(4, 2)), torch.rand(16, 4)
    attached(model, UniformInputs(range="observed", momentum=0.5), x)
    before = facts_of(model)["0"]["scale"]
    model.eval()(10 * x)
    assert facts_of(model)["0"]["scale"] == before
    for _ in range(20):
        model.train()(10 * x)
    assert facts_of(model)["0"]["scale"] == pytest.approx(10 * before, rel=1e-3)


def test_a_learned_scale_finds_the_least_squared_error_by_itself():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 64, bias=False)), torch.randn(256, 64)
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(64))
    # three levels of a normal distribution
    session = attached(model, UniformInputs(bits=2, signed="yes"), x)
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.Adam([quantizer_of(model[0]).log_ratio], lr=0.02)
    for _ in range(200):
        session.step()
        optimizer.zero_grad()
        (model(x) - x).square().mean().backward()
        optimizer.step()
    found = facts_of(model)["0"]["scale"]
    errors = {
        s: ((x / s).round().clamp(-1, 1) * s - x).square().mean().item()
        for s in (0.8, 1.0, 1.22, 1.4, 1.6)
    }
    # the best of these, and the known optimum
    assert found == pytest.approx(1.22, abs=0.12)
    assert min(errors, key=errors.get) == 1.22


def test_ternary_inputs_are_three_levels_around_zero():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(2, 3, 3)), torch.randn(8, 2, 6, 6)
    attached(model, TernaryInputs(), x)
    low, zero, high = input_of(model[0], model, x).unique().tolist()
    assert (low, zero) == (-high, 0.0)


def test_ternary_inputs_behind_a_relu_use_all_three_levels():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.ReLU(), nn.Linear(30, 3)), torch.randn(50, 30)
    attached(model, TernaryInputs(), x)
    zero, one, two = input_of(model[1], model, x).unique().tolist()
    assert (zero, two) == (0.0, 2 * one)


def test_the_sign_of_what_is_never_negative_is_refused():
    model, x = (
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)),
        torch.randn(8, 4),
    )
    with pytest.raises(
        ValueError, match="the input of '2' is never negative, so its sign says nothing"
    ):
        attached(model, SignInputs(), x)


@pytest.mark.parametrize(
    ("method", "options", "least"),
    [
        (UniformInputs(bits=8), {}, 95.0),
        (UniformInputs(bits=4, range="observed"), {}, 90.0),
        (TernaryInputs(), {}, 85.0),
        (SignInputs(scaled=True), {"activation": "hardtanh"}, 75.0),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else "",
)
def test_a_network_learns_with_quantized_inputs(method, options, least, tmp_path):
    data = dataset("digits")
    recipe = Recipe(
        rules=[Rule(methods=[TernaryWeightNetwork()])],
        inputs=[InputRule(methods=[method])],
    )
    config = TrainConfig(
        epochs=6, lr=5e-3, batch_size=64, schedule="cosine", device="cpu", augment=False
    )
    torch.manual_seed(0)
    metrics = train(
        network("digits-cnn", width=0.5, **options),
        data,
        config,
        out=tmp_path / "run",
        recipe=recipe,
    )
    assert metrics["accuracy"] >= least  # of the file, loaded into a fresh network


def test_each_token_has_a_scale_of_its_own():
    torch.manual_seed(0)
    x = torch.randn(3, 5, 16) * torch.logspace(-3, 3, 5)[:, None]
    model = nn.Sequential(nn.Linear(16, 2))
    attached(model, TokenInputs(), x)
    given = input_of(model[0], model, x)
    assert ((given - x).abs().amax(-1) <= 0.51 * x.abs().amax(-1) / 127).all()


def test_scaled_signs_are_xnor_net_s_convolution():
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(nn.Conv2d(4, 3, 3, stride=2, padding=1)),
        torch.randn(2, 4, 9, 9),
    )
    attached(model, SignInputs(scaled=True), x)
    weight, bias = model[0].weight, model[0].bias
    mean = x.abs().mean(1, keepdim=True)  # A of XNOR-Net, section 3.2
    # K = A * k
    factor = F.conv2d(mean, torch.full((1, 1, 3, 3), 1 / 9), stride=2, padding=1)
    signs = torch.where(x >= 0, 1.0, -1.0)
    wanted = F.conv2d(signs, weight, stride=2, padding=1) * factor + bias[:, None, None]
    assert torch.allclose(model(x), wanted, atol=1e-6)


def test_the_gradient_of_a_sign_stops_where_the_input_is_larger_than_one():
    x = torch.tensor([[-2.0, -0.5, 0.0, 0.5, 2.0]], requires_grad=True)
    model = nn.Sequential(nn.Linear(5, 1, bias=False))
    attached(model, SignInputs(), x.detach())
    model(x).sum().backward()
    assert (x.grad != 0).tolist() == [[False, True, True, True, False]]


def test_the_first_rule_that_names_a_layer_wins_and_may_leave_it_as_it_is():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(8, 4)
    rules = [InputRule(activations="0"), InputRule(methods=[SignInputs()])]
    tersify.attach(model, Recipe(rules=[], inputs=rules), calibration=[(x, None)])
    assert list(facts_of(model)) == ["1"]


def test_what_cannot_be_done_is_told_in_one_sentence():
    linear, conv, x = (
        nn.Sequential(nn.Linear(4, 4)),
        nn.Sequential(nn.Conv2d(1, 1, 1)),
        torch.randn(2, 4),
    )
    with pytest.raises(
        ValueError,
        match="rule 'fc' matches no linear or convolutional layer, by module; known: 0",
    ):
        attached(linear, SignInputs(), x, activations="fc")
    with pytest.raises(
        ValueError, match=r"the ranges of activations .* give calibration= batches"
    ):
        tersify.attach(
            linear, Recipe(rules=[], inputs=[InputRule(methods=[UniformInputs()])])
        )
    with pytest.raises(ValueError, match="'0' is a Conv2d, whose inputs are no tokens"):
        attached(conv, TokenInputs(), torch.randn(2, 1, 3, 3))
    two = [
        InputRule(methods=[SignInputs()]),
        InputRule(activations="0", methods=[TokenInputs()]),
    ]
    with pytest.raises(
        ValueError, match="gets no layer: rules before it take all it names"
    ):
        tersify.attach(linear, Recipe(rules=[], inputs=two))
    with pytest.raises(ValueError, match="an input is quantized once, got 2 methods"):
        InputRule(methods=[SignInputs(), TokenInputs()])
    attached(linear, SignInputs(), x)
    with pytest.raises(
        ValueError, match="the input of '0' belongs to a session already"
    ):
        attached(linear, SignInputs(), x)


def test_a_session_that_fails_leaves_the_network_as_it_was():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(8, 4)
    wanted = model(x)
    never = nn.ModuleDict({"used": model, "unused": nn.Linear(4, 4)})
    never.forward = lambda inputs: model(inputs)
    with pytest.raises(ValueError, match="no calibration batch reached 'unused'"):
        attached(never, UniformInputs(), x)
    assert torch.equal(model(x), wanted)
    assert facts_of(never) == {}


def test_batch_norms_are_not_moved_by_the_look_at_the_calibration_batches():
    model, x = (
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 3)),
        torch.randn(4, 1, 8, 8),
    )
    before = {name: value.clone() for name, value in model.named_buffers()}
    attached(model, UniformInputs(), x)
    assert all(
        torch.equal(before[name], value)
        for name, value in model.named_buffers()
        if name in before
    )


def test_loading_into_a_network_again_replaces_what_its_inputs_were(tmp_path):
    x = torch.randn(8, 4)
    dense = nn.Sequential(nn.Linear(4, 4))
    tersify.save(
        {name: t.detach() for name, t in dense.state_dict().items()},
        tmp_path / "dense.terse",
    )
    model = nn.Sequential(nn.Linear(4, 4))
    tersify.save(attached(model, SignInputs(), x).pack(), tmp_path / "signs.terse")
    net = tersify.load(tmp_path / "signs.terse", into=nn.Sequential(nn.Linear(4, 4)))
    assert list(facts_of(net)) == ["0"]
    tersify.load(tmp_path / "dense.terse", into=net)
    assert torch.equal(net(x), dense(x))


GOOD = {"kind": "uniform", "scale": 0.5, "low": 0, "high": 255}


@pytest.mark.parametrize(
    "facts",
    [
        [],
        "sign",
        {"kind": "cubic"},
        {"kind": "sign"},
        {"kind": "sign", "scaled": 1},
        {"kind": "token", "bits": 99},
        {**GOOD, "scale": 0.0},
        {**GOOD, "scale": float("inf")},
        {**GOOD, "high": 10**6},
        {**GOOD, "low": 1.0},
        {**GOOD, "more": 1},
    ],
)
def test_facts_that_are_none_are_refused(facts):
    assert from_plain(GOOD).high == 255
    with pytest.raises(ValueError, match="quantized input"):
        from_plain(facts)


@pytest.mark.parametrize(
    "table", [{"9": GOOD}, {"1": GOOD}, {"0": {"kind": "sign"}}, [GOOD]]
)
def test_a_file_whose_facts_do_not_fit_is_refused_before_anything_is_changed(
    table, tmp_path
):
    donor = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    packed = tersify.CompressedModel(
        donor.state_dict(), metadata={"activations": table}
    )
    tersify.save(packed, tmp_path / "net.terse")
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(tersify.TerseFileError, match=r"net.terse: .*quantized"):
        tersify.load(tmp_path / "net.terse", into=net)
    assert all(
        torch.equal(value, before[name]) for name, value in net.state_dict().items()
    )
