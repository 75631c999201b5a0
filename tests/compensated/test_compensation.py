"""A whole language model: bits as asked, better than rounding, the file's laws,
stopping and going on.
"""

from __future__ import annotations

import pytest
import torch
from small_language_model import SmallModel, calibration, loss_of, text, trained
from torch import nn

import tersify
from tersify.compensated import Compensation, compensate_
from tersify.compensated import compensation as walk
from tersify.compensated.matrices import in_parts, matrices_of
from tersify.compensated.rates import entropy_bits_by_scale


def coded_bits(packed) -> float:
    held = packed.compressed().values()
    bits = sum(
        t.numel() * entropy_bits_by_scale(t.codebook[t.codes.int()]) for t in held
    )
    steps = sum(t.scale.numel() + t.column_scale.numel() for t in held)
    return (bits + walk.STEP_BITS * steps) / sum(t.numel() for t in held)


@pytest.mark.parametrize("bits", [4.0, 2.5])
def test_steps_take_the_bits_that_were_asked(bits):
    packed = compensate_(trained(), Compensation(bits=bits), calibration=calibration())
    assert coded_bits(packed) == pytest.approx(bits, rel=0.05)


def test_more_bits_lose_less():
    losses = []
    for bits in (2.0, 3.0, 5.0):
        model = trained()
        compensate_(model, Compensation(bits=bits), calibration=calibration())
        losses.append(loss_of(model))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < loss_of(trained()) + 0.05


@pytest.mark.parametrize(
    "settings", [{"bits": 3.0}, {"code": "table", "bits": 3.0}, {"code": "prune"}]
)
def test_compensation_loses_less_than_rounding(settings, monkeypatch):
    model, rounded = trained(), trained()
    compensate_(model, Compensation(**settings), calibration=calibration())
    spread_of = walk.spread_of
    monkeypatch.setattr(
        walk,
        "spread_of",
        lambda hessian, damping: torch.diag(spread_of(hessian, damping).diagonal()),
    )
    compensate_(rounded, Compensation(**settings), calibration=calibration())
    dense = loss_of(trained())
    assert loss_of(model) - dense < 0.9 * (loss_of(rounded) - dense)


@pytest.mark.parametrize("code", ["steps", "table", "ternary", "prune"])
def test_the_file_gives_back_the_network(code, tmp_path):
    model = trained()
    packed = compensate_(model, Compensation(code=code), calibration=calibration(16))
    tersify.save(packed, tmp_path / "net.terse")
    loaded = tersify.load(tmp_path / "net.terse", into=SmallModel())
    for name, value in model.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name]), name
    assert loaded.head.weight is loaded.embed.weight


def test_embeddings_stay_when_they_are_not_asked_for():
    model = trained()
    packed = compensate_(
        model, Compensation(embeddings=False), calibration=calibration(16)
    )
    assert torch.equal(model.embed.weight, trained().embed.weight)
    assert "embed.weight" not in packed.compressed()


def test_rows_of_frequent_tokens_get_finer_steps():
    counts = torch.ones(40)
    counts[7] = 10_000
    packed = compensate_(
        trained(), Compensation(), calibration=calibration(16), frequencies=counts
    )
    rows = packed["embed.weight"].scale.flatten()
    assert rows[7] < 0.2 * rows[:7].min()


class StopError(Exception):
    pass


@pytest.mark.parametrize("stop", [("statistics", 3), ("matrices", 2), ("matrices", 7)])
def test_a_run_that_was_stopped_goes_on_and_ends_the_same(stop, tmp_path):
    whole = trained()
    compensate_(
        whole, Compensation(), calibration=calibration(32), folder=tmp_path / "whole"
    )

    def tell(what: str, done: int, all_of_it: int) -> None:
        if what.startswith(stop[0]) and done == stop[1]:
            raise StopError

    model = trained()
    with pytest.raises(StopError):
        compensate_(
            model,
            Compensation(),
            calibration=calibration(32),
            folder=tmp_path / "run",
            tell=tell,
        )
    for name, value in model.state_dict().items():
        assert torch.equal(value, trained().state_dict()[name]), name
    compensate_(
        model, Compensation(), calibration=calibration(32), folder=tmp_path / "run"
    )
    for name, value in model.state_dict().items():
        assert torch.equal(value, whole.state_dict()[name]), name


