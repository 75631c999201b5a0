"""What each of two ranks does in the tests of distributed training, and the same work
in one process.
"""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing, nn

from method_zoo import recipe_of, single_methods
from tersify.lab.data import Data, Split, dataset
from tersify.lab.trainer import Display, TrainConfig
from tersify.lab.trainer.loop import Loop
from tersify.methods import Ternary

EPOCHS, BATCH, IMAGES = 2, 16, 400  # 50 steps


def network() -> nn.Module:
    """No batch norm, which would see only its rank's fraction of a batch."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def digits() -> Data:
    whole = dataset("digits")
    parts = (
        Split(s.images[:IMAGES], s.labels[:IMAGES]) for s in (whole.train, whole.test)
    )
    return Data("digits", *parts, classes=10, mean=whole.mean, std=whole.std)


def families() -> list[tuple]:
    """Every registered method and the zoo's variants, alone, and a pruner in front of a
    quantizer.
    """
    alone = [(method,) for method in single_methods() if not method.needs_calibration]
    pruner = next(m for (m,) in alone if m.name == "prune")
    return [*alone, (pruner, Ternary(spread=0.2, scale="tensor"))]


def codes_after_50_steps(chain: tuple) -> dict[str, torch.Tensor]:
    # Not Adam: it makes steps of full length from gradients that are nothing but
    # rounding.
    config = TrainConfig(
        epochs=EPOCHS, batch_size=BATCH, optimizer="sgd", lr=0.01, device="cpu"
    )
    loop = Loop(network(), digits(), config, recipe_of(chain))
    for epoch in range(1, EPOCHS + 1):
        loop.run_epoch(epoch, Display())
    return {name: tensor.codes for name, tensor in loop.pack().compressed().items()}


def run(work: Callable[..., None], *arguments: Any) -> None:
    """`work(*arguments)` in two processes that form a gloo group."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(_join, (port, work, arguments), nprocs=2)


def _join(rank: int, port: int, work: Callable[..., None], arguments: tuple) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    work(*arguments)
    distributed.barrier()
    distributed.destroy_process_group()
    # gloo's threads may outlive the group, and would abort a process on its way out
    os._exit(0)


def save_codes_of_every_family(folder: Path) -> None:
    for index, chain in enumerate(families()):
        try:
            told: Any = codes_after_50_steps(chain)
        except Exception:  # one family's failure is not the others'
            told = traceback.format_exc()
        torch.save(told, folder / f"{index}-{distributed.get_rank()}.pt")
