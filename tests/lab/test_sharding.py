"""FSDP2: two gloo ranks that each hold half of the latents end with the codes of one
process.
"""

import pytest
import torch
from torch import distributed, nn

import tersify
import two_ranks
from tersify import Recipe, Rule
from tersify.lab.trainer import TrainConfig, train
from tersify.lab.trainer.loop import Loop
from tersify.methods import Lookup, Prune, Ternary, TernaryWeightNetwork
from tersify.ranks import is_sharded, own_part
from tersify.sharding import reduce_unsharded_, shard_

METHODS = [
    (Ternary(regime="log", spread=0.2, scale="tensor"),),
    (Lookup(n=3),),
    (Prune(sparsity=0.7),),
    (Prune(sparsity=0.5), Ternary(spread=0.2)),
    # thresholds that wait for the latents, each for its own
    (Ternary(regime="linear"),),
    (Prune(sparsity=0.5), Ternary(regime="linear")),
]
STEPS, BATCH = 50, 16


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 65), nn.ReLU(), nn.Linear(65, 33), nn.ReLU(), nn.Linear(33, 10)
    )


def trained(methods, fraction=slice(None), sharded=False):
    """The session after 50 steps on `share` of each batch."""
    model = network()
    session = tersify.attach(
        model,
        Recipe(rules=(Rule(methods=methods),)),
        epochs=5,
        steps_per_epoch=STEPS // 5,
    )
    if sharded:
        shard_(session)
    optimizer = torch.optim.SGD(session.param_groups(), lr=0.01, momentum=0.9)
    data = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        x = torch.randn(BATCH, 64, generator=data)
        labels = torch.randint(0, 10, (BATCH,), generator=data)
        session.step(x[fraction], labels[fraction])
        loss = nn.functional.cross_entropy(model(x[fraction]), labels[fraction])
        optimizer.zero_grad()
        loss.backward()
        if sharded:
            reduce_unsharded_(model)
        optimizer.step()
    return session


def train_sharded(folder):
    rank = distributed.get_rank()
    half = slice(rank * BATCH // 2, (rank + 1) * BATCH // 2)
    for index, methods in enumerate(METHODS):
        session = trained(methods, half, sharded=True)
        rows = [len(own_part(site.latent)) for site in session.sites]
        packed = {name: t.codes for name, t in session.pack().compressed().items()}
        masks = [
            t
            for site in session.sites
            for n, t in site.chain[0].named_parameters()
            if n == "mask"
        ]
        told = {
            "rows": rows,
            "codes": packed,
            "masks": [is_sharded(mask) for mask in masks],
        }
        torch.save(told, folder / f"{index}-{rank}.pt")
    (folder / f"refused-{rank}").write_text(refusal())
    train_and_resume(folder)


class StopError(Exception):
    pass


def train_and_resume(folder):
    """A whole run, and one that stops behind its first epoch and goes on."""
    config = TrainConfig(
        epochs=2, batch_size=16, lr=0.01, device="cpu", parallel="sharded"
    )
    recipe = Recipe(
        rules=(
            Rule(methods=(Prune(sparsity=0.5), Ternary(spread=0.2, scale="tensor"))),
        )
    )

    def run(out, **resume):
        return train(
            two_ranks.network(),
            two_ranks.digits(),
            config,
            out=folder / out,
            recipe=recipe,
            **resume,
        )

    run("whole")
    run_epoch = Loop.run_epoch
    Loop.run_epoch = stop_in_second_epoch(run_epoch)
    try:
        with pytest.raises(StopError):
            run("broken")
    finally:
        Loop.run_epoch = run_epoch
    run("broken", resume=True)


def stop_in_second_epoch(run_epoch):
    def until_second(self, epoch, display):
        if epoch == 2:
            raise StopError
        return run_epoch(self, epoch, display)

    return until_second


def refusal():
    session = tersify.attach(
        network(), Recipe(rules=(Rule(methods=(TernaryWeightNetwork(),)),))
    )
    try:
        shard_(session)
    except ValueError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("sharded")
    two_ranks.run(train_sharded, made)
    return made


@pytest.mark.long
@pytest.mark.parametrize(
    "index",
    range(len(METHODS)),
    ids=["ternary", "lookup", "prune", "prune+ternary", "waiting", "prune+waiting"],
)
def test_ranks_with_half_of_the_latents_end_with_the_codes_of_one_process(
    index, folder
):
    first, second = (torch.load(folder / f"{index}-{rank}.pt") for rank in (0, 1))
    assert [a + b for a, b in zip(first["rows"], second["rows"], strict=True)] == [
        65,
        33,
        10,
    ]
    assert all(first["masks"])
    alone = trained(METHODS[index]).pack().compressed()
    same = total = 0
    for name, tensor in alone.items():
        assert torch.equal(first["codes"][name], second["codes"][name]), name
        same += int((first["codes"][name] == tensor.codes).sum())
        total += tensor.codes.numel()
    assert same / total >= 0.9999


@pytest.mark.long
def test_a_sharded_run_that_stopped_goes_on_to_the_same_weights(folder):
    whole, broken = (
        tersify.open(folder / run / "model.terse").read().state_dict()
        for run in ("whole", "broken")
    )
    assert all(torch.equal(whole[name], broken[name]) for name in whole)
    shards = sorted(
        path.name for path in (folder / "broken" / "checkpoint").glob("shards-*")
    )
    assert shards == ["shards-2"]


@pytest.mark.long
def test_a_method_that_needs_whole_tensors_is_refused(folder):
    assert (
        "'twn' as set here decides by whole tensors"
        in (folder / "refused-1").read_text()
    )


def test_sharding_alone_is_refused():
    session = tersify.attach(network(), Recipe(rules=(Rule(methods=(Lookup(n=3),)),)))
    with pytest.raises(ValueError, match="needs a process group"):
        shard_(session)
