"""Session: three verbs (step, penalty, pack) for anybody's training loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from tersify.calibration import Calibration, input_norms, seen_inputs, squared_gradients
from tersify.methods import Bound, Method, Network, Site, Step, Transform
from tersify.methods.inputs import TrainedInput
from tersify.methods.prepare import Preparations
from tersify.ranks import whole
from tersify.recipe import Recipe, Rule
from tersify.schedules import Progress
from tersify.sites import find_sites, install, plain_name, uninstall, watched_slot
from tersify.tensor import CompressedModel, CompressedTensor
from tersify.tensor.inputs import LAYERS, METADATA, FixedInput, facts_of, leave_input, quantize_input, quantizer_of
from tersify.tensor.model import tied
from tersify.units import Example, find_units
from tersify.views import Views, view_of


def attach(
    model: nn.Module,
    recipe: str | Path | Recipe,
    *,
    epochs: int = 1,
    steps_per_epoch: int = 1,
    calibration: Calibration | Iterable[tuple[Any, Any]] | None = None,
    example: Example | None = None,
) -> Session:
    """Bind a recipe to a model. Make the optimizer afterwards, from `session.param_groups()`.

    `calibration` holds batches (inputs, targets) for methods that ask how much each weight matters; with a
    loss other than cross-entropy, give a `Calibration`. `example` is an input of the model, for methods that prune
    filters, neurons or heads: it tells which of them go together, as those that meet in a residual addition must.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"a recipe is bound to a torch.nn.Module, got a {type(model).__name__}")
    for what, value in (("epochs", epochs), ("steps_per_epoch", steps_per_epoch)):
        if value < 1:
            raise ValueError(f"{what} must be at least 1, got {value}")
    return Session(
        model, Recipe.load(recipe), epochs=epochs, steps_per_epoch=steps_per_epoch,
        calibration=None if calibration is None else Calibration.of(calibration), example=example,
    )  # fmt: skip


@torch.no_grad()
def compress_(
    model: nn.Module,
    recipe: str | Path | Recipe,
    *,
    calibration: Calibration | Iterable[tuple[Any, Any]] | None = None,
    example: Example | None = None,
) -> CompressedModel:
    """Compress without training: the model's weights become the compressed ones, in place."""
    before = [(parameter, parameter.detach().clone()) for parameter in model.parameters()]
    session = attach(model, recipe, calibration=calibration, example=example)
    try:
        session.advance_to_end()
        packed = session.pack()
    except BaseException:
        session._detach()
        for parameter, value in before:
            parameter.copy_(value)
        raise
    session.bake_()
    return packed


@dataclass(frozen=True)
class _Work:
    method: Method
    bound: Bound


