"""Batch-norm statistics taken anew."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tersify
from method_zoo import recipe_of
from tersify.batchnorm_statistics import (
    LEAST_VALUES,
    recalibrate_,
    recalibrated,
)
from tersify.calibration import Calibration
from tersify.lab import network as network_of_the_lab
from tersify.lab.data import dataset, normalize
from tersify.methods import BitNet
from tersify.modes import eval_mode
from tersify.norm_shifts import follow_, moments_of


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(54, 4),
    )


def batches(count=4, size=32):
    generator = torch.Generator().manual_seed(1)
    return [
        (3 + 2 * torch.randn(size, 2, 5, 5, generator=generator), None)
        for _ in range(count)
    ]


def test_statistics_become_those_of_the_batches_and_nothing_else_changes():
    model = network()
    before = copy.deepcopy(model.state_dict())
    recalibrate_(model, Calibration(batches()))
    out = [model[0](x).detach() for x, _ in batches()]
    means = torch.stack([y.mean((0, 2, 3)) for y in out]).mean(0)
    assert torch.allclose(model[1].running_mean, means, atol=1e-5)
    assert torch.allclose(
        model[1].running_var,
        torch.stack([y.var((0, 2, 3)) for y in out]).mean(0),
        rtol=1e-4,
    )
    changed = {
        name
        for name, value in model.state_dict().items()
        if not torch.equal(value, before[name])
    }
    assert changed == {"1.running_mean", "1.running_var"}
    assert model[1].momentum == 0.1
    assert all(module.training for module in model.modules())


def test_a_frozen_batch_norm_and_one_that_nothing_reaches_keep_theirs():
    model = network()
    model.unused = None
    frozen = nn.ModuleDict({"net": model, "spare": nn.BatchNorm1d(3)})
    frozen.forward = model.forward
    model[1].requires_grad_(False)
    before = copy.deepcopy(frozen.state_dict())
    recalibrate_(frozen, Calibration(batches()))
    assert all(
        torch.equal(value, before[name]) for name, value in frozen.state_dict().items()
    )


def test_too_little_data_leaves_the_statistics_and_says_so():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    before = copy.deepcopy(model.state_dict())
    few = Calibration([(torch.randn(8, 4), None)])
    with pytest.warns(
        UserWarning,
        match=rf"hold 8 values for each channel of '1', and new statistics.*{LEAST_VALUES}",
    ):
        recalibrate_(model, few)
    assert all(
        torch.equal(value, before[name]) for name, value in model.state_dict().items()
    )


def read_before():
    once = iter(batches())
    list(once)
    return once


@pytest.mark.parametrize("given", [list, read_before])
def test_calibration_without_a_batch_is_told_and_leaves_the_statistics(given):
    model = network()
    session = tersify.attach(model, recipe_of((BitNet(),)))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="no batch, or is an iterator that was read"):
        session.pack(calibration=given())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    plain = network()
    with pytest.raises(ValueError, match="no batch, or is an iterator that was read"):
        tersify.compress_(plain, recipe_of((BitNet(),)), calibration=given())
    for name, tensor in network().state_dict().items():
        assert torch.equal(tensor, plain.state_dict()[name])


def test_a_forward_pass_that_fails_leaves_the_network_as_it_was():
    model = network().eval()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError):
        recalibrate_(model, Calibration([*batches(), (torch.randn(2, 3), None)]))
    assert all(
        torch.equal(value, before[name]) for name, value in model.state_dict().items()
    )
    assert not any(module.training for module in model.modules())
    assert not model[1]._forward_pre_hooks


def test_compression_without_training_moves_them_where_it_has_data():
    plain, told = network().eval(), network().eval()
    tersify.compress_(plain, recipe_of((BitNet(),)))
    packed = tersify.compress_(told, recipe_of((BitNet(),)), calibration=batches())
    assert torch.equal(packed["1.running_mean"], told[1].running_mean)
    assert torch.equal(plain[1].running_mean, torch.zeros(6))
    assert told[1].running_mean.abs().min() > 0


def plain_cnn():
    """Nothing of ours: three convolutions with batch norm."""

    def block(ins, outs):
        return nn.Conv2d(ins, outs, 3, padding=1), nn.BatchNorm2d(outs), nn.ReLU()

    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    return nn.Sequential(
        *block(1, 32), *block(32, 64), nn.MaxPool2d(2), *block(64, 64), *head
    )


@pytest.mark.parametrize(
    ("build", "batch", "at_least"),
    [
        (lambda: network_of_the_lab("digits-cnn"), 256, 99),
        (plain_cnn, 256, 99),
        (plain_cnn, 32, 97),
    ],
)
def test_a_pretrained_network_keeps_its_accuracy_through_24_steps_of_ternary_target(
    build, batch, at_least
):
    data = dataset("digits")
    x, y = normalize(data.train.images, data), data.train.labels
    torch.manual_seed(0)
    model = build()

    def train(steps, optimizer, size, session=None):
        model.train()
        for step in range(steps):
            at = torch.randperm(len(x), generator=torch.Generator().manual_seed(step))[
                :size
            ]
            if session:
                session.step()
            loss = F.cross_entropy(model(x[at]), y[at])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def accuracy():
        with eval_mode(model), torch.no_grad():
            return 100.0 * float((model(x).argmax(1) == y).float().mean())

    train(60, torch.optim.Adam(model.parameters(), lr=1e-2), 256)
    assert accuracy() >= 99
    session = tersify.attach(model, "ternary-target", steps=24)
    train(24, torch.optim.Adam(session.param_groups(), lr=5e-3), batch, session)
    lagging = accuracy()
    packed = session.pack(
        calibration=list(zip(x.split(256), y.split(256), strict=True))
    )
    assert packed.sparsity_percent() == pytest.approx(90, abs=1)
    assert accuracy() >= at_least
    assert accuracy() > lagging + 1


def test_batch_norms_recalibrated_for_a_while_have_their_own_statistics_again_afterwards():
    norm = nn.BatchNorm1d(3)
    batches = [torch.randn(50, 3) * 2 + 5 for _ in range(4)]
    with recalibrated(norm, Calibration([(batch, None) for batch in batches])):
        assert torch.allclose(
            norm.running_mean, torch.stack([b.mean(0) for b in batches]).mean(0)
        )
        assert torch.allclose(
            norm.running_var, torch.stack([b.var(0) for b in batches]).mean(0)
        )
    assert norm.running_mean.eq(0).all()
    assert norm.running_var.eq(1).all()
    assert norm.momentum == 0.1


def trained_elsewhere():
    """With statistics of other images than the batches hold."""
    model = network().eval()
    with torch.no_grad():
        model[1].running_mean.uniform_(-1, 1)
        model[1].running_var.uniform_(0.5, 2)
    return model


def test_statistics_of_weights_that_did_not_change_stay():
    model, data = trained_elsewhere(), Calibration(batches())
    before = copy.deepcopy(model.state_dict())
    follow_(model, moments_of(model, data), data)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_compression_that_changes_little_keeps_the_statistics_of_training():
    model = trained_elsewhere()
    before = model[1].running_mean.clone()
    tersify.compress_(model, "uniform-8", calibration=batches())
    assert (model[1].running_mean - before).abs().max() < 0.1
