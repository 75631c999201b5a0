"""A trained ternary network, from the session to the kernels: compiled predictions are
the module's.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tersify
from tersify.lab import dataset, network
from tersify.tensor.model import load_state

pytest.importorskip("tersify._runtime")


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    data = dataset("digits")
    model = network("digits-cnn")
    epochs, batch = 4, 64
    images, labels = data.train.images, data.train.labels
    steps = len(images) // batch
    session = tersify.attach(
        model, "ternary-fixed", epochs=epochs, steps_per_epoch=steps
    )
    optimizer = torch.optim.Adam(session.param_groups(), lr=5e-3)
    for _ in range(epochs):
        order = torch.randperm(len(images))
        for i in range(steps):
            chosen = order[i * batch : (i + 1) * batch]
            session.step(images[chosen], labels[chosen])
            loss = (
                F.cross_entropy(model(images[chosen]), labels[chosen])
                + session.penalty()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    plain = load_state(session.pack(), into=network("digits-cnn")).eval()
    return plain, data.test.images, data.test.labels


def test_compiled_predictions_of_a_trained_network_are_the_same(trained):
    plain, images, labels = trained
    with torch.no_grad():
        wanted = plain(images)
    assert (wanted.argmax(1) == labels).double().mean() > 0.8
    fast = tersify.compile(plain, images[:8])
    given = fast(images)
    assert (given - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert (given.argmax(1) == wanted.argmax(1)).double().mean() >= 0.999


def test_eight_bit_activations_keep_the_predictions_of_a_trained_network(trained):
    plain, images, _ = trained
    with torch.no_grad():
        wanted = plain(images)
    fast = tersify.compile(
        plain, images[:8], precision="int8", calibration=[images[:200]]
    )
    assert "int8 activations" in fast.plan.describe()
    assert (fast(images).argmax(1) == wanted.argmax(1)).double().mean() >= 0.99


def test_sixteen_bit_floats_keep_the_predictions_of_a_trained_network(
    trained, monkeypatch
):
    plain, images, _ = trained
    monkeypatch.setenv("TERSIFY_ISA", "portable")
    with torch.no_grad():
        wanted = plain(images)
    fast = tersify.compile(plain, images[:8], precision="fp16")
    assert "fp16 activations" in fast.plan.describe()
    given = fast(images)
    assert (given - wanted).abs().max() <= 4e-3 * wanted.abs().max()
    assert (given.argmax(1) == wanted.argmax(1)).double().mean() >= 0.995
