"""Language models in few bits: the file's bytes beside what it costs in perplexity."""

from __future__ import annotations

from tables import read

KINDS = ("wikitext", "code", "prose")
ROWS = {
    "lm-quality": {
        "lm_3bit": "`lm-3bit`, tuned for 160 steps of 16 windows, GPU",
        "lm_3bit_untuned": "the same, not tuned",
        "lm_2bit": "`lm-2bit`, tuned for 40 steps of 16 windows, GPU",
        "lm_2bit_160_steps_dead_zone_15": "dead zone 0.15, tuned for 160 steps",
        "lm_2bit_untuned_dead_zone_15": "the same, not tuned",
    },
    "lm-quality-cpu": {
        "lm_3bit": "`lm-3bit`, tuned for 20 steps of 8 windows, CPU",
        "lm_2bit": "`lm-2bit`, tuned for 20 steps of 8 windows, CPU",
    },
}


def language_models() -> str:
    """Perplexity as a multiple of the float32 model's, on test and on held-out text."""
    lines = [
        "| | file, bytes | bits a weight | test: wikitext | code | prose | held out: wikitext | code | prose |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for record, rows in ROWS.items():
        figures = read(record)["figures"]
        lines += [_row(figures, key, name) for key, name in rows.items()]
    return "\n".join(lines)


def _row(figures: dict[str, float], key: str, name: str) -> str:
    ratios = [
        figures.get(f"{key}_{part}_{kind}_ratio")
        for part in ("test", "held_out")
        for kind in KINDS
    ]
    told = ["–" if ratio is None else f"×{ratio:.3f}" for ratio in ratios]
    size = f"{figures[f'{key}_file_bytes']:,.0f}"
    bits = f"{figures[f'{key}_bits_a_weight']:.2f}"
    return f"| {' | '.join([name, size, bits, *told])} |"


GOALS = {"lm_3bit": (50.4, (1.12, 1.30, 1.30)), "lm_2bit": (37.0, (1.60, 2.2, 2.2))}
MOST_OVER_ENTROPY = 0.5  # percent


def language_goals() -> str:
    """Which file meets which goal: bytes, perplexities of test text, bytes of codes."""
    lines = [
        "| goal | one command, CPU | script, GPU |",
        "|---|---|---|",
    ]
    both = [read(record)["figures"] for record in ("lm-quality-cpu", "lm-quality")]
    for key, (megabytes, most) in GOALS.items():
        name = f"`{key.replace('_', '-')}`"
        told = [f"{figures[f'{key}_file_bytes']:,.0f}" for figures in both]
        lines.append(f"| {name}: file ≤ {megabytes:.1f} MB | {' | '.join(told)} |")
        for kind, limit in zip(KINDS, most, strict=True):
            told = [f"×{figures[f'{key}_test_{kind}_ratio']:.3f}" for figures in both]
            lines.append(f"| {kind} ≤ ×{limit:.2f} | {' | '.join(told)} |")
        told = [_over(figures, key) for figures in both]
        lines.append(
            f"| codes ≤ +{MOST_OVER_ENTROPY} % over the predicted entropy | {' | '.join(told)} |"
        )
    return "\n".join(lines)


def _over(figures: dict[str, float], key: str) -> str:
    percent = figures.get(f"{key}_codes_over_entropy_percent")
    if percent is None:
        return "not measured"
    told = f"{percent:+.2f} %".replace("-", "−")
    return told if percent <= MOST_OVER_ENTROPY else f"{told}, not met"


PEERS = {
    "ours": "Tersify, steps, asked for {} bits",
    "gptq": "GPTQ (gptqmodel), {} bits, groups of {}, symmetric",
    "gptqasym": "GPTQ (gptqmodel), {} bits, groups of {}, with zeros",
    "gptqorder": "GPTQ (gptqmodel), {} bits, groups of {}, with zeros and act-order",
    "gptqbest": "GPTQ (gptqmodel), {} bits, groups of {}, with zeros, act-order and searched steps",
    "hqq": "HQQ, {} bits, groups of {}",
    "hqqacross": "HQQ, {} bits, groups of {} across the rows",
}


def language_peers() -> str:
    """Linear layers by several methods: their bytes, and perplexities of test text."""
    figures = read("lm-peers")["figures"]
    names = [
        k.removesuffix("_coded_bytes") for k in figures if k.endswith("coded_bytes")
    ]
    lines = [
        "| linear layers | coded, bytes | as packed by itself | wikitext | code |",
        "|---|---|---|---|---|",
    ]
    for name in sorted(names, key=lambda name: figures[f"{name}_coded_bytes"]):
        method, *settings = name.split("_")
        told = [f"{figures[f'{name}_{key}_bytes']:,.0f}" for key in ("coded", "stored")]
        for kind in ("wikitext", "code"):
            ratio = (
                figures[f"{name}_{kind}_perplexity"]
                / figures[f"dense_{kind}_perplexity"]
            )
            told.append(f"×{ratio:.3f}")
        lines.append(f"| {' | '.join([PEERS[method].format(*settings), *told])} |")
    return "\n".join(lines)


TABLES = {
    "language-models": language_models,
    "language-goals": language_goals,
    "language-peers": language_peers,
}
