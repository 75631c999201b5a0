import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tersify.lab import (
    augment,
    dataset,
    network,
    networks,
    normalize,
    set_seed,
    topk_accuracy,
)

IMAGE_NETWORKS = [
    name for name in networks() if name not in ("speech-mlp", "lstm", "minilm")
]
ONE_DEPTH = ("alexnet", "squeezenet1_1")


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("inflate", "count"), [(1, 175_406), (5, 4_338_030)])
def test_resnet20_star_has_the_parameters_of_the_paper(
    inflate: int, count: int
) -> None:
    assert parameters(network("resnet20-star", inflate=inflate)) == count


def test_resnet20_star_is_inflated_five_times_by_default() -> None:
    assert parameters(network("resnet20-star")) == 4_338_030


@pytest.mark.parametrize(
    ("layers", "count"), [(20, 269_722), (32, 464_154), (44, 658_586), (56, 853_018)]
)
def test_cifar_resnets_have_their_published_parameter_counts(
    layers: int, count: int
) -> None:
    assert parameters(network(f"resnet{layers}")) == count


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("vgg16", 138_365_992),
        ("alexnet", 61_100_840),
        ("squeezenet1_1", 1_235_496),
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
    ],
)
def test_imagenet_networks_have_the_parameters_of_torchvision(
    name: str, count: int
) -> None:
    with torch.device("meta"):
        model = network(
            name, classes=1000, **({"head": "imagenet"} if name == "vgg16" else {})
        )
    assert parameters(model) == count


@pytest.mark.parametrize(
    ("name", "theirs", "options"),
    [
        ("vgg16", "vgg16_bn", {"head": "imagenet"}),
        *(
            (name, name, {})
            for name in (
                "alexnet",
                "squeezenet1_1",
                "resnet18",
                "resnet34",
                "resnet50",
                "resnet101",
            )
        ),
    ],
)
def test_torchvision_networks_and_ours_hold_the_same_tensors(
    name: str, theirs: str, options: dict
) -> None:
    models = pytest.importorskip(
        "torchvision.models", reason="torchvision is not installed"
    )
    with torch.device("meta"):
        other, ours = (
            getattr(models, theirs)().state_dict(),
            network(name, classes=1000, **options).state_dict(),
        )
    assert {key: t.shape for key, t in ours.items()} == {
        key: t.shape for key, t in other.items()
    }


@pytest.mark.parametrize(
    ("name", "first", "middle", "last"),
    [
        ("vgg16", "features.0.weight", "features.21.running_mean", "classifier.1.bias"),
        ("alexnet", "features.0.weight", "features.10.weight", "classifier.6.bias"),
        (
            "squeezenet1_1",
            "features.0.weight",
            "features.3.expand3x3.weight",
            "classifier.1.bias",
        ),
        ("resnet18", "conv1.weight", "layer4.0.downsample.1.running_var", "fc.bias"),
        ("resnet50", "conv1.weight", "layer4.0.downsample.1.running_var", "fc.bias"),
    ],
)
def test_parameters_carry_the_names_of_torchvision(
    name: str, first: str, middle: str, last: str
) -> None:
    with torch.device("meta"):
        names = list(network(name).state_dict())
    assert (names[0], names[-1]) == (first, last)
    assert middle in names


def test_vgg16_takes_the_digits_of_mnist_as_they_are() -> None:
    model = network("vgg16", width=1 / 16, in_channels=1).eval()
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 10)


def test_a_resized_image_gives_what_the_enlarged_one_gives() -> None:
    model, small = network("alexnet", width=1 / 16).eval(), torch.rand(2, 3, 32, 32)
    large = nn.functional.interpolate(
        small, size=(224, 224), mode="bilinear", align_corners=False
    )
    assert torch.equal(model(small), model(large))


@pytest.mark.parametrize("name", ["alexnet", "squeezenet1_1", "vgg16"])
def test_without_dropout_training_repeats_itself(name: str) -> None:
    x = torch.rand(2, 3, 64, 64)
    small: dict[str, object] = (
        {"head": "imagenet"} if name == "vgg16" else {"resize": 0}
    )
    plain = network(name, width=1 / 16, dropout=0.0, **small)
    noisy = network(name, width=1 / 16, **small)
    assert torch.equal(plain(x), plain(x))
    assert not torch.equal(noisy(x), noisy(x))


