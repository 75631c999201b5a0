import json
from pathlib import Path

import pytest

from tersify.lab.trainer import TrainConfig
from tersify.lab.trainer.rate import learning_rate

RESULTS = Path(__file__).parent.parent.parent / "results"

PAPER_1 = {
    "lr": 5e-3,
    "schedule": "multistep",
    "milestones": [101, 142, 184, 220],
    "rates": [1e-3, 5e-4, 1e-4, 1e-5],
}


@pytest.mark.parametrize(
    ("epoch", "rate"),
    [
        (1, 5e-3),
        (100, 5e-3),
        (101, 1e-3),
        (142, 5e-4),
        (184, 1e-4),
        (220, 1e-5),
        (500, 1e-5),
    ],
)
def test_the_regime_of_paper_1_changes_at_its_epochs(epoch, rate):
    config = TrainConfig.from_mapping(PAPER_1, epochs=500)
    assert learning_rate(config, epoch - 1) == rate


def test_milestones_shrink_with_the_epochs_when_asked():
    config = TrainConfig.from_mapping(PAPER_1, epochs=24, over=240)
    rates = [learning_rate(config, epoch - 1) for epoch in range(1, 25)]
    assert rates[:10] == [5e-3] * 10
    assert rates[10] == 1e-3
    assert rates[-1] == 1e-5


def test_step_multiplies_every_few_epochs():
    config = TrainConfig(epochs=9, lr=1.0, schedule="step", step_epochs=3, gamma=0.5)
    assert [learning_rate(config, e) for e in range(9)] == [
        1,
        1,
        1,
        0.5,
        0.5,
        0.5,
        0.25,
        0.25,
        0.25,
    ]


def test_cosine_falls_from_the_rate_to_the_final_one_behind_a_linear_warmup():
    config = TrainConfig(
        epochs=10, lr=1.0, schedule="cosine", final_lr=0.1, warmup_epochs=2
    )
    assert learning_rate(config, 0) == 0
    assert learning_rate(config, 1) == pytest.approx(0.5)
    assert learning_rate(config, 2) == pytest.approx(1.0)
    assert learning_rate(config, 10) == pytest.approx(0.1)
    falling = [learning_rate(config, 2 + e / 10) for e in range(80)]
    assert falling == sorted(falling, reverse=True)


@pytest.mark.parametrize(
    ("epochs", "top"), [(1, 0.5), (2, 1.0), (5, 2.5), (6, 3.0), (60, 3.0)]
)
def test_a_warmup_written_for_longer_runs_takes_half_of_a_short_one(epochs, top):
    config = TrainConfig(epochs=epochs, schedule="cosine", warmup_epochs=3)
    rates = {
        done: learning_rate(config, done)
        for done in (step * epochs / 100 for step in range(101))
    }
    assert learning_rate(config, top) == max(rates.values()) == pytest.approx(config.lr)
    assert learning_rate(config, top / 2) == pytest.approx(config.lr / 2)
    assert learning_rate(config, epochs) == pytest.approx(config.final_lr)


def test_the_warmup_of_a_run_that_says_what_it_was_written_for_keeps_its_share():
    config = TrainConfig(epochs=10, over=100, lr=1.0, warmup_epochs=40)
    assert learning_rate(config, 2) == pytest.approx(0.5)
    assert learning_rate(config, 4) == 1.0


