"""The lowered product is the convolution, over random geometries, in both operand
orders.
"""

import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tersify.sparse.lowering import (
    Geometry,
    column_count,
    lower_input,
    lower_weight,
    multiply,
    raise_output,
    raise_weight,
)

CONVS = {
    (1, False): nn.Conv1d,
    (2, False): nn.Conv2d,
    (3, False): nn.Conv3d,
    (1, True): nn.ConvTranspose1d,
    (2, True): nn.ConvTranspose2d,
    (3, True): nn.ConvTranspose3d,
}


@st.composite
def layers(draw, transposed):
    ndim = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 3))
    sizes = st.integers(1, 4 if ndim < 3 else 3)
    kernel, stride, dilation = (
        tuple(draw(sizes) for _ in range(ndim)) for _ in range(3)
    )
    options = {
        "kernel_size": kernel,
        "stride": stride,
        "dilation": dilation,
        "groups": groups,
        "bias": False,
    }
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    padding = tuple(draw(st.integers(0, 4)) for _ in range(ndim))
    least = [max(1, r + 1 - 2 * p) for r, p in zip(reach, padding, strict=True)]
    if transposed:
        extra = tuple(
            draw(st.integers(0, max(s, d) - 1))
            for s, d in zip(stride, dilation, strict=True)
        )
        options |= {"padding": padding, "output_padding": extra}
        rows = zip(stride, padding, reach, extra, strict=True)
        least = [max(1, -((e + r - 2 * p) // s) + 1) for s, p, r, e in rows]
    else:
        mode = draw(
            st.sampled_from(["zeros", "zeros", "reflect", "replicate", "circular"])
        )
        word = (
            draw(st.sampled_from([None, None, "same", "valid"]))
            if set(stride) == {1}
            else None
        )
        options |= {"padding": word or padding, "padding_mode": mode}
        least = [
            max(n, r + 1, p + 1) for n, r, p in zip(least, reach, padding, strict=True)
        ]
    layer = CONVS[ndim, transposed](
        groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3)), **options
    )
    spatial = [n + draw(st.integers(0, 3)) for n in least]
    return layer.double(), torch.randn(
        draw(st.integers(1, 3)), layer.in_channels, *spatial
    ).double()


def check(layer, images):
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Using padding='same' with even kernel lengths"
        )  # torch copies the input then
        wanted = layer(images).float()
    layer, images = layer.float(), images.float()
    geometry = Geometry.of(layer)
    weight, columns = (
        lower_weight(layer.weight.detach(), geometry),
        lower_input(images, geometry),
    )
    assert columns.shape[1] == column_count(images.shape, geometry)
    for product in (
        multiply(weight, columns, geometry.groups),
        torch.cat(
            [
                c.T @ w.T
                for w, c in zip(
                    weight.chunk(layer.groups), columns.chunk(layer.groups), strict=True
                )
            ],
            1,
        ).T,
    ):
        torch.testing.assert_close(
            raise_output(product, images.shape, geometry), wanted, rtol=1e-5, atol=1e-5
        )
    assert torch.equal(raise_weight(weight, geometry), layer.weight)
    some = torch.arange(0, columns.shape[1], 3)
    assert torch.equal(lower_input(images, geometry, some), columns[:, some])
    assert Geometry.from_mapping(geometry.to_mapping()) == geometry


@given(layers(transposed=False))
@settings(max_examples=250)
def test_the_lowered_product_is_the_convolution(case):
    check(*case)


@given(layers(transposed=True))
@settings(max_examples=150)
def test_the_lowered_product_is_the_transposed_convolution(case):
    check(*case)


def test_the_functional_convolution_of_the_paper_s_layer_is_met():
    # VGG-16's features.6, whose comparison printed False in the paper.
    weight, images = torch.randn(128, 64, 3, 3) / 24, torch.randn(1, 64, 56, 56)
    geometry = Geometry(
        kernel=(3, 3), stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1)
    )
    product = lower_weight(weight, geometry) @ lower_input(images, geometry)
    wanted = F.conv2d(images, weight, padding=1)
    torch.testing.assert_close(
        raise_output(product, images.shape, geometry), wanted, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kernel": (0, 3)}, "kernel must be at least 1"),
        ({"stride": (1,)}, "1 to 3 dimensions"),
        ({"padding": ((-1, 0), (0, 0))}, "padding must not be negative"),
        ({"padding_mode": "mirror"}, "'mirror'"),
        ({"transposed": True, "padding_mode": "circular"}, "zeros only"),
    ],
)
def test_an_impossible_geometry_is_refused(wrong, message):
    right = {
        "kernel": (3, 3),
        "stride": (1, 1),
        "padding": ((1, 1), (1, 1)),
        "dilation": (1, 1),
    }
    with pytest.raises(ValueError, match=message):
        Geometry(**right | wrong)


def test_what_is_no_convolution_is_refused():
    with pytest.raises(ValueError, match="got Linear"):
        Geometry.of(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="describes no convolution"):
        Geometry.from_mapping({"kernel": [3]})
