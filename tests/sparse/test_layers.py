"""The rows recorded for a layer, times its weight, are what the layer computes."""

import pytest
import torch
from sparse_nets import OPERATIONS, everything, pruned
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from tersify.sparse.input_rows import record


def recorded(model, example, **options):
    records, skipped = record(
        model, example, **{"rows": 10**6, "min_sparsity": 0.1} | options
    )
    products = {}
    for each in records:
        weight, rows = torch.from_numpy(each.weight), torch.cat(each.rows)
        parts = zip(
            rows.chunk(each.product.groups, 1),
            weight.chunk(each.product.groups),
            strict=True,
        )
        products[each.name] = torch.cat([x @ w.T for x, w in parts], 1)
        if each.results:
            torch.testing.assert_close(
                products[each.name], torch.cat(each.results), rtol=1e-5, atol=1e-5
            )
    return products, records, skipped


def test_every_layer_of_a_known_kind_is_found_and_multiplies_as_recorded():
    _, records, skipped = recorded(*everything())
    assert [each.name for each in records] == OPERATIONS
    assert skipped == {}
    checked = {each.name for each in records if each.results}
    assert checked >= {
        "table",
        "encoder.layers.0.self_attn.out_proj",
        "encoder.layers.0.linear1",
        "conv",
        "up",
    }


@pytest.mark.parametrize("same_width", [True, False])
def test_the_projections_of_attention_rebuild_its_output(same_width):
    width = {} if same_width else {"kdim": 6, "vdim": 4}
    attention = pruned(nn.MultiheadAttention(8, 2, batch_first=True, **width)).eval()
    with torch.no_grad():
        attention.out_proj.bias.normal_()
        if attention.in_proj_bias is not None:
            attention.in_proj_bias.normal_()
    q, k, v = (
        torch.randn(2, 5, 8),
        torch.randn(2, 7, width.get("kdim", 8)),
        torch.randn(2, 7, width.get("vdim", 8)),
    )

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = attention

        def forward(self, q, k, v):
            return self.attention(q, k, value=v, need_weights=False)[0]

    products, _, _ = recorded(Net(), (q, k, v))
    biases = attention.in_proj_bias.chunk(3)
    heads = []
    for part, bias, x in zip("qkv", biases, (q, k, v), strict=True):
        projected = (products[f"attention.{part}_proj"] + bias).unflatten(
            0, x.shape[:2]
        )
        heads.append(projected.unflatten(-1, (2, 4)).transpose(1, 2))
    joined = (
        nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
    )
    by_hand = joined.flatten(0, 1) @ attention.out_proj.weight.T
    torch.testing.assert_close(
        products["attention.out_proj"], by_hand, rtol=1e-5, atol=1e-5
    )
    wanted = attention(q, k, v, need_weights=False)[0]
    torch.testing.assert_close(
        (by_hand + attention.out_proj.bias).reshape(wanted.shape),
        wanted,
        rtol=1e-5,
        atol=1e-5,
    )


