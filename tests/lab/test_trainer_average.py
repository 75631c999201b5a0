"""The moving average of the weights: its decay, what belongs to it, and that it comes
and goes in place.
"""

import pytest
import torch
from torch import nn

from tersify.lab.trainer.average import WeightAverage


def norm_net():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2))
    for tensor in model.state_dict().values():
        tensor.zero_()
    return model


def move_(model, value):
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(value)


def test_each_update_goes_a_share_of_one_minus_the_decay_towards_the_weights():
    model = norm_net()
    average = WeightAverage(model, decay=0.75)
    for expected in (0.25, 0.25 + 0.75 * 0.25):
        move_(model, 1.0)
        average.update_()
        assert all(
            t.tolist() == torch.full_like(t, expected).tolist()
            for t in average.state_dict().values()
        )


def test_weights_and_both_statistics_of_a_batch_norm_are_averaged_and_counters_are_not():
    model = norm_net()
    assert set(WeightAverage(model, 0.5).state_dict()) == {
        "0.weight",
        "1.weight",
        "1.bias",
        "1.running_mean",
        "1.running_var",
    }


@pytest.mark.parametrize("fails", [False, True])
def test_inside_the_model_is_the_average_and_afterwards_itself(fails):
    model = norm_net()
    average = WeightAverage(model, decay=0.75)
    move_(model, 4.0)
    average.update_()
    try:
        with average.in_place():
            assert model[0].weight.unique().tolist() == [1.0]
            assert model[1].running_var.unique().tolist() == [1.0]
            if fails:
                raise RuntimeError
    except RuntimeError:
        pass
    assert model[0].weight.unique().tolist() == [4.0]
    assert all(t.unique().tolist() == [1.0] for t in average.state_dict().values())


def test_an_average_goes_on_from_its_state():
    model = norm_net()
    first, second = WeightAverage(model, 0.5), WeightAverage(model, 0.5)
    move_(model, 2.0)
    first.update_()
    second.load_state_dict(first.state_dict())
    assert second.state_dict()["0.weight"].unique().tolist() == [1.0]
