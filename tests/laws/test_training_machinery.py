"""Every method works inside torch.compile, autocast and DistributedDataParallel."""

import copy

import pytest
import torch
from torch import distributed, nn

from loops import labels, start, train
from method_zoo import all_legal_chains, chain_id, make, recipe_of

CHAINS = all_legal_chains()
EVERY_CHAIN = pytest.mark.parametrize("chain", CHAINS, ids=map(chain_id, CHAINS))


@EVERY_CHAIN
def test_compiles_to_one_graph_that_is_not_compiled_again_when_thresholds_move(chain):
    model, x = make("linear")
    session, optimizer = start(model, recipe_of(chain))
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=count, fullgraph=True)
    for _ in range(4):
        session.step(x, labels(x))
        optimizer.zero_grad()
        compiled(x).square().mean().backward()
        optimizer.step()
    assert len(graphs) == 1
    eager, _ = make("linear")
    other, optimizer = start(eager, recipe_of(chain))
    for _ in range(4):
        other.step(x, labels(x))
        optimizer.zero_grad()
        eager(x).square().mean().backward()
        optimizer.step()
    if not any(getattr(m, "stochastic", False) for m in chain):
        for name, latent in session.latents().items():
            assert torch.allclose(latent, other.latents()[name], atol=1e-5), name


@EVERY_CHAIN
def test_trains_under_bf16_autocast_with_full_precision_latents(chain):
    model, x = make("linear")
    session, optimizer = start(model, recipe_of(chain))
    before = copy.deepcopy(session.latents())
    session.step(x, labels(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    for name, latent in session.latents().items():
        assert latent.dtype == torch.float32
        assert not torch.equal(latent, before[name]), name


@pytest.fixture(scope="module")
def _one_process_group(tmp_path_factory):
    store = f"file://{tmp_path_factory.mktemp('ddp') / 'store'}"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@EVERY_CHAIN
@pytest.mark.usefixtures("_one_process_group")
def test_trains_the_same_inside_ddp(chain):
    results = []
    for wrap in (lambda m: m, nn.parallel.DistributedDataParallel):
        model, x = make("conv2d")
        session, optimizer = start(model, recipe_of(chain))
        torch.manual_seed(1)
        train(wrap(model), session, optimizer, x, 3)
        results.append(session.latents())
    for name, latent in results[0].items():
        assert torch.allclose(latent, results[1][name]), name