def test_what_is_finished_is_not_done_again(tmp_path, monkeypatch):
    compensate_(trained(), Compensation(), calibration=calibration(16), folder=tmp_path)

    def never(*args, **named):
        raise AssertionError

    monkeypatch.setattr(walk, "statistics_of", never)
    compensate_(
        trained(), Compensation(bits=2.0), calibration=calibration(16), folder=tmp_path
    )
    monkeypatch.setattr(walk, "_compressed", never)
    compensate_(
        trained(), Compensation(bits=2.0), calibration=calibration(16), folder=tmp_path
    )


def test_a_folder_of_another_network_is_refused(tmp_path):
    compensate_(trained(), Compensation(), calibration=calibration(16), folder=tmp_path)
    other = trained()
    with torch.no_grad():
        other.embed.weight[3] += 1
    with pytest.raises(ValueError, match="give another folder"):
        compensate_(other, Compensation(), calibration=calibration(16), folder=tmp_path)


def test_a_folder_of_another_calibration_is_refused(tmp_path):
    ids = [each for each, _ in calibration(16).batches]
    counted = torch.bincount(torch.cat(ids).flatten(), minlength=40).float()
    given = {"calibration": calibration(16), "frequencies": counted}
    compensate_(trained(), Compensation(), **given, folder=tmp_path)
    for changed in (
        {"calibration": calibration(24)},
        {"frequencies": counted + 1},
        {"frequencies": None},
        {"bf16": True},
    ):
        with pytest.raises(ValueError, match="a run of other texts, frequencies or pr"):
            compensate_(
                trained(), Compensation(), **{**given, **changed}, folder=tmp_path
            )
    compensate_(trained(), Compensation(), **given, folder=tmp_path)
    (tmp_path / "data.json").unlink()  # nobody knows what it is of
    with pytest.raises(ValueError, match="a run of other texts"):
        compensate_(trained(), Compensation(), **given, folder=tmp_path)


@pytest.mark.parametrize(
    "kind", ["network.json", "data.json", "run.json", "*.statistics", "*.packed"]
)
def test_a_damaged_folder_is_one_sentence(tmp_path, kind):
    given = {"calibration": calibration(16), "folder": tmp_path}
    compensate_(trained(), Compensation(), **given)
    file = sorted(tmp_path.glob(kind))[0]
    whole = file.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"\xff" + whole[1:]):
        file.write_bytes(damaged)
        # other bits need the statistics anew
        bits = 2.5 if kind == "*.statistics" else Compensation().bits
        with pytest.raises(ValueError, match=f"{file.name} is damaged; remove"):
            compensate_(trained(), Compensation(bits=bits), **given)


def test_several_passes_of_bounded_memory_give_the_same_weights():
    once, often = trained(), trained()
    compensate_(once, Compensation(), calibration=calibration(16))
    parts = list(in_parts(matrices_of(often), 3 * 4 * 32 * 32))
    assert len(parts) > 2
    assert all(
        sum(4 * m.weight.shape[1] ** 2 for m in part) <= 3 * 4 * 32 * 32
        or len(part) == 1
        for part in parts
    )
    compensate_(
        often,
        Compensation(),
        calibration=calibration(16),
        hessian_bytes=3 * 4 * 32 * 32,
    )
    for name, value in once.state_dict().items():
        assert torch.equal(value, often.state_dict()[name]), name


