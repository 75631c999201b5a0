import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_files import dense_run, ternary_run, write_bench, write_history

from tersify.cli import main
from tersify.report import write_report
from tersify.report.number_text import duration, points, size, ticks
from tersify.report.page import Page
from tersify.report.run_files import find_runs
from tersify.report.svg import LIGHT

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x00\x1b"


class Elements(HTMLParser):
    """The names and attributes of every element of a page, and its text."""

    def __init__(self, html):
        super().__init__()
        self.found, self.text = [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def keys(*directories):
    return {figure.key for figure in Page(find_runs(directories)).figures}


WHOLE = {
    "epochs-accuracy",
    "epochs-delta",
    "epochs-sparsity",
    "epochs-entropy_bits",
    "epochs-loss",
    "epochs-lr",
    "plane-sparsity",
    "plane-entropy_bits",
    "layer-weights",
    "layer-sparsity",
    "layer-entropy_bits",
    "layer-bytes",
    "codes-0",
    "latents",
    "latents-0",
    "latents-1",
    "file",
}


def test_a_whole_run_has_every_figure(tmp_path):
    folder = ternary_run(tmp_path / "log")
    assert keys(folder) == WHOLE
    write_bench(folder)
    assert keys(folder) == WHOLE | {"speed-0", "layer-ms"}


@pytest.mark.parametrize(
    ("missing", "lost"),
    [
        ("history.jsonl", {key for key in WHOLE if key.startswith("epochs")}),
        (
            "model.terse",
            {
                "layer-weights",
                "layer-sparsity",
                "layer-entropy_bits",
                "layer-bytes",
                "codes-0",
                "file",
            },
        ),
        ("latents.json", {"latents", "latents-0", "latents-1"}),
        ("metrics.json", set()),
        ("recipe.toml", set()),
        ("checkpoint/run.json", set()),
    ],
)
def test_a_missing_file_only_leaves_its_sections_out(missing, lost, tmp_path):
    folder = ternary_run(tmp_path / "log")
    (folder / missing).unlink()
    assert keys(folder) == WHOLE - lost


def test_the_headline_gives_size_accuracy_sparsity_entropy_and_bytes(tmp_path):
    folder = ternary_run(
        tmp_path / "log",
        dense_accuracy=88.5,
        sparsity=87.78,
        entropy_bits=0.6561,
        dense_bytes=363336,
    )
    packed = (folder / "model.terse").stat().st_size
    text = Elements(write_report([folder]).read_text(encoding="utf-8")).text
    sizes = (
        f"{363336 / packed:.1f}×",
        f"{packed / 1000:.2f} kB" if packed >= 1000 else f"{packed} B",
    )
    for part in (
        *sizes,
        "88.00 %",
        "−0.50 points against the dense twin",
        "87.8 %",
        "0.656 bit",
    ):
        assert part in text


def test_the_seed_is_told_even_where_it_is_0(tmp_path):
    text = write_report([ternary_run(tmp_path / "log")]).read_text(encoding="utf-8")
    assert re.search(r"<td[^>]*>seed</td><td[^>]*>0</td>", text)
    assert not re.search(r"<td[^>]*>amp</td>", text)


def test_runs_that_were_timed_show_their_speed_beside_the_others(tmp_path):
    write_bench(ternary_run(tmp_path / "timed"))
    ternary_run(tmp_path / "untimed")
    html = write_report([tmp_path]).read_text(encoding="utf-8")
    runs = html[html.index("<caption>The runs") :]
    runs = runs[: runs.index("</table>")]
    assert "the speed of torch" in html
    assert "1.50 ms, batch 8, 2 threads" in html
    timed, untimed = re.findall("<tr>(.*?)</tr>", runs[runs.index("<tbody>") :])
    assert "1.50</td>" in timed
    assert "3.0×</td>" in timed
    assert "3.0×" not in untimed


def test_several_runs_share_their_figures_and_keep_their_own(tmp_path):
    for name in ("linear", "log"):
        ternary_run(tmp_path / name)
    dense_run(tmp_path / "dense")
    html = write_report([tmp_path]).read_text(encoding="utf-8")
    elements = Elements(html)
    assert (
        sum(
            tag == "figure" and a["id"] == "epochs-accuracy"
            for tag, a in elements.found
        )
        == 1
    )
    assert {"run0-file", "run1-file", "run2-file"} <= {
        a.get("id") for _, a in elements.found
    }
    assert "the best of 3 runs" in elements.text
    ids = [a["id"] for _, a in elements.found if "id" in a]
    assert len(ids) == len(set(ids))


def test_published_points_appear_only_beside_runs_on_their_data(tmp_path):
    digits = write_report([ternary_run(tmp_path / "a")]).read_text(encoding="utf-8")
    cifar = write_report([ternary_run(tmp_path / "b", data="cifar10")]).read_text(
        encoding="utf-8"
    )
    assert "published" not in digits
    for point in (
        "log regime, published\n93.27 % at 89.75 % zeros",
        "TTQ, published\n91.13 % at 30–50 % zeros",
        "log regime, published\n93.27 % at 0.570 bit per weight",
    ):
        assert any(a.get("data-tip") == point for _, a in Elements(cifar).found)


def test_the_page_asks_for_nothing_from_outside(tmp_path):
    ternary_run(tmp_path / "log")
    elements = Elements(write_report([tmp_path]).read_text(encoding="utf-8"))
    assert not [
        a
        for tag, a in elements.found
        if "src" in a or "href" in a or tag in ("link", "iframe")
    ]
    [policy] = [
        a["content"]
        for _, a in elements.found
        if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'")


def test_hostile_names_stay_text(tmp_path):
    folder = tmp_path / HOSTILE.replace("/", "∕").replace("\x00", "")
    ternary_run(folder, target={"name": HOSTILE, "options": {HOSTILE: HOSTILE}})
    (folder / "recipe.toml").write_text(HOSTILE)
    history = [
        json.dumps({"epoch": e, "accuracy": 50 + e, "sparsity": 50, HOSTILE: e})
        for e in (1, 2)
    ]
    (folder / "history.jsonl").write_text("\n".join(history))
    latents = json.loads((folder / "latents.json").read_text())
    (folder / "latents.json").write_text(json.dumps({HOSTILE: latents["fc.weight"]}))
    row = {
        "peer": HOSTILE,
        "batch": "../../x",
        "threads": [HOSTILE],
        "median_ms": 1.0,
        "best_ms": {},
    }
    (folder / "bench.json").write_text(
        json.dumps({"rows": [row, 3], "layers": 7, "machine": {HOSTILE: HOSTILE}})
    )
    figures = tmp_path / "figures"
    page = write_report([folder], figures=figures)
    elements = Elements(page.read_text(encoding="utf-8"))
    assert "img" not in {tag for tag, _ in elements.found}
    assert not [
        a for _, a in elements.found if any(name.startswith("on") for name in a)
    ]
    assert [
        a
        for tag, a in elements.found
        if tag == "script" and a.get("type") != "application/json"
    ] == [{}]
    for path in figures.iterdir():
        ElementTree.parse(path)
    assert {p.name for p in tmp_path.iterdir()} == {folder.name, "figures"}


def test_figures_are_whole_svg_files_with_plain_colours(tmp_path):
    folder = ternary_run(tmp_path / "log")
    write_bench(folder)
    write_report([folder], figures=tmp_path / "figures")
    files = sorted((tmp_path / "figures").iterdir())
    assert {path.stem for path in files} == WHOLE | {"speed-0", "layer-ms"}
    for path in files:
        assert (
            ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        )
        text = path.read_text(encoding="utf-8")
        assert "var(" not in text
        assert "nan" not in text
        assert LIGHT["surface"] in text


def test_one_epoch_and_constant_curves_can_be_drawn(tmp_path):
    write_history(tmp_path, 1, compressed=True)
    page = Page(find_runs([tmp_path]))
    assert len(page.figures) == 8
    assert not [figure.key for figure in page.figures if "nan" in figure.drawing.marks]
    assert "1 epoch · not finished" in page.html


@given(
    low=st.floats(-1e29, 1e29, allow_subnormal=False),
    span=st.floats(0, 1e29, allow_subnormal=False),
)
def test_ticks_lie_inside_their_axis_and_are_few(low, span):
    found = ticks(low, low + span)
    assert 1 <= len(found) <= 12
    room = 1e-6 * span + 1e-9 * abs(low)
    assert all(low - room <= value <= low + span + room for value in found)


def test_ticks_are_round_values():
    assert ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert ticks(86.2, 95.1) == [88, 90, 92, 94]


def test_numbers_are_written_for_people():
    assert [size(n) for n in (80, 12_394, 363_336, 17_377_296)] == [
        "80 B",
        "12.39 kB",
        "363.3 kB",
        "17.38 MB",
    ]
    assert [duration(s) for s in (9.34, 191, 7325)] == [
        "9.3 s",
        "3 min 11 s",
        "2 h 02 min",
    ]
    assert [points(p) for p in (0.0, -0.34)] == ["+0.00", "−0.34"]


def test_the_command_prints_the_page_s_path(tmp_path, capsys):
    ternary_run(tmp_path / "log")
    assert (
        main(
            [
                "report",
                str(tmp_path),
                "--out",
                str(tmp_path / "all.html"),
                "--figures",
                str(tmp_path / "f"),
            ]
        )
        == 0
    )
    assert capsys.readouterr().out.strip() == str(tmp_path / "all.html")
    assert len(list((tmp_path / "f").glob("*.svg"))) == len(WHOLE)


def test_png_without_a_place_for_the_figures_is_told_in_one_sentence(tmp_path, capsys):
    assert main(["report", str(ternary_run(tmp_path / "log")), "--png"]) == 2
    assert "give --figures DIR with it" in capsys.readouterr().err


@pytest.mark.parametrize(
    "kind", ["empty", "foreign", "missing", "file", "no place for the page"]
)
def test_a_directory_without_runs_is_told_in_one_sentence(kind, tmp_path, capsys):
    given = tmp_path / "given"
    extra = []
    if kind == "no place for the page":
        ternary_run(given)
        extra = ["--out", str(tmp_path / "nowhere" / "page.html")]
    elif kind == "file":
        given.write_text("precious")
    elif kind != "missing":
        given.mkdir()
        if kind == "foreign":
            (given / "thesis.txt").write_text("precious")
    assert main(["report", str(given), *extra]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
    assert str(tmp_path) in captured.err
    assert not list(tmp_path.rglob("*.html"))
