import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from torch import nn

from tersify.lab import resolve_target


def test_a_plain_name_is_a_reference_network() -> None:
    assert resolve_target("resnet20-star", inflate=1, classes=7).fc.out_features == 7


def test_a_function_of_the_user_makes_the_network(tmp_path: Path) -> None:
    file = tmp_path / "nets.py"
    file.write_text("from torch import nn\ndef small(outputs=2): return nn.Linear(3, outputs)\ndef none(): pass\n")
    assert resolve_target(f"{file}:small").out_features == 2
    assert resolve_target(f"{file}:small", outputs=5).out_features == 5
    with pytest.raises(ValueError, match=r"returned a NoneType; it must return a torch\.nn\.Module"):
        resolve_target(f"{file}:none")


def test_the_file_of_the_user_may_import_its_neighbours_and_define_dataclasses(tmp_path: Path) -> None:
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
    [("torchvision:resnet18", "torchvision"), ("timm:resnet18", "timm"), ("hf:some/path", "transformers")],
)
def test_a_missing_package_is_named_with_its_remedy(target: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=f"{target!r} needs the package {package}, .*pip install {package}"):
        resolve_target(target)


def stand_in(monkeypatch: pytest.MonkeyPatch, package: str, **content: Any) -> None:
    module = ModuleType(package)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, package, module)


def made(name: str, **options: Any) -> nn.Module:
    module = nn.Identity()
    module.made_of = (name, options)
    return module


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
    assert resolve_target("timm:vit", classes=4).made_of == ("vit", {"pretrained": False, "num_classes": 4})
    with pytest.raises(ValueError, match="unknown torchvision model 'resnet81'; nearest: 'resnet18'"):
        resolve_target("torchvision:resnet81")
    with pytest.raises(ValueError, match="unknown timm model 'vti'"):
        resolve_target("timm:vti")


def test_hugging_face_loads_by_path_and_says_when_nothing_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: str, **options: Any) -> nn.Module:
        if path != "here":
            raise OSError("no config.json\nlong advice")
        return made(path, **options)

    stand_in(monkeypatch, "transformers", AutoModel=SimpleNamespace(from_pretrained=load))
    assert resolve_target("hf:here").made_of == ("here", {})
    with pytest.raises(ValueError, match=r"'hf:there' holds no model: no config\.json$"):
        resolve_target("hf:there")


def test_an_unknown_library_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"unknown target 'keras:vgg16'; known: .*timm:NAME"):
        resolve_target("keras:vgg16")


@pytest.mark.parametrize(
    ("code", "options", "problem"),
    [
        ("def net(width=1): ...", {"widht": 2}, "with the options widht: TypeError: .*'widht'"),
        ("def net(size): ...", {}, "TypeError: .*'size'"),
        ("x = 1\ndef net(:", {}, r"SyntaxError: .*\(line 2\)"),
        ("import no_such_module_here\ndef net(): ...", {}, r"ModuleNotFoundError: .*\(line 1\)"),
        ("def net():\n    return {}['deep']", {}, r"KeyError: 'deep' \(line 2\)"),
    ],
)
def test_what_goes_wrong_in_the_user_s_file_is_told_with_its_line(
    code: str, options: dict[str, int], problem: str, tmp_path: Path
) -> None:
    (tmp_path / "nets.py").write_text(code)
    with pytest.raises(ValueError, match=rf"nets\.py.*{problem}"):
        resolve_target(f"{tmp_path / 'nets.py'}:net", **options)
