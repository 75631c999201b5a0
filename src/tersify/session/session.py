"""Session: three verbs (step, penalty, pack) for anybody's training loop."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from tersify.batchnorm_statistics import recalibrate_
from tersify.calibration import Calibration
from tersify.methods import Method, Site, Step, Transform
from tersify.methods.prepare import Preparations
from tersify.norms_in_few_bits import coarse_norms
from tersify.packed_network import pack_network, pack_site
from tersify.plain_names import install_plain_names
from tersify.ranks import whole
from tersify.recipe import Recipe
from tersify.schedules import Progress
from tersify.session.emptied_weights import EmptiedWeights
from tersify.session.installation import Installation, Work
from tersify.session.param_groups import param_groups
from tersify.session.session_story import packed_early, session_story
from tersify.session.trained_inputs import TrainedInputs
from tersify.sites import in_plain_order, uninstall, watched_slot
from tersify.tensor import CompressedModel
from tersify.units import Example
from tersify.weight_views import Views


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
        self._hooks: list[Any] = []
        self._installation = Installation()
        self._inputs = TrainedInputs()
        self._emptied = EmptiedWeights()
        try:
            self._installation.install_(model, recipe, calibration, example)
            self._inputs.install_(model, recipe, calibration)
        except BaseException:
            # A recipe that fails must leave the model as it was.
            self._detach()
            raise
        links = [(site, transform) for site in self.sites for transform in site.chain]
        for site, transform in links:
            # Only now: each transform was made for the weights as they were, and a
            # failing recipe must not have changed any.
            transform.start_(site.latent)
        self._hooks = install_plain_names(model)
        self._penalized = [
            (s, t) for s, t in links if type(t).penalty is not Transform.penalty
        ]
        slots = list(map(watched_slot, self.sites))
        self._preparations = Preparations(
            [(w.method, w.bound) for w in self._work], self.sites, slots
        )

    def _detach(self) -> None:
        """The modules hold the latents themselves again."""
        for hook in self._hooks:
            hook.remove()
        self._inputs.leave_()
        self._installation.leave_()

    @property
    def sites(self) -> list[Site]:
        """The weights that methods work on, in the recipe's order."""
        return self._installation.sites

    @property
    def views(self) -> Views:
        """Parameters that share memory with others."""
        return self._installation.views

    @property
    def _work(self) -> list[Work]:
        return self._installation.work

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
            # At 1, 2, 4, 8, …: early in a run of any length, and seldom.
            if self._steps_done & (self._steps_done - 1) == 0:
                self._emptied.tell(self.sites, stacklevel=2)

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
        # First every latent is pulled back, then schedules move: a threshold is
        # measured on clipped latents.
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
        if self.recipe.needs_length and self._steps_done < self.steps:
            told = packed_early(self._steps_done, self.steps)
            warnings.warn(told, stacklevel=3)  # past torch.no_grad
        if calibration is not None:
            recalibrate_(self.model, Calibration.of(calibration))
        self._emptied.tell(self.sites, stacklevel=3)
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
        shared = [w.bound.shared for w in self._work if w.bound.shared]
        chains = [transform for site in self.sites for transform in site.chain]
        return param_groups(
            in_plain_order(self.model, self._plain_order),
            [*chains, *shared, *self._inputs.quantizers],
            defaults,
        )

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
            self._installation.rules,
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
        self._installation.forget()
        self._penalized, self._hooks = [], []
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
        # Shared state is a list in the order of the recipe's methods: another recipe
        # would load it into the wrong ones.
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
