import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import tersify
from tersify.lab import network
from tersify.lab.trainer import load_network, load_weights
from tersify.tensor import CompressedModel


def half_width():
    return network("digits-cnn", width=0.5)


def same(a, b):
    return all(
        torch.equal(t, b.state_dict()[name]) for name, t in a.state_dict().items()
    )


def test_weights_come_from_safetensors_and_torch_files(tmp_path):
    source = half_width()
    save_file(source.state_dict(), tmp_path / "net.safetensors")
    torch.save({"state_dict": source.state_dict(), "epoch": 3}, tmp_path / "net.pt")
    for name in ("net.safetensors", "net.pt"):
        assert same(source, load_weights(half_width(), tmp_path / name))


def test_a_checkpoint_without_batch_counters_is_taken(tmp_path):
    source = half_width()
    state = {
        k: v
        for k, v in source.state_dict().items()
        if not k.endswith("num_batches_tracked")
    }
    save_file(state, tmp_path / "old.safetensors")
    loaded = load_weights(half_width(), tmp_path / "old.safetensors")
    assert torch.equal(
        loaded.state_dict()["features.0.weight"],
        source.state_dict()["features.0.weight"],
    )


def test_the_pretrained_resnet_20_fits_by_name(shared):
    load_weights(
        network("resnet20"), shared / "weights" / "cifar10_resnet20.safetensors"
    )
    with pytest.raises(ValueError, match=r"missing in the file 'layer1\.3"):
        load_weights(
            network("resnet32"), shared / "weights" / "cifar10_resnet20.safetensors"
        )


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x04\x95"])
@pytest.mark.parametrize("name", ["net.pt", "net.safetensors", "net.terse"])
def test_a_file_without_weights_is_refused_in_one_sentence(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"."):
        load_weights(half_width(), tmp_path / name)


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save({"weight": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(ValueError, match="holds no plain weights"):
        load_weights(half_width(), tmp_path / "evil.pt")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "options",
    [
        [1],
        {"name": "x"},
        {"activation": ["x"]},
        {"inflate": 100_000},
        {"inflate": 10**40},
    ],
)
def test_options_in_a_file_from_elsewhere_are_not_believed(options, tmp_path):
    metadata = {"target": {"name": "resnet20-star", "options": options}}
    tersify.save(
        CompressedModel({"w": torch.zeros(2)}, metadata=metadata),
        tmp_path / "net.terse",
    )
    with pytest.raises(ValueError, match=r"net\.terse .*--target"):
        load_network(tmp_path / "net.terse")


def test_weights_under_names_that_are_no_text_are_refused(tmp_path):
    torch.save({"a": torch.zeros(1), 1: torch.zeros(1)}, tmp_path / "mixed.pt")
    with pytest.raises(ValueError, match="holds no state dict"):
        load_weights(half_width(), tmp_path / "mixed.pt")


def test_weights_that_are_no_numbers_are_named(tmp_path):
    state = half_width().state_dict()
    state["features.0.weight"][0] = float("nan")
    save_file(state, tmp_path / "nan.safetensors")
    with pytest.raises(
        ValueError, match=r"nan\.safetensors holds NaN in 'features\.0\.weight'"
    ):
        load_weights(half_width(), tmp_path / "nan.safetensors")


def test_options_without_a_target_are_not_ignored(tmp_path):
    with pytest.raises(ValueError, match="--option width belongs to --target"):
        load_network(tmp_path / "net.terse", options={"width": 3})


def test_a_checkpoint_of_torchs_own_pruning_is_read_with_its_masks(tmp_path):
    from torch.nn.utils import prune

    theirs = nn.Linear(4, 4)
    prune.l1_unstructured(theirs, "weight", amount=0.5)
    torch.save(theirs.state_dict(), tmp_path / "pruned.pt")
    ours = load_weights(nn.Linear(4, 4), tmp_path / "pruned.pt")
    assert torch.equal(ours.weight, theirs.weight)


def wrapped(prefix, state):
    return {prefix + name: tensor for name, tensor in state.items()}


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict", "net"])
@pytest.mark.parametrize(
    "prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "model."]
)
def test_a_checkpoint_is_read_as_training_scripts_wrap_it(key, prefix, tmp_path):
    source = half_width()
    optimizer = torch.optim.Adam(source.parameters())
    state = wrapped(prefix, source.state_dict())
    torch.save({key: state, "optimizer": optimizer.state_dict()}, tmp_path / "net.pt")
    assert same(source, load_weights(half_width(), tmp_path / "net.pt"))
    torch.save(state, tmp_path / "alone.pt")
    assert same(source, load_weights(half_width(), tmp_path / "alone.pt"))


def test_a_part_of_a_network_that_was_compiled_keeps_its_name(tmp_path):
    source = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    state = {
        name.replace("1.", "1._orig_mod."): tensor
        for name, tensor in source.state_dict().items()
    }
    torch.save(state, tmp_path / "net.pt")
    into = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    assert same(source, load_weights(into, tmp_path / "net.pt"))


def test_of_several_state_dicts_none_is_taken_by_chance(tmp_path):
    state = half_width().state_dict()
    torch.save({"model_ema": state, "model": state}, tmp_path / "two.pt")
    with pytest.raises(ValueError, match="several state dicts"):
        load_weights(half_width(), tmp_path / "two.pt")


def test_names_of_another_network_are_told_as_the_file_has_them(tmp_path):
    torch.save(wrapped("a.", nn.Linear(2, 2).state_dict()), tmp_path / "net.pt")
    with pytest.raises(ValueError, match=r"unknown to the module 'a\.bias'"):
        load_weights(half_width(), tmp_path / "net.pt")


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_a_checkpoint_written_in_a_session_gives_the_weights_the_network_used(
    prefix, suffix, tmp_path
):
    model = half_width()
    session = tersify.attach(model, "ttq")
    session.step()
    state = wrapped(prefix, model.state_dict())
    if suffix == "pt":
        torch.save(state, tmp_path / "net.pt")
    else:
        save_file(state, tmp_path / "net.safetensors")
    loaded = load_weights(half_width(), tmp_path / f"net.{suffix}")
    session.bake_()
    assert same(model, loaded)
