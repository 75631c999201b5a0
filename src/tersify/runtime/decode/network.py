"""The packed weights of a decoder, and the engines that run some tokens through all its
layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tersify.runtime.decode.architecture import Architecture
from tersify.runtime.decode.products import Product, pack_product
from tersify.runtime.decode.source import Norm, Source
from tersify.runtime.engine import Kernels


@dataclass(frozen=True, kw_only=True)
class Layer:
    attention_norm: Norm
    queries_keys_values: Product
    attention_out: Product
    inner_norm: Norm
    inner: Product
    out: Product
    query_norm: Norm | None
    key_norm: Norm | None
    before_attention_out: Norm | None
    before_out: Norm | None


class Network:
    """Layers, embeddings and head, packed once; `engine` makes a plan of them for so
    many tokens.
    """

    def __init__(
        self,
        kernels: Kernels,
        architecture: Architecture,
        source: Source,
        precision: str,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.kernels = kernels
        self.architecture = architecture
        self._source = source
        self._precision = precision
        self.layers: list[Layer] = []
        for number in range(len(architecture.layers)):
            self.layers.append(self._layer(number))
            if progress is not None:
                progress(number)
        self.final_norm = source.norm(architecture.final_norm)
        # Embedding and head work on floats whatever the precision is; a tied pair is
        # packed once.
        self.embedding = pack_product(
            kernels,
            [architecture.embedding],
            [source.matrix(architecture.embedding)],
            "fp32",
        )
        self.head = (
            self.embedding
            if architecture.tied
            else self._product((architecture.head,), "fp32")
        )
        self.positions = (
            None
            if architecture.positions is None
            else self._product((architecture.positions,), "fp32")
        )
        del self._source  # weights are read once
        kernels.module.release_free_memory()

    def _product(self, names: Sequence[str], precision: str | None = None) -> Product:
        matrices = [self._source.matrix(name) for name in names]
        return pack_product(
            self.kernels,
            names,
            matrices,
            self._precision if precision is None else precision,
        )

    def _layer(self, number: int) -> Layer:
        names = self.architecture.layers[number]

        def norm(name: str | None) -> Norm | None:
            return None if name is None else self._source.norm(name)

        return Layer(
            attention_norm=self._source.norm(names.attention_norm),
            queries_keys_values=self._product(names.queries_keys_values),
            attention_out=self._product((names.attention_out,)),
            inner_norm=self._source.norm(names.inner_norm),
            inner=self._product(names.inner),
            out=self._product((names.out,)),
            query_norm=norm(names.query_norm),
            key_norm=norm(names.key_norm),
            before_attention_out=norm(names.before_attention_out),
            before_out=norm(names.before_out),
        )

    def _products(self) -> list[Product]:
        products = [
            self.embedding,
            self.head,
            *([] if self.positions is None else [self.positions]),
        ]
        for layer in self.layers:
            products += [
                layer.queries_keys_values,
                layer.attention_out,
                layer.inner,
                layer.out,
            ]
        return products

    def int8_names(self) -> set[str]:
        """The layers that see vectors of 8 bits."""
        return {name for product in self._products() for name in product.int8_names}

    def weight_bytes(self) -> int:
        # By identity, so that a tied embedding counts once.
        packed = {
            id(part.weights): part.weights
            for product in self._products()
            for part in product.parts
        }
        return sum(weights.resident_bytes for weights in packed.values())

    def engine(self, cache: Any, tokens: int, wanted: int) -> Any:
        """Reads the ids of `tokens` tokens, makes the logits of `wanted` of them; 0: it
        only fills the cache.
        """
        module, a = self.kernels.module, self.architecture
        engine = module.Engine(self.kernels.workspace)
        ids = engine.input_ids(1, tokens)
        value = self._rows_of(engine, ids, self.embedding)
        if self.positions is not None:
            value = self._sum(
                engine,
                value,
                self._rows_of(engine, engine.input_ids(1, tokens), self.positions),
                tokens,
            )
        for number, layer in enumerate(self.layers):
            value = self._attention(engine, value, cache, number, layer, tokens)
            value = self._feed_forward(engine, value, layer, tokens)
        # The head has a row for every word, so it sees only the tokens whose logits are
        # wanted.
        chosen = module.wanted_rows(engine, value, cache, max(wanted, 1))
        if wanted:
            chosen = self.head.emit(
                self.kernels,
                engine,
                self._normed(engine, chosen, self.final_norm),
                wanted,
            )
        engine.outputs([chosen])
        assert wanted == 0 or tuple(engine.shape(chosen)) == (
            1,
            1,
            wanted,
            a.vocabulary,
        )
        return engine

    def _rows_of(self, engine: Any, ids: int, product: Product) -> int:
        (part,) = product.parts
        scale = [] if part.row_scale is None else part.row_scale.tolist()
        value = self.kernels.module.embedding_rows(engine, ids, part.weights, scale)
        if part.columns is None:
            return value
        return self.kernels.module.scale_columns(engine, value, part.columns)

    def _normed(self, engine: Any, value: int, norm: Norm) -> int:
        weight, bias = _list(norm.weight), _list(norm.bias)
        return engine.layer_norm(
            value, len(weight), weight, bias, norm.eps, norm.centred
        )

    def _sum(self, engine: Any, a: int, b: int, tokens: int) -> int:
        """Every token is a channel, so that threads can share them."""
        shape = (tokens, 1, self.architecture.hidden)
        both = [engine.view(value, 1, shape) for value in (a, b)]
        added = engine.elementwise(*both, False, self.kernels.module.Epilogue())
        return engine.view(added, 1, (1, tokens, self.architecture.hidden))

    def _attention(
        self,
        engine: Any,
        value: int,
        cache: Any,
        number: int,
        layer: Layer,
        tokens: int,
    ) -> int:
        a, names = self.architecture, self.architecture.layers[number]
        # [tokens, (heads + 2 · key_heads) · width]: queries, keys and values behind
        # each other. The kernel rotates them, stores the new keys and values in the
        # cache, and attends to all that the cache holds of each text.
        heads = layer.queries_keys_values.emit(
            self.kernels,
            engine,
            self._normed(engine, value, layer.attention_norm),
            tokens,
        )
        norms = [
            [] if norm is None else _list(norm.weight)
            for norm in (layer.query_norm, layer.key_norm)
        ]
        # Models that norm queries norm keys as well, with the same eps.
        eps = 0.0 if layer.query_norm is None else layer.query_norm.eps
        attended = self.kernels.module.cached_attention(
            engine,
            heads,
            cache,
            number,
            a.heads,
            names.scale,
            names.window,
            names.rotated,
            *norms,
            eps,
        )
        # BitNet norms once more before each matrix whose input it rounds to 8 bits.
        if layer.before_attention_out is not None:
            attended = self._normed(engine, attended, layer.before_attention_out)
        return self._sum(
            engine,
            value,
            layer.attention_out.emit(self.kernels, engine, attended, tokens),
            tokens,
        )

    def _feed_forward(self, engine: Any, value: int, layer: Layer, tokens: int) -> int:
        a, module = self.architecture, self.kernels.module
        inner = layer.inner.emit(
            self.kernels, engine, self._normed(engine, value, layer.inner_norm), tokens
        )
        kind = getattr(module.Activation, a.activation)
        # CLAMP from 0 upwards is ReLU.
        curve = (
            module.Epilogue(activation=kind, low=0.0)
            if a.activation == "CLAMP"
            else module.Epilogue(activation=kind)
        )
        opened = module.gate(engine, inner, a.inner, curve, a.squared)
        if layer.before_out is not None:
            opened = self._normed(engine, opened, layer.before_out)
        return self._sum(
            engine, value, layer.out.emit(self.kernels, engine, opened, tokens), tokens
        )


def _list(tensor: Tensor | None) -> list[float]:
    return [] if tensor is None else tensor.detach().float().tolist()
