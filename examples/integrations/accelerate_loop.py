"""A loop with Accelerate; the one line is `attach`, and the loop does not change."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import tersify
from tersify.integrations.accelerate import attach
from tersify.lab import dataset, network, normalize

digits, accelerator, model = dataset("digits"), Accelerator(cpu=True), network("digits-cnn")
batches = DataLoader(TensorDataset(normalize(digits.train.images, digits), digits.train.labels), 32, shuffle=True)
session = attach(accelerator, model, "ternary-target", steps=8 * len(batches))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
for _ in range(8):
    for images, labels in batches:
        accelerator.backward(torch.nn.functional.cross_entropy(model(images), labels))
        optimizer.step()
        optimizer.zero_grad()

packed = session.pack()
tersify.save(packed, "cnn.terse")
net = tersify.load("cnn.terse", into=network("digits-cnn")).eval()
found = net(normalize(digits.test.images, digits)).argmax(1)
print(f"{100 * (found == digits.test.labels).float().mean():.1f} % right\n{packed}")
