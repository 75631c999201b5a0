"""One training by several processes (torchrun): who joins, what they must agree on, and
how their work meets.

Each rank gets its part of every global batch and gradients are averaged, so weights,
and with them all that methods decide from weights, are the same bits on every rank. The
first rank alone touches the run directory.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, distributed, nn

from tersify import ranks
from tersify.lab.trainer.run_directory import difference
from tersify.methods.pruning.mask import GatheredMask

_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_AS_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@contextlib.contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Inside, this process belongs to the group torchrun started it in; where it did
    not, nothing happens.
    """
    if ranks.together() or not all(name in os.environ for name in _TORCHRUN):
        yield
        return
    own = None
    if device.type == "cuda":
        own = torch.device(
            "cuda", local_rank() if device.index is None else device.index
        )
        torch.cuda.set_device(own)  # where NCCL puts what it sends
    distributed.init_process_group(
        "gloo" if own is None else "nccl", device_id=own, **_meeting_place()
    )
    yield
    # Only after success: a rank that failed must not wait for the others.
    distributed.destroy_process_group()


def _meeting_place() -> dict[str, Any]:
    """Where the ranks find each other.

    torchrun keeps one store over its restarts, with the addresses of the dead in it
    (pytorch issue 135712), so each start gets keys of its own. On several machines the
    counts may differ: there torchrun must be told not to share its store
    (docs/how-to/scale.md).
    """
    env = os.environ
    # True where torchrun's own store serves all ranks and they are on one machine.
    shared = (
        env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        and env.get("LOCAL_WORLD_SIZE") == env["WORLD_SIZE"]
    )
    if not shared:
        return {}
    rank, world = int(env["RANK"]), int(env["WORLD_SIZE"])
    place = env["MASTER_ADDR"], int(env["MASTER_PORT"])
    store = distributed.TCPStore(*place, world, is_master=False)  # type: ignore[attr-defined]
    start = env.get("TORCHELASTIC_RESTART_COUNT", "0")
    own = distributed.PrefixStore(f"start-{start}", store)  # type: ignore[attr-defined]
    return {"store": own, "rank": rank, "world_size": world}


def local_rank() -> int:
    """This rank's number on its machine, which is the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def restarted() -> bool:
    """Whether torchrun started this process again after a rank died: the run then goes
    on where it was.
    """
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def check_agreement(identity: dict[str, Any]) -> None:
    """Every rank must have been told to train the same thing; all of them raise where
    one was not.
    """
    every = ranks.gather(identity)
    for rank, other in enumerate(every):
        found = difference(every[0], other)
        if found:
            raise ValueError(
                f"rank {rank} was started with other settings than rank 0 ({found}); "
                "give every rank the same command and the same files"
            )


def part_of_rank(count: int) -> slice:
    """This rank's part of a batch (or a split) of `count`; parts differ by one at most."""
    return slice(
        count * ranks.rank() // ranks.world(),
        count * (ranks.rank() + 1) // ranks.world(),
    )


def start_alike(model: nn.Module, device: torch.device) -> nn.Module:
    """The first rank's weights on all ranks and, on GPUs, batch norms that see the
    global batch.
    """
    if not ranks.together():
        return model
    for tensor in model.state_dict(keep_vars=True).values():
        distributed.broadcast(tensor.detach(), src=0)
    # torch has no synchronised batch norm for the CPU: there each rank normalises by
    # its own part.
    return (
        nn.SyncBatchNorm.convert_sync_batchnorm(model)
        if device.type == "cuda"
        else model
    )


def data_parallel(model: nn.Module, device: torch.device) -> nn.Module:
    """A forward pass whose backward averages gradients over the ranks."""
    if not ranks.together():
        return model
    # A probe's gradient is used up by its own hook, which takes the mean over the
    # ranks; DDP would bring it back.
    probes = [
        f"{name}.probe"
        for name, module in model.named_modules()
        if isinstance(module, GatheredMask)
    ]
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        model, probes
    )
    with warnings.catch_warnings():
        # Buffers are equal by construction, and sending the masks again in every step
        # would cost more than the gradients. The setting has a newer name, which older
        # releases do not know.
        warnings.simplefilter("ignore", FutureWarning)
        return nn.parallel.DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            broadcast_buffers=False,
        )


def reduce_others_(
    optimizer: torch.optim.Optimizer, model: nn.Module, is_sharded: bool
) -> None:
    """Average the gradients that neither DDP nor FSDP knows of: of what methods learn
    for several or whole weights.
    """
    if ranks.world() > 1:
        # DDP reduces all parameters of the model, FSDP only those that it sharded.
        known = {
            id(p) for p in model.parameters() if not is_sharded or ranks.is_sharded(p)
        }
        others = [
            p
            for group in optimizer.param_groups
            for p in group["params"]
            if id(p) not in known
        ]
        ranks.mean_over_ranks_([p.grad for p in others if p.grad is not None])


def sum_over_ranks(
    figures: Mapping[str, float], device: torch.device
) -> dict[str, float]:
    """The sum of each figure over the ranks; exact for counts."""
    if ranks.world() == 1:
        return dict(figures)
    total = torch.tensor(list(figures.values()), dtype=torch.float64, device=device)
    distributed.all_reduce(total)
    return dict(zip(figures, total.tolist(), strict=True))


def average_batch_norms_(model: nn.Module) -> None:
    """One set of running statistics, where each rank normalised by its own part of the
    batch.
    """
    ranks.mean_over_ranks_(
        [
            b
            for name, b in model.named_buffers()
            if name.endswith(("running_mean", "running_var"))
        ]
    )


def check_alike(tensors: Iterable[tuple[str, Tensor]], when: str) -> None:
    """Every rank must hold the same bits: what one decided alone would never come
    together again.
    """
    if ranks.world() == 1:
        return
    held = [(name, tensor) for name, tensor in tensors if not ranks.is_sharded(tensor)]
    if not held:
        return
    names, sums = zip(
        *((name, _sum_of_bits(tensor)) for name, tensor in held), strict=True
    )
    # One number for each tensor: comparing the tensors themselves would send the whole
    # network.
    own = torch.stack(sums)
    every = [torch.empty_like(own) for _ in range(ranks.world())]
    distributed.all_gather(every, own)
    for rank, other in enumerate(every):
        if not torch.equal(other, every[0]):
            name = names[int((other != every[0]).nonzero()[0])]
            raise ValueError(
                f"{when} rank {rank} holds another {name!r} than rank 0: a method or a layer decided by what only one "
                "rank saw; let it decide by means over the ranks (tersify.ranks.mean_over_ranks_)"
            )


def _sum_of_bits(tensor: Tensor) -> Tensor:
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.dtype == torch.bool:
        return flat.sum()
    # The bits as integers: sums of floats would depend on the order, and NaN equals
    # nothing.
    return flat.view(_AS_INTEGERS[flat.element_size()]).sum(dtype=torch.int64)
