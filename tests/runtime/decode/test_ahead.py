"""Tensors that are decoded before they are asked for."""

import threading

import pytest
import torch
from language_models import FAMILIES, random_ids, random_model

import tersify
from tersify.runtime.decode.ahead import AHEAD, ReadAhead, reading_order
from tersify.runtime.decode.architecture import architecture_of
from tersify.runtime.decode.compile import from_tensors
from tersify.runtime.decode.network import Network
from tersify.runtime.decode.source import MappingSource
from tersify.runtime.engine import Kernels
from tersify.runtime.extension import extension
from tersify.tensor import CompressedModel
from tersify.tensor.blocks import Joined


class Watched(dict):
    """Notes the order in which names are read."""

    def __init__(self, tensors):
        super().__init__(tensors)
        self.names, self._lock = [], threading.Lock()

    def __getitem__(self, name):
        with self._lock:
            self.names.append(name)
        return super().__getitem__(name)


@pytest.mark.parametrize("family", [*FAMILIES, "gpt2"])
def test_the_order_is_that_in_which_a_network_is_packed(family):
    model = random_model(family)
    architecture = architecture_of(model.config)
    tensors = Watched(model.state_dict())
    source = MappingSource(tensors, model.config)
    module = extension()
    if module is None:
        pytest.skip("the kernels are not built")
    Network(Kernels(module, 1), architecture, source, "fp32")
    ordered = [name for name in reading_order(architecture) if name in tensors]
    assert sorted(tensors.names) == sorted(ordered)
    # The bias of a norm is read before its weight, which are both small.
    assert all(
        abs(tensors.names.index(name) - at) <= 1 for at, name in enumerate(ordered)
    )


def test_only_a_few_tensors_wait():
    tensors = Watched({str(number): torch.zeros(1) for number in range(20)})
    with ReadAhead(tensors, iter(list(tensors))) as ahead:
        for asked in range(20):
            ahead[str(asked)]
            assert len(tensors.names) <= asked + 1 + AHEAD
    assert len(tensors.names) == 20


def test_a_tensor_out_of_order_is_read_when_it_is_asked_for():
    tensors = {str(number): torch.tensor(number) for number in range(9)}
    with ReadAhead(tensors, iter(list(tensors))) as ahead:
        for number in (8, 0, 3, 3, 1, 7):
            assert int(ahead[str(number)]) == number
        assert "4" in ahead
        assert "x" not in ahead
        assert len(ahead) == 9
        with pytest.raises(KeyError):
            ahead["x"]


def test_a_damaged_tensor_raises_where_it_is_needed_and_no_thread_is_left(tmp_path):
    model = random_model("llama")
    path = tmp_path / "model.terse"
    tersify.save(tersify.pack(model), path)
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    path.write_bytes(data)
    before = threading.active_count()
    with pytest.raises(ValueError, match="damaged"):
        from_tensors(tersify.open(path), model.config, threads=2)
    assert threading.active_count() <= before


@pytest.mark.parametrize("threads", [1, 2])
def test_a_file_read_ahead_decodes_as_the_model_does(threads, tmp_path):
    model = random_model("qwen3")
    path = tmp_path / "model.terse"
    tersify.save(tersify.pack(model), path)
    fast = from_tensors(tersify.open(path), model.config, threads=threads)
    ids = random_ids(1, 9)
    arguments = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(
        fast.generate(ids, **arguments), model.generate(ids, **arguments)
    )


def test_a_file_may_be_read_by_several_threads_at_once(tmp_path):
    model = random_model("llama")
    path = tmp_path / "model.terse"
    tersify.save(tersify.pack(model), path)
    file, wanted = tersify.open(path), model.state_dict()
    wrong = []

    def read(names):
        for name in names:
            found = file[name]
            dense = found if torch.is_tensor(found) else found.to_dense()
            if not torch.equal(dense, wanted[name]):
                wrong.append(name)

    names = list(file)
    threads = [
        threading.Thread(target=read, args=(names[at::3] * 5,)) for at in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_matrix_without_blocks_is_read_once_where_blocks_are_joined():
    model = CompressedModel({"a": torch.ones(2)})
    read = Watched(model)
    joined = Joined(model)
    joined._model = read
    assert torch.equal(joined["a"], torch.ones(2))
    assert read.names == ["a"]