def test_the_lstm_classifies_texts_or_predicts_every_next_token() -> None:
    tokens = torch.randint(1, 256, (3, 9))
    assert network("lstm", classes=4)(tokens).shape == (3, 4)
    assert network("lstm", task="language", layers=2)(tokens).shape == (3, 9, 256)


def test_padding_behind_a_text_does_not_change_its_class() -> None:
    model, tokens = network("lstm").eval(), torch.randint(1, 256, (2, 5))
    padded = torch.cat([tokens, torch.zeros(2, 4, dtype=torch.int64)], 1)
    assert torch.allclose(model(padded), model(tokens), atol=1e-6)


@pytest.mark.parametrize("layers", [20, 56])
def test_published_weights_load_strictly(layers: int, shared: Path) -> None:
    weights = load_file(shared / f"weights/cifar10_resnet{layers}.safetensors")
    network(f"resnet{layers}").load_state_dict(weights, strict=True)


@pytest.mark.parametrize("name", IMAGE_NETWORKS)
@pytest.mark.parametrize(
    "options", [{}, {"width": 0.25, "depth": 2.0, "classes": 7, "in_channels": 2}]
)
def test_every_network_answers_one_logit_per_class(
    name: str, options: dict[str, float]
) -> None:
    given = {
        key: value
        for key, value in options.items()
        if key != "depth" or name not in ONE_DEPTH
    }
    given |= (
        {"inflate": 1}
        if name == "resnet20-star"
        else {"resize": 64}
        if name in ONE_DEPTH
        else {}
    )
    model = network(name, **given).eval()
    channels = options.get("in_channels", 1 if name == "digits-cnn" else 3)
    side = 8 if name == "digits-cnn" else 16
    assert model(torch.rand(2, int(channels), side, side)).shape == (
        2,
        options.get("classes", 10),
    )


@pytest.mark.parametrize(
    ("name", "option"),
    [
        (name, o)
        for name in IMAGE_NETWORKS
        for o in ("width", "depth")
        if o == "width" or name not in ONE_DEPTH
    ],
)
def test_a_multiplier_of_two_makes_every_network_larger_and_a_half_smaller(
    name: str, option: str
) -> None:
    with torch.device("meta"):
        small, plain, large = (
            parameters(network(name, **{option: by})) for by in (0.5, 1.0, 2.0)
        )
    # One block is the least a stage can have.
    assert small <= plain < large
    assert small < plain or (name, option) == ("digits-cnn", "depth")


def test_every_parameter_of_resnet20_star_that_wants_a_gradient_gets_one() -> None:
    model = network("resnet20-star", inflate=1)
    model(torch.rand(4, 3, 32, 32)).square().sum().backward()
    without = [
        name
        for name, p in model.named_parameters()
        if p.requires_grad and p.grad is None
    ]
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    assert without == []
    assert frozen == ["layer3.1.bn2.weight", "layer3.1.bn2.bias"]


def test_the_last_norm_after_an_addition_changes_nothing_and_the_others_do() -> None:
    torch.manual_seed(0)
    model = network("resnet20-star", inflate=1).eval()
    images = torch.rand(2, 3, 32, 32)
    before = model(images)
    nn.init.constant_(model.layer3[1].bn2.weight, 5.0)
    assert torch.equal(model(images), before)
    nn.init.constant_(model.layer3[0].bn2.weight, 5.0)
    assert not torch.equal(model(images), before)


@pytest.mark.parametrize(
    ("layer", "n"),
    [("conv1", 9 * 80), ("layer2.0.conv2", 9 * 160), ("layer3.1.conv1", 9 * 320)],
)
def test_star_convolutions_start_with_root_two_over_n_as_their_variance(
    layer: str, n: int
) -> None:
    torch.manual_seed(0)
    weight = network("resnet20-star").get_submodule(layer).weight
    assert weight.var().item() == pytest.approx((2 / n) ** 0.5, rel=0.05)


def test_the_star_network_takes_hardtanh_in_place_of_relu() -> None:
    kinds = {
        type(m)
        for m in network("resnet20-star", inflate=1, activation="hardtanh").modules()
    }
    assert nn.Hardtanh in kinds
    assert nn.ReLU not in kinds


def test_the_digits_network_has_weights_to_spare_and_a_norm_behind_each() -> None:
    model = network("digits-cnn")
    layers = [m for m in model.modules() if not list(m.children())]
    weighted = [i for i, m in enumerate(layers) if isinstance(m, nn.Conv2d | nn.Linear)]
    assert sum(layers[i].weight.numel() for i in weighted) >= 50_000
    assert all(
        isinstance(layers[i + 1], nn.BatchNorm1d | nn.BatchNorm2d) for i in weighted
    )


