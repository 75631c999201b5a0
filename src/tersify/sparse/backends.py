"""Libraries that can multiply: each prepares an operation's operands in its own form,
then runs the product.

A sparse library multiplies a sparse weight with a dense matrix, so an operation in the
order "X@W.T" runs as `(W @ X.T).T` there. With groups, sparse libraries get the
block-diagonal weight.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tersify.sparse.formats import Array, Entries, Matrix
from tersify.sparse.lowering import multiply

if TYPE_CHECKING:
    from tersify.sparse.collection import Operation


@dataclass(frozen=True)
class Prepared:
    """A product that is ready to run, and the bytes of the weight it reads."""

    run: Callable[[], Array]
    weight_bytes: int


class MissingBackendError(ValueError):
    """The library behind a backend is not installed."""


def prepare(op: Operation, backend: str) -> Prepared:
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}; known: {', '.join(BACKENDS)}")
    with warnings.catch_warnings():
        # torch's beta notice
        warnings.filterwarnings(
            "ignore", message="Sparse (CSR|CSC|BSR|BSC) tensor support"
        )
        return BACKENDS[backend](op)


def whole_weight(op: Operation) -> Entries:
    """(M, groups·K): block-diagonal where there are groups."""
    entries = op.weight.entries()
    if op.groups == 1:
        return entries
    # The group of each row; its columns are shifted behind those of the groups before.
    block = entries.rows // (entries.shape[0] // op.groups)
    shape = (entries.shape[0], entries.shape[1] * op.groups)
    return Entries(
        shape, entries.rows, entries.columns + block * entries.shape[1], entries.values
    )


def _columns(op: Operation) -> Array:
    """The input as (groups·K, N), a view where it is stored the other way round."""
    dense = op.input.to_dense()
    return dense if op.order == "W@X" else dense.T


def _ordered(op: Operation, product: Callable[[], Any]) -> Callable[[], Any]:
    """(M, N) as the operation's order wants it."""
    return product if op.order == "W@X" else lambda: product().T


def _torch_dense(op: Operation) -> Prepared:
    weight, x = (
        torch.from_numpy(op.weight.to_dense()),
        torch.from_numpy(op.input.to_dense()),
    )

    def run() -> Array:
        if op.groups > 1:
            columns = x if op.order == "W@X" else x.T
            product = multiply(weight, columns, op.groups)
            return (product if op.order == "W@X" else product.T).numpy()
        return (weight @ x if op.order == "W@X" else x @ weight.T).numpy()

    return Prepared(run, weight.nbytes)


def _torch_sparse(layout: str) -> Callable[[Operation], Prepared]:
    def prepare(op: Operation) -> Prepared:
        entries = whole_weight(op)
        weight = _torch_weight(entries, layout)
        columns = torch.from_numpy(_columns(op))
        if layout == "bsr":  # whole blocks: the ragged edges meet zeros
            columns = torch.nn.functional.pad(
                columns, (0, 0, 0, weight.shape[1] - columns.shape[0])
            )
        run = _ordered(op, lambda: (weight @ columns)[: entries.shape[0]].numpy())
        return Prepared(run, _torch_bytes(weight, layout))

    return prepare


def _torch_dual(op: Operation) -> Prepared:
    """Sparse weight × sparse input in torch; what `_scipy_dual` is in SciPy."""
    weight = _torch_weight(whole_weight(op), "coo")
    columns = _torch_weight(Entries.of(np.ascontiguousarray(_columns(op))), "coo")
    # The first such product gives torch's beta notice, which is not heard here.
    torch.sparse.mm(weight, columns)
    run = _ordered(op, lambda: torch.sparse.mm(weight, columns).to_dense().numpy())
    return Prepared(run, _torch_bytes(weight, "coo"))


