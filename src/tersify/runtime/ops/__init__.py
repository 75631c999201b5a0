"""One file an operation: its data, what lowers to it, its reference and how it is
emitted.
"""

from tersify.runtime.ops import recurrent_calls as recurrent_calls  # registers
from tersify.runtime.ops.attention import Attention
from tersify.runtime.ops.base import LOWERINGS, CannotLower, Context, Op
from tersify.runtime.ops.constant import WithConstant
from tersify.runtime.ops.conv import Conv, ConvKernel, Pooling
from tersify.runtime.ops.curves import Curve, CurveKind
from tersify.runtime.ops.elementwise import Elementwise, PRelu
from tersify.runtime.ops.embedding import Embedding
from tersify.runtime.ops.levels import Levels
from tersify.runtime.ops.linear import Linear, LinearKernel
from tersify.runtime.ops.move import Move
from tersify.runtime.ops.pool import AverageOfAxes, AveragePool, GlobalAverage, MaxPool
from tersify.runtime.ops.recurrent import Recurrent
from tersify.runtime.ops.rows import GroupNorm, LayerNorm, Softmax
from tersify.runtime.ops.shapes import Concat, View
from tersify.runtime.ops.torch_call import TorchCall
from tersify.runtime.ops.transposed import TransposedConv
from tersify.runtime.ops.window import Window

__all__ = [
    "LOWERINGS",
    "Attention",
    "AverageOfAxes",
    "AveragePool",
    "CannotLower",
    "Concat",
    "Context",
    "Conv",
    "ConvKernel",
    "Curve",
    "CurveKind",
    "Elementwise",
    "Embedding",
    "GlobalAverage",
    "GroupNorm",
    "LayerNorm",
    "Levels",
    "Linear",
    "LinearKernel",
    "MaxPool",
    "Move",
    "Op",
    "PRelu",
    "Pooling",
    "Recurrent",
    "Softmax",
    "TorchCall",
    "TransposedConv",
    "View",
    "Window",
    "WithConstant",
]
