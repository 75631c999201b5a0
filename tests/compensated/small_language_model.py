"""A causal language model of two blocks, tied, that has learned a little of a made-up
language.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tersify.calibration import Calibration
from tersify.compensated import next_token_loss

TOKENS, WIDTH = 40, 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = (
            nn.Linear(WIDTH, 3 * WIDTH, bias=False),
            nn.Linear(WIDTH, WIDTH, bias=False),
        )
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            self.qkv(self.norm(x)).view(*x.shape[:2], 3, 4, -1).permute(2, 0, 3, 1, 4)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class SmallModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def text(sentences: int, seed: int) -> Tensor:
    """Each token has two successors, and the token before it says which; one in ten is
    a surprise.
    """
    g = torch.Generator().manual_seed(0)
    successors = torch.stack([torch.randperm(TOKENS, generator=g) for _ in range(2)])
    g.manual_seed(seed)
    ids = torch.randint(0, TOKENS, (sentences, 2), generator=g)
    for _ in range(22):
        follows = successors[ids[:, -2:-1] % 2, ids[:, -1:]]
        other = torch.randint(0, TOKENS, follows.shape, generator=g)
        surprise = torch.rand(follows.shape, generator=g) < 0.1
        ids = torch.cat([ids, torch.where(surprise, other, follows)], 1)
    return ids


@functools.cache
def _trained() -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = SmallModel()
    with torch.no_grad():
        model.embed.weight.mul_(0.3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for step in range(250):
        ids = text(32, 1000 + step)
        loss = next_token_loss(model(ids), ids) / ids.numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.state_dict()


def trained() -> SmallModel:
    model = SmallModel()
    model.load_state_dict(_trained())
    return model.eval()


def calibration(sentences: int = 64) -> Calibration:
    return Calibration(
        [(ids, ids) for ids in text(sentences, 1).split(8)], next_token_loss
    )


@torch.no_grad()
def loss_of(model: nn.Module) -> float:
    ids = text(64, 2)
    return float(next_token_loss(model(ids), ids)) / ids.numel()