def _torch_weight(e: Entries, layout: str) -> torch.Tensor:
    # By the context, since torch 2.11 warns whatever the argument says; and its check
    # refuses tensors without entries.
    with torch.sparse.check_sparse_tensor_invariants(len(e.values) > 0):
        if layout == "coo":
            places = torch.from_numpy(np.stack([e.rows, e.columns]))
            return torch.sparse_coo_tensor(
                places, torch.from_numpy(e.values), e.shape, is_coalesced=True
            )
        arrays = Matrix.packed(e, layout).arrays
        block = arrays["values"].shape[-1] if layout == "bsr" else 1
        # Copies: the strides of an empty array of numpy's are not always torch's.
        return torch.sparse_compressed_tensor(
            torch.tensor(arrays["pointers"], dtype=torch.int64),
            torch.tensor(
                arrays["rows" if layout == "csc" else "columns"], dtype=torch.int64
            ),
            torch.from_numpy(arrays["values"]),
            # BSR wants whole blocks, so sizes are rounded up.
            [-(-n // block) * block for n in e.shape],
            layout=getattr(torch, f"sparse_{layout}"),
        )


def _torch_bytes(weight: torch.Tensor, layout: str) -> int:
    if layout == "coo":
        return weight.indices().nbytes + weight.values().nbytes
    pointers = weight.ccol_indices() if layout == "csc" else weight.crow_indices()
    indices = weight.row_indices() if layout == "csc" else weight.col_indices()
    return pointers.nbytes + indices.nbytes + weight.values().nbytes


def _scipy_weight(e: Entries, layout: str) -> Any:
    try:
        import scipy.sparse as sp
    except ImportError:
        raise MissingBackendError(
            "the backends of scipy need the package scipy; pip install 'tersify[sparse]'"
        ) from None
    if layout == "bsr":
        arrays = Matrix.packed(e, "bsr").arrays
        block = arrays["values"].shape[-1]
        shape = tuple(-(-n // block) * block for n in e.shape)
        return sp.bsr_array(
            (
                arrays["values"],
                arrays["columns"].astype(np.int32),
                arrays["pointers"].astype(np.int32),
            ),
            shape=shape,
        )
    coo = sp.coo_array(
        (e.values, (e.rows.astype(np.int32), e.columns.astype(np.int32))), shape=e.shape
    )
    return coo.asformat(layout)


def _scipy(layout: str) -> Callable[[Operation], Prepared]:
    def prepare(op: Operation) -> Prepared:
        entries = whole_weight(op)
        weight, columns = _scipy_weight(entries, layout), _columns(op)
        if layout == "bsr":
            columns = np.pad(columns, ((0, weight.shape[1] - len(columns)), (0, 0)))
        run = _ordered(op, lambda: (weight @ columns)[: entries.shape[0]])
        return Prepared(run, _scipy_bytes(weight))

    return prepare


def _scipy_bytes(weight: Any) -> int:
    parts = (
        ("row", "col", "data")
        if weight.format == "coo"
        else ("indptr", "indices", "data")
    )
    return sum(getattr(weight, part).nbytes for part in parts)


def _scipy_dual(op: Operation) -> Prepared:
    """Sparse weight × sparse input; the product comes out sparse and is made dense,
    which counts.
    """
    weight = _scipy_weight(whole_weight(op), "csr")
    columns = _scipy_weight(Entries.of(np.ascontiguousarray(_columns(op))), "csr")
    return Prepared(
        _ordered(op, lambda: (weight @ columns).toarray()), _scipy_bytes(weight)
    )


def _pydata(op: Operation) -> Prepared:
    try:
        import sparse
    except ImportError:
        raise MissingBackendError(
            "the backend 'pydata' needs the package sparse; pip install 'tersify[sparse]'"
        ) from None
    e = whole_weight(op)
    coo = sparse.COO(
        np.stack([e.rows, e.columns]),
        e.values,
        shape=e.shape,
        has_duplicates=False,
        sorted=True,
    )
    weight, columns = (
        sparse.GCXS.from_coo(coo, compressed_axes=(0,)),
        np.ascontiguousarray(_columns(op)),
    )
    return Prepared(
        _ordered(op, lambda: np.asarray(weight @ columns)), int(weight.nbytes)
    )


def _tersify(op: Operation) -> Prepared:
    """Our own kernels: a 1×1 convolution over the columns, or a linear layer over the
    rows.
    """
    from tersify.runtime.capture import Value
    from tersify.runtime.engine import Kernels
    from tersify.runtime.epilogue import Epilogue
    from tersify.runtime.extension import extension
    from tersify.runtime.network import Network
    from tersify.runtime.ops import Conv, Linear, Window
    from tersify.runtime.plan import Node, Plan
    from tersify.runtime.weights import classify

    x = torch.from_numpy(op.input.to_dense()).float()
    windows = op.order == "W@X"
    dense = torch.from_numpy(
        op.weight.to_dense() if windows else whole_weight(op).to_dense()
    )
    if windows:
        # Output positions as an image as square as possible, which the kernels tile
        # best.
        height = next(
            h for h in range(math.isqrt(x.shape[1]), 0, -1) if x.shape[1] % h == 0
        )
        x = x.reshape(1, x.shape[0], height, -1)
        dense = dense.reshape(*dense.shape, 1, 1)
    weight = classify(op.name, dense)
    epilogue = Epilogue(
        scale=None if weight.row_scale is None else weight.row_scale.double()
    )
    layer = (
        Conv(weight=weight, window=Window(1, 1), groups=op.groups, epilogue=epilogue)
        if windows
        else Linear(weight=weight, epilogue=epilogue)
    )
    shape = (1, len(dense), *x.shape[2:]) if windows else (*x.shape[:-1], len(dense))
    node = Node(
        name="y", op=layer, inputs=("x",), value=Value(shape=shape, dtype=torch.float32)
    )
    plan = Plan(inputs={"x": Value.of(x)}, nodes=(node,), outputs=("y",))
    kernels = extension()
    network = Network(
        plan, None if kernels is None else Kernels(kernels, torch.get_num_threads())
    )

    def run() -> Array:
        (y,) = network.run([x])
        return (y.reshape(y.shape[1], -1) if windows else y).numpy()

    return Prepared(run, network.weight_bytes())


BACKENDS: dict[str, Callable[[Operation], Prepared]] = {
    "torch": _torch_dense,
    "torch-coo": _torch_sparse("coo"),
    "torch-csr": _torch_sparse("csr"),
    "torch-csc": _torch_sparse("csc"),
    "torch-bsr": _torch_sparse("bsr"),
    "torch-dual": _torch_dual,
    "scipy-coo": _scipy("coo"),
    "scipy-csr": _scipy("csr"),
    "scipy-csc": _scipy("csc"),
    "scipy-bsr": _scipy("bsr"),
    "scipy-dual": _scipy_dual,
    "pydata": _pydata,
    "tersify": _tersify,
}