def test_the_digits_network_learns_digits_in_ten_epochs() -> None:
    set_seed(0)
    data, model = dataset("digits"), network("digits-cnn")
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(0)
    for epoch in range(10):
        optimizer.param_groups[0]["lr"] = 5e-3 * (1 - epoch / 10)
        for rows in torch.randperm(len(data.train), generator=generator).split(64):
            images = augment(data.train.images[rows], data.augmentation, generator)
            loss = nn.functional.cross_entropy(
                model(normalize(images, data)), data.train.labels[rows]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.inference_mode():
        logits = model.eval()(normalize(data.test.images, data))
    assert topk_accuracy(logits, data.test.labels)[1] >= 96.5


def test_the_same_seed_builds_the_same_network() -> None:
    first, second = (
        torch.manual_seed(3) and network("digits-cnn").state_dict() for _ in range(2)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "resnet20star",
            {},
            "unknown network 'resnet20star'; nearest: 'resnet20-star'",
        ),
        ("resnet20", {"inflate": 5}, "unknown option of resnet20 'inflate'"),
        (
            "resnet20-star",
            {"inflat": 5},
            "unknown option of resnet20-star 'inflat'; nearest: 'inflate'",
        ),
        (
            "resnet20-star",
            {"inflate": 0},
            "inflate must be a whole number of at least 1, got 0",
        ),
        (
            "resnet20",
            {"classes": 0},
            "classes must be a whole number of at least 1, got 0",
        ),
        ("resnet20", {"width": 0.0}, "width must be in (0, 64], got 0.0"),
        ("digits-cnn", {"depth": -1}, "depth must be in (0, 64], got -1"),
        (
            "vgg16",
            {"head": "mnist"},
            "head must be one of cifar, imagenet, got 'mnist'",
        ),
        ("alexnet", {"dropout": 1.0}, "dropout must be in [0, 1), got 1.0"),
        (
            "squeezenet1_1",
            {"resize": -1},
            "resize must be a whole number of at least 1, got -1",
        ),
        ("lstm", {"hidden": 0}, "hidden must be a whole number of at least 1, got 0"),
        (
            "digits-cnn",
            {"activation": "tanh"},
            "activation must be one of relu, hardtanh, got 'tanh'",
        ),
    ],
)
def test_a_wrong_name_or_option_is_named_with_its_remedy(
    name: str, options: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        network(name, **options)


@pytest.mark.parametrize("layers", [18, 50])
def test_a_residual_network_may_start_as_its_shortcuts_alone(layers):
    model = network(f"resnet{layers}", width=0.1, zero_init=True).eval()
    for block in (*model.layer1[1:], *model.layer4[1:]):
        channels = block.conv1.in_channels
        x = torch.rand(2, channels, 4, 4)
        assert torch.equal(block(x), x)


@pytest.mark.parametrize(
    ("name", "count"), [("resnet18", 11_173_962), ("resnet50", 23_520_842)]
)
def test_the_cifar_stem_keeps_the_size_of_small_images(name: str, count: int) -> None:
    model = network(name, stem="cifar").eval()
    assert parameters(model) == count
    sizes = []
    model.layer1.register_forward_pre_hook(
        lambda module, inputs: sizes.append(inputs[0].shape[-2:])
    )
    with torch.no_grad():
        assert model(torch.randn(1, 3, 32, 32)).shape == (1, 10)
    assert sizes == [(32, 32)]


def test_an_unknown_stem_is_refused() -> None:
    with pytest.raises(
        ValueError, match="stem must be one of imagenet, cifar, got 'small'"
    ):
        network("resnet18", stem="small")


def test_one_coefficient_scales_width_and_depth_together() -> None:
    scaled = network("resnet20", compound=3)
    by_hand = network("resnet20", width=1.1**3, depth=1.2**3)
    assert (
        parameters(scaled) == parameters(by_hand) > 2 * parameters(network("resnet20"))
    )
    with pytest.raises(
        ValueError, match="compound sets width and depth; leave width out"
    ):
        network("resnet20", compound=1, width=2.0)
    with pytest.raises(ValueError, match="unknown option of alexnet 'compound'"):
        network("alexnet", compound=1)
