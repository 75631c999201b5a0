"""Compensated steps beside GPTQ and HQQ: perplexity at equal bytes of the linear layers.

All methods get the same linear layers of the same model; the embedding stays as it is
and is not counted, since the peers do not code one. The bytes of a peer are those of its
codes in a `.terse` file, entropy-coded like ours, and of its scales and zeros in 16 bits;
what it stores itself is told beside it.

usage: [TERSIFY_GPTQ_PYTHON=PYTHON] python benchmarks/lm_peers.py --model FOLDER|FILE.gguf --wikitext DIR
       [--folder DIR] [--windows 16] [--test 8] [--only NAME ...] [--json FILE]

It needs the package hqq; PYTHON has gptqmodel. --folder keeps statistics and what GPTQ
made; figures of a file that --json names are kept, too.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import report  # first: it sets what must stand before torch is imported

import torch  # isort: skip
from lm_texts import code_texts, wikitext_texts
from torch import Tensor, nn

import tersify
from tersify.calibration import Calibration
from tersify.compensated import Compensation, compensate_, next_token_loss
from tersify.lab import language
from tersify.tensor import CompressedTensor

# bits and group size of the peers, from below our bytes to above them
PEERS = ((3, 128), (3, 64), (4, 128))
GPTQ = "TERSIFY_GPTQ_PYTHON"
# GPTQ by its defaults, and as it is set where quality counts: lm_peers_gptq.py
GPTQ_SETTINGS: dict[str, tuple[str, ...]] = {
    "gptq": (),
    "gptqasym": ("asymmetric",),
    "gptqorder": ("asymmetric", "ordered"),
    "gptqbest": ("asymmetric", "ordered", "searched"),
}
SIDE = Path(__file__).parent / "lm_peers_gptq.py"
OURS = (2.4, 2.7, 2.8, 2.9, 3.0, 3.3)
DEAD_ZONE = 0.05  # as in lm-3bit
SCALE_BYTES = 2  # of a scale, and of a zero


@dataclass(frozen=True, kw_only=True)
class Made:
    """A model with other linear layers, and what these take."""

    coded_bytes: int
    stored_bytes: int


def linear_names(model: nn.Module) -> list[str]:
    head = model.get_output_embeddings()  # type: ignore[operator]
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    ]


def ours(
    model: Any, bits: float, batches: Calibration, folder: Path
) -> tuple[Any, Made]:
    net = copy.deepcopy(model)
    settings = Compensation(
        code="steps", bits=bits, dead_zone=DEAD_ZONE, embeddings=False
    )
    packed = compensate_(net, settings, calibration=batches, folder=folder / "ours")
    held = {name: packed[f"{name}.weight"] for name in linear_names(net)}
    size = tersify.save(held, folder / "ours.terse")
    return net, Made(coded_bytes=size, stored_bytes=size)


def coded_size(codes: dict[str, Tensor], groups: int, folder: Path) -> int:
    """Codes in a file, without what they stand for, and two numbers of 16 bits for
    each group.
    """
    held = {
        name: CompressedTensor(
            shape=tuple(each.shape),
            codes=each.to(torch.uint8),
            codebook=torch.arange(float(each.max()) + 1),
        )
        for name, each in codes.items()
    }
    return tersify.save(held, folder / "peer.terse") + 2 * SCALE_BYTES * groups


def hqq(model: Any, bits: int, group: int, axis: int, folder: Path) -> tuple[Any, Made]:
    """Groups along the rows (axis 1, what its kernels run) or across them."""
    from hqq.core.quantize import Quantizer

    net = copy.deepcopy(model)
    codes: dict[str, Tensor] = {}
    groups = stored = 0
    for name in linear_names(net):
        weight = net.get_submodule(name).weight
        found, meta = Quantizer.quantize(
            weight.data,
            nbits=bits,
            group_size=group,
            axis=axis,
            bitpack=False,
            device="cpu",
        )
        for part in ("scale", "zero"):  # as they are stored
            meta[part] = meta[part].half().float()
        meta["compute_dtype"] = torch.float32
        weight.data.copy_(Quantizer.dequantize(found, meta))
        codes[name] = found.reshape(weight.shape)
        groups += meta["scale"].numel()
        stored += weight.numel() * bits // 8
    made = Made(
        coded_bytes=coded_size(codes, groups, folder),
        stored_bytes=stored + 2 * SCALE_BYTES * groups,
    )
    return net, made


def gptq(
    model: Any,
    name: str,
    bits: int,
    group: int,
    cut: Tensor,
    tokenizer: Any,
    folder: Path,
) -> tuple[Any, Made]:
    """By gptqmodel, calibrated on the windows that ours has."""
    out = folder / f"{name}_{bits}_{group}.pt"
    if not out.exists():
        _by_gptqmodel(model, name, bits, group, cut, tokenizer, folder, out)
    made = torch.load(out, weights_only=True)
    net = copy.deepcopy(model)
    names = linear_names(net)
    assert set(made["weights"]) == set(names)
    for name in names:
        net.get_submodule(name).weight.data.copy_(made["weights"][name])
    stored = sum(weight.numel() for weight in made["weights"].values()) * bits // 8
    return net, Made(
        coded_bytes=coded_size(made["codes"], made["groups"], folder),
        stored_bytes=stored + 2 * SCALE_BYTES * made["groups"],
    )


def _by_gptqmodel(
    model: Any,
    name: str,
    bits: int,
    group: int,
    cut: Tensor,
    tokenizer: Any,
    folder: Path,
    out: Path,
) -> None:
    from transformers import AutoModelForCausalLM

    dense, windows = folder / "dense", folder / "windows.pt"
    if not dense.exists():
        config = copy.deepcopy(model.config)
        if hasattr(config, "quantization_config"):  # of the GGUF file it came from
            del config.quantization_config
        plain = AutoModelForCausalLM.from_config(config).float()
        plain.load_state_dict(model.state_dict())
        plain.save_pretrained(dense)
        tokenizer.save_pretrained(dense)
    torch.save(cut, windows)
    arguments = [str(dense), str(windows), str(bits), str(group), str(out)]
    arguments += GPTQ_SETTINGS[name]
    subprocess.run([os.environ[GPTQ], str(SIDE), *arguments], check=True)


def measured(given: argparse.Namespace, folder: Path) -> dict[str, float]:
    model, tokenizer = language.language_model(given.model)
    kinds = {"wikitext": wikitext_texts(given.wikitext), "code": code_texts()}
    cut = torch.cat(
        [
            language.windows_of(
                language.tokens_of(tokenizer, split.calibrating), given.windows
            )
            for split in kinds.values()
        ]
    )
    batches = Calibration([(part, part) for part in cut.split(2)], next_token_loss)
    tests = {
        kind: language.windows_of(language.tokens_of(tokenizer, split.test), given.test)
        for kind, split in kinds.items()
    }
    makers = {f"ours_{bits}": (ours, (bits, batches, folder)) for bits in OURS}
    for bits, group in PEERS:
        for name, axis in (("hqq", 1), ("hqqacross", 0)):
            makers[f"{name}_{bits}_{group}"] = (hqq, (bits, group, axis, folder))
        for name in GPTQ_SETTINGS:
            arguments = (name, bits, group, cut, tokenizer, folder)
            makers[f"{name}_{bits}_{group}"] = (gptq, arguments)
    figures: dict[str, float] = {}
    if given.json and given.json.exists():
        figures = json.loads(given.json.read_text())["figures"]

    def tell(name: str, net: nn.Module, **sizes: float) -> None:
        found = {
            f"{kind}_perplexity": language.perplexity(net, windows)
            for kind, windows in tests.items()
        }
        figures.update({f"{name}_{key}": x for key, x in (sizes | found).items()})
        print(
            name, {key: round(x, 3) for key, x in (sizes | found).items()}, flush=True
        )

    if "dense_wikitext_perplexity" not in figures:
        tell("dense", model)
    for name in given.only or makers:
        make, arguments = makers[name]
        net, made = make(model, *arguments)
        sizes = {
            "coded_bytes": float(made.coded_bytes),
            "stored_bytes": float(made.stored_bytes),
        }
        tell(name, net, **sizes)
    return figures


def _version(package: str) -> str:
    python = os.environ.get(GPTQ, sys.executable)
    told = f"import importlib.metadata as m; print(m.version({package!r}))"
    found = subprocess.run([python, "-c", told], capture_output=True, text=True)
    return found.stdout.strip() or "none"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--wikitext", type=Path, required=True)
    parser.add_argument("--folder", type=Path, help="keeps statistics of the layers")
    parser.add_argument("--windows", type=int, default=16, help="of each kind of text")
    parser.add_argument("--test", type=int, default=8, help="of each kind of text")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        figures = measured(given, folder)
    report(
        "lm-peers",
        figures,
        json_path=given.json,
        versions={"torch": torch.__version__}
        | {name: _version(name) for name in ("hqq", "gptqmodel")},
        windows={"calibrating": given.windows, "test": given.test},
        length=language.LENGTH,
    )


if __name__ == "__main__":
    main()
