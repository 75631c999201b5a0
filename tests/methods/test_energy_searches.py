"""The searches of the energy method, on a landscape whose best state is known, and the
bounds on states.
"""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tersify.methods.energy.bounds import Bounds
from tersify.methods.energy.objectives import cross_entropy, group_energies, margin
from tersify.methods.energy.searches import SEARCHES, Draws, Generation, Settings

STATES, UNITS = 8, 40
SETTINGS = Settings(
    init=0.5, mutation=0.5, crossover=0.5, flip=0.03, temperature=0.02, tournament=2
)


def draws(generator):
    pairs = torch.rand(2, STATES, STATES, generator=generator)
    return Draws(torch.rand(2, STATES, UNITS, generator=generator), pairs)


def distance(states, target):
    return (states != target).double().mean(1)


def searched(name, generations, seed=0):
    generator = torch.Generator().manual_seed(seed)
    search = SEARCHES[name](SETTINGS)
    target = torch.rand(UNITS, generator=generator) < 0.5
    states = torch.rand(STATES, UNITS, generator=generator) < 0.5
    now = Generation(states, distance(states, target))
    first = now
    for turn in range(generations):
        numbers = draws(generator)
        children = search.propose(now, numbers)
        heat = torch.tensor(1 - turn / generations)
        now = search.select(
            now, Generation(children, distance(children, target)), numbers, heat
        )
        assert torch.equal(now.energies, distance(now.states, target)), (
            "energies must stay with their states"
        )
    return first, now


@pytest.mark.parametrize("name", SEARCHES)
def test_every_search_finds_lower_energies(name):
    first, last = searched(name, 150)
    assert last.energies.min() < first.energies.min()


@pytest.mark.parametrize("name", [name for name in SEARCHES if name != "random"])
def test_every_search_that_learns_beats_drawing_states_at_random(name):
    assert (
        searched(name, 150)[1].energies.min()
        < searched("random", 150)[1].energies.min()
    )


def test_differential_evolution_mixes_three_others_and_never_the_state_itself():
    from tersify.methods.energy.searches import _three_others

    for seed in range(20):
        uniform = torch.rand(5, 5, generator=torch.Generator().manual_seed(seed))
        for own, others in enumerate(_three_others(uniform).T.tolist()):
            assert own not in others
            assert len(set(others)) == 3


def test_differential_evolution_follows_equations_4_and_5():
    search = SEARCHES["de"](SETTINGS)
    states = torch.rand(STATES, UNITS) < 0.5
    pairs = torch.rand(2, STATES, STATES)
    parents = Generation(states, torch.zeros(STATES))
    never = Draws(torch.ones(2, STATES, UNITS), pairs)
    assert torch.equal(search.propose(parents, never), states), (
        "r' above C_r keeps the parent's units"
    )
    r_and_crossed = torch.stack([torch.ones(STATES, UNITS), torch.zeros(STATES, UNITS)])
    without_mutation = search.propose(parents, Draws(r_and_crossed, pairs))
    for own, mutant in enumerate(without_mutation):
        assert any(
            torch.equal(mutant, other) for i, other in enumerate(states) if i != own
        )
    same = Generation(states[:1].expand(STATES, -1), torch.zeros(STATES))
    always = Draws(torch.zeros(2, STATES, UNITS), pairs)
    assert torch.equal(search.propose(same, always), same.states), (
        "where two others agree nothing is flipped"
    )


def test_replicas_exchange_towards_the_cold_end():
    search = SEARCHES["tempering"](SETTINGS)
    # the hottest replica has the highest energy: already in order
    energies = torch.arange(STATES, 0, -1).float()
    states = torch.eye(STATES, UNITS).bool()
    for start in (energies, energies.flip(0)):
        now = Generation(states, start)
        for seed in range(40):
            generator = torch.Generator().manual_seed(seed)
            worse = Generation(~now.states, now.energies + 1e6)
            now = search.select(now, worse, draws(generator), torch.tensor(1.0))
        assert now.energies[-1] == energies.min()
        assert sorted(now.energies.tolist()) == sorted(energies.tolist()), (
            "an exchange loses no state"
        )


