"""Recipes under Lightning."""

from types import SimpleNamespace

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
    loads_plainly,
    near,
    network,
    plain_loop,
    recipe,
    same,
    samples,
)
from torch import nn

import tersify

L = pytest.importorskip("lightning.pytorch", reason="needs the package lightning")
from lightning.pytorch import strategies  # noqa: E402
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint  # noqa: E402

from tersify.integrations.lightning import TersifyCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        return F.cross_entropy(self(batch[0]), batch[1])

    def test_step(self, batch, index):
        self.log("loss", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=RATE, weight_decay=DECAY)


class StopAfter(L.Callback):
    def __init__(self, step, error=RuntimeError):
        self.step, self.error = step, error

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            raise self.error("stopped")


def trainer(*callbacks, **settings):
    return L.Trainer(
        **({"max_epochs": EPOCHS, "devices": 1} | settings),
        accelerator="cpu",
        logger=False,
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=any(isinstance(c, ModelCheckpoint) for c in callbacks),
    )


def unprefixed(packed):
    return tersify.CompressedModel(
        {name.removeprefix("net."): tensor for name, tensor in packed.items()}
    )


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("name", METHODS)
def test_it_ends_where_a_plain_loop_ends(name, accumulate, tmp_path):
    callback = TersifyCallback(recipe(name), out=tmp_path / "net.terse")
    module = Lit()
    trainer(callback, accumulate_grad_batches=accumulate).fit(module, loader())
    assert near(unprefixed(callback.packed), plain_loop(name, accumulate=accumulate))
    assert callback.session is None
    assert loads_plainly(tmp_path / "net.terse", callback.packed, Lit())
    x, _ = samples()
    loaded = tersify.load(tmp_path / "net.terse", into=Lit())
    assert torch.equal(loaded.eval()(x), module.eval()(x))


@pytest.mark.parametrize("name", METHODS)
def test_resumed_in_the_middle_of_a_schedule_it_ends_with_the_weights_of_an_unbroken_run(
    name, tmp_path
):
    whole, saves = (
        TersifyCallback(recipe(name)),
        {"every_n_epochs": 1, "save_top_k": -1, "filename": "{epoch}"},
    )
    trainer(whole, precision="bf16-mixed").fit(Lit(), loader())
    with pytest.raises(RuntimeError, match="stopped"):
        trainer(
            TersifyCallback(recipe(name)),
            ModelCheckpoint(tmp_path, **saves),
            StopAfter(14),
            precision="bf16-mixed",
        ).fit(Lit(), loader())
    resumed = TersifyCallback(recipe(name))
    trainer(resumed, precision="bf16-mixed").fit(
        Lit(), loader(), ckpt_path=tmp_path / "epoch=1.ckpt"
    )
    assert same(whole.packed, resumed.packed)


def test_a_checkpoint_has_plain_weights_for_plain_modules(tmp_path):
    callback, module = TersifyCallback("ternary-target"), Lit()
    running = trainer(callback, ModelCheckpoint(tmp_path, filename="last"))
    running.fit(module, loader())
    path = tmp_path / "last.ckpt"
    assert set(torch.load(path)["state_dict"]) == set(Lit().state_dict())
    plain = Lit.load_from_checkpoint(path)
    assert plain.net[0].weight.unique().numel() <= 3
    running.test(module, loader(), ckpt_path=path, verbose=False)
    trainer(TersifyCallback("ternary-target")).test(
        Lit(), loader(), ckpt_path=path, verbose=False
    )


def test_a_dense_checkpoint_does_not_pass_for_one_of_a_session(tmp_path):
    trainer(ModelCheckpoint(tmp_path, filename="dense"), max_epochs=1).fit(
        Lit(), loader()
    )
    with pytest.raises(
        ValueError,
        match=r"was written without TersifyCallback; load its weights before fit",
    ):
        trainer(TersifyCallback("ternary-target")).fit(
            Lit(), loader(), ckpt_path=tmp_path / "dense.ckpt"
        )


def test_another_length_than_the_checkpoints_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="stopped"):
        trainer(
            TersifyCallback("agp-90"),
            ModelCheckpoint(tmp_path, filename="a", every_n_epochs=1),
            StopAfter(8),
        ).fit(Lit(), loader())
    with pytest.raises(
        ValueError, match=f"made with steps_per_epoch={STEPS}, this run has {2 * STEPS}"
    ):
        trainer(TersifyCallback("agp-90"), max_epochs=2 * EPOCHS).fit(
            Lit(), loader(), ckpt_path=tmp_path / "a.ckpt"
        )


def test_max_steps_give_the_length():
    callback = TersifyCallback("agp-90")
    trainer(callback, max_epochs=-1, max_steps=7).fit(Lit(), loader())
    assert callback.packed.sparsity_percent() == pytest.approx(90, abs=1)


def test_a_search_gets_its_batches():
    callback = TersifyCallback("energy")
    trainer(callback).fit(Lit(), loader())
    assert 0 < callback.packed.sparsity_percent() < 100


