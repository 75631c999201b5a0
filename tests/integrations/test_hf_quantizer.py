"""Tersify as a quantization method of transformers."""

import json

import pytest
import torch

transformers = pytest.importorskip(
    "transformers", reason="needs the package transformers"
)

import tersify  # noqa: E402
from tersify.integrations.hf_quantizer import STORED, TersifyConfig  # noqa: E402
from tersify.tensor.origin import origins_of  # noqa: E402

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def llama():
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SMALL, tie_word_embeddings=True)
    )


def qwen3():
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SMALL, head_dim=8))


def gpt2():
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=64
        )
    )


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    llama().save_pretrained(tmp_path / "dense")
    return tmp_path / "dense"


def loaded(folder, **given):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **given)


@pytest.mark.parametrize("make", [llama, qwen3, gpt2])
def test_a_model_is_quantized_saved_and_loaded_again_bit_for_bit(make, tmp_path):
    torch.manual_seed(0)
    make().save_pretrained(tmp_path / "dense")
    model = loaded(tmp_path / "dense", quantization_config=TersifyConfig("lut-4"))
    first = next(iter(origins_of(model)))
    assert len(model.get_parameter(first).unique()) <= 16

    model.save_pretrained(tmp_path / "small")
    again = loaded(tmp_path / "small")

    assert again.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert again.config.quantization_config.recipe == "lut-4"
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(again(ids).logits, model(ids).logits)


def test_loading_warns_of_nothing_and_keeps_what_is_tied(folder, tmp_path, caplog):
    loaded(folder, quantization_config=TersifyConfig("lut-4")).save_pretrained(
        tmp_path / "small"
    )
    caplog.clear()
    again = loaded(tmp_path / "small")
    assert not caplog.records
    assert again.lm_head.weight is again.model.embed_tokens.weight


