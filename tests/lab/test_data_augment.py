import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tersify.lab import Augmentation, augment
from tersify.lab.data.augment import Draws, apply_draws, draw


def plain_augment(
    image: Tensor, a: Augmentation, top: int, left: int, mirrored: int, cy: int, cx: int
) -> Tensor:
    """One image, step by step."""
    _, height, width = image.shape
    p = a.crop_padding
    padded = torch.zeros(
        image.shape[0], height + 2 * p, width + 2 * p, dtype=image.dtype
    )
    padded[:, p : p + height, p : p + width] = image
    out = padded[:, top : top + height, left : left + width].clone()
    if mirrored:
        out = out.flip(2)
    if a.cutout:
        y, x = cy - a.cutout // 2, cx - a.cutout // 2
        out[:, max(y, 0) : max(y + a.cutout, 0), max(x, 0) : max(x + a.cutout, 0)] = 0
    return out


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    padding=st.integers(0, 5),
    flip=st.booleans(),
    cutout=st.integers(0, 7),
    height=st.integers(3, 9),
    width=st.integers(3, 9),
    channels=st.integers(1, 3),
    kind=st.sampled_from([torch.uint8, torch.float32]),
)
def test_a_batch_is_changed_as_each_image_would_be_alone(
    seed: int,
    padding: int,
    flip: bool,
    cutout: int,
    height: int,
    width: int,
    channels: int,
    kind: torch.dtype,
) -> None:
    a = Augmentation(crop_padding=padding, flip=flip, cutout=cutout)
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(
        1, 256, (4, channels, height, width), generator=generator
    ).to(kind)
    draws = draw(images, a, generator)
    expected = [
        plain_augment(image, a, *(int(d[i]) for d in draws))
        for i, image in enumerate(images)
    ]
    assert torch.equal(apply_draws(images, a, draws), torch.stack(expected))


def test_the_same_generator_state_gives_the_same_images() -> None:
    images = torch.randint(0, 256, (32, 3, 32, 32), dtype=torch.uint8)
    a = Augmentation(crop_padding=4, flip=True, cutout=8)
    first, again = (
        augment(images, a, torch.Generator().manual_seed(5)) for _ in range(2)
    )
    other = augment(images, a, torch.Generator().manual_seed(6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.dtype == torch.uint8


def test_every_corner_both_mirrors_and_every_centre_are_drawn_equally_often() -> None:
    images = torch.empty(90_000, 1, 4, 4)
    a = Augmentation(crop_padding=1, flip=True, cutout=2)
    draws = draw(images, a, torch.Generator().manual_seed(0))
    for values, kinds in zip(draws, (3, 3, 2, 4, 4), strict=True):
        fractions = torch.bincount(values, minlength=kinds) / len(images)
        assert len(fractions) == kinds
        assert fractions.sub(1 / kinds).abs().max() < 0.01


def test_no_augmentation_returns_the_images_and_draws_nothing() -> None:
    images = torch.rand(3, 1, 8, 8)
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    assert augment(images, Augmentation(), generator) is images
    assert torch.equal(generator.get_state(), before)


def test_images_themselves_are_left_alone() -> None:
    images = torch.rand(3, 1, 8, 8)
    kept = images.clone()
    augment(
        images,
        Augmentation(crop_padding=2, flip=True, cutout=4),
        torch.Generator().manual_seed(1),
    )
    assert torch.equal(images, kept)


def test_applying_the_draws_is_one_graph_for_the_compiler() -> None:
    a = Augmentation(crop_padding=2, flip=True, cutout=4)
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    draws = draw(images, a, torch.Generator().manual_seed(0))
    compiled = torch.compile(
        lambda x, d: apply_draws(x, a, Draws(*d)), fullgraph=True, backend="eager"
    )
    assert torch.equal(compiled(images, tuple(draws)), apply_draws(images, a, draws))


@pytest.mark.parametrize("options", [{"crop_padding": -1}, {"cutout": -4}])
def test_a_negative_size_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 0 pixels, got -"):
        Augmentation(**options)
