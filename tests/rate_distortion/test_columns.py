"""Columns that are not yet decided take over what the others did to the outputs."""

import torch

from tersify.codec.costs import priced
from tersify.rate_distortion.columns import ColumnWeight
from tersify.rate_distortion.fisher import Fisher


def correlated(samples=512, columns=48):
    torch.manual_seed(0)
    return torch.randn(samples, 8) @ torch.randn(8, columns) + 0.3 * torch.randn(
        samples, columns
    )


def decided(weight, cost, rounds=2):
    for _ in range(rounds):
        most = weight.most
        (box,) = priced({"w": weight.packed(most)}).boxes_of("w", torch.device("cpu"))
        weight.decide_(box, cost, most)
    return weight.packed(weight.most)


def test_the_outputs_change_less_than_by_rounding_to_the_nearest_step():
    x, w = correlated(), torch.randn(32, 48)
    fisher = Fisher((x.T @ x / len(x))[None], torch.ones(32))
    weight = ColumnWeight("w", w, fisher)
    weight.start_(1.0)
    nearest = weight.packed(weight.most).to_dense()
    # bits that cost nothing: only what the others did decides
    made = decided(weight, 0.0, rounds=1).to_dense()
    error, before = (float((x @ (w - q).T).square().mean()) for q in (made, nearest))
    assert error < 0.7 * before


def test_a_filter_whose_output_matters_less_gets_wider_steps():
    x, w = correlated(), torch.randn(2, 48)
    fisher = Fisher((x.T @ x / len(x))[None], torch.tensor([1.0, 1 / 64]))
    weight = ColumnWeight("w", w, fisher)
    weight.start_(0.01)
    narrow, wide = weight.packed(weight.most).scale.flatten().tolist()
    assert wide == 8 * narrow


def test_each_group_of_a_convolution_has_inputs_of_its_own():
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(8, 8, 3, groups=8)
    together = torch.stack([(x.T @ x) / len(x) for x in torch.randn(8, 64, 9)])
    weight = ColumnWeight("w", conv.weight, Fisher(together, torch.linspace(0.5, 2, 8)))
    weight.start_(1e-4)
    made = decided(weight, 1e-4)
    assert made.shape == (8, 1, 3, 3)
    step = made.scale.flatten().max()
    assert (made.to_dense() - conv.weight).abs().max() < 4 * step


def test_dearer_bits_make_more_zeros():
    x, w = correlated(), torch.randn(32, 48)
    fisher = Fisher((x.T @ x / len(x))[None], torch.ones(32))
    zeros = []
    for cost in (0.001, 0.1, 1.0):
        weight = ColumnWeight("w", w, fisher)
        weight.start_(cost)
        zeros.append(int((decided(weight, cost).codes == 0).sum()))
    assert zeros[0] < zeros[1] < zeros[2]
