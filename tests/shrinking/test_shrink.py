import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tersify
from tersify.lab import resolve_target
from tersify.modes import without_tf32
from tersify.units import find_units
from tersify.units.attention import HeadAttention
from unit_nets import NETS, make


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def worst(a: Tensor, b: Tensor) -> float:
    return ((a - b).abs().max() / a.abs().max().clamp(min=1e-6)).item()


@torch.no_grad()
def shrunk(model: nn.Module, x: Tensor) -> nn.Module:
    """Shrink, and see that the outputs are the same, on another batch too."""
    small = tersify.shrink(model, x)
    for batch in (x, torch.randn_like(x[:1])):
        assert worst(model.eval()(batch), small.eval()(batch)) <= 1e-5
    return small


@pytest.mark.parametrize("name", NETS)
def test_silent_units_go_and_the_outputs_stay(name: str) -> None:
    model, x = make(name)
    groups = find_units(model, x)
    for group in groups:
        # Every second unit, so that no layer loses all.
        group.silence_(model, torch.arange(group.size) % 2 == 1)
    small = shrunk(model, x)
    tensors = dict(small.named_parameters())
    for group in groups:
        for member in group.producers:
            if member.name in tensors:
                lost = int((member.unit % 2 == 1).sum())
                assert tensors[member.name].shape[member.dim] == len(member.unit) - lost
    assert parameters(small) < 0.75 * parameters(model)


@pytest.mark.parametrize("name", NETS)
@settings(max_examples=2)
@given(seed=st.integers(0, 2**16), fraction=st.sampled_from([0.2, 0.6, 0.9]))
def test_any_zeroed_rows_give_the_same_outputs(
    name: str, seed: int, fraction: float
) -> None:
    """Each layer on its own, so that in additions some units die on one side only."""
    model, x = make(name, seed % 97)
    torch.manual_seed(seed)
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, nn.Parameter):
            rows = (
                weight.data.transpose(0, 1)
                if isinstance(module, nn.ConvTranspose2d)
                else weight.data
            )
            dead = torch.rand(len(rows)) < fraction
            rows[dead] = 0
            if module.bias is not None and torch.rand(()) < 0.7:
                module.bias.data[dead] = 0
    assert parameters(shrunk(model, x)) <= parameters(model)


def test_whole_attention_beside_a_layer_that_scatters_does_not_take_torchs_fast_path() -> (
    None
):
    model, x = make("encoder")
    layer = model[1]
    # Rows of linear2 meet the residual, whose other side still has them.
    layer.linear2.weight.data[:4] = layer.linear2.bias.data[:4] = 0
    small = shrunk(model, x)
    assert small[1].linear2.weight.shape == (12, 24)


def test_units_that_meet_in_an_addition_go_only_together() -> None:
    model, x = make("resnet18")
    block = model.layer2[0]
    for norm in (block.bn2, block.downsample[1]):
        norm.weight.data[:4] = norm.bias.data[:4] = 0
    model.layer2[1].bn2.weight.data[2:6] = model.layer2[1].bn2.bias.data[2:6] = 0
    # Channels 2 and 3 die in all three layers of the stream.
    assert shrunk(model, x).layer3[0].conv1.in_channels == 14


def test_a_layer_that_died_alone_computes_less_and_puts_zeros_where_the_addition_wants_them(
    tmp_path: Path,
) -> None:
    model, x = make("resnet20")
    norm = model.layer2[0].bn2
    norm.weight.data[3:] = norm.bias.data[3:] = 0
    small = shrunk(model, x)
    assert small.layer2[0].conv2.weight.shape[0] == len(small.layer2[0].bn2.weight) == 3
    assert small.layer2[0].bn2.source.tolist() == [0, 1, 2] + [3] * (
        len(norm.weight) - 3
    )
    tersify.save(small.state_dict(), tmp_path / "small.terse")
    back = tersify.load(tmp_path / "small.terse", into=copy.deepcopy(small))
    assert torch.equal(back(x), small(x))
    # It can be trained on, and shrinks no further.
    small.train()(x).sum().backward()
    assert all(p.grad is not None for p in small.parameters())
    assert parameters(tersify.shrink(small.eval(), x)) == parameters(small)


def test_a_constant_goes_into_the_next_bias_where_no_padding_sees_it() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    plain[0].weight.data[:2] = 0
    plain[0].bias.data[:2] = 1.5
    small = shrunk(plain, torch.randn(5, 4))
    assert small[0].out_features == small[2].in_features == 4
    assert not torch.equal(small[2].bias, plain[2].bias)