@pytest.mark.parametrize(
    "file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.stem
)
def test_no_published_run_warmed_up_for_more_than_half_of_its_epochs(file):
    rows = json.loads(file.read_text(encoding="utf-8")).get("rows", [])
    for train in (
        row["settings"]["train"]
        for row in rows
        if isinstance(row, dict) and row.get("settings")
    ):
        assert train.get("warmup_epochs", 0) / train.get("over", train["epochs"]) <= 0.5


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"epochs": 1.5}, "epochs must be of type int, got 1.5"),
        ({"epochs": True}, "epochs must be of type int, got True"),
        ({"lr": -1}, "lr must be above 0, got -1"),
        ({"lr": float("nan")}, "lr must be a finite number, got nan"),
        ({"lr": "fast"}, "lr must be of type float, got 'fast'"),
        (
            {"optimizer": "lion"},
            "optimizer must be one of adam, adamw, sgd, adadelta, got 'lion'",
        ),
        ({"schedule": "multistep"}, "needs milestones"),
        ({"milestones": [3]}, "belong to schedule 'multistep'"),
        (
            {"schedule": "multistep", "milestones": [5, 3]},
            r"must rise and start at 2 or later, got \[5, 3\]",
        ),
        (
            {"schedule": "multistep", "milestones": [3, 5], "rates": [1e-3]},
            "2 milestones need as many rates, got 1",
        ),
        (
            {"schedule": "multistep", "milestones": 5},
            "milestones must be a list of numbers, got 5",
        ),
        (
            {"schedule": "multistep", "milestones": ["x"]},
            "milestones must be of type int, got 'x'",
        ),
        ({"augmentation": 4}, "augmentation must be a table such as"),
        ({"label_smoothing": 1}, r"label_smoothing must be in \[0, 1\)"),
        ({"compile": "yes"}, "compile must be one of off, default"),
        ({"learning_rate": 1}, "unknown training setting 'learning_rate'"),
        ({"batchsize": 1}, "nearest: 'batch_size'"),
    ],
)
def test_a_bad_setting_is_named_with_its_rule(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        TrainConfig.from_mapping({"epochs": 2, **given})


def test_the_number_of_epochs_must_come_from_somewhere():
    with pytest.raises(ValueError, match="--epochs"):
        TrainConfig.from_mapping({"lr": 0.1})


def test_an_override_of_none_leaves_the_recipe_s_own_value():
    assert (
        TrainConfig.from_mapping({"epochs": 3, "lr": 0.5}, lr=None, epochs=4).lr == 0.5
    )


def test_a_config_survives_the_way_through_plain_values():
    config = TrainConfig.from_mapping(
        PAPER_1, epochs=9, over=240, augmentation={"cutout": 4}
    )
    assert TrainConfig.from_mapping(config.to_dict()) == config


DEFAULTS = {
    "epochs": 3,
    "batch_size": 256,
    "optimizer": "adam",
    "lr": 1e-3,
    "lr_size": None,
    "weight_decay": 0.0,
    "momentum": 0.9,
    "nesterov": False,
    "schedule": "constant",
    "milestones": [],
    "rates": [],
    "gamma": 0.1,
    "step_epochs": 30,
    "over": None,
    "final_lr": 0.0,
    "warmup_epochs": 0.0,
    "label_smoothing": 0.0,
    "mixup": 0.0,
    "freeze": "",
    "teacher": "",
    "teacher_weight": 0.5,
    "teacher_temperature": 4.0,
    "augment": True,
    "augmentation": {},
    "amp": None,
    "channels_last": None,
    "compile": "off",
    "ema": 0.0,
    "seed": 0,
    "device": "auto",
    "parallel": "replicated",
    "recalibrate": True,
}
ENDS = [
    ("epochs", (1,), (0,)),
    ("batch_size", (1,), (0,)),
    ("step_epochs", (1,), (0,)),
    ("over", (1,), (0,)),
    ("lr", (1e-9,), (0.0,)),
    ("lr_size", (1e-9,), (0.0,)),
    ("gamma", (1e-9,), (0.0,)),
    ("teacher_temperature", (1e-9,), (0.0,)),
    ("weight_decay", (0.0,), (-1e-9,)),
    ("final_lr", (0.0,), (-1e-9,)),
    ("warmup_epochs", (0.0,), (-1e-9,)),
    ("seed", (0,), (-1,)),
    ("momentum", (0.0, 0.999), (-1e-9, 1.0)),
    ("label_smoothing", (0.0, 0.999), (-1e-9, 1.0)),
    ("ema", (0.0, 0.999), (-1e-9, 1.0)),
    ("teacher_weight", (0.0, 1.0), (-1e-9, 1.01)),
    ("mixup", (0.0, 1.0), (-1e-9, 1.01)),
]


def test_what_a_training_is_when_nothing_is_said():
    assert TrainConfig(epochs=3).to_dict() == DEFAULTS


@pytest.mark.parametrize(
    ("setting", "ends", "beyond"), ENDS, ids=[end[0] for end in ENDS]
)
def test_a_setting_goes_to_its_ends_and_no_further(setting, ends, beyond):
    for value in ends:
        assert getattr(TrainConfig(**{"epochs": 3, setting: value}), setting) == value
    for value in beyond:
        with pytest.raises(ValueError, match=setting):
            TrainConfig(**{"epochs": 3, setting: value})


def test_milestones_rise_from_the_second_epoch_on():
    def with_milestones(*milestones, rates=()):
        return TrainConfig(
            epochs=9, schedule="multistep", milestones=milestones, rates=rates
        )

    assert with_milestones(2, 3, rates=(0.1, 1e-9)).milestones == (2, 3)
    for milestones in ((1, 3), (3, 2), (3, 3)):
        with pytest.raises(
            ValueError, match="milestones must rise and start at 2 or later"
        ):
            with_milestones(*milestones)
    with pytest.raises(ValueError, match="rates must be above 0"):
        with_milestones(2, rates=(0.0,))