def test_a_training_that_stops_early_is_told():
    class Enough(L.Callback):
        def on_train_batch_end(self, trainer, *_):
            trainer.should_stop = trainer.global_step >= 5

    with pytest.warns(UserWarning, match=f"packed at step .* of {STEPS}, before"):
        trainer(TersifyCallback("agp-90"), Enough()).fit(Lit(), loader())


class TwoOptimizers(Lit):
    automatic_optimization = False

    def configure_optimizers(self):
        return [torch.optim.SGD(self.net[i].parameters(), lr=0.1) for i in (0, 3)]


class MadeBefore(Lit):
    def __init__(self):
        super().__init__()
        self.made = torch.optim.AdamW(self.parameters(), lr=RATE)

    def configure_optimizers(self):
        return self.made


@pytest.mark.parametrize(
    ("module", "settings", "others", "message"),
    [
        (
            Lit,
            {"max_epochs": -1},
            [],
            "how long training takes is not known; give the Trainer max_steps",
        ),
        (
            Lit,
            {},
            [EMAWeightAveraging()],
            "EMAWeightAveraging averages masks and thresholds",
        ),
        (TwoOptimizers, {}, [], "one optimizer, the module has 2"),
        (
            MadeBefore,
            {},
            [],
            "the optimizer does not have 2 of the parameters that the recipe trains",
        ),
    ],
)
def test_what_does_not_go_is_refused_in_one_sentence(module, settings, others, message):
    with pytest.raises(ValueError, match=message):
        trainer(TersifyCallback("ttq"), *others, **settings).fit(module(), loader())


@pytest.mark.parametrize(
    "strategy",
    [
        strategies.FSDPStrategy,
        strategies.DeepSpeedStrategy,
        strategies.ModelParallelStrategy,
    ],
)
def test_weights_that_are_cut_up_are_refused(strategy):
    # without its __init__, which wants GPUs or a package more
    made = strategy.__new__(strategy)
    running = SimpleNamespace(strategy=made, callbacks=[], precision="32-true")
    with pytest.raises(
        ValueError,
        match=f"{strategy.__name__} cuts weights up.*train on one device, or with strategy",
    ):
        TersifyCallback("ttq").setup(running, Lit(), "fit")


def test_a_scaled_loss_is_refused_where_the_recipe_has_a_term_of_its_own():
    running = SimpleNamespace(
        strategy=trainer().strategy, callbacks=[], precision="16-mixed"
    )
    with pytest.raises(
        ValueError,
        match="16-mixed scales the loss, and the recipe has a term of its own in it",
    ):
        TersifyCallback(recipe("soft-movement")).setup(running, Lit(), "fit")
    TersifyCallback(recipe("ttq")).setup(running, Lit(), "fit")


def test_mistakes_are_told_at_birth(tmp_path):
    with pytest.raises(ValueError, match="nearest: 'ternary-target'"):
        TersifyCallback("ternary-targt")
    with pytest.raises(
        ValueError,
        match="no method of the recipe has a setting 'sparsty'; nearest: 'sparsity'",
    ):
        TersifyCallback("ternary-target", sparsty=0.5)
    with pytest.raises(
        ValueError, match="out must be a file in a folder that is there"
    ):
        TersifyCallback("ternary-target", out=tmp_path / "nowhere" / "net.terse")


def test_a_second_fit_wants_a_new_callback():
    callback, module = TersifyCallback("ternary-target"), Lit()
    trainer(callback).fit(module, loader())
    with pytest.raises(
        ValueError,
        match="training is over and its weights are final; continue with a new callback",
    ):
        trainer(callback).fit(module, loader())
    again = TersifyCallback("ternary-target")
    trainer(again).fit(module, loader())
    assert again.packed is not None


def test_after_an_interruption_fit_goes_on_in_the_same_process(tmp_path):
    whole = TersifyCallback("ternary-target")
    trainer(whole).fit(Lit(), loader())
    callback, module = TersifyCallback("ternary-target"), Lit()
    saves = ModelCheckpoint(
        tmp_path, filename="{epoch}", every_n_epochs=1, save_top_k=-1
    )
    with pytest.raises(RuntimeError, match="stopped"):
        trainer(callback, saves, StopAfter(14)).fit(module, loader())
    with pytest.raises(
        ValueError, match="has 14 steps of an interrupted training behind it"
    ):
        trainer(callback).fit(module, loader())
    trainer(callback).fit(module, loader(), ckpt_path=tmp_path / "epoch=1.ckpt")
    assert same(whole.packed, callback.packed)


def test_the_library_under_its_old_name_works_too():
    old = pytest.importorskip(
        "pytorch_lightning", reason="needs the package pytorch-lightning"
    )

    class Old(old.LightningModule):
        training_step, configure_optimizers, forward = (
            Lit.training_step,
            Lit.configure_optimizers,
            Lit.forward,
        )

        def __init__(self):
            super().__init__()
            self.net: nn.Module = network()

    callback = TersifyCallback("ternary-target")
    old.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        callbacks=[callback],
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    ).fit(Old(), loader())
    assert callback.packed.compressed()
