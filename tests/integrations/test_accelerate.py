"""Recipes in a loop of Accelerate's."""

import pytest
import torch
import torch.nn.functional as F
from loops_of_others import (
    DECAY,
    EPOCHS,
    METHODS,
    RATE,
    STEPS,
    loader,
    near,
    network,
    plain_loop,
    recipe,
    same,
)

accelerate = pytest.importorskip("accelerate", reason="needs the package accelerate")
from tersify.integrations.accelerate import attach  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _another_precision_may_follow():
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def start(chosen, *, steps=STEPS, **settings):
    accelerator = accelerate.Accelerator(cpu=True, **settings)
    model = network()
    session = attach(accelerator, model, chosen, steps=steps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    return accelerator, session, *accelerator.prepare(model, optimizer, loader())


def train(accelerator, model, optimizer, batches, epochs=EPOCHS):
    model.train()
    for _ in range(epochs):
        for x, y in batches:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("name", METHODS)
def test_it_ends_where_a_plain_loop_ends(name, accumulate):
    steps = EPOCHS * -(-len(loader()) // accumulate)
    accelerator, session, *rest = start(
        recipe(name), steps=steps, gradient_accumulation_steps=accumulate
    )
    train(accelerator, *rest)
    assert near(session.pack(), plain_loop(name, accumulate=accumulate))
    assert session.status()["progress"] == 100


@pytest.mark.parametrize("name", METHODS)
def test_resumed_in_the_middle_of_a_schedule_it_ends_with_the_weights_of_an_unbroken_run(
    name, tmp_path
):
    accelerator, whole, *rest = start(recipe(name), mixed_precision="bf16")
    train(accelerator, *rest)
    accelerator, _, *rest = start(recipe(name), mixed_precision="bf16")
    train(accelerator, *rest, epochs=2)
    accelerator.save_state(tmp_path)
    accelerator, resumed, *rest = start(recipe(name), mixed_precision="bf16")
    accelerator.load_state(tmp_path)
    train(accelerator, *rest, epochs=EPOCHS - 2)
    assert same(whole.pack(), resumed.pack())


def test_evaluation_moves_nothing_on():
    _, session, model, *_ = start("agp-90")
    model.eval()
    with torch.no_grad():
        model(loader().dataset[0][0][None])
    model.train()
    with torch.no_grad():
        model(next(iter(loader()))[0])
    assert session.state_dict()["steps_done"] == 0


def test_what_does_not_go_is_refused_in_one_sentence():
    with pytest.raises(
        ValueError, match="the recipe searches, and looks at every batch"
    ):
        start("energy")
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        start("agp-90", steps=0)
    accelerator, model = accelerate.Accelerator(cpu=True), network()
    optimizer = torch.optim.AdamW(model.parameters())
    attach(accelerator, model, "ttq", steps=3)
    with pytest.raises(ValueError, match=r"0 went through accelerator\.prepare"):
        model(torch.zeros(2, 6))
    accelerator.prepare(optimizer)
    with pytest.raises(
        ValueError,
        match="the optimizer does not have 2 of the parameters that the recipe trains",
    ):
        model(torch.zeros(2, 6))


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED", "MEGATRON_LM"])
def test_weights_that_are_cut_up_are_refused(kind):
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.state.distributed_type = accelerate.DistributedType[kind]
    with pytest.raises(
        ValueError,
        match=f"{kind} cuts weights up, and a recipe needs them whole; train with DDP",
    ):
        attach(accelerator, network(), "ttq", steps=3)


def test_a_scaled_loss_is_refused_where_the_recipe_has_a_term_of_its_own():
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(
        ValueError,
        match="fp16 scales the loss, and the recipe has a term of its own in it; use bf16",
    ):
        attach(accelerator, network(), recipe("soft-movement"), steps=3)
    attach(accelerator, network(), recipe("ttq"), steps=3)
