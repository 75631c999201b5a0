import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tersify.lab import resolve_target


def test_a_plain_name_is_a_reference_network() -> None:
    assert resolve_target("resnet20-star", inflate=1, classes=7).fc.out_features == 7


def test_a_function_of_the_user_makes_the_network(tmp_path: Path) -> None:
    file = tmp_path / "nets.py"
    file.write_text(
        "from torch import nn\ndef small(outputs=2): return nn.Linear(3, outputs)\ndef none(): pass\n"
    )
    assert resolve_target(f"{file}:small").out_features == 2
    assert resolve_target(f"{file}:small", outputs=5).out_features == 5
    with pytest.raises(
        ValueError, match=r"returned a NoneType; it must return a torch\.nn\.Module"
    ):
        resolve_target(f"{file}:none")
    with pytest.raises(
        ValueError, match=r"nets\.py' has no function 'smal'; it has 'small', 'none'"
    ):
        resolve_target(f"{file}:smal")
    with pytest.raises(
        ValueError, match=r"nets\.py' names no function; write .*nets\.py:FUNCTION"
    ):
        resolve_target(str(file))


def test_the_file_of_the_user_may_import_its_neighbours_and_define_dataclasses(
    tmp_path: Path,
) -> None:
    (tmp_path / "tersify_test_sizes.py").write_text("OUTPUTS = 4\n")
    file = tmp_path / "nets.py"
    file.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom torch import nn\n"
        "from tersify_test_sizes import OUTPUTS\n"
        "@dataclass\nclass Size:\n    outputs: int = OUTPUTS\n"
        "def small(): return nn.Linear(3, Size().outputs)\n"
    )
    paths = list(sys.path)
    assert resolve_target(f"{file}:small").out_features == 4
    assert sys.path == paths


@pytest.mark.parametrize(
    ("target", "package"),
    [
        ("torchvision:resnet18", "torchvision"),
        ("timm:resnet18", "timm"),
        ("hf:some/path", "transformers"),
    ],
)
def test_a_missing_package_is_named_with_its_remedy(
    target: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ValueError,
        match=f"{target!r} needs the package {package}, .*pip install {package}",
    ):
        resolve_target(target)


def stand_in(monkeypatch: pytest.MonkeyPatch, package: str, **content: Any) -> None:
    module = ModuleType(package)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, package, module)


def made(name: str, **options: Any) -> nn.Module:
    module = nn.Identity()
    module.made_of = (name, options)
    return module


def test_a_package_that_a_library_needs_itself_is_the_one_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "timm.py").write_text("from absent_for_sure.ops import nms\n")
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ValueError, match="needs the package absent_for_sure, which is missing; pip"
    ):
        resolve_target("timm:resnet18")


def test_torchvision_and_timm_get_the_number_of_classes_under_their_own_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models = SimpleNamespace(list_models=lambda: ["resnet18"], get_model=made)
    stand_in(monkeypatch, "torchvision", models=models)
    stand_in(
        monkeypatch,
        "timm",
        is_model=lambda name: name == "vit",
        list_models=lambda: ["vit"],
        create_model=made,
    )
    vision = resolve_target("torchvision:resnet18", classes=10)
    assert vision.made_of == ("resnet18", {"weights": None, "num_classes": 10})
    assert resolve_target("timm:vit", classes=4).made_of == (
        "vit",
        {"pretrained": False, "num_classes": 4},
    )
    with pytest.raises(
        ValueError, match="unknown torchvision model 'resnet81'; nearest: 'resnet18'"
    ):
        resolve_target("torchvision:resnet81")
    with pytest.raises(ValueError, match="unknown timm model 'vti'"):
        resolve_target("timm:vti")


def test_hugging_face_loads_a_folder_as_a_classifier_of_texts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def load(path: str, **options: Any) -> nn.Module:
        module = made(path, **options)
        module.config = SimpleNamespace(pad_token_id=None)
        return module

    stand_in(
        monkeypatch,
        "transformers",
        AutoModelForSequenceClassification=SimpleNamespace(from_pretrained=load),
    )
    (tmp_path / "config.json").write_text("{}")
    encoder = resolve_target(f"hf:{tmp_path}", classes=3)
    assert encoder.model.made_of == (
        str(tmp_path),
        {"num_labels": 3, "local_files_only": True},
    )
    with pytest.raises(
        ValueError,
        match=r"'hf:there' names no folder with a config\.json; hf: takes the path",
    ):
        resolve_target("hf:there")


def test_a_folder_without_weights_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def load(path: str, **options: Any) -> nn.Module:
        raise OSError("no file named model.safetensors\nlong advice")

    stand_in(
        monkeypatch,
        "transformers",
        AutoModelForSequenceClassification=SimpleNamespace(from_pretrained=load),
    )
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(
        ValueError, match=r"holds no model: no file named model\.safetensors$"
    ):
        resolve_target(f"hf:{tmp_path}")


def test_a_library_built_for_another_torch_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(package: str) -> ModuleType:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("tersify.lab.targets.importlib.import_module", broken)
    with pytest.raises(
        ValueError,
        match=r"does not fit torch .*nms does not exist; install the torchvision of that",
    ):
        resolve_target("torchvision:resnet18")


def test_a_real_encoder_answers_and_does_not_look_at_padding(minilm: Path) -> None:
    model = resolve_target(f"hf:{minilm}", classes=3).eval()
    tokens = torch.tensor([[101, 2204, 3185, 102]])
    padded = torch.cat([tokens, torch.zeros(1, 3, dtype=torch.int64)], 1)
    assert (
        sum(p.numel() for n, p in model.named_parameters() if ".encoder." in n)
        == 6 * 1_774_464
    )
    with torch.inference_mode():
        logits = model(tokens)
        assert logits.shape == (1, 3)
        assert torch.allclose(model(padded), logits, atol=1e-5)


def test_an_unknown_library_is_named_with_those_there_are() -> None:
    with pytest.raises(
        ValueError, match=r"unknown target 'keras:xception'; known: .*timm:NAME"
    ):
        resolve_target("keras:xception")


@pytest.mark.parametrize(
    ("code", "options", "problem"),
    [
        (
            "def net(width=1): ...",
            {"widht": 2},
            "with the options widht: TypeError: .*'widht'",
        ),
        ("def net(size): ...", {}, "TypeError: .*'size'"),
        ("x = 1\ndef net(:", {}, r"SyntaxError: .*\(line 2\)"),
        (
            "import no_such_module_here\ndef net(): ...",
            {},
            r"ModuleNotFoundError: .*\(line 1\)",
        ),
        ("def net():\n    return {}['deep']", {}, r"KeyError: 'deep' \(line 2\)"),
    ],
)
def test_what_goes_wrong_in_the_user_s_file_is_told_with_its_line(
    code: str, options: dict[str, int], problem: str, tmp_path: Path
) -> None:
    (tmp_path / "nets.py").write_text(code)
    with pytest.raises(ValueError, match=rf"nets\.py.*{problem}"):
        resolve_target(f"{tmp_path / 'nets.py'}:net", **options)
