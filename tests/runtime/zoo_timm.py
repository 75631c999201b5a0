"""Image networks of timm, the small ones of each family, at small sizes."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

from torch import nn


class _Anything(type):
    """A class whose attributes are their own names: enough for tables of interpolation
    modes.
    """

    def __getattr__(cls, name: str) -> str:
        return name


def _empty_class(name: str) -> type:
    if name.startswith("__"):
        # whoever looks through all modules asks for their files
        raise AttributeError(name)
    return _Anything(name, (), {})


class _WithoutTorchvision(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """timm imports torchvision for its data pipeline only; where it is missing, empty
    modules stand for it.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        ours = name.split(".")[0] == "torchvision"
        return (
            importlib.machinery.ModuleSpec(name, self, is_package=True)
            if ours
            else None
        )

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__getattr__ = _empty_class  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def timm() -> Any:
    """timm itself; what stands for torchvision is gone again afterwards, so that nobody
    else takes it for real.
    """
    if "timm" in sys.modules or importlib.util.find_spec("torchvision"):
        return importlib.import_module("timm")
    finder = _WithoutTorchvision()
    sys.meta_path.insert(0, finder)
    try:
        return importlib.import_module("timm")
    finally:
        sys.meta_path.remove(finder)
        for name in [
            name for name in sys.modules if name.split(".")[0] == "torchvision"
        ]:
            del sys.modules[name]


def model(name: str, **options: Any) -> nn.Module:
    return timm().create_model(name, pretrained=False, num_classes=10, **options).eval()


def from_class(place: str, name: str, **options: Any) -> nn.Module:
    """A network whose registered names fix their depth: built from its class."""
    timm()
    found = importlib.import_module(f"timm.models.{place}")
    options = {
        key: getattr(found, value[1:]) if str(value).startswith("!") else value
        for key, value in options.items()
    }
    return getattr(found, name)(num_classes=10, **options).eval()


SWIN = {"embed_dim": 24, "depths": (1, 2), "num_heads": (2, 4), "img_size": 64}
SHORT = {"img_size": 64, "depth": 2}
MLP = {"img_size": 64, "patch_size": 16, "num_blocks": 2, "embed_dim": 48}

# Name in the zoo: (options, image sizes it takes); the first size is the example's.
BY_NAME: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "resnet10t": ({}, (64, 80)),
    "seresnet18": ({"channels": (16, 32, 48, 64)}, (64, 96)),
    "resnext26ts": ({}, (64, 80)),
    "skresnet18": ({}, (64,)),
    "resnest14d": ({}, (64,)),
    "densenet121": ({"growth_rate": 8, "block_config": (2, 3, 3, 2)}, (64, 80)),
    "efficientnet_lite0": ({}, (64, 96)),
    "efficientnet_b0": ({}, (64, 96)),
    "tf_efficientnetv2_b0": ({}, (64, 70)),
    "mobilenetv2_050": ({}, (64, 96)),
    "mobilenetv3_small_050": ({}, (64, 96)),
    "mobilenetv4_conv_small_035": ({}, (64, 96)),
    "lcnet_035": ({}, (64, 96)),
    "mnasnet_small": ({}, (64, 96)),
    "tinynet_e": ({}, (64,)),
    "regnetx_002": ({}, (64, 80)),
    "regnety_002": ({}, (64, 80)),
    "ghostnet_050": ({}, (64, 96)),
    "rexnet_100": ({}, (64,)),
    "repvgg_a0": ({}, (64,)),
    "repvit_m0_9": ({}, (64, 96)),
    "gernet_s": ({}, (64,)),
    "hgnetv2_b0": ({}, (64, 96)),
    "ese_vovnet19b_slim": ({}, (64, 96)),
    "hrnet_w18_small": ({}, (64,)),
    "starnet_s1": ({}, (64, 96)),
    "test_nfnet": ({}, (64, 96)),
    "nf_regnet_b0": ({}, (64, 96)),
    "convnext_atto": ({"depths": (1, 1, 2, 1)}, (64, 96)),
    "convnextv2_atto": ({"depths": (1, 1, 2, 1)}, (64, 96)),
    "inception_next_atto": ({"depths": (1, 1, 2, 1)}, (64, 96)),
    "swin_tiny_patch4_window7_224": ({**SWIN, "window_size": 4}, (64,)),
    "swinv2_cr_tiny_ns_224": ({**SWIN, "window_size": 4}, (64,)),
    "vit_tiny_patch16_224": (SHORT, (64,)),
    "test_vit": ({"dynamic_img_size": True}, (160, 96)),
    "beit_base_patch16_224": ({**SHORT, "embed_dim": 48, "num_heads": 3}, (64,)),
    "eva02_tiny_patch14_224": ({"img_size": 56, "depth": 2}, (56,)),
    "cait_xxs24_224": (SHORT, (64,)),
    "convit_tiny": (SHORT, (64,)),
    "tnt_s_legacy_patch16_224": (SHORT, (64,)),
    "xcit_nano_12_p16_224": (SHORT, (64, 96)),
    "coat_tiny": ({"img_size": 64}, (64,)),
    "twins_svt_small": (
        {"img_size": 64, "depths": (1, 1, 1, 1), "embed_dims": (32, 32, 64, 64)},
        (64, 128),
    ),
    "pvt_v2_b0": ({}, (64, 96)),
    "maxvit_rmlp_pico_rw_256": ({"img_size": 64}, (64,)),
    "coatnet_pico_rw_224": ({"img_size": 64}, (64,)),
    "mobilevit_xxs": ({}, (64, 96)),
    "mobilevitv2_050": ({}, (64, 96)),
    "edgenext_xx_small": ({}, (64, 96)),
    "poolformer_s12": (
        {"layers": (1, 1, 1, 1), "embed_dims": (16, 32, 48, 64)},
        (64, 96),
    ),
    "fastvit_t8": ({}, (64, 96)),
    "efficientvit_b0": ({}, (64, 96)),
    "sequencer2d_s": ({"layers": (1, 1, 1, 1)}, (64, 96)),
    "levit_128s": ({}, (224,)),
    "crossvit_tiny_240": ({}, (240,)),
}
BY_CLASS: dict[str, tuple[tuple[str, str, dict[str, Any]], tuple[int, ...]]] = {
    "mixer": (("mlp_mixer", "MlpMixer", MLP), (64,)),
    "gmlp": (
        (
            "mlp_mixer",
            "MlpMixer",
            {
                **MLP,
                "block_layer": "!SpatialGatingBlock",
                "mlp_layer": "!GatedMlp",
                "mlp_ratio": 4,
            },
        ),
        (64,),
    ),
    "resmlp": (
        (
            "mlp_mixer",
            "MlpMixer",
            {
                **MLP,
                "block_layer": "!ResBlock",
                "norm_layer": "!Affine",
                "mlp_ratio": 4,
            },
        ),
        (64,),
    ),
    "convmixer": (
        (
            "convmixer",
            "ConvMixer",
            {"dim": 32, "depth": 2, "kernel_size": 5, "patch_size": 4},
        ),
        (64, 80),
    ),
    "focalnet": (
        (
            "focalnet",
            "FocalNet",
            {
                "embed_dim": 24,
                "depths": (1, 1, 2),
                "focal_levels": (2, 2, 2),
                "focal_windows": (3, 3, 3),
            },
        ),
        (64, 96),
    ),
}