def lstm_step(gates, cell):
    i, f, g, o = gates.chunk(4, -1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


@pytest.mark.parametrize("given_state", [False, True])
def test_the_two_products_of_an_lstm_rebuild_its_hidden_states(given_state):
    lstm = pruned(nn.LSTM(6, 5, bidirectional=True, batch_first=True))
    x = torch.randn(3, 7, 6)
    start = (
        (torch.randn(2, 3, 5), torch.randn(2, 3, 5))
        if given_state
        else (torch.zeros(2, 3, 5),) * 2
    )
    products, _, _ = recorded(lstm, (x, start) if given_state else x)
    wanted = lstm(x, start)[0]
    for number, way in enumerate(("", "_reverse")):
        bias = getattr(lstm, f"bias_ih_l0{way}") + getattr(lstm, f"bias_hh_l0{way}")
        gates = (
            products[f"weight_ih_l0{way}"] + products[f"weight_hh_l0{way}"] + bias
        ).reshape(7, 3, -1)
        cell, hidden = start[1][number], []
        for step in gates:
            state, cell = lstm_step(step, cell)
            hidden.append(state)
        states = torch.stack(hidden, 1)
        states = states.flip(1) if way else states
        torch.testing.assert_close(
            states, wanted[..., 5 * number : 5 * number + 5], rtol=1e-4, atol=1e-5
        )


def test_a_gru_without_a_batch_and_a_second_layer_are_followed():
    gru = pruned(nn.GRU(6, 5, 2))
    x = torch.randn(7, 6)
    products, _, _ = recorded(gru, x)
    first = nn.GRU(6, 5)
    first.load_state_dict(
        {k: v for k, v in gru.state_dict().items() if k.endswith("l0")}
    )
    between = first(x)[0]
    torch.testing.assert_close(products["weight_ih_l1"], between @ gru.weight_ih_l1.T)
    after = torch.cat([torch.zeros(1, 5), gru(x)[0][:-1]])
    torch.testing.assert_close(products["weight_hh_l1"], after @ gru.weight_hh_l1.T)


def test_a_layer_called_several_times_gives_the_rows_of_all_calls():
    layer = pruned(nn.Linear(4, 4))

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(self.layer(x))

    x = torch.randn(5, 4)
    products, (only,), _ = recorded(Twice(), x)
    assert (only.count, only.calls) == (10, 2)
    torch.testing.assert_close(products["layer"][:5], x @ layer.weight.T)


def test_sampled_rows_are_some_of_all_and_always_the_same():
    model, tokens = everything()
    whole = {
        each.name: torch.cat(each.rows)
        for each in record(model, tokens, rows=10**6, min_sparsity=0.1)[0]
    }
    for _ in range(2):
        for each in record(model, tokens, rows=5, min_sparsity=0.1)[0]:
            rows = torch.cat(each.rows)
            assert len(rows) == 5
            assert (whole[each.name][:, None] == rows).all(-1).any(0).all()
        torch.randn(3)  # the state of torch's generator does not matter


def test_weights_that_are_not_multiplied_by_a_known_layer_are_named():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.bare = nn.Parameter(torch.eye(8))
            self.unused = nn.Linear(8, 8)
            self.dense = nn.Linear(8, 8)
            self.lstm = nn.LSTM(8, 8)
            pruned(self.unused), pruned(self.lstm)

        def forward(self, x):
            return self.lstm(pack_sequence([self.dense(x @ self.bare)]))

    products, _, skipped = recorded(Bare(), torch.randn(4, 8))
    assert products == {}
    assert "no layer of a known kind" in skipped["bare"]
    assert "does not reach" in skipped["unused.weight"]
    assert "packed sequence" in skipped["lstm"]


def test_a_layer_that_computes_something_else_is_named():
    class Standardized(nn.Conv2d):
        def forward(self, x):
            return self._conv_forward(x, self.weight / self.weight.std(), self.bias)

    net = nn.Sequential(pruned(Standardized(2, 3, 3)), pruned(nn.Conv2d(3, 3, 3)))
    products, _, skipped = recorded(net, torch.randn(2, 2, 8, 8))
    assert list(products) == ["1"]
    assert "computes something else" in skipped["0.weight"]

    class Own(nn.MultiheadAttention):
        def forward(self, one, two):
            return super().forward(one, two, two)

    net = nn.Sequential(pruned(nn.Linear(4, 4)))
    net.own = pruned(Own(4, 1))
    net.forward = lambda x: net.own(net[0](x), x)
    products, _, skipped = recorded(net, torch.randn(3, 4))
    assert list(products) == ["0"]
    assert skipped == {"own": "its forward has no argument 'query'"}


def test_the_network_is_left_as_it_was():
    model, tokens = everything()
    model.train()
    model.conv.eval()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    record(model, tokens, rows=4, min_sparsity=0.1)
    assert model.training
    assert not model.conv.training
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert not any(m._forward_hooks for m in model.modules())
    assert torch.backends.mha.get_fastpath_enabled()
