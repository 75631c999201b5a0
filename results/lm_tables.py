"""Language models in few bits: the file's bytes beside what it costs in perplexity."""

from __future__ import annotations

from tables import read

KINDS = ("wikitext", "code", "prose")
ROWS = {
    "lm_3bit": "`lm-3bit`, tuned for 160 steps",
    "lm_3bit_untuned": "the same, not tuned",
    "lm_2bit": "`lm-2bit`, tuned for 40 steps",
    "lm_2bit_160_steps_dead_zone_15": "dead zone 0.15, tuned for 160 steps",
    "lm_2bit_untuned_dead_zone_15": "the same, not tuned",
}


def language_models() -> str:
    """Perplexity as a multiple of the float32 model's, on test and on held-out text."""
    figures = read("lm-quality")["figures"]
    lines = [
        "| | file, bytes | bits a weight | test: wikitext | code | prose | held out: wikitext | code | prose |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for key, name in ROWS.items():
        ratios = [
            figures.get(f"{key}_{part}_{kind}_ratio")
            for part in ("test", "held_out")
            for kind in KINDS
        ]
        told = ["–" if ratio is None else f"×{ratio:.3f}" for ratio in ratios]
        size = f"{figures[f'{key}_file_bytes']:,.0f}"
        bits = f"{figures[f'{key}_bits_a_weight']:.2f}"
        lines.append(f"| {' | '.join([name, size, bits, *told])} |")
    return "\n".join(lines)


TABLES = {"language-models": language_models}
