"""Recipes under the Hugging Face Trainer."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from loops_of_others import (
    BATCH,
    DECAY,
    EPOCHS,
    METHODS,
    RATE,
    near,
    network,
    plain_loop,
    recipe,
    same,
    samples,
)
from torch import nn

import tersify

transformers = pytest.importorskip(
    "transformers", reason="needs the package transformers"
)
accelerate = pytest.importorskip(
    "accelerate",
    reason="needs the package accelerate, without which the Trainer does not start",
)
from transformers import (  # noqa: E402
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
)

from tersify.integrations.hf import TersifyCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Net(nn.Module):
    """What the Trainer wants of a module: named inputs, and the loss."""

    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x, labels=None):
        logits = self.net(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class InOrder(Trainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def get_decay_parameter_names(self, model):
        return [name for name, _ in model.named_parameters()]


class StopAfter(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            raise KeyboardInterrupt


def rows():
    return [{"x": x, "labels": int(y)} for x, y in zip(*samples(), strict=True)]


def trainer(folder, *callbacks, model=None, data=None, kind=InOrder, **settings):
    settings = {
        "num_train_epochs": EPOCHS,
        "save_strategy": "no",
        "per_device_train_batch_size": BATCH,
        "learning_rate": RATE,
        "weight_decay": DECAY,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "logging_steps": 5,
        "optim": "adamw_torch",
    } | settings
    arguments = transformers.TrainingArguments(str(folder), **settings)
    return kind(
        Net() if model is None else model,
        arguments,
        train_dataset=data or rows(),
        eval_dataset=data or rows(),
        callbacks=list(callbacks),
    )


def unprefixed(packed):
    return tersify.CompressedModel(
        {name.removeprefix("net."): tensor for name, tensor in packed.items()}
    )


@pytest.mark.parametrize("name", METHODS)
def test_it_ends_where_a_plain_loop_ends(name, tmp_path):
    callback = TersifyCallback(recipe(name), out=tmp_path / "net.terse")
    running = trainer(tmp_path, callback)
    running.train()
    assert near(unprefixed(callback.packed), plain_loop(name))
    loaded = tersify.load(tmp_path / "net.terse", into=Net())
    assert all(
        torch.equal(v, running.model.state_dict()[k])
        for k, v in loaded.state_dict().items()
    )


@pytest.mark.parametrize("name", METHODS)
def test_resumed_in_the_middle_of_a_schedule_it_ends_with_the_weights_of_an_unbroken_run(
    name, tmp_path
):
    settings = {
        "save_strategy": "steps",
        "save_steps": 4,
        "gradient_accumulation_steps": 2,
        "bf16": True,
    }
    whole = TersifyCallback(recipe(name))
    trainer(tmp_path / "whole", whole, **settings).train()
    with pytest.raises(KeyboardInterrupt):
        trainer(
            tmp_path / "broken", TersifyCallback(recipe(name)), StopAfter(6), **settings
        ).train()
    resumed = TersifyCallback(recipe(name))
    trainer(tmp_path / "broken", resumed, **settings).train(resume_from_checkpoint=True)
    assert same(whole.packed, resumed.packed)


def bert():
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    return BertForSequenceClassification(
        BertConfig(vocab_size=30, max_position_embeddings=12, **sizes)
    )


def sentences():
    words = torch.randint(1, 30, (24, 8), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": w, "labels": int(w[0] > 15)} for w in words]


def test_a_bert_is_saved_resumed_and_read_as_any_other(tmp_path):
    """A checkpoint in the middle and the model at the end are both read by
    from_pretrained.
    """
    settings = {
        "max_steps": 6,
        "save_strategy": "steps",
        "save_steps": 3,
        "data": sentences(),
        "kind": Trainer,
    }
    callback = TersifyCallback(
        "ternary-target", sparsity=0.6, out=tmp_path / "bert.terse"
    )
    running = trainer(tmp_path, callback, model=bert(), **settings)
    running.train()
    assert callback.packed.sparsity_percent() == pytest.approx(60, abs=5)
    words = sentences()[0]["input_ids"][None]
    made = running.model.eval()(words).logits
    assert torch.equal(
        tersify.load(tmp_path / "bert.terse", into=bert()).eval()(words).logits, made
    )
    running.save_model(str(tmp_path / "final"))
    assert torch.equal(
        BertForSequenceClassification.from_pretrained(tmp_path / "final")
        .eval()(words)
        .logits,
        made,
    )
    middle = BertForSequenceClassification.from_pretrained(tmp_path / "checkpoint-3")
    assert middle.classifier.weight.unique().numel() <= 3
    again = TersifyCallback("ternary-target", sparsity=0.6)
    trainer(tmp_path, again, model=bert(), **settings).train(
        resume_from_checkpoint=str(tmp_path / "checkpoint-3")
    )
    assert same(callback.packed, again.packed)


def test_the_best_checkpoint_is_what_is_packed_where_it_is_loaded_at_the_end(tmp_path):
    callback = TersifyCallback("ternary-target")
    settings = {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "load_best_model_at_end": True,
    }
    # which makes the first the best
    settings |= {"metric_for_best_model": "loss", "learning_rate": 3.0}
    running = trainer(tmp_path, callback, **settings)
    running.train()
    best = transformers.trainer_utils.get_last_checkpoint(tmp_path)
    best = running.state.best_model_checkpoint or best
    from safetensors.torch import load_file

    kept = load_file(f"{best}/model.safetensors")
    assert torch.equal(callback.packed["net.0.weight"].to_dense(), kept["net.0.weight"])


def test_after_ctrl_c_train_goes_on_in_the_same_process(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 4}
    whole, callback = TersifyCallback("ttq"), TersifyCallback("ttq")
    trainer(tmp_path / "whole", whole, **settings).train()
    stop = StopAfter(6)
    running = trainer(tmp_path / "broken", callback, stop, **settings)
    with pytest.raises(KeyboardInterrupt):
        running.train()
    running.remove_callback(stop)
    with pytest.raises(
        ValueError, match="has 6 steps of an interrupted training behind it"
    ):
        running.train()
    running.train(resume_from_checkpoint=True)
    assert same(whole.packed, callback.packed)


def test_what_does_not_go_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(
        ValueError, match="the recipe searches, and looks at every batch"
    ):
        TersifyCallback("energy")
    with pytest.raises(ValueError, match="auto_find_batch_size restarts training"):
        trainer(tmp_path, TersifyCallback("ttq"), auto_find_batch_size=True)
    late = trainer(tmp_path)
    late.add_callback(TersifyCallback("ttq"))
    with pytest.raises(
        ValueError,
        match="no recipe is bound to the model; give the callback to the trainer when",
    ):
        late.train()
    settings = {"save_strategy": "steps", "save_steps": 4}
    with pytest.raises(KeyboardInterrupt):
        trainer(
            tmp_path / "a", TersifyCallback("ttq"), StopAfter(5), **settings
        ).train()
    longer = trainer(tmp_path / "a", TersifyCallback("ttq"), **settings, max_steps=30)
    with pytest.raises(
        ValueError, match="made with steps_per_epoch=18, this run has 30"
    ):
        longer.train(resume_from_checkpoint=True)


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """As the Trainer calls it; one without a GPU or several ranks refuses these
    settings before it comes to that.
    """

    def call(callback, *, ranks="NO", **settings):
        state = SimpleNamespace(distributed_type=accelerate.DistributedType[ranks])
        monkeypatch.setattr("tersify.integrations.hf.AcceleratorState", lambda: state)
        arguments = transformers.TrainingArguments(
            str(tmp_path), report_to=[], use_cpu=True
        )
        for name, value in settings.items():
            setattr(arguments, name, value)
        callback.on_init_end(arguments, None, None, model=Net())

    return call


@pytest.mark.parametrize(
    "setting", [{"deepspeed": {"zero_optimization": {"stage": 3}}}, {"fsdp": True}]
)
def test_weights_that_are_cut_up_are_refused(setting, begin):
    (name,) = setting
    with pytest.raises(
        ValueError,
        match=f"{name} cuts weights up, and a recipe needs them whole; train with DDP",
    ):
        begin(TersifyCallback("ttq"), **setting)


@pytest.mark.parametrize("ranks", ["FSDP", "DEEPSPEED"])
def test_weights_that_a_launcher_cuts_up_are_refused(ranks, begin):
    with pytest.raises(ValueError, match=f"{ranks} cuts weights up"):
        begin(TersifyCallback("ttq"), ranks=ranks)


def test_a_scaled_loss_is_refused_where_the_recipe_has_a_term_of_its_own(begin):
    with pytest.raises(
        ValueError,
        match="fp16 scales the loss, and the recipe has a term of its own in it; use bf16",
    ):
        begin(TersifyCallback(recipe("soft-movement")), fp16=True)
    begin(TersifyCallback(recipe("ttq")), fp16=True)


def test_a_checkpoint_from_without_the_callback_is_refused(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 4}
    trainer(tmp_path, **settings, max_steps=4).train()
    with pytest.raises(
        ValueError,
        match=r"has the plain weight 'net\.0\.weight' and not the latent behind it",
    ):
        trainer(tmp_path, TersifyCallback("ttq"), **settings).train(
            resume_from_checkpoint=True
        )
