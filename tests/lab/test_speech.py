"""The speech lab: spectra and back, deterministic mixtures, the paper's byte counts,
the whole table in small.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tersify
from tersify.cli import main
from tersify.lab import network
from tersify.lab.networks.speech import SpeechMlp
from tersify.lab.speech import (
    Corpus,
    Framing,
    SpeechTraining,
    audio,
    enhance,
    istft,
    mix,
    snr_db,
    stft,
    train,
)
from tersify.lab.speech.enhance import stacked
from tersify.lab.speech.lut_figures import reproduce_figure, rows
from tersify.lab.speech.measure import Scores, score
from tersify.lab.speech.partitions import reproduce_partitions
from tersify.lab.speech.search import search_split
from tersify.lab.speech.table3 import ROWS, quantized, reproduce, stored_bytes, trained
from tersify.lab.speech.training import Frames
from tersify.lab.trainer import load_network
from tersify.methods import Lookup

soundfile = pytest.importorskip("soundfile", reason="needs soundfile")
pytest.importorskip("pystoi", reason="needs pystoi")


def murmur(seed: int, seconds: float = 1.6) -> np.ndarray:
    """Noise whose loudness and colour wander as those of speech do."""
    draw = np.random.default_rng(seed)
    samples = int(8000 * seconds)
    time = np.arange(samples) / 8000
    loudness = 0.6 + 0.4 * np.sin(
        2 * np.pi * draw.uniform(2, 5) * time + draw.uniform(0, 6)
    )
    tone = sum(
        np.sin(2 * np.pi * f * time + draw.uniform(0, 6))
        for f in draw.uniform(200, 3500, 12)
    )
    return (0.05 * loudness * (tone + draw.standard_normal(samples))).astype(np.float32)


@pytest.fixture(scope="module")
def small_corpus(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("speech")
    for number, split in enumerate(("train", "valid", "test")):
        for part, count in (("speech", 3), ("noise", 2)):
            folder = root / part / split
            folder.mkdir(parents=True)
            for index in range(count):
                seed = 100 * number + 10 * (part == "noise") + index
                soundfile.write(folder / f"{index}.wav", murmur(seed), 8000)
    return root


@given(st.integers(1, 2000), st.sampled_from([128, 256]))
def test_an_unchanged_spectrum_comes_back_as_the_signal(samples, window):
    signal = torch.randn(samples)
    framing = Framing(window)
    spectra = stft(signal, framing)
    assert spectra.shape == (framing.frames(samples), 129)
    assert torch.allclose(istft(spectra, samples, framing), signal, atol=1e-5)


def test_stacked_frames_end_with_the_frame_itself():
    frames = torch.arange(10.0)[:, None].expand(10, 129)
    stack = stacked(frames)
    assert stack.shape == (10, 8, 129)
    assert stack[:, :, 0].tolist()[0] == [0.0] * 8
    assert stack[9, :, 0].tolist() == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]


def test_training_frames_are_those_of_enhancement(small_corpus):
    mixtures = list(Corpus(small_corpus).drawn("train", 0))
    frames = Frames(mixtures, Framing())
    noisy, clean = frames.batch(torch.arange(len(frames)))
    alone = [stacked(stft(m.noisy, Framing()).abs()) for m in mixtures]
    assert torch.equal(noisy, torch.cat(alone))
    assert torch.equal(
        clean, torch.cat([stft(m.clean, Framing()).abs() for m in mixtures])
    )


@pytest.mark.parametrize("wanted", [0.0, 5.0, -3.0])
def test_a_mixture_has_the_ratio_it_was_asked_for(wanted):
    speech, noise = torch.from_numpy(murmur(1)), torch.from_numpy(murmur(2, 0.7))
    mixture = mix(speech, noise, wanted, offset=123)
    assert snr_db(mixture.clean, mixture.noisy) == pytest.approx(wanted, abs=1e-3)


def test_mixtures_are_the_same_every_time_and_differ_between_epochs(small_corpus):
    corpus = Corpus(small_corpus)
    first, again, other = (list(corpus.drawn("train", epoch)) for epoch in (0, 0, 1))
    assert all(torch.equal(a.noisy, b.noisy) for a, b in zip(first, again, strict=True))
    assert not all(
        torch.equal(a.noisy, b.noisy) for a, b in zip(first, other, strict=True)
    )


def test_bad_sound_is_told(tmp_path):
    with pytest.raises(ValueError, match="must not be empty"):
        mix(torch.zeros(0), torch.ones(5), 0.0, 0)
    with pytest.raises(ValueError, match="silent"):
        mix(torch.ones(5), torch.zeros(5), 0.0, 0)
    with pytest.raises(ValueError, match="one row of samples"):
        enhance(SpeechMlp(), torch.zeros(2, 100))
    with pytest.raises(ValueError, match="folders speech and noise"):
        Corpus(tmp_path)
    with pytest.raises(ValueError, match="128 or 256"):
        Framing(100)
    with pytest.raises(ValueError, match="head must be one of"):
        network("speech-mlp", head="both")
    (tmp_path / "text.wav").write_text("no sound")
    with pytest.raises(ValueError, match="no sound file that libsndfile reads"):
        audio.read(tmp_path / "text.wav")
    soundfile.write(tmp_path / "empty.wav", np.zeros(0, np.float32), 8000)
    with pytest.raises(ValueError, match="holds no samples"):
        audio.read(tmp_path / "empty.wav")
    with pytest.raises(ValueError, match="no sound file at"):
        audio.read(tmp_path / "nothing.wav")


def test_the_network_has_the_papers_weights():
    model = network("speech-mlp")
    assert (
        sum(p.numel() for n, p in model.named_parameters() if n.endswith("weight"))
        == 297_216
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_byte_counts_are_exactly_the_papers(row):
    torch.manual_seed(0)
    model = SpeechMlp("mask").eval()
    changed, packed = quantized(model, row)
    sizes = stored_bytes(packed)
    if "bytes" in row.published:
        assert sizes["weight_bytes"] == row.published["bytes"]
    assert sizes["bias_bytes"] == 385
    assert (sizes["table_bytes"] == 0) == (row.name in ("8-U", "4-U"))
    assert torch.equal(changed.hidden.weight, packed["hidden.weight"].to_dense())


@pytest.mark.parametrize("head", ["mask", "spectrum"])
def test_training_makes_the_mixtures_it_saw_clearer(head, small_corpus):
    corpus = Corpus(small_corpus)
    model = train(SpeechMlp(head), corpus, SpeechTraining(epochs=8, batch=64))
    mixtures = list(corpus.drawn("train", 3))
    assert score(model, mixtures).minus(score(None, mixtures))[0] > 0.02
    assert all(float(p.detach().abs().max()) <= 1 for p in model.parameters())


def test_a_mask_that_is_open_gives_the_mixture_back():
    model = SpeechMlp("mask").eval()
    torch.nn.init.zeros_(model.output.weight)
    torch.nn.init.constant_(model.output.bias, 30.0)
    noisy = torch.from_numpy(murmur(3))
    assert torch.allclose(enhance(model, noisy), noisy, atol=2e-3)


def test_a_spectrum_head_that_says_nothing_gives_each_bins_mean_level():
    model = SpeechMlp("spectrum")
    model.dropout.eval()
    torch.nn.init.zeros_(model.output.weight)
    torch.nn.init.zeros_(model.output.bias)
    magnitudes = torch.rand(4, 8, 129) + 0.1
    assert torch.allclose(model(magnitudes), magnitudes.log().mean(1).exp(), rtol=1e-4)


def test_the_magnitude_head_lets_loudness_pass_and_gives_no_negative_magnitude():
    model = SpeechMlp("magnitude").eval()
    magnitudes = torch.rand(4, 8, 129)
    model.standardise_(magnitudes.flatten(0, 1))
    torch.nn.init.zeros_(model.hidden.bias)
    torch.nn.init.zeros_(model.output.bias)
    estimate = model(magnitudes)
    assert (estimate >= 0).all()
    assert torch.allclose(model(9 * magnitudes), 9 * estimate, rtol=1e-4, atol=1e-6)


def test_the_magnitude_head_learns_where_its_relus_are_zero(small_corpus):
    model = train(
        SpeechMlp("magnitude"), Corpus(small_corpus), SpeechTraining(epochs=2, batch=64)
    )
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert all(float(p.detach().abs().max()) <= 1 for p in model.parameters())


def test_paired_differences_have_the_standard_error_of_pairs():
    mean, error = Scores((0.5, 0.7, 0.9), (0.0,) * 3).minus(
        Scores((0.4, 0.6, 0.7), (0.0,) * 3)
    )
    assert mean == pytest.approx(0.4 / 3)
    assert error == pytest.approx(np.std([0.1, 0.1, 0.2], ddof=1) / np.sqrt(3))


def test_table3_in_small_writes_results_and_files_and_goes_on(small_corpus, tmp_path):
    out = tmp_path / "run"
    results = reproduce(small_corpus, out, smoke=True, heads=("mask",))
    assert {"float", *(row.name for row in ROWS)} < set(results["mask"])
    assert any(name.startswith("4-NU searched (R_B") for name in results["mask"])
    assert (
        results["mask"]["optimal 4"]["file_bytes"]
        == (out / "mask" / "optimal-4.terse").stat().st_size
    )
    optimal, paper = results["mask"]["optimal 4"], results["mask"]["4-NU"]
    assert optimal["minus"]["4-NU"]["mean"] == pytest.approx(
        optimal["stoi"] - paper["stoi"], abs=1e-12
    )
    one, other = (
        score(
            load_network(out / "mask" / f"{name}.terse"),
            Corpus(small_corpus).listed("test", 3),
        )
        for name in ("optimal-4", "4-NU")
    )
    differences = np.subtract(one.stoi, other.stoi)
    spread = np.std(differences, ddof=1) / np.sqrt(3)
    assert spread > 0
    assert optimal["minus"]["4-NU"]["standard_error"] == pytest.approx(spread, rel=1e-6)
    (out / "kept.json").hardlink_to(out / "results.json")
    before = (out / "results.json").read_text()
    with pytest.raises(ValueError, match="not empty"):
        reproduce(small_corpus, out, smoke=True)
    again = reproduce(small_corpus, out, smoke=True, resume=True, heads=("mask",))
    assert again["mask"]["float"] == results["mask"]["float"]
    # replaced whole, never written into
    assert not (out / "kept.json").samefile(out / "results.json")
    assert (out / "kept.json").read_text() == before


def test_a_person_can_listen(small_corpus, tmp_path, capsys):
    torch.manual_seed(0)
    _, packed = quantized(SpeechMlp("mask").eval(), ROWS[4])
    tersify.save(packed, tmp_path / "speech.terse")
    stereo = np.stack([murmur(5), murmur(6)], axis=1)
    soundfile.write(tmp_path / "in.wav", stereo, 16000)
    arguments = [
        str(tmp_path / "in.wav"),
        str(tmp_path / "out.wav"),
        "--model",
        str(tmp_path / "speech.terse"),
    ]
    assert main(["enhance", *arguments]) == 0
    assert "2 channels averaged, resampled from 16000 Hz" in capsys.readouterr().out
    heard, rate = soundfile.read(tmp_path / "out.wav")
    assert (rate, heard.shape) == (8000, (len(stereo) // 2,))
    assert np.abs(heard).max() > 0


@pytest.mark.slow
def test_the_noisy_test_mixtures_have_the_stoi_their_readme_states(shared):
    assert score(
        None, Corpus(shared / "speech").listed("test")
    ).mean_stoi == pytest.approx(0.7664, abs=5e-5)


@pytest.mark.parametrize("figure", ["lut-fig3", "lut-fig4"])
def test_figures_have_the_papers_four_approaches_in_two_groups(figure):
    for bars in rows(figure).values():
        assert [row.name for row in bars] == ["U", "UVBS", "RS", "RSVB"]
        swept = [
            row.first if bars[0].first != bars[1].first else row.second for row in bars
        ]
        assert [method.shift for method in swept] == [False, True, False, True]


def test_a_figure_in_small_is_drawn(small_corpus, tmp_path):
    pytest.importorskip("plotly", reason="needs plotly")
    (tmp_path / "lut-fig4.json").write_text("old")
    (tmp_path / "kept.json").hardlink_to(tmp_path / "lut-fig4.json")
    results = reproduce_figure("lut-fig4", small_corpus, tmp_path, smoke=True)
    assert (tmp_path / "kept.json").read_text() == "old"
    assert set(results["spectrum"]["groups"]["4 bits in both layers"]) == {
        "U",
        "UVBS",
        "RS",
        "RSVB",
    }
    assert (tmp_path / "lut-fig4.html").stat().st_size > 10_000


def test_the_partitions_in_small_are_drawn_and_their_file_is_replaced_whole(
    small_corpus, tmp_path
):
    (tmp_path / "lut-fig1.json").write_text("old")
    (tmp_path / "kept.json").hardlink_to(tmp_path / "lut-fig1.json")
    results = reproduce_partitions(small_corpus, tmp_path, smoke=True)
    assert (tmp_path / "kept.json").read_text() == "old"
    assert json.loads((tmp_path / "lut-fig1.json").read_text()) == results
    assert len(list(tmp_path.glob("lut-fig1-*.svg"))) == 6  # two layers of each head


def test_the_search_takes_the_split_that_damages_least():
    best = search_split(
        Lookup(fit="paper"), lambda m: abs(m.p_start - 0.01) + abs((m.ratio or 0) - 2)
    )
    assert (best.ratio, best.p_start, best.p_stop) == (2.0, 0.01, 0.99)


def test_the_same_seed_gives_the_same_network(small_corpus, tmp_path):
    settings = SpeechTraining(epochs=1, batch=128)
    one, two = (
        trained("mask", Corpus(small_corpus), settings, tmp_path / name)
        for name in "ab"
    )
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.parameters(), two.parameters(), strict=True)
    )
