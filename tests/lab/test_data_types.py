import pytest
import torch

from tersify.lab import Data, Split, dataset, normalize


def split(count: int = 4, classes: int = 3, channels: int = 2, side: int = 5) -> Split:
    return Split(
        torch.zeros(count, channels, side, side, dtype=torch.uint8),
        torch.arange(count) % classes,
    )


def data(**changes: object) -> Data:
    return Data(
        **{
            "name": "toy",
            "train": split(),
            "test": split(2),
            "classes": 3,
            "mean": (0.5, 0.25),
            "std": (0.5, 2.0),
            **changes,
        }
    )


def test_bytes_and_unit_floats_normalize_to_the_same_numbers() -> None:
    images = torch.arange(256, dtype=torch.uint8).view(2, 2, 8, 8)
    from_bytes, from_floats = (
        normalize(images, data()),
        normalize(images.float() / 255, data()),
    )
    assert torch.equal(from_bytes, from_floats)
    assert from_bytes[0, 0, 0, 0] == (0 - 0.5) / 0.5
    assert from_bytes[1, 1, 7, 7] == (1 - 0.25) / 2.0


def test_a_data_set_knows_the_shape_of_one_image() -> None:
    assert data().shape == (2, 5, 5)


def test_features_without_pixels_are_data_too() -> None:
    rows = Split(torch.rand(6, 4), torch.arange(6) % 3)
    made = data(train=rows, test=rows, mean=(0.5,), std=(0.25,))
    assert torch.equal(normalize(rows.images, made), (rows.images - 0.5) / 0.25)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": 2}, "training labels of 'toy' must be 0..1, got 2"),
        (
            {"test": split(side=6)},
            "training and test images of 'toy' must have one shape",
        ),
        ({"mean": (0.1, 0.2, 0.3)}, "mean must have 2 values or 1"),
        ({"mean": (0.1,)}, "mean and std must have equally many values, got 1 and 2"),
        ({"std": (0.0, 1.0)}, "std must be above 0, got 0.0"),
    ],
)
def test_a_data_set_that_contradicts_itself_is_refused(
    changes: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message.replace("..", r"\.\.")):
        data(**changes)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (
            torch.zeros(2, 1, 4, 4, dtype=torch.float64),
            torch.zeros(2, dtype=torch.int64),
            "got torch.float64",
        ),
        (
            torch.zeros(2, 4, 4, dtype=torch.uint8),
            torch.zeros(2, dtype=torch.int64),
            "must be uint8",
        ),
        (
            torch.zeros(2, 1, 4, 4),
            torch.zeros(2, dtype=torch.int32),
            "labels must be int64",
        ),
        (
            torch.zeros(2, 1, 4, 4),
            torch.zeros(3, dtype=torch.int64),
            "one for each of the 2 images",
        ),
        (torch.zeros(0, 1, 4, 4), torch.zeros(0, dtype=torch.int64), "not none"),
    ],
)
def test_images_and_labels_of_the_wrong_kind_are_refused(
    images: torch.Tensor, labels: torch.Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Split(images, labels)


def test_an_unknown_data_set_names_the_nearest() -> None:
    with pytest.raises(
        ValueError, match="unknown data set 'cifar-10'; nearest: 'cifar10'"
    ):
        dataset("cifar-10")


def test_settings_are_chosen_on_training_images_that_the_test_set_never_meets() -> None:
    whole = dataset("digits")
    cut = whole.for_choosing()
    assert len(cut.train) + len(cut.test) == len(whole.train)
    assert len(cut.test) == -(-len(whole.train) // 10)
    assert torch.equal(cut.test.images, whole.train.images[::10])
    assert torch.equal(cut.train.labels[:9], whole.train.labels[1:10])
    assert cut.name != whole.name
