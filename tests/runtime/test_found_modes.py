"""What stands around a call or inside a forward: autocast, inference mode, hooks that
set weights, TorchScript.
"""

from __future__ import annotations

import contextlib
import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from against_torch import MismatchError, check, unchanged_by_compile
from torch import nn

from tersify.runtime import compile

pytest.importorskip("tersify._runtime")


def network():
    return nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.Softmax(-1)
    ).eval()


class AutocastInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.conv = nn.Linear(8, 8), nn.Conv1d(8, 4, 3)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made = self.conv(self.linear(x).mT)
        return made, made.float() @ self.linear.weight[:4, :3].mT


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_the_types_are_those_of_the_module(dtype):
    model = network()
    fast = compile(model, torch.randn(2, 8))
    for _ in range(2):  # by turns, so that neither plan is taken for the other
        check(fast, model, torch.randn(2, 8))
        with torch.autocast("cpu", dtype=dtype):
            check(fast, model, torch.randn(2, 8), bound=1e-2)
            check(fast, model, torch.randn(3, 8), bound=1e-2)
        check(fast, model, torch.randn(3, 8))


def test_a_network_compiled_under_autocast_is_right_without_it():
    model = network()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fast = compile(model, torch.randn(2, 8))
        check(fast, model, torch.randn(2, 8), bound=1e-2)
    check(fast, model, torch.randn(2, 8))


def test_autocast_inside_a_forward_is_captured():
    model = AutocastInside().eval()
    check(compile(model, torch.randn(2, 5, 8)), model, torch.randn(2, 5, 8))


@pytest.mark.parametrize(
    "mode", [torch.inference_mode, torch.enable_grad, contextlib.nullcontext]
)
def test_modes_of_gradients_change_nothing(mode):
    model = network()
    fast = compile(model, torch.randn(2, 8))
    with mode():
        check(fast, model, torch.randn(2, 8))
        check(fast, model, torch.randn(5, 8))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_weights_that_hooks_compute_anew_from_parameters_are_constants(norm):
    model = nn.Sequential(
        norm(nn.Linear(8, 8)), nn.ReLU(), norm(nn.Conv1d(8, 4, 1))
    ).eval()
    model = nn.Sequential(model[0], model[1], nn.Unflatten(1, (8, 1)), model[2]).eval()
    check(compile(model, torch.randn(2, 8)), model, torch.randn(2, 8))


def test_an_attribute_that_depends_on_the_input_is_refused_even_if_it_is_the_same_twice():
    class Remembers(nn.Module):
        last = None

        def forward(self, x):
            self.last = x.mean()
            return x * 2

    with pytest.raises(ValueError, match=r"sets self\.last at every call"):
        compile(Remembers(), torch.ones(2, 3))


