"""What meets the weights of a layer, and how much its outputs matter."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tersify.calibration import Calibration
from tersify.rate_distortion.layer_inputs import layer_inputs
from tersify.sites import find_sites


def found(net, x, loss):
    sites = [site for site in find_sites(net) if site.latent.ndim > 1]
    return layer_inputs(net.eval(), sites, Calibration([(x, None)], loss=loss))


def test_a_linear_layer_meets_its_inputs():
    torch.manual_seed(0)
    net, x = nn.Linear(5, 3), torch.randn(20, 5)
    made = found(net, x, lambda out, _: (out * torch.tensor([1.0, 2.0, 3.0])).sum())
    assert torch.allclose(made["weight"].together[0], x.T @ x / 20, atol=1e-6)
    assert torch.allclose(made["weight"].matters, torch.tensor([1.0, 4.0, 9.0]))
    assert made["weight"].sensitivity((3, 5)).shape == (3, 5)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 6, 3, padding=1),
        nn.Conv2d(4, 8, 3, stride=2, groups=4),
        nn.Conv2d(4, 6, 1),
        nn.Conv1d(4, 6, 5, dilation=2, padding=3),
    ],
    ids=["3x3", "depthwise", "1x1", "1d"],
)
def test_errors_of_a_convolution_are_told_by_what_meets_its_weights(layer):
    """For a change of the weights, the mean square of the outputs' change follows from
    the covariance.
    """
    torch.manual_seed(0)
    x = torch.randn(64, 4, *[7] * (layer.weight.ndim - 2))
    made = found(layer, x, lambda out, _: out.square().sum())["weight"]
    change = torch.randn_like(layer.weight)
    before, after = layer(x), None
    with torch.no_grad():
        layer.weight += change
        after = layer(x)
    wanted = (after - before).square().transpose(0, 1).flatten(1).mean(1)
    rows = change.reshape(len(made.together), -1, change[0].numel())
    told = torch.einsum("grc,gcd,grd->gr", rows, made.together, rows).flatten()
    assert torch.allclose(told, wanted, rtol=1e-3)


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
