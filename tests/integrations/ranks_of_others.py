"""Two ranks train under the library that is named; each leaves its weights in the
folder that is named.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from loops_of_others import EPOCHS, RATE, loader, recipe  # noqa: E402


def lightning(folder: Path) -> torch.nn.Module:
    from test_lightning import Lit, trainer

    from tersify.integrations.lightning import TersifyCallback

    module = Lit()
    trainer(
        TersifyCallback(recipe("ternary-target"), out=folder / "net.terse"),
        devices=2,
        strategy="ddp",
    ).fit(module, loader())
    return module


def hf(folder: Path) -> torch.nn.Module:
    from test_hf import trainer

    from tersify.integrations.hf import TersifyCallback

    running = trainer(
        folder,
        TersifyCallback(recipe("ternary-target"), out=folder / "net.terse"),
        ddp_backend="gloo",
    )
    running.train()
    return running.model


def accelerate(folder: Path) -> torch.nn.Module:
    from accelerate import Accelerator
    from loops_of_others import network

    from tersify import save
    from tersify.integrations.accelerate import attach

    accelerator, model = Accelerator(cpu=True), network()
    data = loader().dataset
    steps = EPOCHS * len(DataLoader(data, 8, sampler=DistributedSampler(data)))
    session = attach(accelerator, model, recipe("ternary-target"), steps=steps)
    prepared, optimizer, batches = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=RATE), loader()
    )
    for _ in range(EPOCHS):
        for x, y in batches:
            accelerator.backward(F.cross_entropy(prepared(x), y))
            optimizer.step()
            optimizer.zero_grad()
    assert session.status()["progress"] == 100
    packed = session.pack()
    session.bake_()
    if accelerator.is_main_process:
        save(packed, folder / "net.terse")
    return model


if __name__ == "__main__":
    kind, folder = sys.argv[1], Path(sys.argv[2])
    made = {"lightning": lightning, "hf": hf, "accelerate": accelerate}[kind](folder)
    torch.save(made.state_dict(), folder / f"{torch.distributed.get_rank()}.pt")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
