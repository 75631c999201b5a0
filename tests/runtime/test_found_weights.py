"""The weights that run are the weights the module holds, whatever was loaded into it
before.
"""

from __future__ import annotations

import copy
import io
import zipfile
from pathlib import Path

import pytest
import torch
from against_torch import check, unchanged_by_compile
from torch import nn

import tersify
from tersify.runtime import compile

pytest.importorskip("tersify._runtime")

RECIPES = Path(__file__).parents[2] / "recipes"
POST_TRAINING = ("lut-4", "fixed-8", "uniform-8", "twn")


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 36, 24),
        nn.ReLU(),
        nn.Linear(24, 5),
    ).eval()


@pytest.fixture(params=POST_TRAINING)
def loaded(request, tmp_path) -> nn.Sequential:
    """A network as `tersify.load` gives it."""
    packed = tersify.compress_(network(), str(RECIPES / f"{request.param}.toml"))
    tersify.save(packed, tmp_path / "net.terse")
    return tersify.load(tmp_path / "net.terse", into=network())


def images(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, 6, 6)


def fine_tune_(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(3):
        loss = model(images(8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def edit_in_place_(model: nn.Module) -> None:
    with torch.no_grad():
        model[3].weight.mul_(-1.5)


def edit_by_data_(model: nn.Module) -> None:
    model[0].weight.data = torch.randn_like(model[0].weight)


def edit_one_weight_(model: nn.Module) -> None:
    with torch.no_grad():
        model[5].weight[2, 3] = 7.0


def replace_a_layer_(model: nn.Module) -> None:
    model[3] = nn.Linear(16 * 36, 24)


EDITS = {
    "fine_tuned": fine_tune_,
    "state_dict_loaded": lambda model: model.load_state_dict(network().state_dict()),
    "in_place": edit_in_place_,
    "by_data": edit_by_data_,
    "one_weight": edit_one_weight_,
    "layer_replaced": replace_a_layer_,
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_loaded_network_runs_the_weights_it_has_after_an_edit(loaded, edit):
    compile(loaded, images())
    EDITS[edit](loaded)
    fast = compile(loaded, images())
    for batch in (2, 1, 5):
        assert check(fast, loaded, images(batch)) <= 2e-5


def test_a_loaded_network_is_right_before_any_edit(loaded):
    assert check(compile(loaded, images()), loaded, images(5)) <= 2e-5


def test_a_parametrized_weight_runs_as_the_module_computes_it(loaded):
    nn.utils.parametrizations.weight_norm(loaded[3])
    assert check(compile(loaded, images()), loaded, images(3)) <= 2e-5


class Wrapper(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


WRAPPINGS = {
    "wrapper": Wrapper,
    "sequential": nn.Sequential,
    "deepcopy": copy.deepcopy,
    "two_wrappers": lambda model: Wrapper(nn.Sequential(model)),
    "copy_of_a_wrapper": lambda model: copy.deepcopy(Wrapper(model)),
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_wrappers_and_copies_keep_the_packed_form(loaded, wrapping):
    plain = compile(loaded, images())
    wrapped = WRAPPINGS[wrapping](loaded)
    fast = compile(wrapped, images())
    assert fast.weight_bytes() == plain.weight_bytes()
    assert check(fast, wrapped, images(3)) <= 2e-5


@pytest.mark.usefixtures("kernels_win")
def test_parts_of_a_loaded_network_keep_the_packed_form(loaded):
    front, back = loaded[:3], loaded[3:]
    features = torch.randn(2, 16 * 36)
    parts = [compile(front, images()), compile(back, features)]
    assert (
        sum(part.weight_bytes() for part in parts)
        == compile(loaded, images()).weight_bytes()
    )
    assert check(parts[1], back, torch.randn(5, 16 * 36)) <= 2e-5


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_wrapped_network_runs_the_weights_it_has_after_an_edit(loaded, wrapping):
    wrapped = WRAPPINGS[wrapping](loaded)
    with torch.no_grad():
        for parameter in wrapped.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    assert check(compile(wrapped, images()), wrapped, images(3)) <= 2e-5


def saved(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def test_torch_save_of_a_loaded_network_holds_none_of_our_classes_and_is_no_larger(
    loaded,
):
    plain = network()
    plain.load_state_dict(loaded.state_dict())
    stored = saved(loaded)
    with zipfile.ZipFile(io.BytesIO(stored)) as archive:
        pickled = b"".join(
            archive.read(name) for name in archive.namelist() if name.endswith(".pkl")
        )
    assert b"tersify" not in pickled
    assert len(stored) <= 1.01 * len(saved(plain))
    assert len(saved(loaded.state_dict())) <= 1.01 * len(saved(plain.state_dict()))


def test_compile_leaves_the_weights_of_a_loaded_network_alone(loaded):
    before = copy.deepcopy(loaded.state_dict())
    compile(loaded, images())
    assert unchanged_by_compile(loaded, before)


def test_a_new_size_after_an_edit_asks_to_compile_again():
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU())
    fast = compile(model, torch.randn(2, 2, 9))
    with torch.no_grad():
        model[0].weight.mul_(2)
    with pytest.raises(ValueError, match="compile again"):
        fast(torch.randn(2, 2, 12))


@pytest.mark.filterwarnings("ignore:precision='int8' changes nothing")
@pytest.mark.parametrize("precision", ["fp32", "int8", "auto"])
def test_tied_weights_edited_through_one_name_run_edited_under_both(precision):
    model = nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 12))
    model[2].weight = model[0].weight
    x = torch.randn(4, 12)
    compile(model, x, precision=precision)
    with torch.no_grad():
        model[2].weight.neg_()
    assert check(compile(model, x), model, torch.randn(3, 12)) <= 2e-5


def doubled_in_place(model):
    with torch.no_grad():
        model[0].weight.mul_(2)


def loaded_anew(model):
    model.load_state_dict({name: 2 * x for name, x in model.state_dict().items()})


def trained(model):
    model(torch.ones(2, 2, 9)).square().sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()


@pytest.mark.parametrize("edit", [doubled_in_place, loaded_anew, trained])
@pytest.mark.parametrize("behind", [nn.ReLU(), nn.Softmin(dim=-1)])
def test_a_call_of_a_known_size_after_an_edit_asks_to_compile_again(edit, behind):
    model = nn.Sequential(nn.Conv1d(2, 4, 3), behind)
    x = torch.randn(2, 2, 9)
    fast = compile(model, x)
    fast(x)
    edit(model)
    with pytest.raises(ValueError, match="changed after the network was compiled"):
        fast(x)
    seen = []
    fast.register_forward_hook(lambda *_: seen.append(1))
    for call in (lambda: fast(x), lambda: fast(input=x), lambda: fast.run_flat([x])):
        with pytest.raises(ValueError, match="compile again"):
            call()
    assert not seen


def test_a_write_of_the_same_numbers_is_no_edit():
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4)).eval()
    x = torch.randn(2, 2, 9)
    fast = compile(model, x)
    wanted = fast(x)
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    assert torch.equal(fast(x), wanted)
    with torch.no_grad():
        model[1].running_mean += 1
    with pytest.raises(ValueError, match=r"'1\.running_mean' was changed"):
        fast(x)


def test_weights_of_inference_mode_count_no_writes_and_are_taken():
    with torch.inference_mode():
        model = nn.Linear(4, 3).eval()
        fast = compile(model, torch.randn(2, 4))
        x = torch.randn(2, 4)
        assert torch.allclose(fast(x), model(x), atol=1e-6)
