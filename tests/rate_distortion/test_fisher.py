"""How much the loss feels a change of a layer's weights."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tersify.calibration import Calibration
from tersify.rate_distortion.fisher import fisher_of
from tersify.sites import find_sites


def found(net, x, loss, batch=None):
    sites = [site for site in find_sites(net) if site.latent.ndim > 1]
    batches = [(part, None) for part in x.split(batch or len(x))]
    return fisher_of(net.eval(), sites, Calibration(batches, loss=loss))


def weighted(out, _):
    """A mean over samples whose gradient is another one at every output."""
    each = torch.linspace(1, 2, out[0].numel()).view(out[0].shape)
    return (out * each).flatten(1).sum(1).mean()


@pytest.mark.parametrize("batch", [20, 6], ids=["one batch", "batches"])
@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(7, 5),
        nn.Conv2d(4, 6, 3, padding=1),
        nn.Conv2d(4, 8, 3, stride=2, groups=4),
        nn.Conv2d(4, 30, 1),
        nn.Conv1d(4, 6, 5, dilation=2, padding=3),
    ],
    ids=["linear", "3x3", "depthwise", "more rows than places", "1d"],
)
def test_it_is_the_second_moment_of_the_gradients_of_single_samples(layer, batch):
    torch.manual_seed(0)
    is_linear = isinstance(layer, nn.Linear)
    x = (
        torch.randn(20, 3, 7)
        if is_linear
        else torch.randn(20, 4, *[5] * (layer.weight.ndim - 2))
    )
    made = found(layer, x, weighted, batch)["weight"]
    gradients = torch.stack(
        [
            torch.autograd.grad(weighted(layer(one[None]), None), layer.weight)[0]
            for one in x
        ]
    )
    groups = len(made.columns)
    v = gradients.reshape(20, groups, -1, layer.weight[0].numel())
    assert torch.allclose(made.rows, v.square().sum(3).mean(0).flatten(), rtol=1e-3)
    columns = torch.einsum("sgrc,sgrd->gcd", v, v)
    columns /= columns.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    assert torch.allclose(made.columns, columns, atol=1e-5)
    assert made.diagonal(layer.weight.shape).shape == layer.weight.shape


def test_samples_are_taken_in_parts_where_they_are_many(monkeypatch):
    torch.manual_seed(0)
    layer, x = nn.Conv2d(3, 4, 3), torch.randn(10, 3, 6, 6)
    whole = found(layer, x, weighted)["weight"]
    monkeypatch.setattr("tersify.rate_distortion.fisher.ELEMENTS_AT_ONCE", 1500)
    parts = found(layer, x, weighted)["weight"]
    assert torch.allclose(whole.rows, parts.rows, rtol=1e-4)
    assert torch.allclose(whole.columns, parts.columns, atol=1e-6)


def test_recurrent_layers_and_shared_weights_are_left_out():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, 4, batch_first=True)
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight
            self.last = nn.Linear(4, 2)

        def forward(self, x):
            return self.last(self.second(self.first(self.lstm(x)[0][:, -1])))

    made = found(Net(), torch.randn(6, 3, 4), lambda out, _: out.sum())
    assert set(made) == {"last.weight"}


def test_a_frozen_weight_is_measured_and_stays_frozen():
    net = nn.Linear(4, 2)
    net.weight.requires_grad_(False)
    made = found(net, torch.randn(6, 4), lambda out, _: F.softplus(out).sum())
    assert set(made) == {"weight"}
    assert not net.weight.requires_grad