class OneHot(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.classes = classes

    def forward(self, x):
        return F.one_hot(x.argmax(-1), self.classes).float()


def test_one_hot_of_a_given_number_of_classes_is_captured():
    model = OneHot(8).eval()
    fast = compile(model, torch.randn(2, 8))
    check(fast, model, torch.randn(2, 8))
    check(fast, model, torch.randn(5, 8))


def test_one_hot_of_as_many_classes_as_there_are_is_refused():
    with pytest.raises(ValueError, match="reads numbers of its input"):
        compile(OneHot(-1).eval(), torch.randn(2, 8))


@pytest.mark.parametrize(
    "script", [torch.jit.script, lambda m: torch.jit.trace(m, torch.randn(2, 8))]
)
def test_torchscript_is_refused_in_one_sentence(script):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = script(network())
    with pytest.raises(ValueError, match="compile the module that they were made from"):
        compile(model, torch.randn(2, 8))
    with pytest.raises(ValueError, match="TorchScript"):
        compile(nn.Sequential(model, nn.ReLU()), torch.randn(2, 8))


def test_a_complex_result_behind_a_kernel_is_compared_with_rounding():
    class Spectrum(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 16)
            self.layer.weight.data *= torch.rand(16, 16) < 0.1

        def forward(self, x):
            return torch.fft.rfft(self.layer(x))

    model = Spectrum().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast = compile(model, torch.randn(2, 16), strict=True)
    check(fast, model, torch.randn(2, 16))
    with pytest.raises(MismatchError):
        check(lambda x: fast(x) * 1.001, model, torch.randn(2, 16))


class Keeps(nn.Module):
    """A forward that keeps something in a container."""

    def __init__(self, kind, keep):
        super().__init__()
        self.kept = kind
        self.keep = keep

    def forward(self, x):
        self.keep(self.kept, x)
        return x * len(self.kept)


@pytest.mark.parametrize(
    ("kind", "keep"),
    [
        ([], lambda kept, x: kept.append(x)),
        ([], lambda kept, x: kept.append(1)),
        ({}, lambda kept, x: kept.update({len(kept): x.mean()})),
        ({"a": 1}, lambda kept, x: kept.update(a=kept["a"] + 1)),
        (set(), lambda kept, x: kept.add(len(kept))),
    ],
)
def test_a_container_that_grows_with_every_call_is_refused_and_left_as_it_was(
    kind, keep
):
    model = Keeps(kind, keep).eval()
    before = type(kind)(kind)
    with pytest.raises(ValueError, match=r"sets self\.kept at every call"):
        compile(model, torch.randn(2, 3))
    assert model.kept is kind
    assert model.kept == before


def test_a_table_that_is_filled_once_for_each_size_is_no_state():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = {}

        def forward(self, x):
            length = x.shape[1]
            if length not in self.tables:
                self.tables[length] = torch.arange(length) / length
            return x + self.tables[length]

    model = Positions().eval()
    fast = compile(model, torch.randn(2, 3))
    for length in (3, 5, 3, 7):
        check(fast, model, torch.randn(2, length))


def masked_encoder(**options):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.TransformerEncoder(layer, 2, **options)

        def forward(self, x, mask):
            return self.encoder(x, src_key_padding_mask=mask)

    return Encoder().eval()


PADDING = torch.tensor([[False, False, True], [False, False, False]])


@pytest.mark.parametrize("mask", [PADDING, torch.zeros_like(PADDING)])
def test_an_encoder_that_would_nest_its_padded_input_is_refused(mask):
    """Torch gives zeros at padded positions there, but only without gradients and
    without anybody who looks.
    """
    model = masked_encoder()
    with pytest.raises(ValueError, match="enable_nested_tensor=False"):
        compile(model, (torch.randn(2, 3, 8), mask))
    assert not model.encoder._forward_pre_hooks


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype.*:UserWarning")
def test_an_encoder_that_does_not_nest_takes_padding_masks():
    model = masked_encoder(enable_nested_tensor=False)
    fast = compile(model, (torch.randn(2, 3, 8), PADDING))
    for mask in (
        PADDING,
        PADDING.flip(0),
        PADDING | torch.tensor([False, True, False]),
        torch.zeros_like(PADDING),
    ):
        x = torch.randn(2, 3, 8)
        with torch.no_grad():
            assert torch.allclose(
                fast(x, mask), model(x, mask), atol=1e-5, equal_nan=True
            )


def test_a_module_that_computes_other_things_when_it_is_watched_is_refused():
    class Shy(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return x * 2 if torch.overrides.has_torch_function((x,)) else x * 3

    model = Shy().eval()
    with pytest.raises(
        ValueError, match="computes other things in a capture than without"
    ):
        compile(model, torch.randn(2, 3))
    assert model.calls == 0


@pytest.mark.parametrize("made", [torch.fx.symbolic_trace, lambda model: model])
def test_a_network_in_training_mode_is_compiled_in_eval_mode_however_it_was_made(made):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.5))
    model(torch.randn(4, 3, 9, 9))
    model = made(model).train()
    before = copy.deepcopy(model.state_dict())
    x = torch.randn(2, 3, 9, 9)
    fast = compile(model, x)
    assert unchanged_by_compile(model, before)
    assert all(part.training for part in model.modules())
    check(fast, model, x)
    check(fast, model, torch.randn(3, 3, 12, 12))


def test_an_exported_network_is_compiled_too():
    sizes = ({0: torch.export.Dim.AUTO},)
    exported = torch.export.export(
        network(), (torch.randn(3, 8),), dynamic_shapes=sizes
    )
    model = exported.module()
    fast = compile(model, torch.randn(2, 8))
    for batch in (2, 5):
        x = torch.randn(batch, 8)
        with torch.no_grad():
            assert torch.allclose(fast(x), model(x), atol=1e-6)