@pytest.mark.parametrize(
    ("padding", "bias", "left"), [(0, True, 4), (1, True, 6), (0, False, 6)]
)
def test_a_constant_stays_where_padding_or_a_missing_bias_would_lose_it(
    padding: int, bias: bool, left: int
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 4, 3, padding=padding, bias=bias),
    ).eval()
    model[1].weight.data[:2] = 0
    model[1].bias.data[:2] = 0.7
    assert shrunk(model, torch.randn(2, 3, 8, 8))[0].out_channels == left


def test_what_nobody_reads_goes_and_so_does_what_only_that_read() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)
    )
    model[4].weight.data[:, :3] = 0  # nobody reads the first three
    model[2].weight.data[3:, :5] = 0  # and they alone read these five
    small = shrunk(model, torch.randn(5, 4))
    assert [small[i].out_features for i in (0, 2)] == [3, 3]


def test_a_layer_that_loses_all_its_units_keeps_one() -> None:
    model, x = make("resnet18")
    model.layer1[0].bn1.weight.data.zero_()
    model.layer1[0].bn1.bias.data.zero_()
    small = shrunk(model, x)
    assert (
        small.layer1[0].conv1.weight.shape[0] == small.layer1[0].conv2.in_channels == 1
    )


def test_nothing_dead_means_nothing_changes() -> None:
    model, x = make("encoder")
    small = shrunk(model, x)
    assert isinstance(small[1].self_attn, nn.MultiheadAttention)
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            model.state_dict().values(), small.state_dict().values(), strict=True
        )
    )


def test_dead_heads_leave_packed_attention() -> None:
    model, x = make("encoder")
    heads = next(g for g in find_units(model, x) if g.kind == "head")
    heads.silence_(model, torch.tensor([True, False, True, True]))
    attention = shrunk(model, x)[1].self_attn
    assert isinstance(attention, HeadAttention)
    assert attention.q_proj.out_features == attention.out_proj.in_features == 4


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_split_attention_computes_what_packed_attention_does(
    batch_first: bool, bias: bool
) -> None:
    packed = nn.MultiheadAttention(12, 3, bias=bias, batch_first=batch_first).eval()
    split = HeadAttention(packed)
    q, kv = (torch.randn((2, n, 12) if batch_first else (n, 2, 12)) for n in (4, 5))
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    for masks in (
        {},
        {"key_padding_mask": padding, "attn_mask": torch.ones(4, 5).triu(2) > 0},
        {"attn_mask": torch.randn(4, 5)},
    ):
        for average in (True, False):
            a, b = (
                m(q, kv, kv, average_attn_weights=average, **masks)
                for m in (packed, split)
            )
            assert torch.allclose(a[0], b[0], atol=1e-6)
            assert torch.allclose(a[1], b[1], atol=1e-6)
    assert torch.allclose(
        packed(q[0], q[0], q[0])[0], split(q[0], q[0], q[0])[0], atol=1e-6
    )
    merged = split.merged(packed)
    assert all(
        torch.equal(t, merged.state_dict()[name])
        for name, t in packed.state_dict().items()
    )


def test_a_mask_per_head_is_refused_by_split_attention() -> None:
    split = HeadAttention(nn.MultiheadAttention(12, 3, batch_first=True))
    x = torch.randn(2, 4, 12)
    with pytest.raises(
        ValueError, match=r"attn_mask has 3 dimensions; .*one mask \(L, S\) for all"
    ):
        split(x, x, x, attn_mask=torch.zeros(6, 4, 4))


def test_a_real_encoder_loses_heads_and_neurons(minilm: Path) -> None:
    model = resolve_target(f"hf:{minilm}").eval()
    tokens = torch.randint(1, 999, (2, 7))
    for group in find_units(model, tokens):
        if group.kind == "head":
            group.silence_(model, torch.arange(12) % 3 == 0)
        elif group.size == 1536:
            group.silence_(model, torch.arange(1536) % 2 == 0)
    small = tersify.shrink(model, tokens)
    layer = small.model.bert.encoder.layer[3]
    assert layer.attention.self.query.out_features == 8 * 32
    assert layer.output.dense.in_features == 768
    other = torch.randint(1, 999, (3, 11))
    other[0, 6:] = 0
    with torch.inference_mode():
        assert worst(model(other), small(other)) <= 1e-5


def test_a_shrunk_network_saves_and_comes_back(tmp_path: Path) -> None:
    model, x = make("vgg16")
    for group in find_units(model, x):
        group.silence_(model, torch.arange(group.size) % 2 == 0)
    small = shrunk(model, x)
    tersify.save(model.state_dict(), tmp_path / "masked.terse")
    tersify.save(small.state_dict(), tmp_path / "small.terse")
    back = tersify.load(tmp_path / "small.terse", into=copy.deepcopy(small))
    assert torch.equal(back(x), small(x))
    again = tersify.shrink(
        tersify.load(tmp_path / "masked.terse", into=make("vgg16")[0]), x
    )
    assert all(
        torch.equal(t, small.state_dict()[name])
        for name, t in again.state_dict().items()
    )