def test_the_folder_is_a_config_and_one_small_safetensors_file(folder, tmp_path):
    model = loaded(
        folder, quantization_config={"quant_method": "tersify", "recipe": "lut-3"}
    )
    model.save_pretrained(tmp_path / "small")
    config = json.loads((tmp_path / "small/config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "tersify"
    from safetensors import safe_open

    with safe_open(tmp_path / "small/model.safetensors", "np") as file:
        assert list(file.keys()) == [STORED]
    before = (folder / "model.safetensors").stat().st_size
    assert (tmp_path / "small/model.safetensors").stat().st_size < before / 2


def test_a_loaded_model_decodes_from_its_packed_weights(folder, tmp_path):
    loaded(folder, quantization_config=TersifyConfig("lut-4")).save_pretrained(
        tmp_path / "small"
    )
    model = loaded(tmp_path / "small")
    fast = tersify.compile(model, strict=True)
    ids = torch.tensor([[5, 6, 7]])
    given = {"max_new_tokens": 5, "do_sample": False}
    assert torch.equal(fast.generate(ids, **given), model.generate(ids, **given))


def test_a_recipe_of_compensation_takes_windows_of_tokens(folder, tmp_path):
    windows = torch.randint(0, 96, (8, 24), generator=torch.Generator().manual_seed(0))
    config = TersifyConfig("lm-3bit", settings={"tune_steps": 1}, calibration=windows)
    model = loaded(folder, quantization_config=config)
    model.save_pretrained(tmp_path / "small")
    again = loaded(tmp_path / "small")
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


WINDOWS = torch.randint(0, 96, (8, 24), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "given",
    [
        WINDOWS[:, None],
        WINDOWS.int(),
        WINDOWS.numpy(),
        list(WINDOWS),
        list(WINDOWS[:, None]),
        WINDOWS.tolist(),
        (window for window in WINDOWS.tolist()),
        [{"input_ids": window} for window in WINDOWS.tolist()],
        [{"input_ids": window[None]} for window in WINDOWS],
    ],
    ids=range(9),
)
def test_windows_of_tokens_come_as_people_have_them(folder, given):
    models = [
        loaded(
            folder,
            quantization_config=TersifyConfig(
                "lm-3bit", settings={"tune_steps": 0}, calibration=windows
            ),
        )
        for windows in (WINDOWS, given)
    ]
    wanted, found = (model.state_dict() for model in models)
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


def test_scales_for_groups_of_columns_are_saved_and_loaded_again_and_again(
    folder, tmp_path
):
    settings = {"code": "ternary", "groups": 8, "tune_steps": 0, "tune_codes": False}
    config = TersifyConfig("lm-3bit", settings=settings, calibration=WINDOWS)
    model = loaded(folder, quantization_config=config)
    sizes = []
    for name in ("one", "two"):
        model.save_pretrained(tmp_path / name)
        sizes.append((tmp_path / name / "model.safetensors").stat().st_size)
        again = loaded(tmp_path / name)
        for key, tensor in model.state_dict().items():
            assert torch.equal(again.state_dict()[key], tensor), key
        model = again
    assert sizes[0] == sizes[1]
    assert sizes[0] < (folder / "model.safetensors").stat().st_size / 4
    ids = torch.tensor([[5, 6, 7]])
    given = {"max_new_tokens": 5, "do_sample": False}
    fast = tersify.compile(model)
    assert torch.equal(fast.generate(ids, **given), model.generate(ids, **given))


def test_one_list_of_tokens_is_one_window():
    assert TersifyConfig(calibration=[1, 2, 3]).calibration.tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("texts", "tokens"),
    [
        ("a b a b b a " * 20, [1, 2, 1, 2, 2, 1] * 20),
        (["a b a", "b a"], [1, 2, 1, 2, 1]),
    ],
)
def test_texts_are_cut_by_the_tokenizer_in_the_folder(folder, texts, tokens):
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"a": 1, "b": 2, "?": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(
        folder
    )
    # the model's longest window has 64 tokens
    found, wanted = (
        loaded(
            folder,
            quantization_config=TersifyConfig(
                "lm-3bit", settings={"tune_steps": 0}, calibration=given
            ),
        ).state_dict()
        for given in (texts, [tokens[:64]])
    )
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (torch.zeros(3, 24), "token numbers are whole, got float32; give windows"),
        (torch.zeros(2, 2, 2, 24).long(), r"shape \(2, 2, 2, 24\) is no windows"),
        (torch.zeros(8, 1).long(), r"shape \(8, 1\) is no windows"),
        (torch.tensor(3), r"shape \(\) is no windows"),
        ([[1, 2, 3], [1, 2]], "windows of 2 to 3 tokens; cut them to one length"),
        ([[1, "x"], [1, 2]], "a list that is no list of token numbers"),
        ([["some", "text"]], "a list that is no list of token numbers"),
        ([None], "a list that is no list of token numbers"),
        ({"text": [1, 2]}, "a dict that is no list of token numbers"),
        (7, r"calibration of shape"),
        ([], "calibration holds no window"),
    ],
)
def test_calibration_of_another_kind_is_refused_before_weights_are_read(given, told):
    with pytest.raises(ValueError, match=told) as refused:
        TersifyConfig("lm-3bit", calibration=given)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("some text", "is text, and .* has no tokenizer; give windows of token"),
        (WINDOWS + 1000, "token numbers 1000 to 109., and the model has 96 tokens"),
        (WINDOWS - 1000, "token numbers -1000 to"),
    ],
)
def test_calibration_that_is_not_for_the_model_is_refused(folder, given, told):
    config = TersifyConfig("lm-3bit", calibration=given)
    with pytest.raises(ValueError, match=told):
        loaded(folder, quantization_config=config)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (TersifyConfig("lm-3bit"), "needs windows of token numbers"),
        (TersifyConfig("ternary-log"), "has to train"),
        (TersifyConfig("lut-44"), "no recipe file"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused_in_one_sentence(folder, config, told):
    with pytest.raises(ValueError, match=told):
        loaded(folder, quantization_config=config)


def test_weights_that_were_trained_are_stored_as_they_are(folder, tmp_path):
    model = loaded(folder, quantization_config=TersifyConfig("lut-4"))
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.add_(0.01 * torch.randn(48, 32))
    model.save_pretrained(tmp_path / "small")
    again = loaded(tmp_path / "small")
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_a_model_of_another_shape_is_refused(folder, tmp_path):
    loaded(folder, quantization_config=TersifyConfig("lut-4")).save_pretrained(
        tmp_path / "small"
    )
    path = tmp_path / "small/config.json"
    config = json.loads(path.read_text()) | {"intermediate_size": 64}
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"model.safetensors: .*gate_proj.* has shape"):
        loaded(tmp_path / "small")


def test_the_trainer_refuses_the_model_and_takes_it_with_adapters(folder, tmp_path):
    peft = pytest.importorskip("peft", reason="needs the package peft")
    model = loaded(folder, quantization_config=TersifyConfig("lut-4"))
    arguments = transformers.TrainingArguments(
        str(tmp_path / "run"), max_steps=2, report_to=[], use_cpu=True
    )
    texts = [{"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4]}] * 8
    with pytest.raises(ValueError, match="adapters"):
        transformers.Trainer(model, arguments, train_dataset=texts)

    frozen = {name: t.clone() for name, t in model.state_dict().items()}
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
    )
    transformers.Trainer(adapted, arguments, train_dataset=texts).train()
    learned = [p for n, p in adapted.named_parameters() if "lora_B" in n]
    assert learned
    assert all(float(p.detach().abs().max()) > 0 for p in learned)
    base = adapted.unload().state_dict()
    for name, tensor in frozen.items():
        assert torch.equal(base[name], tensor), name


def test_what_it_says_about_training_is_true(folder):
    quantizer = loaded(folder, quantization_config=TersifyConfig("lut-4")).hf_quantizer
    assert quantizer.is_trainable
    assert not quantizer.is_qat_trainable
    assert quantizer.is_serializable()


def test_a_folder_that_is_cut_off_is_one_sentence(folder, tmp_path):
    small = tmp_path / "small"
    loaded(folder, quantization_config=TersifyConfig("lut-4")).save_pretrained(small)
    file = small / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match="is damaged or cut off: "):
        loaded(small)
