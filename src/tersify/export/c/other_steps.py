"""Inputs and outputs, pools, sums and products of values, and what moves numbers, as
steps.
"""

from __future__ import annotations

from typing import Any

from tersify.export.c.c_steps import Buffer, Shape
from tersify.export.c.constants import LEAKY, Floats, Quant
from tersify.export.c.step_maker import StepMaker
from tersify.export.c.stored import stored


class OtherSteps(StepMaker):
    def _input(self, items: int, shape: list[int]) -> None:
        self._made.inputs.append(self._values.add(Buffer(_shape(shape), items=items)))

    def _input_ids(self, items: int, count: int) -> None:
        made = Buffer((count, 1, 1), items=items, ids=True)
        self._made.inputs.append(self._values.add(made))

    def _outputs(self, values: list[int]) -> None:
        """Each has memory of its own, which its caller gave."""
        taken = {buffer.memory for buffer in self._made.inputs}
        for value in values:
            source = made = self._values.floats(value)
            if source.memory in taken:
                made = Buffer(source.shape, items=source.items)
                self._step("joined", (source,), made)
            taken.add(made.memory)
            self._made.outputs.append(made)

    def _quantize(self, value: int, *places: int) -> None:
        scale, low, high = map(self._constants.number, places)
        self._values.quantize(value, Quant(scale=scale, low=low, high=high))

    def _fold_max_pool(self, value: int, window: list[int], size: list[int]) -> None:
        self._max_pool(value, window, size)

    def _max_pool(self, value: int, window: list[int], size: list[int]) -> None:
        self._pool("max_f32", value, window, size)

    def _avg_pool(
        self, value: int, window: list[int], size: list[int], count_padding: bool
    ) -> None:
        self._pool("mean_windows", value, window, size, zero=int(count_padding))

    def _pool(
        self, kernel: str, value: int, window: list[int], size: list[int], zero: int = 0
    ) -> None:
        source = self._values.floats(value)
        rows = source.shape[0]
        made = self._values.add(Buffer((rows, size[0], size[1]), items=source.items))
        self._step(kernel, (source,), made, rows=rows, window=tuple(window), zero=zero)

    def _global_mean(self, value: int, epilogue: list[Any]) -> None:
        source = self._values.floats(value)
        rows = source.shape[0]
        made = self._values.add(Buffer((rows, 1, 1), items=source.items))
        ends = self._constants.mean(epilogue, rows)
        self._step("mean_f32", (source,), made, rows=rows, means=True, **ends)

    def _elementwise(
        self, value: int, other: int, multiply: bool, epilogue: list[Any]
    ) -> None:
        source = self._values.floats(value)
        reads = (source,) if other < 0 else (source, self._values.floats(other))
        scale, shift, scale2, shift2 = map(self._constants.vector, epilogue[:4])
        activation, low, high = self._constants.activation(epilogue)
        self._step(
            "elementwise",
            reads,
            self._values.add(Buffer(source.shape, items=source.items)),
            rows=source.shape[0],
            a=_or_none(scale),
            b=_or_none(shift),
            c=_or_none(scale2),
            d=_or_none(shift2),
            multiplies=multiply,
            activation=activation,
            low=low,
            high=high,
        )

    def _prelu(self, value: int, slopes: list[int]) -> None:
        source = self._values.floats(value)
        made = self._values.add(Buffer(source.shape, items=source.items))
        own = self._constants.vector(slopes)
        rows = source.shape[0]
        self._step(
            "elementwise", (source,), made, rows=rows, slopes=own, activation=LEAKY
        )

    def _with_constant(self, value: int, numbers: list[int], multiply: bool) -> None:
        source = self._values.floats(value)
        made = self._values.add(Buffer(source.shape, items=source.items))
        flat = (1, 1, source.item_count)
        self._step(
            "elementwise",
            (Buffer(flat, root=source, items=source.items),),
            Buffer(flat, root=made, items=source.items),
            rows=1,
            constant=self._constants.vector(numbers),
            multiplies=multiply,
        )

    def _concatenate(self, values: list[int]) -> None:
        sources = tuple(map(self._values.floats, values))
        _, height, width = sources[0].shape
        channels = sum(source.shape[0] for source in sources)
        made = Buffer((channels, height, width), items=sources[0].items)
        self._step("joined", sources, self._values.add(made))

    def _move(
        self,
        value: int,
        shape: list[int],
        axes: list[list[int]],
        offset: int,
        fill: int,
    ) -> None:
        source = self._values.floats(value)
        self._step(
            "moved",
            (source,),
            self._values.add(Buffer(_shape(shape), items=source.items)),
            axes=tuple(map(tuple, axes)),
            offset=offset,
            fill=self._constants.number(fill),
        )

    def _view(self, value: int, items: int, shape: list[int]) -> None:
        source = self._values.as_it_lies(value)
        self._values.add(
            Buffer(_shape(shape), source.quant, source, items, ids=source.ids)
        )

    def _embedding(self, value: int, weight: int) -> None:
        ids = self._values.as_it_lies(value)
        table, scale = self._constants.embedding(weight)
        rows, width = table.shape
        root = ids.memory
        root.rows = min(root.rows, rows) if root.rows else rows
        made = self._values.add(Buffer((1, ids.item_count, width), items=ids.items))
        self._step(
            "embedding",
            (Buffer((1, 1, 1), root=ids, items=ids.count, ids=True),),
            Buffer((width, 1, 1), root=made, items=ids.count),
            rows=rows,
            weights=stored(table, any_row=True),
            a=scale,
        )


def _shape(given: list[int]) -> Shape:
    channels, height, width = given
    return channels, height, width


def _or_none(numbers: Floats) -> Floats | None:
    return numbers if len(numbers) else None
