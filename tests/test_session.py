"""Sessions in anybody's training loop."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

import tersify
from method_zoo import make, recipe_of
from tersify import CompressedTensor, Recipe, Rule
from tersify.methods import (
    BitNet,
    KMeans,
    Lookup,
    Prune,
    Ternary,
    TernaryWeightNetwork,
    Uniform,
)


def test_tied_weights_share_one_latent_and_one_code():
    model, x = make("tied")
    session = tersify.attach(model, recipe_of((Ternary(spread=0.2),)))
    assert [site.name for site in session.sites] == ["embed.weight"]
    packed = session.pack()
    assert packed.aliases == {"head.weight": "embed.weight"}
    assert packed["head.weight"] is packed["embed.weight"]
    model(x).sum().backward()
    assert torch.equal(model.embed.weight, model.head.weight)
    session.bake_()
    assert model.embed.weight is model.head.weight


def test_a_module_used_under_two_names_is_packed_once():
    layer = nn.Linear(4, 4)
    model = nn.ModuleDict({"a": layer, "b": layer})
    packed = tersify.attach(model, recipe_of((BitNet(),))).pack()
    assert list(packed.compressed()) == ["a.weight"]
    assert packed.aliases == {"b.weight": "a.weight", "b.bias": "a.bias"}


def test_recurrent_layers_really_use_the_transformed_weights():
    model, x = make("lstm")
    before = model(x)
    session = tersify.attach(
        model, recipe_of((Ternary(delta0=0.9, floor=0.0),), weights="rnn.*")
    )
    assert not torch.equal(model(x), before)  # every weight of the LSTM is zero now
    assert torch.equal(model(x), model(torch.zeros_like(x)))
    copied = copy.deepcopy(model)
    assert torch.equal(copied(x), model(x))
    session.bake_()
    assert torch.equal(copied(x), model(x))


def test_pack_is_a_snapshot():
    model, _ = make("linear")
    session = tersify.attach(model, recipe_of((BitNet(),)))
    packed = session.pack()
    before = packed["0.bias"].clone()
    with torch.no_grad():
        model[0].bias.add_(1)
        session.sites[0].latent.mul_(-1)
    assert torch.equal(packed["0.bias"], before)


def test_compress_changes_the_model_in_place_and_needs_no_training():
    model, _ = make("conv2d")
    packed = tersify.compress_(model, recipe_of((TernaryWeightNetwork(),)))
    assert "0.weight" in dict(model.named_parameters())
    assert torch.equal(model[0].weight, packed["0.weight"].to_dense())
    assert len(model[0].weight.unique()) == 3


def test_compress_reaches_the_final_value_of_a_schedule():
    model = nn.Linear(100, 100)
    tersify.compress_(model, recipe_of((Prune(sparsity=0.9),)))
    assert (model.weight == 0).float().mean().item() == pytest.approx(0.9)


def test_loading_into_another_network_names_what_differs(tmp_path):
    model, _ = make("linear")
    tersify.save(tersify.compress_(model, recipe_of((BitNet(),))), tmp_path / "x.terse")
    with pytest.raises(ValueError, match="name different tensors: missing in the file"):
        tersify.load(tmp_path / "x.terse", into=make("conv2d")[0])
    with pytest.raises(
        ValueError,
        match=r"'0.weight' has shape \(16, 8\) in the file, \(15, 8\) in the module",
    ):
        tersify.load(
            tmp_path / "x.terse",
            into=nn.Sequential(nn.Linear(8, 15), nn.ReLU(), nn.Linear(15, 3)),
        )


def test_a_loaded_network_can_be_copied(tmp_path):
    model, x = make("linear")
    tersify.save(
        tersify.compress_(model, recipe_of((Uniform(bits=4),))), tmp_path / "x.terse"
    )
    loaded = tersify.load(tmp_path / "x.terse", into=make("linear", seed=1)[0])
    assert torch.equal(copy.deepcopy(loaded)(x), model(x))


def test_a_regime_that_is_a_python_function_trains_packs_and_resumes():
    def steps(epoch: float) -> float:
        return float(epoch > 2)

    recipe = recipe_of((Ternary(regime=steps, spread=0.2),))
    session = tersify.attach(make("linear")[0], recipe, epochs=3, steps_per_epoch=1)
    session.step()
    assert "steps" in session.pack().recipe
    tersify.attach(
        make("linear")[0], recipe, epochs=3, steps_per_epoch=1
    ).load_state_dict(session.state_dict())


def test_a_plain_network_after_bake_has_no_hooks_and_no_penalty():
    model, x = make("lstm")
    for _ in range(2):
        session = tersify.attach(model, recipe_of((BitNet(),)))
        session.bake_()
    assert session.penalty() == 0
    assert not model.rnn._forward_hooks
    assert not model.rnn._forward_pre_hooks
    model(x)


def test_loading_into_another_dtype_is_refused(tmp_path):
    model, _ = make("linear")
    tersify.save(tersify.compress_(model, recipe_of((BitNet(),))), tmp_path / "x.terse")
    with pytest.raises(
        ValueError,
        match=r"'0.weight' is torch.float32 in the file, torch.bfloat16 in the module",
    ):
        tersify.load(tmp_path / "x.terse", into=make("linear")[0].bfloat16())


def test_a_second_session_on_the_same_weights_is_refused():
    model, _ = make("linear")
    tersify.attach(model, recipe_of((BitNet(),)))
    with pytest.raises(
        ValueError,
        match=r"belongs to a session already; end that one with session.bake_\(\)",
    ):
        tersify.attach(model, recipe_of((BitNet(),)))


@pytest.mark.parametrize("settings", [{"epochs": 0}, {"steps_per_epoch": 0}])
def test_a_run_of_no_length_is_refused(settings):
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        tersify.attach(make("linear")[0], recipe_of((BitNet(),)), **settings)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name_and_left_as_they_are(value):
    model, _ = make("linear")
    model[2].weight.data[0, 0] = value
    with pytest.raises(ValueError, match=r"'2\.weight' holds NaN or infinite weights"):
        tersify.compress_(model, "twn")
    assert not nn.utils.parametrize.is_parametrized(model[0])
    tersify.compress_(
        model, Recipe(rules=[Rule(weights="0.*", methods=[TernaryWeightNetwork()])])
    )


def test_what_is_no_network_no_recipe_and_no_checkpoint_is_named():
    with pytest.raises(ValueError, match=r"bound to a torch\.nn\.Module, got a type"):
        tersify.attach(nn.ReLU, "twn")
    with pytest.raises(
        ValueError, match="the name of a ready one or a Recipe, got a dict"
    ):
        tersify.attach(make("linear")[0], {"rules": []})
    with pytest.raises(
        ValueError,
        match="the checkpoint lacks epochs, recipe, shared, steps_done, steps_per_epoch",
    ):
        tersify.attach(make("linear")[0], "twn").load_state_dict({})


@pytest.mark.parametrize(
    ("calibration", "message"),
    [
        (
            torch.randn(4, 6),
            r"pairs \(inputs, targets\), got a Tensor; write \[\(inputs, targets\), …\]",
        ),
        ([(torch.randn(4, 6),)], r"pairs \(inputs, targets\), got 1 values"),
        ([(torch.randn(4, 6), None)], "cross-entropy needs targets; give pairs"),
        ([], "calibration holds no batch"),
    ],
)
def test_calibration_that_is_no_pairs_is_refused(calibration, message):
    with pytest.raises(ValueError, match=message):
        tersify.compress_(nn.Linear(6, 8), "lut-4-sensitivity", calibration=calibration)


def test_a_checkpoint_of_a_longer_run_is_refused():
    states = [
        tersify.attach(make("linear")[0], recipe_of((BitNet(),)), epochs=n)
        for n in (3, 4)
    ]
    with pytest.raises(ValueError, match="made with epochs=3, this run has 4"):
        states[1].load_state_dict(states[0].state_dict())


def test_user_model_with_other_parametrizations_keeps_them():
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 2)
    )
    packed = tersify.attach(
        model, Recipe(rules=[Rule(weights="1.*", methods=[BitNet()])])
    ).pack()
    assert isinstance(packed["1.weight"], CompressedTensor)
    assert "0.parametrizations.weight.original0" in packed


def test_a_program_that_only_opens_files_never_imports_the_training_half():
    code = "import sys, tersify; tersify.open; print(sorted(m for m in sys.modules if m.startswith('tersify.')))"
    names = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "tersify.codec" in names
    assert not any(half in names for half in ("methods", "session", "recipe", "lab"))


def test_the_public_names_are_these():
    assert sorted(tersify.__all__) == [
        "Collection",
        "CompressedModel",
        "CompressedTensor",
        "Method",
        "Recipe",
        "Rule",
        "Session",
        "TerseFileError",
        "Transform",
        "attach",
        "collect",
        "compile",
        "compress_",
        "load",
        "open",
        "pack",
        "register",
        "save",
        "shrink",
    ]
    assert all(hasattr(tersify, name) for name in tersify.__all__)


# a rule that changes latents, then one that refuses its weight at that moment
REFUSED = {
    "attach": [
        Rule(weights="0.weight", methods=[Ternary(spread=0.2)]),
        Rule(weights="2.*", methods=[Lookup(n=8)]),
    ],
    "end": [
        Rule(weights="0.weight", methods=[Ternary(spread=0.2)]),
        Rule(methods=[Prune(score="movement")]),
    ],
}


@pytest.mark.parametrize("moment", REFUSED)
def test_a_refused_compression_leaves_the_network_as_it_was(moment):
    model, _ = make("linear")
    with torch.no_grad():
        # beyond the interval that ternary latents are clipped to
        model[0].weight.mul_(40)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"weights for a table|comes from training"):
        tersify.compress_(model, Recipe(rules=REFUSED[moment]))
    assert model.state_dict().keys() == before.keys()
    assert all(
        torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()
    )
    tersify.compress_(model, recipe_of((BitNet(),)))


def test_an_attach_that_is_interrupted_leaves_the_network_as_it_was(monkeypatch):
    model, _ = make("linear")
    before = copy.deepcopy(model.state_dict())

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(KMeans, "transform", interrupted)
    rules = [
        Rule(weights="0.weight", methods=[Ternary(spread=0.2)]),
        Rule(methods=[KMeans()]),
    ]
    with pytest.raises(KeyboardInterrupt):
        tersify.attach(model, Recipe(rules=rules), steps=10)
    assert model.state_dict().keys() == before.keys()
    assert all(
        torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()
    )


def test_a_state_that_is_no_tensor_stays_out_of_the_packed_model():
    class Counting(nn.Linear):
        def get_extra_state(self):
            return {"calls": 3}

        def set_extra_state(self, state):
            pass

    model = Counting(4, 4)
    assert [*tersify.attach(model, recipe_of((BitNet(),))).pack()] == ["weight", "bias"]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_penalty_of_nothing_is_where_the_network_is(device):
    model = nn.Linear(4, 4, device=device)
    session = tersify.attach(model, recipe_of((Ternary(),)), steps=2)
    assert session.penalty().device.type == device
