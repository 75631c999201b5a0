"""The benchmark that tries settings of pruning does to many encoders at once what the
product does to one.
"""

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import tersify
from tersify.lab.networks.minilm import minilm
from tersify.methods.pruning.choice import choose_globally, choose_in_layers
from tersify.recipe import Recipe

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import stacked_encoders as bench

RECIPE = """
[[rules]]
weights = "*encoder.layer.*"
methods = [{{ method = "prune", sparsity = 0.85, begin = 0.1, end = 0.7, every = 10, {0} }}]
"""
MOVER = {"kind": "movement", "gain": 0.5, "lines": 2.0, "head_start": 1.0}
RATE = 2e-4
GLOBAL = {"scope": "global", "floor": 0.1}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """The stored weights of a small encoder."""
    torch.manual_seed(1)
    file = tmp_path_factory.mktemp("encoder") / "model.safetensors"
    save_file(minilm(layers=1).state_dict(), file)
    return file


@pytest.fixture
def data(monkeypatch):
    monkeypatch.setattr(bench, "BATCH", 4)
    monkeypatch.setattr(bench, "DROPOUT", 0.0)
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(1000, 2000, (25, 6), generator=generator)
    tokens[::3, 4:] = 0
    return bench.Sentences(tokens, torch.randint(2, (25,), generator=generator), [0, 3])


def test_layers_that_compete_and_layers_that_do_not_lose_what_the_product_would_take():
    generator = torch.Generator().manual_seed(3)
    scale = torch.tensor([1.0, 0.05, 3.0])
    worth = [
        torch.rand(2, 20, n, generator=generator) * s
        for n, s in zip((10, 30, 20), scale, strict=True)
    ]
    flat = [one.flatten(1)[:, None] for one in worth]
    found = bench.limits(
        flat,
        torch.tensor([0.6, 0.6]),
        torch.tensor([False, True]),
        torch.tensor([0.0, 0.25]),
    )

    def amount(units):
        return round(0.6 * units)

    alone = list(choose_in_layers([one[0] for one in worth], amount))
    wanted = [alone, choose_globally([w[1] for w in worth], amount, 0.25)]
    for network, masks in enumerate(wanted):
        for layer, mask in enumerate(masks):
            assert torch.equal(worth[layer][network] > found[network, layer], mask)


def test_a_fold_is_held_out_from_the_network_that_is_measured_on_it(data):
    for epoch in range(3):
        seen = torch.cat(data.batches(epoch), 1)
        for fold, inside, outside in zip(data.folds, seen, data.held_out, strict=True):
            assert (inside % bench.FOLDS != fold).all()
            assert (outside % bench.FOLDS == fold).all()


@pytest.mark.parametrize(
    ("setting", "method"),
    [
        ({"kind": "magnitude"}, "score = 'magnitude'"),
        ({"kind": "magnitude", **GLOBAL}, "scope = 'global', floor = 0.1"),
        (MOVER, "score = 'movement', gain = 0.5, lines = 2.0, head_start = 1.0"),
    ],
)
def test_a_network_of_the_stack_is_pruned_like_one_that_the_product_trains(
    encoder, data, setting, method
):
    each = [bench.Setting(lr=RATE, **one) for one in (setting, {"kind": "magnitude"})]
    stack = bench.Stack(len(each), data.folds, encoder, 1, "cpu")
    stack.dtype = torch.float32
    own = {name: value[1].clone() for name, value in stack.state.items()}
    epochs = 3
    bench.Trainer(each, stack, data, epochs).run(1.0)

    model = minilm(layers=1, dropout=0.0)
    model.load_state_dict(
        {f"embeddings.{name}": value for name, value in stack.embeddings.items()} | own,
        strict=False,
    )
    model.embeddings.requires_grad_(False)
    session = tersify.attach(
        model,
        Recipe.from_toml(RECIPE.format(method)),
        epochs=epochs,
        steps_per_epoch=data.steps,
    )
    optimizer = torch.optim.AdamW(session.param_groups(weight_decay=0.0), lr=RATE)
    for epoch in range(epochs):
        for step, chosen in enumerate(data.batches(epoch)):
            session.step()
            along = epoch + step / data.steps
            rate = (
                along
                if along < 1
                else 0.5
                * (1 + torch.cos(torch.tensor(torch.pi * (along - 1) / (epochs - 1))))
            )
            for group in optimizer.param_groups:
                group["lr"] = RATE * float(rate)
            # of the second fold, whose network of the first setting we compare
            batch = chosen[1]
            loss = F.cross_entropy(
                model(bench.cut(data.tokens[batch])), data.labels[batch]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    packed = session.pack()
    agree = [
        (packed[name].to_dense() != 0) == stack.mask[name][1] for name in stack.pruned
    ]
    assert torch.cat([one.flatten() for one in agree]).float().mean() > 0.999
    model.eval()
    held_out = data.tokens[data.held_out]
    with torch.no_grad():
        assert torch.allclose(stack.answers(held_out)[1], model(held_out[1]), atol=0.01)
