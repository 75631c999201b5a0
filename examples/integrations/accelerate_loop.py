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
model, optimizer, batches = accelerator.prepare(
    model, torch.optim.AdamW(model.parameters(), lr=2e-3), batches
)
for _ in range(8):
    for x, labels in batches:
        accelerator.backward(torch.nn.functional.cross_entropy(model(x), labels))
        optimizer.step()
        optimizer.zero_grad()

tersify.save(session.pack(), "cnn.terse")
net = tersify.load("cnn.terse", into=network("digits-cnn")).eval()
right = net(normalize(digits.test.images, digits)).argmax(1) == digits.test.labels
print(f"{100 * right.float().mean():.1f} % right")
