"""Consecutive torch calls as one Python function: it costs no more than the module's
own forward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from tersify.runtime.capture.values import Ref
from tersify.runtime.nested import map_leaves
from tersify.runtime.ops import Conv, Linear, TorchCall
from tersify.runtime.plan import Node
from tersify.runtime.reference import results_of
from tersify.runtime.short_calls import Trial


class TorchStage:
    """A generated function that makes one value after the other and drops each after
    its last use.
    """

    def __init__(
        self, nodes: Sequence[Node], constants: Mapping[str, Tensor], later: set[str]
    ) -> None:
        self.nodes = tuple(nodes)
        made = {name for node in nodes for name in node.makes}
        # Constants are bound into the function and are no inputs of it.
        read = dict.fromkeys(name for node in nodes for name in node.inputs)
        self.inputs = tuple(
            name for name in read if name not in made and name not in constants
        )
        self.outputs = tuple(
            name for node in nodes for name in node.makes if name in later
        )
        self._constants = constants
        # The first call times nothing; it finds the quickest function for each operator
        # that gives the same result.
        self._trials = {
            id(node): Trial(node.op.target)
            for node in nodes
            if isinstance(node.op, TorchCall)
        }
        self._first = self._written(self._trials)
        self.run = self._try

    def _written(self, calls: Mapping[int, Callable[..., Any]]) -> Any:
        return _Writer(self.inputs, self._constants, calls).function(
            self.nodes, self.outputs
        )

    def _try(self, *inputs: Tensor) -> list[Tensor]:
        """The first run, which finds out how each operator is called best."""
        made: list[Tensor] = self._first(*inputs)
        self.run = self._written(
            {node: trial.best for node, trial in self._trials.items()}
        )
        return made


class _Writer:
    """Python source and the objects it refers to."""

    def __init__(
        self,
        inputs: Sequence[str],
        constants: Mapping[str, Tensor],
        calls: Mapping[int, Callable[..., Any]],
    ) -> None:
        self._constants = constants
        self._calls = calls  # what to call for a node, by its id
        self._inputs = inputs
        self._objects: dict[str, Any] = {"results_of": results_of}
        self._variables = {name: f"v{i}" for i, name in enumerate(inputs)}

    def function(self, nodes: Sequence[Node], outputs: Sequence[str]) -> Any:
        # The last index wins: the node after which a value is not needed.
        last = {
            name: i
            for i, node in enumerate(nodes)
            for name in (*node.inputs, *node.makes)
        }
        lines = [f"def stage({', '.join(self._variables.values())}):"]
        for i, node in enumerate(nodes):
            lines += [f"    {line}" for line in self._lines(node)]
            dead = [
                n
                for n in dict.fromkeys((*node.inputs, *node.makes))
                if last[n] == i and n not in outputs
            ]
            variables = [
                self._variables[name] for name in dead if name in self._variables
            ]
            # Frees memory as the module's own forward would, by dropping names.
            if variables:
                lines.append(f"    {' = '.join(variables)} = None")
        lines.append(
            f"    return [{', '.join(self._variables[name] for name in outputs)}]"
        )
        # not among the objects: a function that holds itself is freed late
        made: dict[str, Any] = {}
        exec(
            compile("\n".join(lines), "<tersify torch stage>", "exec"),
            self._objects,
            made,
        )
        return made["stage"]

    def _lines(self, node: Node) -> list[str]:
        call = self._call(node)
        for name in node.makes:
            self._variables[name] = f"v{len(self._variables)}"
        targets = [self._variables[name] for name in node.makes]
        # One assignment instead of a walk through the result.
        if _makes_one_tensor(node):
            return [f"{targets[0]} = {call}"]
        return [
            f"made = results_of({call})",
            *(f"{target} = made[{i}]" for i, target in enumerate(targets)),
            "made = None",
        ]

    def _call(self, node: Node) -> str:
        if isinstance(node.op, TorchCall):
            args = [self._text(arg) for arg in node.op.args]
            args += [f"{key}={self._text(arg)}" for key, arg in node.op.kwargs.items()]
            return f"{self._object(self._calls[id(node)])}({', '.join(args)})"
        # Layers that were chosen to run dense in torch, with their epilogue.
        assert isinstance(node.op, (Conv, Linear))
        return f"{self._object(node.op.torch_function(node))}({', '.join(self._value(n) for n in node.inputs)})"

    def _text(self, argument: Any) -> str:
        if type(argument) is Ref:
            return self._value(argument.name)
        holds_values = False

        # Containers without values are passed as one object, which is quicker than
        # building them at each call.
        def look(leaf: Any) -> None:
            nonlocal holds_values
            holds_values |= type(leaf) is Ref

        map_leaves(argument, look)
        if holds_values and isinstance(argument, (list, tuple)):
            inner = "".join(f"{self._text(item)}, " for item in argument)
            return f"[{inner}]" if isinstance(argument, list) else f"({inner})"
        return (
            repr(argument)
            if argument is None or type(argument) in (bool, int)
            else self._object(argument)
        )

    def _value(self, name: str) -> str:
        return (
            self._variables[name]
            if name in self._variables
            else self._object(self._constants[name])
        )

    def _object(self, thing: Any) -> str:
        name = f"c{len(self._objects)}"
        self._objects[name] = thing
        return name


def _makes_one_tensor(node: Node) -> bool:
    if not isinstance(node.op, TorchCall):
        return True
    returns: Any = getattr(getattr(node.op.target, "_schema", None), "returns", ())
    return len(returns) == 1 and str(returns[0].type) == "Tensor"
