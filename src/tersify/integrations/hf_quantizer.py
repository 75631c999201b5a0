"""Tersify as a quantization method of transformers: `from_pretrained(…,
quantization_config=TersifyConfig(recipe="lut-4"))`, then `save_pretrained`.

Importing this file registers the method.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.quantizers.auto import (
    register_quantization_config,
    register_quantizer,
)
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from tersify import codec
from tersify.calibration import Calibration
from tersify.compensated import Compensation, compensate_, next_token_loss
from tersify.compensated.recipes import load_compensation
from tersify.integrations.windows import checked_windows, windows_for
from tersify.lab.language import shuffled_batches
from tersify.post_training import compress_
from tersify.recipe import Recipe, language_recipes
from tersify.tensor import CompressedModel, CompressedTensor
from tersify.tensor.blocks import METADATA as BLOCKS
from tersify.tensor.blocks import block_names
from tersify.tensor.model import tied
from tersify.tensor.origin import origins_of, set_origins

METHOD = "tersify"
STORED = "tersify.file"  # the tensor of a checkpoint that holds a .terse file
TUNE_BATCH = 16


@register_quantization_config(METHOD)
class TersifyConfig(QuantizationConfigMixin):
    """What the weights become.

    Args:
        recipe: a ready recipe's name or a TOML file: one that needs no training ('lut-4', 'uniform-8'), or one of
            compensation ('lm-3bit').
        settings: of the recipe, by name, in place of its own.
        calibration: for a recipe of compensation: windows of token numbers (windows × tokens, a tensor or lists of one
            length), or texts, which the tokenizer in the model's folder cuts. It is not stored.
    """

    def __init__(
        self,
        recipe: str = "lut-4",
        settings: Mapping[str, Any] | None = None,
        calibration: Any = None,
        quant_method: str = METHOD,
    ) -> None:
        self.quant_method = quant_method  # type: ignore[assignment]
        self.recipe = str(recipe)
        self.settings = dict(settings or {})
        # a mistake is told before weights are read
        self.calibration = None if calibration is None else checked_windows(calibration)

    def to_dict(self) -> dict[str, Any]:
        return {
            "quant_method": self.quant_method,
            "recipe": self.recipe,
            "settings": dict(self.settings),
        }

    def compress_(self, model: Any) -> CompressedModel:
        """The packed model, whose weights are in `model` from now on."""
        plan = self.plan()
        if isinstance(plan, Recipe):
            return compress_(model, plan)
        if self.calibration is None:
            raise ValueError(
                f"recipe {self.recipe!r} needs windows of token numbers; give TersifyConfig(calibration=)"
            )
        windows = windows_for(model, self.calibration)
        return compensate_(
            model,
            plan,
            calibration=Calibration(
                [(each[None], each[None]) for each in windows], next_token_loss
            ),
            tuning=shuffled_batches(windows, TUNE_BATCH, str(model.device)),
        )

    def plan(self) -> Recipe | Compensation:
        """What the recipe asks for, with the settings."""
        path = Path(self.recipe)
        ready = path.stem in {each.stem for each in language_recipes()}
        if ready or (path.is_file() and "[compensation]" in path.read_text("utf-8")):
            return replace(load_compensation(self.recipe), **self.settings)
        recipe = Recipe.load(self.recipe).with_settings(self.settings)
        if recipe.needs_length or recipe.needs_batches:
            raise ValueError(
                f"recipe {self.recipe!r} has to train; give TersifyCallback to a Trainer, or another recipe here"
            )
        return recipe


@register_quantizer(METHOD)
class TersifyQuantizer(HfQuantizer):
    """Compresses when a model is loaded, or fills it from a checkpoint that holds a
    `.terse` file.

    The model stays a plain one: float weights whose values are those of the packed
    form. So adapters train on it; weights of its own that train leave the levels, and
    then are stored as they are.
    """

    quantization_config: TersifyConfig
    _checkpoint: Path | None = None
    _blocks: Mapping[str, CompressedTensor] = {}  # matrices with a scale for each group

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Levels and scales are float32, and so is what is made of them."""
        return torch.float32

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        if not self.pre_quantized:
            # a mistake in a recipe is told before weights are read
            self.quantization_config.plan()

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        if not self.pre_quantized:
            return
        files = kwargs.get("checkpoint_files") or []
        if len(files) != 1:
            raise ValueError(
                "a model of Tersify is one safetensors file; load it without state_dict="
            )
        self._checkpoint = Path(files[0])
        _check_whole(self._checkpoint)
        # All weights come from the file in the checkpoint, and reading that tells what
        # lacks; transformers shall not look for them, nor for what they are tied to.
        self._found = model._keys_to_ignore_on_load_missing, model.all_tied_weights_keys
        model._keys_to_ignore_on_load_missing = {r".*"}
        model.all_tied_weights_keys = {}
        model._keys_to_ignore_on_load_unexpected |= {re.escape(STORED)}

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        if self._checkpoint is None:
            packed = self.quantization_config.compress_(model)
            self._blocks = _blocks_in(packed)
            alone = packed.compressed()
            set_origins(
                model, {n: t for n, t in alone.items() if n not in self._blocks}
            )
            return model
        model._keys_to_ignore_on_load_missing, model.all_tied_weights_keys = self._found
        model.tie_weights()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.terse")
            path.write_bytes(_stored_in(self._checkpoint))
            try:
                self._blocks = _blocks_in(codec.open(path))
                return codec.load(path, into=model)
            except ValueError as error:
                told = str(error).replace(str(path), str(self._checkpoint))
                raise ValueError(told) from None

    def get_state_dict_and_metadata(
        self, model: Any
    ) -> tuple[dict[str, Tensor] | None, dict[str, str]]:
        if getattr(model, "_hf_peft_config_loaded", False):
            return None, {}  # adapters are stored by themselves
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.terse")
            codec.save(packed_form(model, self._blocks), path)
            data = np.fromfile(path, np.uint8)
        return {STORED: torch.from_numpy(data)}, {}

    def _dequantize(self, model: Any, dtype: torch.dtype | None = None) -> Any:
        return model.to(dtype)

    def is_serializable(self, safe_serialization: bool | None = None) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        """Adapters learn on top of it."""
        return True

    @property
    def is_compileable(self) -> bool:
        return True