class Session:
    """A recipe at work on a model.

    The transforms and their state live in the model (as parametrizations), so `model.state_dict()` holds
    them; `session.state_dict()` holds the position in time and state that several weights share.
    """

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        *,
        epochs: int,
        steps_per_epoch: int,
        calibration: Calibration | None = None,
        example: Example | None = None,
    ) -> None:
        self.model, self.recipe = model, recipe
        self.epochs, self.steps_per_epoch = epochs, steps_per_epoch
        self._steps_done = 0
        self._zero = torch.zeros(())
        # Of the plain network; what the session adds is not part of what it makes.
        self.names = [name for name, value in model.state_dict().items() if isinstance(value, Tensor)]
        self._plain_order = [name for name, _ in model.named_parameters()]
        self._work: list[_Work] = []
        self.sites: list[Site] = []
        self._inputs: list[tuple[nn.Module, TrainedInput]] = []
        self.views = Views(())
        try:
            self._install(calibration, example)
            self._install_inputs(calibration)
        except BaseException:
            self._detach()
            raise
        links = [(site, transform) for site in self.sites for transform in site.chain]
        for site, transform in links:
            transform.start_(site.latent)
        self._penalized = [(s, t) for s, t in links if type(t).penalty is not Transform.penalty]
        slots = [watched_slot(site) for site in self.sites]
        self._preparations = Preparations([(w.method, w.bound) for w in self._work], self.sites, slots)

    def _detach(self) -> None:
        """The modules hold the latents themselves again."""
        for site in self.sites:
            uninstall(site)
        for layer, _ in self._inputs:
            leave_input(layer)
        self.views.release_()

    def _install_inputs(self, calibration: Calibration | None) -> None:
        """After the weights, since what reaches a layer is what the layers before it make of theirs."""
        layers = {name: module for name, module in self.model.named_modules() if _takes_one_input(module)}
        for name, module in layers.items():
            if isinstance(quantizer_of(module), TrainedInput):
                raise ValueError(f"the input of {name!r} belongs to a session already; end that one with bake_()")
        chosen = self.recipe.assign_inputs(layers)
        for name, method in chosen.items():
            method.check(name, layers[name])
        asking = {name: layers[name] for name, method in chosen.items() if method.needs_data}
        if asking and calibration is None:
            raise ValueError(
                f"the ranges of activations such as the input of {next(iter(asking))!r} begin where data says; "
                "give calibration= batches of (inputs, targets)"
            )
        seen = seen_inputs(self.model, asking, calibration) if asking and calibration is not None else {}
        for name, method in chosen.items():
            quantizer = method.quantizer(name, seen.get(name)).to(next(layers[name].parameters()).device)
            quantize_input(layers[name], quantizer)
            self._inputs.append((layers[name], quantizer))

    def _install(self, calibration: Calibration | None, example: Example | None) -> None:
        self.views = Views(find_sites(self.model))
        assigned = self.recipe.assign(every := self.views.leading)
        wanted = any(method.needs_units for rule, _ in assigned for method in rule.methods)
        network = Network(
            self.model, every, find_units(self.model, example) if wanted and example is not None else None
        )
        # All of them before anything is installed: data tells about the network as it is.
        calibrated = [(rule, _calibrated(self.model, rule, found, calibration)) for rule, found in assigned]
        for rule, sites in calibrated:
            if not rule.methods:
                continue
            self._take(rule, sites)
            companions: list[Site] = []
            for method in rule.methods:
                gathered = method.gather(sites, network)
                new = [site for site in gathered if not any(site.latent is s.latent for s in (*sites, *companions))]
                self._take(rule, new)
                companions += new
                bound = method.bind(gathered)
                for site, transform in zip(gathered, bound.transforms, strict=True):
                    install(site, transform)
                self._work.append(_Work(method, bound))
        self.views.check(self.sites)
        self.views.follow_(self.sites)

    def _take(self, rule: Rule, sites: Sequence[Site]) -> None:
        """The sites are this rule's from here on."""
        taken = {id(site.latent) for site in self.sites}
        for site in sites:
            if not site.latent.is_meta and not bool(site.latent.isfinite().all()):
                raise ValueError(f"{site.name!r} holds NaN or infinite weights; mend them, or use others")
            if id(site.latent) in taken:
                raise ValueError(
                    f"{site.name!r} changes together with weights of rule {rule.weights!r} and belongs to another rule "
                    "too; leave it out of one of them"
                )
        self.sites += sites

    @property
    def methods(self) -> list[Method]:
        """The methods at work, in the recipe's order."""
        return [work.method for work in self._work]

    @property
    def drops_units(self) -> bool:
        """Whether a method takes whole filters, neurons or heads, so that the result can be shrunk."""
        return any(site.units for work in self._work for site in work.bound.sites)

    def step(self, inputs: Any = None, targets: Any = None) -> None:
        """Call at the start of each batch: projects latents, moves schedules on, lets searches look."""
        self._move_to(self._steps_done, inputs, targets)
        with torch.no_grad():
            self._preparations.run()
        self._steps_done += 1

    def advance_to_end(self) -> None:
        """Let every schedule reach its final value, for compression without training."""
        self._steps_done = self.epochs * self.steps_per_epoch
        self._move_to(self._steps_done, without_training=True)

    @torch.no_grad()
    def _move_to(self, at: int, inputs: Any = None, targets: Any = None, *, without_training: bool = False) -> None:
        progress = Progress(
            step=at, steps=self.epochs * self.steps_per_epoch,
            epoch=1 + at / self.steps_per_epoch, epochs=self.epochs,
        )  # fmt: skip
        step = Step(progress, self.model, inputs, targets, without_training)
        self._preparations.forget()  # a search may read the weights while the step is made
        for work in self._work:
            work.method.project_(work.bound)
        for work in self._work:
            work.method.update(work.bound, step)

    def penalty(self) -> Tensor:
        """The methods' own term for the loss; zero where none has one."""
        total = self._nothing()
        for site, transform in self._penalized:
            term = transform.penalty(site.latent)
            if term is not None:
                total = total + term
        return total

    def _nothing(self) -> Tensor:
        """A zero where the model is: kept, since making one is a launch in every step."""
        device = (self.sites[0].latent if self.sites else next(self.model.parameters())).device
        if self._zero.device != device:
            self._zero = torch.zeros((), device=device)
        return self._zero

    @torch.no_grad()
    def pack(self) -> CompressedModel:
        """Every parameter and buffer as the network uses it in eval mode, compressed where the recipe says."""
        sites = [*self.sites, *(follower.site for follower in self.views.followers)]
        latents = {name: site.latent for site in sites for name in (site.name, *site.aliases)}
        state = self.model.state_dict(keep_vars=True)
        held, aliases = tied({n: latents[n] if n in latents else state[n] for n in self.names})
        made = {id(site.latent): _pack_site(site) for site in self.sites}
        compressed: dict[int, CompressedTensor | Tensor] = {**made}
        for follower in self.views.followers:
            compressed[id(follower.site.latent)] = view_of(made[id(follower.leader.latent)], follower.index)
        packed = {n: compressed[id(t)] if id(t) in compressed else whole(t.detach()).clone() for n, t in held.items()}
        facts = facts_of(self.model)
        return CompressedModel(
            packed, aliases=aliases, recipe=self.recipe.describe(), metadata={METADATA: facts} if facts else None
        )

    def param_groups(self, **defaults: Any) -> list[dict[str, Any]]:
        """For an optimizer: weights and latents with `defaults`; learned levels and the like without decay.

        Weights and latents come in the plain network's order, by which optimizers know their state.
        """
        holders: list[nn.Module] = [t for s in self.sites for t in s.chain]
        holders += [w.bound.shared for w in self._work if w.bound.shared] + [quantizer for _, quantizer in self._inputs]
        learned = {id(p): p for holder in holders for p in holder.parameters() if p.is_floating_point()}
        place = {name: at for at, name in enumerate(self._plain_order)}
        ordered = sorted(self.model.named_parameters(), key=lambda held: place.get(plain_name(held[0]), len(place)))
        weights = [p for _, p in ordered if p.requires_grad and id(p) not in learned]
        groups = [{"params": weights, **defaults}]
        if learned:
            groups.append({"params": list(learned.values()), **defaults, "weight_decay": 0.0})
        return groups

    def latents(self) -> dict[str, Tensor]:
        """The full-precision tensor behind each compressed weight."""
        return {site.name: whole(site.latent.detach()) for site in self.sites}

    def status(self) -> dict[str, float]:
        """Figures of the methods for a progress display, such as {"Δ": 0.31}."""
        figures: dict[str, float] = {}
        for work in self._work:
            figures |= work.method.status(work.bound)
        return figures

    @torch.no_grad()
    def bake_(self) -> None:
        """End the session: each weight becomes its final dense value in a plain module, and ranges stand."""
        for site in self.sites:
            value = _pack_site(site).to_dense()
            uninstall(site)
            site.latent.copy_(value)
        for layer, quantizer in self._inputs:
            fixed = FixedInput(quantizer.facts()).to(next(layer.parameters()).device)
            quantize_input(layer, fixed)
        self.views.release_()
        self.sites, self._work, self._penalized, self._inputs = [], [], [], []
        self._preparations = Preparations([], [], [])

    def state_dict(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe.describe(), "epochs": self.epochs, "steps_per_epoch": self.steps_per_epoch,
            "steps_done": self._steps_done,
            "shared": [w.bound.shared.state_dict() if w.bound.shared else {} for w in self._work],
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where a checkpoint stopped; load the model's own state dict too."""
        if lacking := self.state_dict().keys() - state.keys():
            raise ValueError(f"the checkpoint lacks {', '.join(sorted(lacking))}; give what session.state_dict() gave")
        if state["recipe"] != self.recipe.describe():
            raise ValueError("the checkpoint was made with another recipe; resume with the recipe it was made with")
        for what in ("epochs", "steps_per_epoch"):
            if state[what] != getattr(self, what):
                raise ValueError(
                    f"the checkpoint was made with {what}={state[what]}, this run has {getattr(self, what)}"
                )
        self._steps_done = state["steps_done"]
        for work, shared in zip(self._work, state["shared"], strict=True):
            if work.bound.shared is not None:
                work.bound.shared.load_state_dict(shared)


def _takes_one_input(module: nn.Module) -> bool:
    """Attention hands the weights of its output layer on to a function, so that no input reaches the layer itself."""
    return isinstance(module, LAYERS) and not isinstance(module, NonDynamicallyQuantizableLinear)


def _calibrated(model: nn.Module, rule: Rule, sites: list[Site], calibration: Calibration | None) -> list[Site]:
    """The sites with their sensitivity and input norms, where a method of the rule needs them."""
    gradients = any(method.needs_calibration for method in rule.methods)
    inputs = any(method.needs_inputs for method in rule.methods)
    needing = [method.name for method in rule.methods if method.needs_calibration or method.needs_inputs]
    if not needing or not sites:
        return sites
    if calibration is None:
        raise ValueError(
            f"rule {rule.weights!r}: {needing[0]!r} as set there needs data; "
            "give calibration= batches of (inputs, targets)"
        )
    if gradients:
        measured = squared_gradients(model, sites, calibration)
        sites = [replace(site, sensitivity=value) for site, value in zip(sites, measured, strict=True)]
    if inputs:
        norms = input_norms(model, sites, calibration)
        sites = [replace(site, input_norm=norm) for site, norm in zip(sites, norms, strict=True)]
    return sites


def _pack_site(site: Site) -> CompressedTensor:
    value: Tensor | CompressedTensor = whole(site.latent.detach())
    for transform in site.chain:
        value = transform.pack(value)
    assert isinstance(value, CompressedTensor)
    return value