def test_the_model_given_keeps_its_weights_and_both_keep_their_modes() -> None:
    model, x = make("digits-cnn")
    model.features[1].weight.data[:3] = model.features[1].bias.data[:3] = 0
    model.features[0].weight.requires_grad_(False)
    model.train()
    model.features[1].eval()
    before = copy.deepcopy(model.state_dict())
    small = tersify.shrink(model, x)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert [m.training for m in small.modules()] == [
        m.training for m in model.modules()
    ]
    assert not small.features[0].weight.requires_grad
    assert small.features[3].weight.requires_grad
    assert small.features[0].out_channels == 5


def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(11, 6)
            self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)
            self.head = nn.Linear(6, 11, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.down(torch.relu(self.up(self.embed(tokens)))))

    torch.manual_seed(0)
    model, tokens = Tied(), torch.randint(0, 11, (2, 3))
    model.embed.weight.data[:, 1] = 0
    model.down.weight.data[1] = model.down.bias.data[1] = 0
    with torch.no_grad():
        small = tersify.shrink(model, tokens)
        assert worst(model(tokens), small(tokens)) <= 1e-5
    assert small.head.weight is small.embed.weight


def test_a_shared_layer_keeps_a_constant_it_reads_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 6), nn.Linear(4, 6)
            self.shared = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.shared(self.first(x)) + self.shared(self.second(x).tanh())

    torch.manual_seed(0)
    model = Twice()
    for layer in (model.first, model.second):
        layer.weight.data[:2] = 0
    assert shrunk(model, torch.randn(2, 4)).shared.in_features == 6


def test_a_convolution_right_before_a_transposed_one_is_not_taken_for_its_branch() -> (
    None
):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.ConvTranspose2d(6, 4, 2, bias=False),
        nn.LayerNorm([4, 7, 7]),
    )
    model[1].weight.data[:, :2] = 0
    shrunk(model, torch.randn(2, 3, 8, 8))


def test_a_model_that_cannot_be_traced_is_refused() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(ValueError, match="Branching cannot be traced"):
        tersify.shrink(Branching(), torch.rand(2))


def silent_in(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)
    ).to(dtype)
    for layer in (model[0], model[2]):
        layer.weight.data[::2], layer.bias.data[::2] = 0, 0
    return model


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_shrinks_with_the_rounding_it_has(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = silent_in(dtype), torch.randn(4, 64, dtype=dtype)
    compute = nn.Linear.forward

    # as libraries do when a layer has another size
    def rounded_otherwise(self: nn.Linear, x: Tensor) -> Tensor:
        out = compute(self, x)
        return (
            out * (1 + 2 * torch.finfo(dtype).eps) if self.in_features == 128 else out
        )

    monkeypatch.setattr(nn.Linear, "forward", rounded_otherwise)
    assert parameters(tersify.shrink(model, x)) < 0.5 * parameters(model)


def test_a_network_whose_outputs_cannot_be_compared_is_refused() -> None:
    model = silent_in(torch.float32)
    model[4].bias.data[0] = float("nan")
    with pytest.raises(ValueError, match="Sequential gives NaN for the example"):
        tersify.shrink(model, torch.randn(4, 64))


def test_infinite_outputs_stay_infinite() -> None:
    model = silent_in(torch.float32)
    model[4].bias.data[0] = float("-inf")  # as where a class is ruled out
    assert parameters(tersify.shrink(model, torch.randn(4, 64))) < 0.5 * parameters(
        model
    )


def test_a_network_that_gives_something_else_each_time_is_refused() -> None:
    class Noisy(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + torch.randn(x.shape))

    with pytest.raises(
        ValueError,
        match=r"the shrunk Noisy differs from the large one by [0-9.e+-]+ of the largest",
    ):
        tersify.shrink(Noisy(*silent_in(torch.float32)), torch.randn(4, 64))


def test_outputs_are_compared_without_tf32_and_the_users_choice_comes_back() -> None:
    before = tf32_choice()
    with without_tf32():
        assert "tf32" not in tf32_choice()
    assert tf32_choice() == before


def tf32_choice() -> list[object]:
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        return [
            part.fp32_precision
            for part in (torch.backends.cuda.matmul, torch.backends.cudnn.conv)
        ]
    return [
        "tf32" if allowed else "ieee"
        for allowed in (
            torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cudnn.allow_tf32,
        )
    ]