sizes = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@given(
    sizes=sizes,
    seed=st.integers(0, 10**6),
    fraction=st.floats(0.3, 1.0),
    exactly=st.booleans(),
    thrifty=st.booleans(),
)
def test_repaired_states_keep_a_unit_in_each_layer_and_the_budget(
    sizes, seed, fraction, exactly, thrifty
):
    generator = torch.Generator().manual_seed(seed)
    costs = torch.cat(
        [torch.full((size,), float(1 + 3 * i)) for i, size in enumerate(sizes)]
    )
    budget = max(
        fraction * float(costs.sum()), sum(1.0 + 3 * i for i in range(len(sizes)))
    )
    bounds = Bounds(sizes, costs, budget, exactly=exactly, thrifty=thrifty)
    states = torch.rand(5, len(costs), generator=generator) < 0.4
    repaired, revived = bounds.repaired(
        states, torch.rand(5, len(costs), generator=generator)
    )
    assert ((repaired * costs).sum(1) <= budget + 1e-4).all()
    empty = 0
    for before, after in zip(
        states.split(sizes, 1), repaired.split(sizes, 1), strict=True
    ):
        assert after.any(1).all()
        empty += int((~before.any(1)).sum())
    assert revived == empty
    if exactly:
        assert ((repaired * costs).sum(1) > budget - costs.max()).all()
    else:
        inside = ((states * costs).sum(1) <= budget) & torch.stack(
            [p.any(1) for p in states.split(sizes, 1)]
        ).all(0)
        assert torch.equal(repaired[inside], states[inside]), (
            "what is within the bounds stays as it is"
        )


def test_a_thrifty_bound_drops_costly_units_first():
    costs = torch.tensor([1.0] * 50 + [50.0] * 50)
    states = torch.ones(8, 100, dtype=torch.bool)
    kept = {}
    for thrifty in (False, True):
        bounds = Bounds([50, 50], costs, 1300.0, thrifty=thrifty)
        kept[thrifty] = (
            bounds.repaired(states, torch.rand(8, 100))[0][:, :50].float().mean()
        )
    assert kept[True] > 0.95
    assert kept[False] < 0.7


def test_a_budget_below_one_unit_in_each_layer_is_refused():
    with pytest.raises(
        ValueError, match="one unit in each layer may cost 11, and the budget is 5"
    ):
        Bounds([2, 2], torch.tensor([1.0, 1.0, 10.0, 10.0]), 5.0)


def test_margin_energy_is_the_lead_of_the_best_other_class():
    logits = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]])
    assert margin(logits, torch.tensor([0, 2])).tolist() == [-1.0, 1.0]


def test_an_objective_may_return_the_mean_instead():
    logits, targets = torch.randn(12, 5), torch.randint(0, 5, (4,))
    per_sample = group_energies(cross_entropy, logits, targets, 3)
    mean = group_energies(lambda a, b: cross_entropy(a, b).mean(), logits, targets, 3)
    assert torch.allclose(per_sample, mean)


def test_annealing_takes_a_worse_state_while_it_is_hot_and_none_when_it_is_cold():
    search = SEARCHES["annealing"](SETTINGS)
    parents = Generation(
        torch.zeros(STATES, UNITS, dtype=torch.bool), torch.zeros(STATES)
    )
    worse = Generation(~parents.states, torch.full((STATES,), SETTINGS.temperature))
    tosses = draws(torch.Generator().manual_seed(0))
    tosses.pairs[0, 0] = 0.2  # below exp(−1), and far above exp(−100)
    assert search.select(parents, worse, tosses, torch.tensor(1.0)).states.all()
    assert not search.select(parents, worse, tosses, torch.tensor(0.01)).states.any()


def test_the_best_parent_of_a_genetic_search_takes_the_place_of_the_worst_child():
    search = SEARCHES["genetic"](SETTINGS)
    parents = Generation(torch.eye(STATES, UNITS).bool(), torch.arange(STATES).float())
    children = Generation(~parents.states, 10 + torch.arange(STATES).float())
    after = search.select(
        parents, children, draws(torch.Generator()), torch.tensor(1.0)
    )
    assert torch.equal(after.states[-1], parents.states[0])
    assert after.energies.tolist() == [*range(10, 10 + STATES - 1), 0]
    better = Generation(children.states, -children.energies)
    after = search.select(parents, better, draws(torch.Generator()), torch.tensor(1.0))
    assert torch.equal(after.states, ~parents.states)


def test_a_tournament_of_all_is_always_won_by_the_best():
    everybody = dataclasses.replace(SETTINGS, tournament=STATES, flip=1e-9)
    parents = Generation(
        torch.eye(STATES, UNITS).bool(), torch.arange(STATES, 0, -1).float()
    )
    for seed in range(5):
        children = SEARCHES["genetic"](everybody).propose(
            parents, draws(torch.Generator().manual_seed(seed))
        )
        assert torch.equal(children, parents.states[-1:].expand(STATES, -1))


def test_a_tournament_of_two_has_losers_among_its_winners():
    parents = Generation(
        torch.eye(STATES, UNITS).bool(), torch.arange(STATES, 0, -1).float()
    )
    children = SEARCHES["genetic"](SETTINGS).propose(
        parents, draws(torch.Generator().manual_seed(0))
    )
    assert not torch.equal(children, parents.states[-1:].expand(STATES, -1))
