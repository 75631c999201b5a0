"""Session: three verbs (step, penalty, pack) for anybody's training loop."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tersify.batchnorm import recalibrate_
from tersify.calibration import Calibration, measured
from tersify.methods import Bound, Method, Network, Site, Step, Transform
from tersify.methods.prepare import Preparations
from tersify.norms import coarse_norms
from tersify.packing import pack_network, pack_site
from tersify.plain_names import install_plain_names
from tersify.ranks import whole
from tersify.recipe import Recipe, Rule, training_length
from tersify.schedules import Progress
from tersify.sites import find_sites, in_plain_order, install, uninstall, watched_slot
from tersify.story import session_story
from tersify.tensor import CompressedModel
from tersify.trained_inputs import TrainedInputs
from tersify.units import Example, find_units
from tersify.views import Views


def attach(
    model: nn.Module,
    recipe: str | Path | Recipe,
    *,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
    steps: int | None = None,
    calibration: Calibration | Iterable[tuple[Any, Any]] | None = None,
    example: Example | None = None,
    **settings: Any,
) -> Session:
    """Bind a recipe to a model. Make the optimizer afterwards, from
    `session.param_groups()`.

    Args:
        model: any module; its class and its forward stay as they are.
        recipe: a `Recipe`, a TOML file, or the name of a ready recipe.
        epochs: how long training takes, with `steps_per_epoch`; a recipe with schedules must know it.
        steps_per_epoch: batches in an epoch.
        steps: the length of training in batches, in place of the two above.
        calibration: batches (inputs, targets) for methods that ask how much each weight matters; with a loss
            other than cross-entropy, a `Calibration`.
        example: an input of the model, for methods that prune filters, neurons or heads: it tells which of them go
            together, as those that meet in a residual addition must.
        **settings: go before the recipe's own: `attach(model, "ternary-target", sparsity=0.8, steps=1000)`.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"a recipe is bound to a torch.nn.Module, got a {type(model).__name__}"
        )
    chosen = Recipe.load(recipe).with_settings(settings)
    length = training_length(chosen, epochs, steps_per_epoch, steps)
    return Session(
        model,
        chosen,
        epochs=length[0],
        steps_per_epoch=length[1],
        calibration=None if calibration is None else Calibration.of(calibration),
        example=example,
    )


@dataclass(frozen=True)
class _Work:
    method: Method
    bound: Bound


