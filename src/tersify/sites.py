"""Finds the weights of a network and hangs transforms on them
(torch.nn.utils.parametrize).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NoReturn

from torch import nn
from torch.nn.utils import parametrize

from tersify.methods import Site, Transform
from tersify.methods.prepared_slots import Slot, SlottedChain

_HOOKS = "tersify_hooks"
_ORDER = "tersify_order"
# Wherever one of these reads its weight, autocast casts it.
CAST_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


def find_sites(model: nn.Module) -> list[Site]:
    """Every parameter once, under its first name, with all the places and names that
    hold it.
    """
    places: dict[int, list[tuple[str, nn.Module, str]]] = {}
    latents: dict[int, nn.Parameter] = {}
    # With duplicates, since a shared module has several names and all of them are
    # aliases.
    for prefix, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, parametrize.ParametrizationList):
            _refuse_second_session(prefix, module)
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                name = f"{prefix}.{attribute}" if prefix else attribute
                places.setdefault(id(parameter), []).append((name, module, attribute))
                latents[id(parameter)] = parameter
    sites = []
    for key, held in places.items():
        # By identity of the module: a shared module owns its weight once.
        owners = {
            (id(module), attribute): (module, attribute)
            for _, module, attribute in held
        }
        names = [name for name, _, _ in held]
        sites.append(
            Site(names[0], tuple(owners.values()), tuple(names[1:]), latents[key])
        )
    return sites


def _refuse_second_session(prefix: str, parametrizations: nn.Module) -> None:
    if any(isinstance(child, Transform) for child in parametrizations.children()):
        raise ValueError(
            f"{prefix!r} belongs to a session already; end that one with session.bake_()"
        )


def install(site: Site, transform: Transform) -> None:
    """Append a transform to the site's chain, in every module that holds the weight."""
    # One slot for all modules that hold the weight: it is computed once in a step.
    slot = Slot()
    for module, attribute in site.owners:
        # Past nn.Module's own setattr, which would look for modules and parameters in
        # it.
        module.__dict__.setdefault(_ORDER, list(module._parameters))
        if isinstance(module, nn.RNNBase) and not parametrize.is_parametrized(module):
            _follow_parametrizations(module)
        plain = not parametrize.is_parametrized(module)
        parametrize.register_parametrization(module, attribute, transform, unsafe=True)
        if plain:
            # Torch made this class for this module alone, and goes back to the plain
            # one when the chain is taken off.
            type(module).__getstate__ = _refuse_pickling  # type: ignore[method-assign]
        if not site.chain:
            _put_in_slot(module, attribute, slot)
    site.chain.append(transform)


def _refuse_pickling(module: nn.Module) -> NoReturn:
    raise RuntimeError(
        "a network in a session cannot be pickled whole: save model.state_dict(), which has the plain weights beside "
        "the latents, or end the session with session.bake_() and save the plain network"
    )


def _put_in_slot(module: nn.Module, attribute: str, slot: Slot) -> None:
    """Our own list of parametrizations takes the place of torch's, with the same
    contents under the same names.
    """
    lists: Any = module.parametrizations
    chain = SlottedChain(list(lists[attribute]), lists[attribute].original, unsafe=True)
    chain.slot = slot
    lists[attribute] = chain.train(module.training)


def watched_slot(site: Site) -> Slot:
    """Where the site's weight waits between a step and its forward pass, once the
    site's chain is complete.
    """
    (module, attribute), *others = site.owners
    lists: Any = module.parametrizations
    chain = lists[attribute]
    # behind the class that torch made for the parametrized module
    kind = type(module).__mro__[1]
    chain.slot.castable = not others and kind in CAST_LAYERS
    chain.slot.watch(chain)
    return chain.slot


def uninstall(site: Site) -> None:
    """Take the whole chain off; the modules hold the latent itself again."""
    for module, attribute in site.owners:
        if not parametrize.is_parametrized(module, attribute):
            continue  # an installation that was interrupted
        _give_own_class(module)
        parametrize.remove_parametrizations(module, attribute, leave_parametrized=False)
        _restore_order(module)
        if isinstance(module, nn.RNNBase):
            _restore_flat_weights(module)
            if not parametrize.is_parametrized(module):
                for hook in module.__dict__.pop(_HOOKS):
                    hook.remove()
    site.chain.clear()


def plain_name(name: str) -> str:
    """The name that a latent has as a plain weight:
    `conv.parametrizations.weight.original` is `conv.weight`.
    """
    return re.sub(r"parametrizations\.([^.]+)\.original$", r"\1", name)


def in_plain_order(model: nn.Module, names: Sequence[str]) -> list[nn.Parameter]:
    """The model's parameters in the order of the plain network's `names`; what a
    session added comes last.
    """
    place = {name: at for at, name in enumerate(names)}
    held = sorted(
        model.named_parameters(),
        key=lambda one: place.get(plain_name(one[0]), len(place)),
    )
    return [parameter for _, parameter in held]


def _restore_order(module: nn.Module) -> None:
    """Torch puts a weight behind the others when it comes back; optimizers know
    parameters by their position.
    """
    order: list[str] = module.__dict__[_ORDER]
    held = dict(module._parameters)
    module._parameters.clear()
    module._parameters.update(
        {name: held.pop(name) for name in order if name in held} | held
    )
    if not parametrize.is_parametrized(module):
        del module.__dict__[_ORDER]


def _give_own_class(module: nn.Module) -> None:
    """A deep copy shares its original's parametrized class, from which torch removes
    the weight's property.
    """
    shared = type(module)
    module.__class__ = type(shared.__name__, shared.__bases__, dict(vars(shared)))


def _follow_parametrizations(module: nn.RNNBase) -> None:
    """RNN modules keep a list of their weights, which would go on naming the latents."""
    hooks = [
        module.register_forward_pre_hook(_use_parametrized),
        module.register_forward_hook(_use_latents),
    ]
    module.__dict__[_HOOKS] = hooks


def _use_parametrized(module: nn.Module, args: Any) -> None:
    assert isinstance(module, nn.RNNBase)
    module._flat_weights = [
        getattr(module, name) for name in module._flat_weights_names
    ]


def _use_latents(module: nn.Module, args: Any, output: Any) -> None:
    """Between calls the list holds leaves, so that the module can be copied and moved."""
    assert isinstance(module, nn.RNNBase)
    _restore_flat_weights(module)


def _restore_flat_weights(module: nn.RNNBase) -> None:
    module._flat_weights = [
        _stored(module, name) for name in module._flat_weights_names
    ]


def _stored(module: nn.RNNBase, name: str) -> Any:
    if parametrize.is_parametrized(module, name):
        return module.parametrizations[name].original  # type: ignore[index, union-attr]
    return getattr(module, name)
