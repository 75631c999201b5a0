"""A small CNN under Lightning; the one line is `callbacks=`."""

import lightning.pytorch as L
import torch
from torch.utils.data import DataLoader, TensorDataset

from tersify.integrations.lightning import TersifyCallback
from tersify.lab import dataset, network, normalize


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = network("digits-cnn")

    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


digits = dataset("digits")
images = normalize(digits.train.images, digits)
batches = DataLoader(TensorDataset(images, digits.train.labels), 32, shuffle=True)
callback = TersifyCallback("ternary-target", out="cnn.terse")
L.Trainer(max_epochs=8, logger=False, callbacks=[callback]).fit(Digits(), batches)
