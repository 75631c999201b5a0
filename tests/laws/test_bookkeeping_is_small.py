"""What a session keeps beside the latents, in bytes a weight."""

import pytest
from torch import nn

import tersify
from tersify import Recipe, Rule
from tersify.methods import Prune, Ternary
from tersify.plain_names import without_plain_names


@pytest.mark.parametrize(
    ("method", "most"), [(Ternary(scale="channel"), 0.3), (Prune(sparsity=0.9), 1.2)]
)
def test_state_beside_the_latents_is_small(method, most):
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(3)))
    session = tersify.attach(model, Recipe(rules=(Rule(methods=(method,)),)), steps=10)
    latents = {id(site.latent) for site in session.sites}
    kept = without_plain_names(model, model.state_dict(keep_vars=True))
    state = [t for t in kept.values() if id(t) not in latents]
    weights = sum(site.latent.numel() for site in session.sites)
    assert sum(t.numel() * t.element_size() for t in state) <= most * weights
