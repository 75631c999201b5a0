"""`tersify compress-lm` from a folder of transformers to a file that holds model and
tokenizer.
"""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

from tersify.cli.app import app
from tersify.lab import language

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

TEXT = (
    "the cat sat on a mat and the dog ran to a tree while rain fell over old grey hills"
)
WORDS = TEXT.split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random Llama of two layers with a tokenizer of words."""
    path = tmp_path_factory.mktemp("model")
    vocabulary = {
        word: i for i, word in enumerate(["<unk>", "<s>", *dict.fromkeys(WORDS)])
    }
    plain = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(vocabulary, unk_token="<unk>")
    )
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="<unk>", bos_token="<s>"
    ).save_pretrained(path)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=len(vocabulary),
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    (path / "text.txt").write_text(" ".join(WORDS * 20))
    (path / "other.txt").write_text(" ".join(reversed(WORDS * 9)))
    return path


def run(folder, out, *more: str):
    texts = [
        "--calibrate",
        str(folder / "text.txt"),
        "--calibrate",
        str(folder / "other.txt"),
    ]
    size = ["--windows", "8", "--length", "16", "--tune-batch", "4"]
    flags = ["--out", str(out), "--tune-steps", "3", *size, *texts, *more]
    return CliRunner().invoke(app, ["compress-lm", str(folder), *flags])


@pytest.mark.parametrize("recipe", ["lm-3bit", "lm-2bit", "lm-table4"])
def test_the_file_holds_the_model_and_its_tokenizer(folder, tmp_path, recipe):
    out = tmp_path / "model.terse"
    done = run(folder, out, "--recipe", recipe, "--measure", str(folder / "text.txt"))
    assert done.exit_code == 0, done.output
    assert "bits a weight, tokenizer and all" in done.output
    assert "before (×" in done.output
    model, tokenizer = language.load_language_model(out)
    dense, original = language.language_model(folder)
    text = "the dog sat on old hills"
    assert tokenizer(text)["input_ids"] == original(text)["input_ids"]
    assert tokenizer.bos_token == "<s>"
    ids = torch.tensor([original(text)["input_ids"]])
    assert model(ids).logits.shape == dense(ids).logits.shape
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert (
        0
        < float((model.lm_head.weight - dense.lm_head.weight).detach().abs().max())
        < 0.1
    )


def test_a_tokenizer_of_another_model_is_one_sentence(folder):
    model, tokenizer = language.language_model(folder)
    ids = language.tokens_of(tokenizer, TEXT)
    count = int(ids.max())
    with pytest.raises(ValueError, match=f"makes token {count}, and the model has"):
        language.frequencies_of([ids], count)
    assert len(language.frequencies_of([ids], model.config.vocab_size)) > count


def test_experts_in_one_tensor_stay_and_that_is_told(folder, tmp_path):
    config = transformers.MixtralConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=30,
        max_position_embeddings=64,
        num_local_experts=2,
        num_experts_per_tok=1,
    )
    language.language_model(folder)[1].save_pretrained(tmp_path)
    transformers.MixtralForCausalLM(config).save_pretrained(tmp_path)
    for name in ("text.txt", "other.txt"):
        (tmp_path / name).write_text((folder / name).read_text())
    done = run(tmp_path, tmp_path / "model.terse")
    assert done.exit_code == 0, done.output
    assert "% of the weights stay as they are, 'model.layers.0.mlp.exp" in done.output
    assert "stay as they are" not in run(folder, tmp_path / "b.terse").output


@pytest.mark.parametrize("code", ['"ternary"', '"table"\nbits = 4.0'])
def test_a_model_with_scales_for_groups_of_columns_generates(
    folder, tmp_path, code, capsys
):
    from tersify.cli import main

    recipe, out = tmp_path / "groups.toml", tmp_path / "model.terse"
    recipe.write_text(f"[compensation]\ncode = {code}\ngroups = 16\n")
    done = run(folder, out, "--recipe", str(recipe))
    assert done.exit_code == 0, done.output
    model, tokenizer = language.load_language_model(out)
    levels = model.model.layers[0].mlp.up_proj.weight.detach()[0].view(2, 16)
    assert float(levels[0].abs().max()) != float(levels[1].abs().max())
    prompt = "the cat sat"
    ids = torch.tensor([tokenizer(prompt)["input_ids"]])
    wanted = model.generate(ids, max_new_tokens=5, do_sample=False, eos_token_id=None)
    capsys.readouterr()
    given = ["--prompt", prompt, "--max-new-tokens", "5"]
    assert main(["generate", str(out), *given]) == 0
    told = capsys.readouterr().out
    assert tokenizer.decode(wanted[0, ids.shape[1] :]).strip() in told


def test_bits_on_the_command_line_win_over_the_recipe(folder, tmp_path):
    sizes = []
    for bits in ("2", "5"):
        out = tmp_path / f"{bits}.terse"
        assert run(folder, out, "--bits", bits).exit_code == 0
        sizes.append(out.stat().st_size)
    assert sizes[0] < sizes[1]


def test_the_whole_file_keeps_to_the_bytes_on_the_command_line(folder, tmp_path):
    out = tmp_path / "m.terse"
    assert run(folder, out, "--bits", "4").exit_code == 0
    limit = out.stat().st_size
    small = tmp_path / "s.terse"
    done = run(folder, small, "--bytes", str(limit - 500))
    assert done.exit_code == 0, done.output
    assert 0.9 * limit < small.stat().st_size <= limit - 500
    language.load_language_model(small)


def test_tuning_brings_the_outputs_nearer_and_can_be_left_out(folder, tmp_path):
    dense, tokenizer = language.language_model(folder)
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    wanted = dense(ids).logits.detach().log_softmax(-1)
    gaps, norms = {}, {}
    for steps in ("0", "40"):
        out = tmp_path / f"{steps}.terse"
        done = run(folder, out, "--bits", "2", "--tune-steps", steps)
        assert done.exit_code == 0, done.output
        model, _ = language.load_language_model(out)
        found = model(ids).logits.detach().log_softmax(-1)
        gaps[steps] = float((wanted.exp() * (wanted - found)).sum(-1).mean())
        norms[steps] = model.model.norm.weight
    assert gaps["40"] < 0.9 * gaps["0"]
    assert torch.equal(norms["0"], dense.model.norm.weight)
    assert not torch.equal(norms["40"], norms["0"])


def test_batches_for_tuning_are_alike_mixed_and_the_same_each_time():
    windows = torch.arange(11)[:, None].expand(11, 3)
    batches = language.shuffled_batches(windows, 4)
    assert [tuple(ids.shape) for ids, _ in batches] == [(4, 3), (4, 3)]
    rows = torch.cat([ids[:, 0] for ids, _ in batches])
    assert len(rows.unique()) == 8
    assert not torch.equal(rows, rows.sort().values)
    again = torch.cat([ids[:, 0] for ids, _ in language.shuffled_batches(windows, 4)])
    assert torch.equal(rows, again)
    assert language.shuffled_batches(windows, 40)[0][0].shape == (11, 3)


def test_the_same_command_goes_on_in_its_folder(folder, tmp_path):
    files = []
    for name in ("a", "b"):
        assert (
            run(
                folder, tmp_path / f"{name}.terse", "--keep", str(tmp_path / "kept")
            ).exit_code
            == 0
        )
        files.append(
            language.load_language_model(tmp_path / f"{name}.terse")[0].state_dict()
        )
    assert all(torch.equal(files[0][name], files[1][name]) for name in files[0])


def test_ctrl_c_says_how_to_go_on_and_the_rest_ends_the_same(
    folder, tmp_path, monkeypatch, capsys
):
    from tersify.compensated import statistics

    assert run(folder, tmp_path / "whole.terse").exit_code == 0
    keep, out = ["--keep", str(tmp_path / "kept")], tmp_path / "m.terse"
    loss, times = statistics.F.cross_entropy, iter(range(100))

    def stop(*given, **named):
        if next(times) == 5:
            raise KeyboardInterrupt
        return loss(*given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(statistics.F, "cross_entropy", stop)
        done = run(folder, out, *keep)
    assert done.exit_code == 130
    assert f"kept in {tmp_path / 'kept'}, and the same command goes on" in done.stderr
    assert (tmp_path / "kept/statistics.partial").exists()
    assert run(folder, out, *keep).exit_code == 0
    assert out.read_bytes() == (tmp_path / "whole.terse").read_bytes()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--recipe", "lm-9bit"], "nor a ready recipe of that name"),
        (["--calibrate", "nowhere.txt"], "no text file 'nowhere.txt'"),
        (["--length", "4000"], "has no window of 4000"),
        (["--bits", "99"], "bits must be in"),
        (["--bits", "3", "--bytes", "9000"], "--bits or --bytes, one of them"),
        (["--bytes", "1000"], "1,000 bytes are too few"),
        (["--device", "foo"], "device must be auto, cpu, cuda or cuda:N, got 'foo'"),
        (["--device", "cuda:77"], "device 'cuda:77' is not available here"),
        (["--length", "65"], "the model sees 64 tokens; give --length 64 or less"),
    ],
)
def test_mistakes_are_one_sentence(folder, tmp_path, flags, said):
    done = run(folder, tmp_path / "m.terse", *flags)
    assert done.exit_code != 0
    assert said in str(done.exception)


def test_a_folder_without_a_model_is_named(folder, tmp_path):
    with pytest.raises(ValueError, match=r"no folder with a config\.json"):
        language.language_model(tmp_path)


def test_a_file_of_another_kind_is_no_language_model(tmp_path):
    import tersify

    tersify.save({"w": torch.zeros(3)}, tmp_path / "w.terse")
    with pytest.raises(ValueError, match="holds no language model"):
        language.load_language_model(tmp_path / "w.terse")


def test_recipes_of_compensation_are_not_for_training():
    from tersify.recipe import Recipe, language_recipes

    with pytest.raises(ValueError, match="tersify compress-lm"):
        Recipe.load(language_recipes()[0])


def test_perplexity_of_a_model_that_knows_nothing_is_its_vocabulary():
    class Nothing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, ids):
            return torch.zeros(*ids.shape, 50) * self.weight

    assert language.perplexity(
        Nothing(), torch.randint(0, 50, (3, 9))
    ) == pytest.approx(50)
