import dataclasses

import pytest
import torch

from tersify import codec
from tersify.lab import dataset, network
from tersify.lab.data import Data, Split
from tersify.lab.trainer import (
    Display,
    Job,
    TrainConfig,
    check_fits,
    evaluate,
    run,
    train,
)
from tersify.lab.trainer.loop import Loop
from tersify.lab.trainer.rate import learning_rate
from tersify.methods import Prune
from tersify.recipe import Recipe, Rule

CPU = torch.device("cpu")


def small_digits(count=200):
    data = dataset("digits")
    cut = [Split(s.images[:count], s.labels[:count]) for s in (data.train, data.test)]
    return dataclasses.replace(data, train=cut[0], test=cut[1])


def loop(recipe=None, **settings):
    torch.manual_seed(3)
    config = TrainConfig.from_mapping(
        {"epochs": 2, "batch_size": 50, "device": "cpu", **settings}
    )
    return Loop(network("digits-cnn", width=0.5), small_digits(), config, recipe)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "adadelta"])
def test_every_optimizer_lowers_the_loss(optimizer):
    rate = {"adam": 5e-3, "adamw": 5e-3, "sgd": 0.05, "adadelta": 1.0}[optimizer]
    trained = loop(optimizer=optimizer, lr=rate)
    losses = [trained.run_epoch(epoch, Display())["loss"] for epoch in (1, 2, 3)]
    assert losses[2] < losses[0]


def test_the_rate_of_the_schedule_reaches_the_optimizer():
    trained = loop(
        lr=0.5, schedule="multistep", milestones=[2], rates=[0.25], optimizer="sgd"
    )
    assert trained.run_epoch(1, Display())["lr"] == 0.5
    trained.run_epoch(2, Display())
    assert [group["lr"] for group in trained.optimizer.param_groups] == [0.25]


def test_the_session_steps_once_for_each_batch_of_the_epoch():
    recipe = Recipe.from_toml(
        '[[rules]]\nmethods = [{ method = "ternary", regime = "linear" }]\n'
    )
    trained = loop(recipe)
    trained.run_epoch(1, Display())
    assert trained.session.state_dict()["steps_done"] == trained.feed.steps == 4


def test_frozen_parameters_stay_as_they_are():
    trained = loop(freeze="*.bias")
    before = {
        name: value.detach().clone() for name, value in trained.model.named_parameters()
    }
    trained.run_epoch(1, Display())
    stayed = {
        name
        for name, value in trained.model.named_parameters()
        if torch.equal(value, before[name])
    }
    assert stayed == {name for name in before if name.endswith(".bias")}


def test_a_glob_that_freezes_nothing_is_refused():
    with pytest.raises(
        ValueError,
        match=r"freeze matches no parameter of the network, got 'embedings\.\*'",
    ):
        loop(freeze="embedings.*")


def test_a_glob_that_leaves_nothing_to_train_is_refused():
    with pytest.raises(
        ValueError,
        match=r"freeze matches every parameter of the network, got '\*'; leave some",
    ):
        loop(freeze="*")


def test_bf16_and_channels_last_train_on_the_cpu_too():
    trained = loop(amp=True, channels_last=True)
    row = trained.run_epoch(1, Display())
    assert row["loss"] < 5
    assert all(p.dtype == torch.float32 for p in trained.model.parameters())


def test_the_average_lags_behind_and_leaves_the_weights_alone():
    trained = loop(ema=0.99, lr=0.05)
    before = {name: t.clone() for name, t in trained.model.named_parameters()}
    trained.run_epoch(1, Display())
    live = {name: t.clone() for name, t in trained.model.named_parameters()}
    averaged = trained.pack().state_dict()
    for name, now in trained.model.named_parameters():
        assert torch.equal(now, live[name])
    name = "features.0.weight"
    assert (averaged[name] - before[name]).norm() < (live[name] - before[name]).norm()


def test_evaluation_counts_the_ranks_and_puts_the_mode_back():
    data = small_digits(20)

    class Constant(torch.nn.Module):
        def forward(self, x):
            assert not self.training
            return torch.arange(10.0).expand(len(x), 10)  # class 9 first, then 8, 7, …

    model = Constant().train()
    figures = evaluate(model, data, data.test, device=CPU, amp=False)
    assert model.training
    for key, k in (("accuracy", 1), ("top3", 3), ("top5", 5)):
        assert figures[key] == pytest.approx(
            100 * float((data.test.labels >= 10 - k).float().mean())
        )


def test_a_loss_that_is_no_number_stops_the_run_with_the_remedy(tmp_path):
    data = small_digits()
    config = TrainConfig(epochs=2, lr=1e30, optimizer="sgd", device="cpu")
    with pytest.raises(
        ValueError, match="start again with a learning rate below 1e\\+30"
    ):
        train(network("digits-cnn", width=0.5), data, config, out=tmp_path / "out")


