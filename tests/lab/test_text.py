"""Texts in the lab: tokens, the sentences, MiniLM, and training on them."""

import zipfile

import pytest
import torch
from safetensors.torch import save_file

from tersify.lab import Data, Split, dataset, network
from tersify.lab.data.wordpiece import WordPiece
from tersify.lab.trainer import Job, TrainConfig, load_weights
from tersify.recipe import Recipe

VOCABULARY = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "the",
    "film",
    "is",
    "un",
    "##even",
    "good",
    "bad",
    ",",
    ".",
]
TINY = {
    "vocabulary": 16,
    "hidden": 8,
    "layers": 2,
    "heads": 2,
    "intermediate": 16,
    "positions": 48,
}


@pytest.fixture
def text_root(tmp_path):
    """A data root with a tiny vocabulary and forty sentences of which one word tells
    the kind.
    """
    (tmp_path / "minilm").mkdir()
    (tmp_path / "minilm/vocab.txt").write_text("\n".join(VOCABULARY))
    with zipfile.ZipFile(tmp_path / "sentence_polarity.zip", "w") as archive:
        for kind, word in (("neg", "bad"), ("pos", "good")):
            lines = [f"the film is {word} {'. ' * (i % 3)}" for i in range(40)]
            archive.writestr(f"sentence_polarity/rt-polarity.{kind}", "\n".join(lines))
    return tmp_path


def test_words_become_the_longest_pieces_of_the_vocabulary(text_root):
    words = WordPiece(text_root / "minilm/vocab.txt")
    assert words.encode("The film, ÜNeven.", 10) == [2, 4, 5, 11, 7, 8, 12, 3, 0, 0]
    assert words.encode("the unreal film", 8) == [2, 4, 1, 5, 3, 0, 0, 0]
    assert words.encode("film " * 50, 6) == [2, 5, 5, 5, 5, 3]


def test_the_tokens_are_those_of_the_checkpoints_own_tokenizer(minilm):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(minilm)
    ours = WordPiece(minilm / "vocab.txt")
    for text in (
        "naïve café—“quotes” don't 3.14!",
        "不好 film",
        "a\u200bzero-width  tab\tand\nline",
        "",
        "supercalifragi",
    ):
        wanted = theirs(text, padding="max_length", truncation=True, max_length=24)[
            "input_ids"
        ]
        assert ours.encode(text, 24) == wanted, text


def test_sentences_are_split_and_mixed(text_root):
    data = dataset("polarity", root=text_root)
    assert (len(data.train), len(data.test), data.classes, data.shape) == (
        72,
        8,
        2,
        (48,),
    )
    assert data.train.labels.float().mean() == 0.5
    assert 0 < data.train.labels[:20].sum() < 20


def test_a_language_model_sees_each_byte_and_the_one_that_follows(text_root):
    data = dataset("polarity-bytes", root=text_root)
    assert torch.equal(
        data.train.images.flatten()[1:], data.train.labels.flatten()[:-1]
    )
    assert bytes(data.train.images[0].tolist()).startswith(b"the film is bad")


def test_minilm_computes_what_hugging_face_computes(minilm):
    from transformers import AutoModel

    theirs = AutoModel.from_pretrained(minilm).eval()
    ours = load_weights(network("minilm"), minilm / "model.safetensors").eval()
    tokens = torch.randint(1, 30522, (3, 12))
    tokens[1, 7:] = 0
    real = tokens != 0
    with torch.no_grad():
        wanted = theirs(input_ids=tokens, attention_mask=real).last_hidden_state
        assert torch.allclose(ours.states(tokens)[real], wanted[real], atol=1e-4)


def test_an_encoder_without_a_classifier_gets_a_fresh_one_and_nothing_else_may_lack(
    tmp_path,
):
    model = network("minilm", **TINY)
    state = {
        name: t for name, t in model.state_dict().items() if "classifier" not in name
    }
    save_file(state, tmp_path / "encoder.safetensors")
    load_weights(network("minilm", **TINY), tmp_path / "encoder.safetensors")
    del state["pooler.dense.bias"]
    save_file(state, tmp_path / "encoder.safetensors")
    with pytest.raises(ValueError, match=r"missing in the file 'pooler.dense.bias'"):
        load_weights(network("minilm", **TINY), tmp_path / "encoder.safetensors")


def test_padding_changes_nothing():
    model = network("minilm", **TINY).eval()
    tokens = torch.tensor([[2, 5, 9, 3]])
    padded = torch.tensor([[2, 5, 9, 3, 0, 0, 0]])
    assert torch.allclose(model(tokens), model(padded), atol=1e-6)


MOVEMENT = """
[[rules]]
weights = "*encoder.layer.*"
methods = [{ method = "prune", score = "movement", sparsity = 0.85, head_start = 1.0, gain = 1.0, lines = 3.0, scope = "global", floor = 0.05, begin = 0.1, end = 0.7, every = 10 }]

[train]
optimizer = "adamw"
schedule = "cosine"
warmup_epochs = 1
"""  # noqa: E501


def test_movement_pruning_of_an_encoder_trains_packs_and_reaches_its_share(
    text_root, tmp_path
):
    recipe = Recipe.from_toml(MOVEMENT)
    job = Job(
        target="minilm",
        options=TINY,
        data="polarity",
        data_root=text_root,
        recipe=recipe,
        config=TrainConfig.from_mapping(
            recipe.train, epochs=12, lr=5e-3, batch_size=32, device="cpu"
        ),
    )
    metrics = job.run(tmp_path / "run")
    assert metrics["sparsity"] == pytest.approx(85, abs=0.5)
    assert metrics["accuracy"] == 100


def test_a_language_model_reports_its_perplexity(text_root, tmp_path):
    config = TrainConfig(epochs=20, lr=2e-2, batch_size=8, device="cpu")
    job = Job(
        target="lstm",
        data="polarity-bytes",
        data_root=text_root,
        options={"task": "language", "hidden": 16},
        config=config,
    )
    metrics = job.run(tmp_path / "run")
    assert 1 < metrics["perplexity"] < 8  # an even guess among 256 bytes would be 256


def test_what_is_no_text_is_refused(text_root):
    with pytest.raises(ValueError, match=r"texts int64 \(N, T\)"):
        Split(
            torch.zeros(2, 3, 4, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
        )
    (text_root / "sentence_polarity.zip").write_bytes(b"no zip")
    with pytest.raises(ValueError, match="is not the sentence polarity archive"):
        dataset("polarity", root=text_root)
    (text_root / "minilm/vocab.txt").write_text("one\ntwo")
    with pytest.raises(ValueError, match=r"holds no \[PAD\]"):
        dataset("polarity", root=text_root)
    with pytest.raises(ValueError, match="is missing"):
        dataset("polarity-bytes", root=text_root / "nowhere")


def test_a_network_for_texts_says_when_images_come():
    images = Split(
        torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])
    )
    from tersify.lab.trainer.evaluation import check_fits

    with pytest.raises(ValueError, match="does not take the 1×8×8 images"):
        check_fits(
            network("minilm", **TINY), Data("x", images, images, 2, (0.0,), (1.0,))
        )
