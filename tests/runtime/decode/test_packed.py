"""Compressed weights decode from their packed forms."""

import pytest
import torch
from language_models import random_ids, random_model

import tersify
from tersify.runtime.decode.coded import coded
from tersify.runtime.decode.compile import from_tensors
from tersify.runtime.decode.source import Matrix
from tersify.runtime.ops.rounding import rounded_vectors
from tersify.tensor import CompressedTensor


def make_ternary_(model, *, levels=None):
    """Linear layers of signs with a scale each, or of a table's levels."""
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "lm_head":
            with torch.no_grad():
                if levels is None:
                    scale = layer.weight.abs().mean()
                    layer.weight.copy_(
                        (layer.weight / scale).round().clamp(-1, 1) * scale
                    )
                else:
                    nearest = (layer.weight[..., None] - levels).abs().argmin(-1)
                    layer.weight.copy_(levels[nearest])
    return model


@pytest.mark.parametrize("count", [3, 16, 40])
def test_tables_decode_as_the_dense_model_does(count):
    levels = torch.linspace(-0.4, 0.4, count) ** 3
    model = make_ternary_(random_model("qwen2"), levels=levels)
    fast = tersify.compile(model, threads=2, strict=True)
    ids = random_ids(2, 11)
    arguments = {"max_new_tokens": 25, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(
        fast.generate(ids, **arguments), model.generate(ids, **arguments)
    )


def test_signs_take_an_eighth_of_the_bytes_of_floats_and_decode_alike():
    model = random_model("llama")
    dense = tersify.compile(model, strict=True).weight_bytes()
    fast = tersify.compile(make_ternary_(model), threads=2, strict=True)
    ids = random_ids(1, 11)
    arguments = {"max_new_tokens": 25, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(
        fast.generate(ids, **arguments), model.generate(ids, **arguments)
    )
    # the embedding and the head are still dense
    assert fast.weight_bytes() < 0.5 * dense


def test_int8_signs_give_the_logits_of_rounded_inputs():
    model = make_ternary_(random_model("llama"))
    fast = tersify.compile(model, precision="int8", threads=2, strict=True)
    ids = random_ids(1, 40)
    given = fast(ids)
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "lm_head":
            layer.register_forward_pre_hook(
                lambda _, inputs: (rounded_vectors(inputs[0]),)
            )
    with torch.no_grad():
        wanted = model(ids).logits
    assert (given - wanted).abs().max() <= 2e-2 * wanted.abs().max()
    assert (given - wanted).abs().median() <= 1e-4 * wanted.abs().max()


@pytest.mark.parametrize("online", [True, False])
def test_layers_that_round_their_own_inputs_run_on_bytes(online):
    integration = pytest.importorskip("transformers.integrations.bitnet")
    model = random_model("bitnet")
    for name, layer in list(model.named_modules()):
        if isinstance(layer, torch.nn.Linear) and name != "lm_head":
            rounding = integration.AutoBitLinear(
                layer.in_features, layer.out_features, bias=False, online_quant=online
            )
            with torch.no_grad():
                weight = (
                    layer.weight
                    if online
                    else layer.weight.sign() * (layer.weight.abs() > 0.1)
                )
                rounding.weight.copy_(weight)
                if not online:
                    rounding.weight_scale.fill_(0.14)
            model.set_submodule(name, rounding)
    model.eval()
    fast = tersify.compile(model, threads=2, strict=True)
    assert len(fast.int8_layers()) == 7 * 3
    ids = random_ids(1, 40)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        wanted = model(ids).logits
    assert (fast(ids) - wanted).abs().median() <= 1e-4 * wanted.abs().max()


def test_bfloat16_weights_take_half_the_bytes():
    model = random_model("llama")
    dense = tersify.compile(model, strict=True).weight_bytes()
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    fast = tersify.compile(model, strict=True)
    assert 2 * fast.weight_bytes() == dense
    with torch.no_grad():
        wanted = model(random_ids(1, 9)).logits
    assert (fast(random_ids(1, 9)) - wanted).abs().max() <= 2e-5 * wanted.abs().max()


def packed_of(levels, rows, features, *, scale=None, seed=0):
    codes = torch.randint(
        len(levels), (rows, features), generator=torch.Generator().manual_seed(seed)
    )
    return CompressedTensor(
        shape=(rows, features),
        codes=codes.to(torch.uint8),
        codebook=torch.tensor(levels),
        scale=scale,
    )


@pytest.mark.parametrize(
    "levels",
    [[0.0, 1.0, -1.0], [0.0, 0.3, -0.7, 0.1], [0.02 * i for i in (0, *range(1, 120))]],
)
@pytest.mark.parametrize("scaled", ["nothing", "all", "rows", "columns", "both ways"])
def test_codes_of_a_file_become_the_products_of_their_dense_form(levels, scaled):
    rows, features = 70, 37
    scales = {
        "nothing": None,
        "all": torch.tensor(0.3),
        "rows": torch.rand(rows, 1),
        "columns": torch.rand(1, features),
    }
    tensor = packed_of(
        levels, rows, features, scale=scales.get(scaled, torch.rand(rows, features))
    )
    found = coded("w", Matrix(weight=tensor))
    again = found.for_floats()
    if scaled == "both ways":  # no factors of rows and columns: every number counts
        assert torch.equal(found.dense, tensor.to_dense())
        return
    dense = again.levels[again.codes.int()]
    for factors in (
        None if again.row_scale is None else again.row_scale[:, None],
        again.column_scale,
    ):
        dense = dense if factors is None else dense * factors
    torch.testing.assert_close(dense, tensor.to_dense(), rtol=1e-5, atol=1e-6)


def test_a_matrix_of_factors_of_columns_decodes_as_its_dense_form():
    model = random_model("llama")
    tensors = dict(model.state_dict())
    for name, tensor in tensors.items():
        if tensor.ndim == 2:
            wide = (1, tensor.shape[1])
            tensors[name] = packed_of(
                [0.0, 0.2, -0.1, 0.3],
                *tensor.shape,
                scale=torch.rand(wide) + 0.5,
                seed=len(name),
            )
    model.load_state_dict(
        {
            k: v.to_dense() if isinstance(v, CompressedTensor) else v
            for k, v in tensors.items()
        }
    )
    fast = from_tensors(tensors, model.config, threads=2)
    with torch.no_grad():
        wanted = model(random_ids(1, 30)).logits
    assert (fast(random_ids(1, 30)) - wanted).abs().max() <= 2e-5 * wanted.abs().max()


def test_a_loaded_model_decodes_from_its_packed_form_until_it_changes(tmp_path):
    model = random_model("llama")
    packed = tersify.compress_(model, "lut-4")
    tersify.save(packed, tmp_path / "m.terse")
    again = tersify.load(tmp_path / "m.terse", into=random_model("llama", seed=5))
    fast = tersify.compile(again, strict=True)
    ids = random_ids(1, 9)
    arguments = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(
        fast.generate(ids, **arguments), model.eval().generate(ids, **arguments)
    )
    with torch.no_grad():
        again.model.layers[0].mlp.up_proj.weight.mul_(1.5)
    fast = tersify.compile(again, strict=True)
    assert torch.equal(
        fast.generate(ids, **arguments), again.generate(ids, **arguments)
    )