def test_the_network_is_left_as_trainable_as_it_was():
    model = trained()
    model.blocks[0].up.weight.requires_grad_(False)
    model.train()
    compensate_(model, Compensation(), calibration=calibration(16))
    assert not model.blocks[0].up.weight.requires_grad
    assert model.embed.weight.requires_grad
    assert model.training
    assert model.embed.weight.grad is None
    ids = text(2, 3)
    assert model(ids).requires_grad
    assert not model.blocks[0].up._forward_hooks


def test_a_plain_classifier_is_compressed_too():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 5))
    before = [layer.weight.detach().clone() for layer in (net[0], net[2])]
    batches = [(torch.randn(16, 20), torch.randint(0, 5, (16,))) for _ in range(4)]
    packed = compensate_(net, Compensation(bits=4.0), calibration=batches)
    assert set(packed.compressed()) == {"0.weight", "2.weight"}
    for layer, weight in zip((net[0], net[2]), before, strict=True):
        assert 0 < float((layer.weight.detach() - weight).norm() / weight.norm()) < 0.3


@pytest.mark.parametrize("code", ["steps", "prune", "table", "ternary"])
def test_conv1d_of_transformers_keeps_its_orientation(code):
    pytorch_utils = pytest.importorskip("transformers.pytorch_utils")
    torch.manual_seed(0)
    net = nn.Sequential(
        pytorch_utils.Conv1D(30, 12), nn.ReLU(), pytorch_utils.Conv1D(5, 30)
    )
    before = net[0].weight.detach().clone()
    batches = [(torch.randn(16, 12), torch.randint(0, 5, (16,))) for _ in range(4)]
    packed = compensate_(net, Compensation(code=code, bits=4.0), calibration=batches)
    assert torch.equal(packed["0.weight"].to_dense(), net[0].weight)
    assert float((net[0].weight.detach() - before).norm() / before.norm()) < 0.8


def test_bits_that_few_weights_cannot_take_give_the_finest_steps():
    torch.manual_seed(0)
    net = nn.Linear(6, 5)
    before = net.weight.detach().clone()
    compensate_(
        net,
        Compensation(bits=8.0),
        calibration=[(torch.randn(16, 6), torch.randint(0, 5, (16,)))],
    )
    assert float((net.weight.detach() - before).abs().max()) < 0.02 * float(
        before.abs().max()
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"code": "vectors"}, "code must be one of steps, table, ternary, prune"),
        ({"bits": 0.1}, r"bits must be in \[0.5, 8\]"),
        ({"code": "table", "bits": 2.5}, "bits of a table must be one of"),
        ({"sparsity": 1.0}, "sparsity must be in"),
        ({"damping": 0.0}, "damping must be in"),
        ({"dead_zone": -1.0}, "dead_zone must be in"),
        ({"levels": 16}, "levels must be odd"),
        ({"levels": 1}, "levels must be"),
    ],
)
def test_settings_are_checked_at_birth(settings, said):
    with pytest.raises(ValueError, match=said):
        Compensation(**settings)


def test_no_matrix_has_more_levels_than_asked_before_and_after_tuning():
    for steps in (0, 2):
        packed = compensate_(
            trained(),
            Compensation(
                bits=3.0, levels=15, tune_steps=steps, tune_codes=True, tune_rate=0.05
            ),
            calibration=calibration(16),
        )
        assert max(t.levels for t in packed.compressed().values()) == 15


def test_a_layer_that_no_batch_reaches_is_named():
    class Aside(SmallModel):
        def __init__(self) -> None:
            super().__init__()
            self.aside = nn.Linear(4, 4)

    with pytest.raises(
        ValueError, match=r"no calibration batch reached 'aside\.weight'"
    ):
        compensate_(Aside(), Compensation(), calibration=calibration(16))


def test_half_precision_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match=r"\.float\(\)"):
        compensate_(trained().bfloat16(), Compensation(), calibration=calibration(16))


def test_frequencies_of_another_vocabulary_are_refused():
    with pytest.raises(ValueError, match="one for each of 40 tokens"):
        compensate_(
            trained(),
            Compensation(),
            calibration=calibration(16),
            frequencies=torch.ones(7),
        )