@pytest.mark.parametrize(
    "error",
    [TypeError("needs a mask"), KeyError("x"), ValueError(""), NotImplementedError()],
)
def test_a_forward_that_raises_is_told_before_anything_starts(error):
    class Broken(torch.nn.Module):
        def forward(self, x):
            raise error

    with pytest.raises(
        ValueError,
        match=f"Broken does not take the 1×8×8 images of 'digits' .{type(error).__name__}",
    ):
        check_fits(Broken(), small_digits())


def test_a_network_with_lazy_layers_trains_into_a_file_that_loads_again(tmp_path):
    def lazy():
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(10))

    config = TrainConfig(epochs=1, batch_size=100, device="cpu")
    figures = train(lazy(), small_digits(), config, out=tmp_path / "run")
    assert figures["parameters"] == 650
    assert codec.load(tmp_path / "run" / "model.terse", into=lazy())[
        1
    ].weight.shape == (10, 64)


def test_a_start_that_failed_does_not_block_its_directory(tmp_path):
    def start(batch_size):
        config = TrainConfig(epochs=1, batch_size=batch_size, device="cpu")
        return train(
            network("digits-cnn", width=0.25),
            small_digits(),
            config,
            out=tmp_path / "run",
        )

    with pytest.raises(ValueError, match="more than 1 value"):
        start(1)
    assert start(50)["epochs"] == 1
    with pytest.raises(ValueError, match="is not empty"):
        start(50)


def test_augmentation_of_what_is_no_image_is_refused_before_anything_starts():
    rows = Split(torch.rand(8, 5), torch.arange(8) % 2)
    data = Data("rows", rows, rows, 2, (0.5,), (1.0,))
    with pytest.raises(ValueError, match="augmentation is for images"):
        Loop(
            torch.nn.Linear(5, 2),
            data,
            TrainConfig(epochs=1, device="cpu", augmentation={"flip": True}),
            None,
        )


def test_the_best_accuracy_and_its_epoch_belong_together(tmp_path, monkeypatch):
    config = TrainConfig(epochs=2, batch_size=100, device="cpu")
    monkeypatch.setattr(
        run,
        "evaluate",
        lambda *a, **k: {"accuracy": 100.0, "top3": 100.0, "top5": 100.0},
    )
    figures = train(
        network("digits-cnn", width=0.25), small_digits(), config, out=tmp_path / "run"
    )
    assert (figures["accuracy_best"], figures["best_epoch"]) == (100.0, 2)


def test_a_method_that_asks_for_data_gets_training_images(tmp_path):
    recipe = Recipe(
        rules=[Rule(methods=[Prune(score="wanda", sparsity=0.5, schedule="one-shot")])]
    )
    job = Job(
        target="digits-cnn",
        data="digits",
        subset=64,
        recipe=recipe,
        config=TrainConfig(epochs=1, device="cpu"),
    )
    assert job.run(tmp_path / "run")["sparsity"] == pytest.approx(50, abs=0.5)


def test_whole_filters_gone_are_counted_in_the_shrunk_network(tmp_path):
    recipe = Recipe.from_toml(
        '[[rules]]\nmethods = [{ method = "prune", structure = "filter", sparsity = 0.5 }]\n'
    )
    config = TrainConfig(epochs=1, batch_size=50, device="cpu")
    metrics = train(
        network("digits-cnn", width=0.5),
        small_digits(50),
        config,
        out=tmp_path / "run",
        recipe=recipe,
    )
    assert (
        0 < metrics["shrunk_parameters"] < metrics["kept"] / 100 * metrics["parameters"]
    )
    assert "full_accuracy" not in metrics  # of a search only


def test_latents_that_outgrow_one_are_seen_in_their_histograms():
    trained = loop(Recipe.load("ternary-best"), epochs=1)
    with torch.no_grad():
        for latent in trained.session.latents().values():
            latent.mul_(3.0 / latent.abs().max())
    for histogram in trained.latent_histograms().values():
        assert histogram["edges"][-1] > 2
        assert max(histogram["counts"][0], histogram["counts"][-1]) < 0.01 * sum(
            histogram["counts"]
        )


def test_the_full_network_is_measured_as_it_is_and_with_its_batch_norms_measured_again():
    recipe = Recipe.from_toml(
        '[[rules]]\nmethods = [{ method = "energy", keep = 0.5 }]\n'
    )
    trained = loop(recipe, epochs=1, optimizer="sgd", lr=0.05)
    trained.run_epoch(1, Display())
    before = {name: value.clone() for name, value in trained.model.state_dict().items()}
    figures = trained.measure_full()
    # Batch norms that saw half of the units only give all of them another loss.
    assert figures["full_reestimated_test_loss"] != figures["full_test_loss"]
    assert all(
        torch.equal(value, before[name])
        for name, value in trained.model.state_dict().items()
    )


def test_the_rate_follows_its_schedule_in_every_step_of_an_epoch():
    trained = loop(optimizer="sgd", lr=0.1, schedule="cosine")
    rates = []
    trained.optimizer.register_step_pre_hook(
        lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"])
    )
    for epoch in (1, 2):
        trained.run_epoch(epoch, Display())
    steps = trained.feed.steps
    assert rates == [
        learning_rate(trained.config, step / steps) for step in range(2 * steps)
    ]
    assert len(set(rates)) == 2 * steps
