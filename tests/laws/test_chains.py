"""Which methods may follow which, and how a recipe says no."""

import pytest

from method_zoo import chain_id, chains_of_two, is_legal, recipe_of
from tersify.methods import registered

ILLEGAL = [c for c in chains_of_two() if not is_legal(c)]


@pytest.mark.parametrize("chain", ILLEGAL, ids=map(chain_id, ILLEGAL))
def test_a_chain_that_would_undo_itself_is_refused(chain):
    with pytest.raises(
        ValueError, match=r"cannot follow the quantizer|has no zero level"
    ):
        recipe_of(chain)


def test_both_kinds_of_chain_exist():
    assert ILLEGAL
    assert len(ILLEGAL) < len(registered()) ** 2