def packed_form(
    model: Any, blocks: Mapping[str, CompressedTensor] | None = None
) -> CompressedModel:
    """Every tensor of a model, packed where it still is what it was packed as."""
    tensors, aliases = tied(model.state_dict(keep_vars=True))
    known = origins_of(model) | dict(blocks or {})
    made = {name: _known(known.get(name), t.detach()) for name, t in tensors.items()}
    kept = [name for name in blocks or () if made.get(name) is known[name]]
    return CompressedModel(
        made, aliases=aliases, metadata={BLOCKS: kept} if kept else {}
    )


def _known(packed: CompressedTensor | None, dense: Tensor) -> CompressedTensor | Tensor:
    if packed is None or packed.numel() != dense.numel():
        return dense
    same = torch.equal(packed.to_dense().reshape(dense.shape), dense.cpu())
    return packed if same else dense


def _blocks_in(model: Any) -> dict[str, CompressedTensor]:
    found = {n: model[n] for n in sorted(block_names(model.metadata)) if n in model}
    return {n: t for n, t in found.items() if isinstance(t, CompressedTensor)}


def _check_whole(checkpoint: Path) -> None:
    """transformers would tell of its own reading."""
    try:
        with safe_open(checkpoint, framework="np"):
            pass
    except SafetensorError as error:
        raise ValueError(
            f"{checkpoint} is damaged or cut off: {error}; download it anew"
        ) from None


def _stored_in(checkpoint: Path) -> bytes:
    with safe_open(checkpoint, framework="np") as file:
        if STORED not in file.keys():  # noqa: SIM118
            raise ValueError(
                f"{checkpoint} holds no weights of Tersify, but its config.json says so"
            )
        data: bytes = file.get_tensor(STORED).tobytes()
    return data
