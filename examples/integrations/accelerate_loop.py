"""A loop with Accelerate; the one line is `attach`, and the loop does not change."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import tersify
from tersify.integrations.accelerate import attach
from tersify.lab import dataset, network, normalize

digits, model = dataset("digits"), network("digits-cnn")
images = normalize(digits.train.images, digits)
batches = DataLoader(TensorDataset(images, digits.train.labels), 32, shuffle=True)
accelerator = Accelerator(cpu=True)
session = attach(accelerator, model, "ternary-target", steps=8 * len(batches))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
for _ in range(8):
    for x, labels in batches:
        accelerator.backward(torch.nn.functional.cross_entropy(model(x), labels))
        optimizer.step()
        optimizer.zero_grad()
tersify.save(session.pack(), "cnn.terse")
