"""A collection on the disk is opened fast and without torch, and a damaged or forged
one is refused.
"""

import json
import shutil
import subprocess
import sys
import time

import pytest
import torch
from sparse_nets import pruned
from torch import nn

import tersify
from tersify.sparse import CollectionError
from tersify.sparse.collection_index import ARRAYS, INDEX


@pytest.fixture
def small(tmp_path):
    return tersify.collect(
        pruned(nn.Linear(16, 16)), torch.randn(4, 16), out=tmp_path / "c", name="net"
    ).path


def edit(path, change):
    index = json.loads((path / INDEX).read_text())
    change(index)
    (path / INDEX).write_text(json.dumps(index))


def first(index):
    return index["operations"][0]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: shutil.rmtree(p), "is no folder"),
        (lambda p: (p / INDEX).unlink(), r"holds no collection\.json"),
        (
            lambda p: (p / INDEX).write_bytes((p / INDEX).read_bytes()[:-50]),
            "damaged or cut short",
        ),
        (lambda p: (p / INDEX).write_bytes(b"\xff\xfe"), "damaged or cut short"),
        (lambda p: (p / INDEX).write_text("{}"), "not the index of a collection"),
        (
            lambda p: edit(p, lambda i: i.update(version=2)),
            "has version 2; this program reads version 1",
        ),
        (lambda p: edit(p, lambda i: i.update(operations=[])), "lists no operation"),
        (
            lambda p: edit(p, lambda i: first(i).pop("input")),
            "lacks what an index must say",
        ),
        (lambda p: edit(p, lambda i: first(i).update(M=-1)), "are impossible"),
        (lambda p: edit(p, lambda i: first(i).update(groups=3)), "are impossible"),
        (lambda p: edit(p, lambda i: first(i).update(order="X*W")), "is impossible"),
        (lambda p: edit(p, lambda i: first(i).update(name=5)), "no proper name"),
        (
            lambda p: edit(p, lambda i: first(i).update(geometry={"kernel": [3, 5]})),
            "does not fit K = 16",
        ),
        (
            lambda p: edit(p, lambda i: first(i).update(geometry=None)),
            "lacks what an index must say",
        ),
        (
            lambda p: edit(p, lambda i: first(i)["weight"].update(n_m={"2:4": "x"})),
            "are no numbers",
        ),
        (
            lambda p: edit(p, lambda i: i["models"].update(net=None)),
            "its model 'net' is missing",
        ),
        (
            lambda p: edit(p, lambda i: first(i).update(model="other")),
            "its model 'other' is missing",
        ),
        (
            lambda p: edit(p, lambda i: first(i).update(tolerance=float("inf"))),
            "are no numbers",
        ),
        (
            lambda p: edit(p, lambda i: first(i)["weight"].update(best_format="zip")),
            "are no numbers",
        ),
        (
            lambda p: edit(p, lambda i: first(i)["weight"].update(file="../../x.npz")),
            "is no name of an array file",
        ),
        (lambda p: edit(p, lambda i: i["operations"].append(first(i))), "twice"),
        (
            lambda p: (p / ARRAYS / "00000-input.npz").unlink(),
            "its input .* is missing",
        ),
        (
            lambda p: (p / ARRAYS / "00000-input.npz").write_bytes(b"PK"),
            "has 2 bytes, not",
        ),
        (lambda p: shutil.rmtree(p / ARRAYS), "is missing"),
    ],
)
def test_an_empty_truncated_or_forged_collection_is_refused(damage, message, small):
    damage(small)
    with pytest.raises(CollectionError, match=message):
        tersify.Collection(small)


def test_an_array_with_another_hash_is_refused_when_it_is_read(small):
    path = small / ARRAYS / "00000-weight.npz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    opened = tersify.Collection(small)
    with pytest.raises(CollectionError, match=r"its weight .* has another sha256"):
        _ = opened[0].weight
    with pytest.raises(CollectionError, match="another sha256"):
        opened.verify()


def test_an_array_of_another_shape_is_refused(small):
    edit(small, lambda i: first(i).update(M=8))
    with pytest.raises(
        CollectionError, match=r"is \(16, 16\), net/linear needs \[8, 16\]"
    ):
        _ = tersify.Collection(small)[0].weight


def test_a_file_that_goes_away_after_opening_is_named(small):
    opened = tersify.Collection(small)
    (small / ARRAYS / "00000-output.npz").unlink()
    with pytest.raises(CollectionError, match=r"its output .* is missing"):
        _ = opened[0].output


def test_unknown_operations_and_backends_name_the_known_ones(small):
    opened = tersify.Collection(small)
    with pytest.raises(ValueError, match="no operation 'conv1'"):
        opened["conv1"]
    with pytest.raises(
        ValueError, match="unknown backend 'cublas'; known: torch, torch-coo"
    ):
        opened[0].run("cublas")


def test_ten_thousand_operations_open_in_a_second(small):
    """Only the index is read, so the time is that of its JSON."""
    record = json.loads((small / INDEX).read_text())["operations"][0]
    edit(
        small,
        lambda index: index.update(
            operations=[{**record, "name": f"net/{n}"} for n in range(10_000)]
        ),
    )
    started = time.process_time()
    assert len(tersify.Collection(small)) == 10_000
    assert time.process_time() - started < 1


def test_opening_and_reading_needs_no_torch(small):
    code = (
        "import sys, tersify\n"
        f"(op,) = tersify.Collection({str(small)!r})\n"
        "op.weight.to('bitmap').to_dense(), op.output\n"
        "assert 'torch' not in sys.modules, 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
