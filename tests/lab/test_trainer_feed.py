import pytest
import torch

from tersify.lab import Augmentation, Data, Split
from tersify.lab.trainer.batches import Feed


def numbered(count):
    """Images that carry their own number, which is also their label."""
    labels = torch.arange(count)
    images = labels.view(-1, 1, 1, 1).expand(-1, 1, 4, 4).to(torch.uint8)
    split = Split(images.contiguous(), labels)
    return Data("numbered", split, split, classes=count, mean=(0.0,), std=(1 / 255,))


def feed(count=10, batch_size=4, seed=1, augmentation=None):
    return Feed(
        numbered(count),
        batch_size=batch_size,
        seed=seed,
        device=torch.device("cpu"),
        augmentation=augmentation or Augmentation(),
    )


def labels_of(batches):
    return torch.cat([labels for _, labels in batches]).tolist()


def test_every_image_is_seen_and_every_batch_is_full():
    batches = list(feed().batches(1))
    assert [len(labels) for _, labels in batches] == [4, 4, 4]
    assert set(labels_of(batches)) == set(range(10))


def test_images_and_labels_stay_together():
    for images, labels in feed().batches(1):
        assert torch.equal(images[:, 0, 0, 0].round().long(), labels)


def test_an_epoch_depends_on_the_seed_and_its_number_alone():
    fresh, used = feed(), feed()
    list(used.batches(1))
    assert labels_of(fresh.batches(2)) == labels_of(used.batches(2))
    assert labels_of(fresh.batches(2)) != labels_of(fresh.batches(3))
    assert labels_of(fresh.batches(2)) != labels_of(feed(seed=2).batches(2))


def test_a_small_data_set_makes_one_batch():
    assert len(list(feed(count=3, batch_size=256).batches(1))) == 1


@pytest.mark.parametrize("epoch", [1, 2])
def test_augmentation_repeats_with_its_epoch_and_changes_images(epoch):
    varied = feed(augmentation=Augmentation(crop_padding=2))
    first, again = list(varied.batches(epoch)), list(varied.batches(epoch))
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(first, again, strict=True))
    plain = list(feed().batches(epoch))
    assert any(
        not torch.equal(a, b) for (a, _), (b, _) in zip(first, plain, strict=True)
    )


def test_the_same_image_is_varied_anew_in_every_epoch():
    picture = (
        torch.arange(64, dtype=torch.uint8)
        .view(1, 1, 8, 8)
        .expand(6, -1, -1, -1)
        .contiguous()
    )
    split = Split(picture, torch.zeros(6, dtype=torch.int64))
    data = Data("one", split, split, classes=1, mean=(0.0,), std=(1 / 255,))
    varied = Feed(
        data,
        batch_size=6,
        seed=1,
        device=torch.device("cpu"),
        augmentation=Augmentation(crop_padding=2, flip=True),
    )
    (first,), (second,) = (
        [images for images, _ in varied.batches(epoch)] for epoch in (1, 2)
    )
    assert not torch.equal(first, second)
