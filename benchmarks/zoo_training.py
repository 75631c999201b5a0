"""Recipes of the zoo: compressed at once, with a width for each layer in an eighth of
the bytes, or towards the outputs of the fp32 network for a few steps.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo_entries import Subject, Training

import tersify
from tersify import CompressedModel, Recipe
from tersify.calibration import Calibration
from tersify.even_filters import even_filters_
from tersify.lab.estimates import within

CALIBRATION_BATCH = 10
FRACTION = 8  # of fp32's bytes that an allocated network may take
WARM_STEPS = 10


def recipe_for(subject: Subject, name: str) -> Recipe:
    """The ready recipe, on the weights that are meant."""
    ready = Recipe.load(name)
    return replace(
        ready,
        rules=tuple(replace(rule, weights=subject.weights) for rule in ready.rules),
    )


def calibration(subject: Subject) -> Calibration:
    """Labelled data as it is; else the outputs' sum with random signs, whose squared
    gradients tell of all outputs.
    """
    inputs = subject.shown[:200].split(CALIBRATION_BATCH)
    if subject.shown_labels is not None:
        labels = subject.shown_labels[:200].split(CALIBRATION_BATCH)
        return Calibration(list(zip(inputs, labels, strict=True)))
    draw = torch.Generator().manual_seed(0)

    def spread(outputs: Tensor, _: None) -> Tensor:
        signs = torch.randint(0, 2, outputs.shape, generator=draw) * 2 - 1
        return (outputs * signs).sum() / outputs.numel() ** 0.5

    return Calibration([(each, None) for each in inputs], loss=spread)


def own_labels(subject: Subject) -> Calibration:
    """Classes drawn from the network's own outputs: what its decisions depend on,
    whatever the true labels are.
    """
    draw = torch.Generator().manual_seed(0)

    def loss(outputs: Tensor, _: None) -> Tensor:
        drawn = torch.multinomial(outputs.detach().softmax(1), 1, generator=draw)
        return F.cross_entropy(outputs, drawn[:, 0])

    inputs = subject.shown[:200].split(CALIBRATION_BATCH)
    return Calibration([(each, None) for each in inputs], loss=loss)


def allocated(subject: Subject) -> tuple[nn.Module, CompressedModel]:
    """Tables of 3 to 8 bits, counted by sensitivity, a width for each layer."""
    model = copy.deepcopy(subject.model)
    even_filters_(model, subject.shown[:1])
    dense_bytes = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    data = own_labels(subject) if subject.decides else calibration(subject)
    return within(model, data, dense_bytes // FRACTION, weights=subject.weights)


def compressed(
    subject: Subject, name: str, training: Training | None
) -> tuple[nn.Module, CompressedModel]:
    """A copy of the network with its new weights, and those as a file takes them."""
    model, recipe = copy.deepcopy(subject.model), recipe_for(subject, name)
    if training is None:
        return model, tersify.compress_(model, recipe, calibration=calibration(subject))
    if training.even:
        even_filters_(model, subject.shown[:1])
    session = tersify.attach(
        model, recipe, steps=training.steps, calibration=calibration(subject)
    )
    optimizer = torch.optim.Adam(session.param_groups(), lr=training.lr)
    for step in range(training.steps):
        along = (
            0.5
            * (1 + math.cos(math.pi * step / training.steps))
            * min(1.0, (step + 1) / WARM_STEPS)
        )
        for group in optimizer.param_groups:
            group["lr"] = training.lr * along
        inputs = subject.batch(training.batch, step)
        with torch.no_grad():
            wanted = subject.model(inputs)
        session.step(inputs, None)
        loss = (
            distance(model(inputs), wanted, classes=subject.held_labels is not None)
            + session.penalty()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    packed = session.pack(calibration=calibration(subject))
    session.bake_()
    return model.eval(), packed


def distance(given: Tensor, wanted: Tensor, *, classes: bool) -> Tensor:
    if classes:
        return F.kl_div(
            F.log_softmax(given, 1),
            F.log_softmax(wanted, 1),
            log_target=True,
            reduction="batchmean",
        )
    return (1 - F.cosine_similarity(given.flatten(1), wanted.flatten(1))).mean()
