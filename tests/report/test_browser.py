"""The page in a real browser: nothing on the console, every figure drawn, pointers,
tables and themes answered.
"""

import json
import re
import shutil
import subprocess

import pytest
from run_files import dense_run, ternary_run, write_bench

from tersify.report import write_report
from tersify.report.page import Page
from tersify.report.run_files import find_runs

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--enable-logging=stderr",
    "--virtual-time-budget=3000",
]
DRIVER = """
const seen = {errors: window.__errors, copied: null};
Object.defineProperty(navigator, "clipboard", {value: {writeText: async (text) => { seen.copied = text; }}});
const tip = document.getElementById("tip");
const at = (element, x, y, type) => {
  const box = element.getBoundingClientRect();
  element.dispatchEvent(new PointerEvent(type, {bubbles: true, pointerType: "mouse",
    clientX: box.left + x * box.width, clientY: box.top + y * box.height}));
  return tip.hidden ? null : tip.textContent;
};
const all = (query) => [...document.querySelectorAll(query)];
all("details").forEach((d) => { d.open = true; });
seen.drawn = all("figure").filter((f) => {
  const box = f.querySelector("svg").getBoundingClientRect();
  return box.width > 100 && box.height > 40 && f.querySelector("svg path, svg rect, svg circle");
}).map((f) => f.id);
const accuracy = document.querySelector("#epochs-accuracy svg");
seen.line = at(accuracy, 0.999, 0.5, "pointermove");
seen.after = at(accuracy, 0.5, 0.5, "pointerleave");
seen.bar = at(document.querySelector("[id$=layer-weights] g[data-tip]"), 0.5, 0.5, "pointermove");
document.querySelector('[data-toggles="0"]').click();
seen.without = at(accuracy, 0.999, 0.5, "pointermove");
seen.hidden = getComputedStyle(accuracy.querySelector('[data-run="0"]')).display;
const table = all("table").find((t) => t.caption.textContent === "Layers");
const names = () => [...table.tBodies[0].rows].map((r) => r.cells[0].textContent);
const bytes = [...table.tHead.rows[0].cells].find((c) => c.textContent === "bytes").firstChild;
bytes.click(); seen.down = names();
bytes.click(); seen.up = names();
table.closest(".table").querySelector(".copy").click();
seen.ground = getComputedStyle(document.body).backgroundColor;
document.getElementById("theme").click();
seen.other = getComputedStyle(document.body).backgroundColor;
seen.beyond = all("main *").filter((e) => !e.closest(".scroll") && e.getBoundingClientRect().right > innerWidth + 1)
  .map((e) => e.outerHTML.slice(0, 80));
seen.width = innerWidth;
const out = document.createElement("pre");
out.id = "seen";
document.body.append(out);
setTimeout(() => { out.textContent = JSON.stringify(seen); }, 500);
"""


@pytest.fixture(scope="module")
def chromium():
    found = next(
        filter(
            None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
        ),
        None,
    )
    if found is None:
        pytest.skip("needs chromium, which is not on this machine")
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    for name in ("linear", "log"):
        write_bench(ternary_run(home / name, data="cifar10"))
    dense_run(home / "dense", data="cifar10")
    return write_report([home])


def browse(chromium, path, profile, *more):
    """The page's DOM at the end, and what it wrote to the console."""
    command = [
        chromium,
        *FLAGS,
        f"--user-data-dir={profile}",
        *more,
        "--dump-dom",
        path.as_uri(),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def driven(page):
    """The page with a script that uses it as a person would; its policy would refuse
    that script.
    """
    html = re.sub(
        r'<meta http-equiv="Content-Security-Policy"[^>]*>',
        "",
        page.read_text(encoding="utf-8"),
    )
    collector = "<script>window.__errors = []; onerror = (m) => { __errors.push(String(m)); };</script>"
    path = page.with_name("driven.html")
    path.write_text(
        html.replace("<head>", f"<head>{collector}", 1).replace(
            "</body>", f"<script>{DRIVER}</script></body>"
        )
    )
    return path


def seen_in(dom):
    return json.loads(
        re.search(r'<pre id="seen">(.*?)</pre>', dom, re.DOTALL)[1]
        .replace("&gt;", ">")
        .replace("&amp;", "&")
    )


def test_the_console_stays_silent(chromium, page, tmp_path):
    dom, console = browse(chromium, page, tmp_path)
    assert console == []
    assert 'id="epochs-accuracy"' in dom


def test_a_script_that_is_not_ours_would_be_refused_and_heard(chromium, page, tmp_path):
    foreign = tmp_path / "foreign.html"
    text = page.read_text(encoding="utf-8").replace(
        "</main>", "</main><script>document.title = 'ran'</script>"
    )
    foreign.write_text(text, encoding="utf-8")
    dom, console = browse(chromium, foreign, tmp_path / "profile")
    assert "<title>ran</title>" not in dom
    assert console


def test_every_figure_is_drawn_and_answers(chromium, page, driven, tmp_path):
    seen = seen_in(browse(chromium, driven, tmp_path, "--window-size=1200,900")[0])
    assert seen["errors"] == []
    assert set(seen["drawn"]) == {
        figure.key for figure in Page(find_runs([page.parent])).figures
    }
    assert seen["line"].splitlines() == [
        "epoch 12",
        "dense: 86.667 %",
        "linear: 86.667 %",
        "log: 86.667 %",
    ]
    assert seen["after"] is None
    assert seen["bar"].splitlines() == ["fc.weight", "80"]
    assert seen["without"].splitlines() == [
        "epoch 12",
        "linear: 86.667 %",
        "log: 86.667 %",
    ]
    assert seen["hidden"] == "none"
    assert seen["beyond"] == []


def test_tables_sort_and_copy_as_cells_for_a_spreadsheet(chromium, driven, tmp_path):
    seen = seen_in(browse(chromium, driven, tmp_path)[0])
    assert seen["up"] == seen["down"][::-1]
    lines = [line.split("\t") for line in seen["copied"].splitlines()]
    assert lines[0][0] == "layer"
    assert len({len(line) for line in lines}) == 1


def test_dark_and_light_follow_the_system_and_the_button(chromium, driven, tmp_path):
    light = seen_in(
        browse(
            chromium, driven, tmp_path / "a", "--blink-settings=preferredColorScheme=1"
        )[0]
    )
    dark = seen_in(
        browse(
            chromium, driven, tmp_path / "b", "--blink-settings=preferredColorScheme=0"
        )[0]
    )
    assert light["ground"] == dark["other"] != dark["ground"] == light["other"]


def test_nothing_sticks_out_on_a_phone(chromium, driven, tmp_path):
    seen = seen_in(browse(chromium, driven, tmp_path, "--window-size=390,844")[0])
    assert seen["width"] <= 500
    assert seen["beyond"] == []