class Session:
    """A recipe at work on a model. `tersify.attach` makes one and describes its
    arguments.

    The transforms and their state live in the model (as parametrizations), so
    `model.state_dict()` holds them; `session.state_dict()` holds the position in time
    and state that several weights share.
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
        self.names = [
            name
            for name, value in model.state_dict().items()
            if isinstance(value, Tensor)
        ]
        self._plain_order = [name for name, _ in model.named_parameters()]
        self._work: list[_Work] = []
        self._hooks: list[Any] = []
        self.sites: list[Site] = []
        self._inputs = TrainedInputs()
        self.views = Views(())
        try:
            self._install(calibration, example)
            self._inputs.install_(model, recipe, calibration)
        except BaseException:
            self._detach()
            raise
        links = [(site, transform) for site in self.sites for transform in site.chain]
        for site, transform in links:
            transform.start_(site.latent)
        self._hooks = install_plain_names(model)
        self._penalized = [
            (s, t) for s, t in links if type(t).penalty is not Transform.penalty
        ]
        slots = [watched_slot(site) for site in self.sites]
        self._preparations = Preparations(
            [(w.method, w.bound) for w in self._work], self.sites, slots
        )

    def _detach(self) -> None:
        """The modules hold the latents themselves again."""
        for hook in self._hooks:
            hook.remove()
        for site in self.sites:
            uninstall(site)
        self._inputs.leave_()
        self.views.release_()

    def _install(
        self, calibration: Calibration | None, example: Example | None
    ) -> None:
        self.views = Views(find_sites(self.model))
        assigned = self.recipe.assign(every := self.views.leading)
        wanted = any(
            method.needs_units for rule, _ in assigned for method in rule.methods
        )
        network = Network(
            self.model,
            every,
            find_units(self.model, example) if wanted and example is not None else None,
        )
        # All of them before anything is installed: data tells about the network as it
        # is.
        self._rules = [
            (rule, measured(self.model, rule.methods, found, calibration))
            for rule, found in assigned
        ]
        for rule, sites in self._rules:
            if not rule.methods:
                continue
            self._take(rule, sites)
            companions: list[Site] = []
            for method in rule.methods:
                gathered = method.gather(sites, network)
                new = [
                    site
                    for site in gathered
                    if not any(site.latent is s.latent for s in (*sites, *companions))
                ]
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
                raise ValueError(
                    f"{site.name!r} holds NaN or infinite weights; mend them, or use others"
                )
            if id(site.latent) in taken:
                raise ValueError(
                    f"{site.name!r} changes together with weights of rule {rule.weights!r} and belongs to another rule "
                    "too; leave it out of one of them"
                )
        self.sites += sites

    @property
    def steps(self) -> int:
        """The length of training that the session was told."""
        return self.epochs * self.steps_per_epoch

    @property
    def methods(self) -> list[Method]:
        """The methods at work, in the recipe's order."""
        return [work.method for work in self._work]

    @property
    def drops_units(self) -> bool:
        """Whether a method takes whole filters, neurons or heads, so that the result
        can be shrunk.
        """
        return any(site.units for work in self._work for site in work.bound.sites)

    def step(self, inputs: Any = None, targets: Any = None) -> None:
        """Call at the start of each batch: projects latents, moves schedules on, lets
        searches look.

        Args:
            inputs: the batch, for methods that judge sub-networks on it (`energy`); others do not look.
            targets: its labels, for the same methods.
        """
        if self._steps_done == self.steps and self.recipe.needs_length:
            warnings.warn(
                f"training goes on past the {self.steps} steps that attach was told; the schedules stay at their end, "
                "so give attach the length that training has",
                stacklevel=2,
            )
        self._move_to(self._steps_done, inputs, targets)
        with torch.no_grad():
            self._preparations.run()
        self._steps_done += 1

    def advance_to_end(self) -> None:
        """Let every schedule reach its final value, for compression without training."""
        self._steps_done = self.steps
        self._move_to(self._steps_done, without_training=True)

    @torch.no_grad()
    def _move_to(
        self,
        at: int,
        inputs: Any = None,
        targets: Any = None,
        *,
        without_training: bool = False,
    ) -> None:
        epoch = 1 + at / self.steps_per_epoch
        progress = Progress(step=at, steps=self.steps, epoch=epoch, epochs=self.epochs)
        step = Step(
            progress, self.model, inputs, targets, without_training, self._packed
        )
        # a search may read the weights while the step is made
        self._preparations.forget()
        for work in self._work:
            work.method.project_(work.bound)
        for work in self._work:
            work.method.update(work.bound, step)

    def penalty(self) -> Tensor:
        """The methods' own term for the loss; zero where none has one."""
        terms = [transform.penalty(site.latent) for site, transform in self._penalized]
        terms += [work.method.penalty(work.bound) for work in self._work]
        return sum((term for term in terms if term is not None), start=self._nothing())

    def _nothing(self) -> Tensor:
        """A zero where the model is: kept, since making one is a launch in every step."""
        device = (
            self.sites[0].latent if self.sites else next(self.model.parameters())
        ).device
        if self._zero.device != device:
            self._zero = torch.zeros((), device=device)
        return self._zero

    @torch.no_grad()
    def pack(
        self, *, calibration: Calibration | Iterable[tuple[Any, Any]] | None = None
    ) -> CompressedModel:
        """Every parameter and buffer as the network uses it in eval mode, compressed
        where the recipe says.

        Args:
            calibration: batches (inputs, targets) from which batch norms first get the statistics of the weights as
                they are. Those of training lag behind by a hundred batches, which is much where training was short.
        """
        if self._steps_done == 0 and self.recipe.needs_length:
            warnings.warn(
                "session.step was never called, so the recipe's schedules are where they begin; "
                "call it at the start of each batch, or use tersify.compress_ where there is no training",
                stacklevel=3,  # past torch.no_grad
            )
        if calibration is not None:
            recalibrate_(self.model, Calibration.of(calibration))
        return self._packed()

    def _packed(self) -> CompressedModel:
        packed = pack_network(
            self.model,
            self.names,
            self.sites,
            self.views,
            recipe=self.recipe.describe(),
        )
        return coarse_norms(packed, self.model, self.recipe.norms)

    def param_groups(self, **defaults: Any) -> list[dict[str, Any]]:
        """For an optimizer: weights and latents, in the plain network's order, and
        learned levels without decay.

        Args:
            **defaults: options of the optimizer that every group gets, such as `weight_decay`.
        """
        holders: list[nn.Module] = [t for s in self.sites for t in s.chain]
        holders += [
            *(w.bound.shared for w in self._work if w.bound.shared),
            *self._inputs.quantizers,
        ]
        learned = {
            id(p): p
            for holder in holders
            for p in holder.parameters()
            if p.is_floating_point()
        }
        ordered = in_plain_order(self.model, self._plain_order)
        weights = [p for p in ordered if p.requires_grad and id(p) not in learned]
        groups = [{"params": weights, **defaults}]
        if learned:
            # Many tensors of a few numbers each: one fused call for all of them spares
            # a CPU most of an optimizer's time. Off the CPU torch's optimizers take
            # them together by themselves.
            on_cpu = all(p.is_cpu for p in learned.values())
            fused = {"fused": True} if on_cpu else {}
            groups.append(
                {
                    "params": list(learned.values()),
                    **fused,
                    **defaults,
                    "weight_decay": 0.0,
                }
            )
        return groups

    def latents(self) -> dict[str, Tensor]:
        """The full-precision tensor behind each compressed weight."""
        return {site.name: whole(site.latent.detach()) for site in self.sites}

    def status(self) -> dict[str, float]:
        """Percent done, percent zeros, bits a weight, and the methods' own:
        {"progress": 50.0, …, "Δ": 0.31}.
        """
        with torch.no_grad():
            packed = self._packed()
        progress = (
            {"progress": 100.0 * min(self._steps_done / self.steps, 1.0)}
            if self._has_length
            else {}
        )
        return (
            progress
            | {"zeros": packed.sparsity_percent(), "entropy": packed.entropy_bits()}
            | self.figures()
        )

    def __str__(self) -> str:
        sites = [*self.sites, *(follower.site for follower in self.views.followers)]
        of_sites = {name for site in sites for name in (site.name, *site.aliases)}
        return session_story(
            self._rules if self.sites else [],
            description=self.recipe.description,
            steps_done=self._steps_done,
            steps=self.steps if self._has_length else None,
            figures=self.status(),
            untouched=[name for name in self.names if name not in of_sites],
        )

    @property
    def _has_length(self) -> bool:
        return self.recipe.needs_length or self.steps > 1

    def figures(self) -> dict[str, float]:
        """The methods' own figures alone, which cost little."""
        figures: dict[str, float] = {}
        for work in self._work:
            figures |= work.method.status(work.bound)
        return figures

    @torch.no_grad()
    def bake_(self) -> None:
        """End the session: each weight becomes its final dense value in a plain module,
        and ranges stand.
        """
        for site in self.sites:
            value = pack_site(site).to_dense()
            uninstall(site)
            site.latent.copy_(value)
        self._inputs.fix_()
        for hook in self._hooks:
            hook.remove()
        self.views.release_()
        self.sites, self._work, self._penalized, self._hooks = [], [], [], []
        self._preparations = Preparations([], [], [])

    def state_dict(self) -> dict[str, Any]:
        """The position in time and shared state, for a checkpoint beside the model's
        own state dict.
        """
        return {
            "recipe": self.recipe.describe(),
            "epochs": self.epochs,
            "steps_per_epoch": self.steps_per_epoch,
            "steps_done": self._steps_done,
            "shared": [
                w.bound.shared.state_dict() if w.bound.shared else {}
                for w in self._work
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where a checkpoint stopped; load the model's own state dict too.

        Args:
            state: what `state_dict` of a session with the same recipe and length gave.
        """
        if lacking := self.state_dict().keys() - state.keys():
            raise ValueError(
                f"the checkpoint lacks {', '.join(sorted(lacking))}; give what session.state_dict() gave"
            )
        if state["recipe"] != self.recipe.describe():
            raise ValueError(
                "the checkpoint was made with another recipe; resume with the recipe it was made with"
            )
        for what in ("epochs", "steps_per_epoch"):
            if state[what] != getattr(self, what):
                raise ValueError(
                    f"the checkpoint was made with {what}={state[what]}, this run has {getattr(self, what)}"
                )
        self._steps_done = state["steps_done"]
        for work, shared in zip(self._work, state["shared"], strict=True):
            if work.bound.shared is not None:
                work.bound.shared.load_state_dict(shared)
