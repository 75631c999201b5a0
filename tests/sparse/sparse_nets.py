"""A small network with a layer of every kind that a collection knows, pruned at random."""

import torch
from torch import nn


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 1
        )
        self.lstm = nn.LSTM(16, 12, 2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(24, 8, bias=False)
        self.conv = nn.Conv1d(8, 6, 3, groups=2, padding=1)
        self.up = nn.ConvTranspose1d(6, 4, 3, stride=2)
        self.cell = nn.LSTMCell(4, 5)

    def forward(self, tokens):
        x = self.encoder(self.table(tokens))
        x = self.gru(self.lstm(x)[0])[0]
        x = self.up(torch.relu(self.conv(x.transpose(1, 2))), output_size=(18,))
        state = None
        for step in x.unbind(-1):
            state = self.cell(step, state)
        return state[0]


OPERATIONS = [
    "table",
    *(f"encoder.layers.0.self_attn.{part}_proj" for part in ("q", "k", "v", "out")),
    "encoder.layers.0.linear1",
    "encoder.layers.0.linear2",
    *(
        f"lstm.weight_{m}_l{layer}{way}"
        for layer in (0, 1)
        for way in ("", "_reverse")
        for m in ("ih", "hh")
    ),
    "gru.weight_ih_l0",
    "gru.weight_hh_l0",
    "conv",
    "up",
    "cell.weight_ih",
    "cell.weight_hh",
]


def pruned(module, density=0.2):
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter *= torch.rand_like(parameter) < density
    return module


def everything():
    torch.manual_seed(0)
    return pruned(Everything()), torch.randint(0, 50, (3, 8))
