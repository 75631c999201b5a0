"""`pack` and plain `save` find out what a weight is, and give back its very bits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune

import tersify
from tersify import CompressedTensor
from tersify.codec import native
from tersify.codec.detect import detect

GENERATOR = torch.Generator().manual_seed(0)
WIDE = torch.randn(96, 300, generator=GENERATOR)


def same_bits(a, b):
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    )


def bits_of(tensor):
    return tensor.to_dense() if isinstance(tensor, CompressedTensor) else tensor


def ternary(weight, below=-0.3, above=0.4):
    return torch.where(weight > 0.6, above, torch.where(weight < -0.6, below, 0.0))


def whole_steps(weight, steps, dtype=torch.float32):
    scale = (weight.abs().amax(1, keepdim=True) / steps).to(dtype)
    return (weight / scale).round().to(dtype) * scale


def shifted_steps(weight, steps=15):
    low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    scale = (high - low) / steps
    zero = (-low / scale).round()
    return ((weight / scale + zero).round().clamp(0, steps) - zero) * scale


FORMS = {  # weight, levels, whether each row has a scale, axis of a codebook of its own
    "ternary of two sizes": (ternary(WIDE), 3, False, None),
    "two levels without a zero": (torch.where(WIDE < 0, -0.7, 0.2), 2, False, None),
    "a table of 16": (
        torch.linspace(-1, 1, 16)[(WIDE.abs() * 7).long().clamp(max=15)],
        16,
        False,
        None,
    ),
    "a row's own two sizes": (
        ternary(WIDE) * WIDE.abs().amax(1, keepdim=True),
        3,
        False,
        0,
    ),
    "a column's own two sizes": (ternary(WIDE.T).T * WIDE.abs().amax(0), 3, False, 1),
    "one size a row": (
        ternary(WIDE, -1.0, 1.0) * WIDE.abs().amax(1, keepdim=True),
        3,
        True,
        None,
    ),
    "4 bits a row": (whole_steps(WIDE, 7), None, True, None),
    "8 bits a row": (whole_steps(WIDE, 127), None, True, None),
    "4 bits a row with a zero point": (shifted_steps(WIDE), None, True, None),
    "4 bits a row in bf16": (whole_steps(WIDE, 7, torch.bfloat16), None, True, None),
    "3 bits a filter": (
        whole_steps(WIDE.reshape(96, -1), 3).reshape(96, 12, 5, 5),
        None,
        True,
        None,
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_a_weight_is_found_and_its_bits_are_kept(form):
    weight, levels, scaled, axis = FORMS[form]
    found = detect(weight)
    assert isinstance(found, CompressedTensor)
    assert levels is None or found.levels == levels
    assert (found.scale is not None) == scaled
    assert found.axis == axis
    assert same_bits(found.to_dense(), weight)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64]
)
def test_zeros_become_a_mask_and_every_other_bit_is_kept(dtype):
    weight = torch.where(WIDE.abs() > 1, WIDE, 0.0).to(dtype)
    found = detect(weight)
    assert found.values is not None
    assert same_bits(found.to_dense(), weight)


@pytest.mark.parametrize(
    "weight",
    [WIDE * (WIDE.abs() > 1), ternary(WIDE) * WIDE.sign(), (WIDE * 2).round() * 0.1],
)
def test_zeros_keep_their_sign(weight):
    assert bool((weight.signbit() & (weight == 0)).any())
    assert same_bits(bits_of(detect(weight)), weight)


def test_not_a_number_is_a_value_like_others():
    weight = ternary(WIDE).clone()
    weight[3, 4], weight[5, 6] = torch.nan, torch.inf
    assert same_bits(bits_of(detect(weight)), weight)
    rows = whole_steps(WIDE, 7).clone()
    rows[0, 0] = torch.nan
    assert same_bits(bits_of(detect(rows)), rows)


@pytest.mark.parametrize(
    "weight",
    [
        WIDE,
        WIDE.bfloat16(),
        torch.ones(500),
        torch.zeros(4),
        torch.arange(900),
        WIDE.to(torch.float8_e4m3fn),
        torch.empty(0, 5),
        torch.tensor(2.0),
    ],
)
def test_what_saves_nothing_stays_dense(weight):
    assert detect(weight) is weight


@st.composite
def weights(draw):
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    shape = draw(
        st.sampled_from(
            [
                (200,),
                (7, 90),
                (40, 33),
                (6, 5, 3, 3),
                (1, 300),
                (300, 1),
                (24, 8, 2),
                (3, 64),
            ]
        )
    )
    dtype = draw(
        st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64])
    )
    levels = draw(st.sampled_from([1, 2, 3, 5, 17, 60]))
    rows = shape[0] if draw(st.booleans()) else 1
    table = torch.randn(rows, levels, generator=rng)
    if draw(st.booleans()):
        table = (table * 3).round()
    if draw(st.booleans()):
        table = table * torch.rand(rows, 1, generator=rng)
    codes = torch.randint(0, levels, shape, generator=rng)
    flat = codes.reshape(rows, -1)
    weight = table.gather(1, flat).reshape(shape).to(dtype)
    if draw(st.booleans()):
        weight = weight * (torch.rand(shape, generator=rng) < 0.4)
    if draw(st.booleans()):
        weight.reshape(-1)[0] = draw(
            st.sampled_from([-0.0, float("inf"), float("nan"), 1e-40, 65504.0])
        )
    return weight


@given(weights())
@settings(max_examples=200, deadline=None)
def test_any_weight_comes_back_bit_by_bit(weight):
    assert same_bits(bits_of(detect(weight)), weight)


@pytest.mark.parametrize("pattern", [0x7FC0, 0x7F81, 0x7FFF])
def test_nan_of_a_row_with_its_own_levels_comes_back_bit_by_bit(pattern):
    """torch's gather made 0xFFFF of every one, on a CPU that rounds to bfloat16."""
    rng = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 4, (7, 90), generator=rng)
    weight = torch.randn(7, 4, generator=rng).gather(1, codes).bfloat16()
    weight.view(torch.int16)[0, 0] = pattern
    found = detect(weight)
    assert found.axis == 0
    assert same_bits(bits_of(found), weight)


