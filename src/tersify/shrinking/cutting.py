"""Cuts indices out of a module's parameters and buffers, and tells its layers their new
sizes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

# tensor name → dimension → the indices that stay
Kept = Mapping[str, Mapping[int, Tensor]]


@torch.no_grad()
def cut_(model: nn.Module, kept: Kept) -> None:
    """Keep only the given indices. A tensor under several names stays one tensor."""
    # By identity: a tied parameter is cut once, and all its names get the same new one.
    parameters = {
        id(p): nn.Parameter(_cut(p, kept[name]), p.requires_grad)
        for name, p in model.named_parameters(remove_duplicate=False)
        if name in kept
    }
    buffers = {
        id(b): _cut(b, kept[name])
        for name, b in model.named_buffers(remove_duplicate=False)
        if name in kept
    }
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if id(parameter) in parameters:
                module._parameters[name] = parameters[id(parameter)]
        for name, buffer in module._buffers.items():
            if id(buffer) in buffers:
                module._buffers[name] = buffers[id(buffer)]
        tell_sizes_(module)


def _cut(tensor: Tensor, kept: Mapping[int, Tensor]) -> Tensor:
    for dim, indices in kept.items():
        tensor = tensor.index_select(dim, indices.to(tensor.device))
    return tensor.detach().clone()


def tell_sizes_(module: nn.Module) -> None:
    """A layer's own record of its sizes, from the shape of its weight."""
    # Its weight is [in, out / groups, …], the other way round.
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        module.in_channels, module.out_channels = (
            module.weight.shape[0],
            module.weight.shape[1] * module.groups,
        )
    elif isinstance(module, nn.modules.conv._ConvNd):
        rows, per_group = module.weight.shape[:2]
        # Depthwise: as many groups as input channels, with the same number of filters
        # in each as before.
        if module.groups == module.in_channels > 1:
            module.groups = rows // (module.out_channels // module.groups)
        module.in_channels, module.out_channels = per_group * module.groups, rows
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.modules.batchnorm._NormBase):
        held = module.weight if module.weight is not None else module.running_mean
        module.num_features = module.num_features if held is None else len(held)
    elif isinstance(module, nn.Embedding):
        module.embedding_dim = module.weight.shape[1]
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(module.weight)
