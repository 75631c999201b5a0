"""Learning from a dense teacher."""

import pytest
import torch
import torch.nn.functional as F

import tersify
from tersify.lab import dataset, network
from tersify.lab.trainer import TrainConfig, train
from tersify.lab.trainer.objective import Objective, load_teacher
from tersify.tensor import CompressedModel


@pytest.fixture
def teacher(tmp_path):
    """A small reference network and the file it lies in."""
    net = network("digits-cnn", width=0.25).eval()
    metadata = {"target": {"name": "digits-cnn", "options": {"width": 0.25}}}
    tersify.save(
        CompressedModel(net.state_dict(), metadata=metadata), tmp_path / "teacher.terse"
    )
    return net, str(tmp_path / "teacher.terse")


def batch():
    return (
        torch.randn(6, 1, 8, 8),
        torch.randn(6, 10, requires_grad=True),
        torch.arange(6),
    )


def test_without_a_teacher_the_loss_is_cross_entropy():
    images, logits, labels = batch()
    loss = Objective(TrainConfig(epochs=1, label_smoothing=0.1))(images, logits, labels)
    assert torch.equal(loss, F.cross_entropy(logits, labels, label_smoothing=0.1))


def test_with_a_teacher_the_loss_mixes_labels_and_softened_answers(teacher):
    net, path = teacher
    images, logits, labels = batch()
    config = TrainConfig(
        epochs=1, teacher=path, teacher_weight=0.3, teacher_temperature=2.0
    )
    loss = Objective(config, load_teacher(config, dataset("digits"), 10))(
        images, logits, labels
    )
    wanted = F.softmax(net(images) / 2, 1)
    distance = (wanted * (wanted.log() - F.log_softmax(logits / 2, 1))).sum(1).mean()
    assert loss.item() == pytest.approx(
        (0.7 * F.cross_entropy(logits, labels) + 0.3 * 4 * distance).item(), rel=1e-5
    )


def test_a_student_that_answers_like_its_teacher_has_nothing_to_learn_from_it(teacher):
    net, path = teacher
    images, _, labels = batch()
    logits = net(images).detach().requires_grad_()
    Objective(TrainConfig(epochs=1, teacher=path, teacher_weight=1.0), net)(
        images, logits, labels
    ).backward()
    assert logits.grad.abs().max() < 1e-6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"teacher_weight": 1.5}, r"teacher_weight must be in \[0, 1\], got 1.5"),
        ({"teacher_temperature": 0.0}, "teacher_temperature must be above 0"),
    ],
)
def test_a_wrong_setting_is_refused_at_birth(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(epochs=1, **settings)


def test_a_teacher_of_another_data_set_is_refused_and_writes_nothing(teacher, tmp_path):
    net = network("resnet20", depth=0.3)
    metadata = {"target": {"name": "resnet20", "options": {"depth": 0.3}}}
    tersify.save(
        CompressedModel(net.state_dict(), metadata=metadata), tmp_path / "other.terse"
    )
    config = TrainConfig(epochs=1, teacher=str(tmp_path / "other.terse"))
    with pytest.raises(
        ValueError,
        match=r"the teacher .*other\.terse does not fit: .*1×8×8 images of 'digits'",
    ):
        train(
            network("digits-cnn", width=0.25),
            dataset("digits"),
            config,
            out=tmp_path / "out",
        )
    assert not (tmp_path / "out").exists()
    with pytest.raises(
        ValueError, match=r"teacher\.terse gives 10 logits and the network 12"
    ):
        load_teacher(TrainConfig(epochs=1, teacher=teacher[1]), dataset("digits"), 12)