@pytest.mark.parametrize("shape", [(1, 300), (300, 1), (1, 20, 15)])
def test_one_table_wins_over_a_table_for_the_only_row_whoever_counts_the_levels(
    shape, monkeypatch
):
    """They cost the same, and a sum of logarithms in another order would decide."""
    rng = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(59, generator=rng)[torch.randint(0, 59, shape, generator=rng)]
        for _ in range(40)
    ]
    found = [detect(tensor) for tensor in tensors]
    monkeypatch.setattr(native, "extension", lambda: None)
    assert all(one.axis is None for one in found)
    assert all(
        one.equal(detect(tensor)) for one, tensor in zip(found, tensors, strict=True)
    )


@given(weights())
@settings(max_examples=40, deadline=None)
def test_levels_are_found_without_the_compiled_coders_too(weight):
    with pytest.MonkeyPatch.context() as patch:
        found = detect(weight)
        patch.setattr(native, "extension", lambda: None)
        plain = detect(weight)
    assert type(found) is type(plain)
    if isinstance(found, CompressedTensor):
        assert found.equal(plain)


def test_a_plain_save_is_as_small_as_the_codes_and_gives_the_bits_back(tmp_path):
    state = {
        "a.weight": ternary(WIDE),
        "a.bias": WIDE[:, 0].clone(),
        "b.weight": whole_steps(WIDE, 7),
    }
    dense_bytes = tersify.save({"w": WIDE}, tmp_path / "dense.terse")
    assert tersify.save(state, tmp_path / "few.terse") < dense_bytes / 4
    back = tersify.open(tmp_path / "few.terse").read().state_dict()
    assert all(same_bits(back[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize("form", FORMS)
def test_halves_are_those_of_the_dense_tensor(form, tmp_path):
    weight = FORMS[form][0].float()
    tersify.save({"w": weight}, tmp_path / "half.terse", floats="fp16")
    assert same_bits(
        bits_of(tersify.open(tmp_path / "half.terse")["w"]), weight.half().float()
    )


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(40, 40), nn.Linear(40, 40)
        self.b.weight = self.a.weight


def test_tied_weights_are_packed_once(tmp_path):
    model = Tied()
    model.a.weight.data = ternary(torch.randn(40, 40))
    packed = tersify.pack(model)
    assert packed.aliases == {"b.weight": "a.weight"}
    tersify.save(packed, tmp_path / "tied.terse")
    back = tersify.load(tmp_path / "tied.terse", into=Tied())
    assert same_bits(back.b.weight.data, model.a.weight.data)


def test_a_packed_model_keeps_what_it_knows():
    packed = tersify.CompressedModel(
        {"w": ternary(WIDE)}, aliases={"v": "w"}, recipe="x", metadata={"k": 1}
    )
    again = tersify.pack(packed)
    assert isinstance(again["v"], CompressedTensor)
    assert (again.recipe, again.metadata, again.aliases) == ("x", {"k": 1}, {"v": "w"})


def test_pack_refuses_what_holds_no_tensors():
    with pytest.raises(ValueError, match="pack takes a network or its state_dict"):
        tersify.pack([torch.ones(3)])
    with pytest.raises(
        ValueError, match="must be a CompressedTensor or a Tensor, got int"
    ):
        tersify.pack({"steps": 3})


def network():
    return nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 3))


@pytest.fixture
def masked():
    model = network()
    prune.l1_unstructured(model[0], "weight", amount=0.7)
    prune.random_unstructured(model[2], "bias", amount=1)
    return model


@pytest.mark.parametrize(
    "kept",
    [
        tersify.pack,
        lambda model: model.state_dict(),
        lambda m: tersify.pack(m.state_dict()),
    ],
)
def test_a_network_that_torch_prunes_is_saved_and_loads_with_masks_and_without(
    masked, kept, tmp_path
):
    x = torch.randn(5, 30)
    tersify.save(kept(masked), tmp_path / "masked.terse")
    plain = tersify.load(tmp_path / "masked.terse", into=network())
    assert torch.equal(plain(x), masked(x))
    also = network()
    prune.identity(also[0], "weight")
    prune.identity(also[2], "bias")
    loaded = tersify.load(tmp_path / "masked.terse", into=also)
    assert torch.equal(loaded[0].weight, masked[0].weight)  # before it has run
    assert torch.equal(loaded(x), masked(x))
    assert torch.equal(loaded[0].weight_mask, masked[0].weight_mask)
    prune.remove(loaded[0], "weight")
    assert torch.equal(loaded(x), masked(x))


def test_packing_masks_stores_only_what_the_network_uses(masked, tmp_path):
    packed = tersify.pack(masked)
    assert set(packed) == set(network().state_dict())
    assert packed["0.weight"].values.numel() == 360
    whole = tersify.save(masked.state_dict(), tmp_path / "whole.terse")
    assert tersify.save(packed, tmp_path / "packed.terse") < whole


def test_the_error_of_half_a_pair_names_the_remedy(masked, tmp_path):
    state = masked.state_dict()
    del state["0.weight_mask"]
    tersify.save(state, tmp_path / "half.terse")
    with pytest.raises(ValueError, match="merge_torch_masks"):
        tersify.load(tmp_path / "half.terse", into=network())


def test_a_network_in_a_session_and_its_checkpoint_are_packed_as_the_network_uses_them():
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 4))
    session = tersify.attach(model, "twn")
    session.step()
    wanted = session.pack().state_dict()
    for source in (model.eval(), model.state_dict()):
        packed = tersify.pack(source)
        assert packed.keys() == wanted.keys()
        assert packed["0.weight"].levels == 3
        assert all(torch.equal(packed.state_dict()[n], wanted[n]) for n in wanted)
