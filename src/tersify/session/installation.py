"""A recipe's transforms in the modules of a model: put there when a session begins, and
taken out again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from tersify.calibration import Calibration, measured
from tersify.methods import Bound, Method, Network, Site
from tersify.recipe import Recipe, Rule
from tersify.sites import find_sites, install, uninstall
from tersify.units import Example, find_units
from tersify.weight_views import Views


@dataclass(frozen=True)
class Work:
    """A method and what it is bound to."""

    method: Method
    bound: Bound


class Installation:
    """Which rule has which sites, and the methods at work on them.

    It is filled step by step, so that a recipe that fails half way can be taken out
    again.
    """

    def __init__(self) -> None:
        self.rules: list[tuple[Rule, list[Site]]] = []
        self.sites: list[Site] = []
        self.work: list[Work] = []
        self.views = Views(())

    def install_(
        self,
        model: nn.Module,
        recipe: Recipe,
        calibration: Calibration | None,
        example: Example | None,
    ) -> None:
        self.views = Views(find_sites(model))
        # Views of other weights become what these become, and are no sites of their
        # own.
        every = self.views.leading
        assigned = recipe.assign(every)
        wants_units = any(method.needs_units for method in recipe.methods)
        units = None
        if wants_units and example is not None:
            units = find_units(model, example)
        network = Network(model, every, units)
        # All of them before anything is installed: data tells about the network as it
        # is.
        self.rules = [
            (rule, measured(model, rule.methods, found, calibration))
            for rule, found in assigned
        ]
        for rule, sites in self.rules:
            if rule.methods:
                self._install_rule_(rule, sites, network)
        # Last, when companions are known as well.
        self.views.check(self.sites)
        self.views.follow_(self.sites)

    def _install_rule_(
        self, rule: Rule, sites: Sequence[Site], network: Network
    ) -> None:
        self._take(rule, sites)
        known = {id(site.latent) for site in sites}
        for method in rule.methods:
            gathered = method.gather(sites, network)
            # Companions, such as the biases of filters, come with the first method that
            # asks for them.
            new = [site for site in gathered if id(site.latent) not in known]
            self._take(rule, new)
            known |= {id(site.latent) for site in new}
            bound = method.bind(gathered)
            for site, transform in zip(gathered, bound.transforms, strict=True):
                install(site, transform)
            self.work.append(Work(method, bound))

    def _take(self, rule: Rule, sites: Sequence[Site]) -> None:
        """The sites are this rule's from here on."""
        # By identity, since tied weights have several names and one tensor.
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

    def leave_(self) -> None:
        """The modules hold the latents themselves again."""
        for site in self.sites:
            uninstall(site)
        self.views.release_()

    def forget(self) -> None:
        """Nothing is installed any more; which parameters share memory stays known."""
        self.rules, self.sites, self.work = [], [], []
