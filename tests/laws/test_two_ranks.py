"""Two gloo ranks train what one process trains at the same global batch, whatever the
method.
"""

import pytest
import torch

import two_ranks
from method_zoo import chain_id

FAMILIES = two_ranks.families()


@pytest.fixture(scope="module")
def ranks_codes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    two_ranks.run(two_ranks.save_codes_of_every_family, folder)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("index", range(len(FAMILIES)), ids=map(chain_id, FAMILIES))
def test_two_ranks_end_with_the_codes_of_one_process(index, ranks_codes):
    first, second = (torch.load(ranks_codes / f"{index}-{rank}.pt") for rank in (0, 1))
    assert isinstance(first, dict), first
    alone = two_ranks.codes_after_50_steps(FAMILIES[index])
    assert first.keys() == alone.keys()
    same = total = 0
    for name, codes in alone.items():
        assert torch.equal(first[name], second[name]), name
        same += int((first[name] == codes).sum())
        total += codes.numel()
    assert same / total >= 0.9999
