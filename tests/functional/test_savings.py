"""`report`, `compare`, `check` and `predict` as a user types them, and the page in a browser."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from mtpprof.cli.render.units import time_text
from mtpprof.rundir.directory import RunDirectory
from tests.functional.browser import Browser, needs_chromium
from tests.runs import Recipe, write_run

Answer = subprocess.CompletedProcess[str]
Call = Callable[..., Answer]
SPEED = {"local-argmax": 0.95, "all-on": 0.95, "commutative-reduce": 0.9}
RECIPE = Recipe(speed=lambda arm: SPEED.get(arm, 1.0))
HOSTILE = "</td><script>alert(1)</script>"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return write_run(tmp_path_factory.mktemp("run") / "made", RECIPE)


def test_the_summary_fits_100_columns_and_names_the_next_command(made: RunDirectory, mtpprof: Call) -> None:
    answer = mtpprof("report", str(made.root))
    assert answer.returncode == 0, answer.stderr
    lines = [line.rstrip() for line in answer.stdout.splitlines()]
    rules = [line for line in lines if line.strip().startswith("──")]
    assert len(rules) == 14
    assert max(map(len, rules)) <= 100
    assert "saved 5.0 %" in answer.stdout
    assert "within noise" in answer.stdout
    assert lines.index("== all cases ==") > len(lines) - 20
    assert lines[-1].startswith("Look deeper: mtpprof report ")
    assert (made.root / "report.json").is_file()


def test_formats_of_a_report(made: RunDirectory, mtpprof: Call) -> None:
    report = json.loads(mtpprof("report", str(made.root), "--format", "json").stdout)
    assert report["schema_version"] == 2
    rows = list(csv.DictReader(io.StringIO(mtpprof("report", str(made.root), "--format", "csv").stdout)))
    arms = [arm for case in report["cases"] for arm in case["arms"]]
    assert [row["arm"] for row in rows] == [arm["name"] for arm in arms]
    for row, arm in zip(rows, arms, strict=True):
        totals = arm["totals"] or {}
        for name in ("calls", "payload_bytes", "wire_bytes"):
            assert (float(row[name]) if row[name] else None) == totals.get(name)
    (row,) = csv.DictReader(
        io.StringIO(
            mtpprof("compare", f"{made.root}:baseline", f"{made.root}:all-on", "--format", "csv").stdout
        )
    )
    assert (row["base_calls"], row["engaged"]) == ("22", "allreduce-norm-fusion+local-argmax")
    assert 0 < int(row["arm_payload_bytes"]) < int(row["base_payload_bytes"])
    text = mtpprof("report", str(made.root), "--format", "md").stdout
    assert "| verdict |  | **within noise** | **saved 5.0 %** | **saved 5.0 %** |" in text
    assert "layers.\\*.moe.latent" in text
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.endswith("|")


def test_compare_arms(made: RunDirectory, mtpprof: Call) -> None:
    answer = mtpprof("compare", f"{made.root}:baseline", f"{made.root}:commutative-reduce")
    assert answer.returncode == 0, answer.stderr
    assert "3 redundant all-reduces" in answer.stdout
    assert "one per latent MoE layer" in answer.stdout
    page = mtpprof("compare", f"{made.root}:baseline", f"{made.root}:all-on", "--format", "html").stdout
    assert page.startswith("<!doctype html>")
    assert 'class="waterfall"' in page
    value = json.loads(
        mtpprof("compare", f"{made.root}:baseline", f"{made.root}:all-on", "--format", "json").stdout
    )
    assert value["comparisons"][0]["difference"]["arm"] == "all-on"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("compare", "{run}", "{run}"), 2, "compared with itself"),
        (("compare", "nowhere", "{run}"), 3, "no such file"),
        (("check", "{run}"), 2, "nothing to check against"),
        (("check", "{run}", "--budget", "a", "--write-budget", "b"), 2, "exclude each other"),
        (("check", "{run}", "--budget", "nowhere.toml"), 3, "cannot be read"),
        (("check", "{run}", "--write-budget", "/nowhere/at/all"), 3, "cannot be written"),
        (("check", "{run}", "--model", "nemotron-3-super"), 1, "exceeded"),
        (("predict", "--hardware", "abacus"), 2, "choose from"),
        (("predict", "--link", "string"), 2, "choose from scale-up"),
        (("predict", "--model", "glm-5.2", "--tp", "7"), 2, "does not divide"),
        (("predict", "--hardware", "h100", "--from", "{run}"), 2, "exclude each other"),
        (("report", "nowhere"), 3, "run made by"),
    ],
)
def test_what_is_refused_is_one_sentence(
    made: RunDirectory, mtpprof: Call, words: tuple[str, ...], code: int, sentence: str
) -> None:
    answer = mtpprof(*(word.format(run=made.root) for word in words))
    assert answer.returncode == code, answer.stderr
    assert sentence in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_budget_from_writing_to_failing(made: RunDirectory, mtpprof: Call, tmp_path: Path) -> None:
    budget = tmp_path / "budget.toml"
    written = mtpprof("check", str(made.root), "--write-budget", str(budget))
    assert written.returncode == 0, written.stderr
    assert "without step times" in written.stderr
    assert "step_ns =" not in budget.read_text()
    kept = mtpprof("check", str(made.root), "--budget", str(budget))
    assert kept.returncode == 0, kept.stdout
    assert "budget kept" in kept.stdout
    worse = replace(
        RECIPE, seen=lambda arm, ledger: (*ledger, *(e for e in ledger if e.site.endswith("moe.final")))
    )
    again = write_run(tmp_path / "worse", worse)
    failed = mtpprof("check", str(again.root), "--budget", str(budget))
    assert failed.returncode == 1
    assert "target all_reduce" in failed.stdout
    rows = json.loads(mtpprof("check", str(again.root), "--budget", str(budget), "--format", "json").stdout)[
        "rows"
    ]
    assert {row["status"] for row in rows} == {"ok", "over"}


def test_predictions(made: RunDirectory, mtpprof: Call) -> None:
    answer = mtpprof(
        "predict", "--model", "nemotron-3-super", "--tp", "4", "--hardware", "h200", "--step-ms", "4.64"
    )
    assert answer.returncode == 0, answer.stderr
    assert "-201 µs to -600 µs" in answer.stdout
    assert "-4.3 % to -12.9 %" in answer.stdout
    fitted = mtpprof("predict", "--model", "nemotron-3-super", "--tp", "4", "--from", str(made.root))
    assert fitted.returncode == 0, fitted.stderr
    assert "shm_oneshot" in fitted.stdout
    published = mtpprof("predict", "--published")
    assert "within the bracket" in published.stdout
    assert "11 GB/s" in published.stdout


class _Page(HTMLParser):
    """Tags and addresses of a page; refuses tags that do not close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href") and value]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_asks_for_nothing(made: RunDirectory, mtpprof: Call) -> None:
    page = _Page()
    page.feed(mtpprof("report", str(made.root), "--format", "html").stdout)
    page.close()
    assert page.open == []
    assert "script" not in page.tags
    assert all(address.startswith("#") for address in page.addresses)


def test_names_from_a_file_cannot_become_markup(mtpprof: Call, tmp_path: Path) -> None:
    hostile = replace(
        RECIPE,
        models=("nemotron-3-super",),
        seen=lambda arm, ledger: tuple(replace(entry, site=HOSTILE.replace(" ", "")) for entry in ledger),
    )
    run = write_run(tmp_path / "run", hostile)
    page = mtpprof("report", str(run.root), "--format", "html").stdout
    assert "<script" not in page
    assert "&lt;script&gt;" in page


VISIBLE = """(selector => [...document.querySelectorAll(selector)].every(one => {
  const box = one.getBoundingClientRect();
  return box.width > 20 && box.height > 5 && box.left >= 0 && box.right <= innerWidth + 1;
}))"""


@needs_chromium
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_in_a_browser(made: RunDirectory, mtpprof: Call, tmp_path: Path, width: int) -> None:
    page = tmp_path / "report.html"
    page.write_text(mtpprof("report", str(made.root), "--format", "html").stdout)
    with Browser(width, 900) as browser:
        browser.open(page.as_uri())
        browser.wait_for("document.readyState === 'complete' && document.querySelector('figure')")
        assert browser.evaluate("innerWidth") <= max(width, 500)
        assert browser.evaluate("performance.getEntriesByType('resource').length") == 0
        assert browser.evaluate("document.scripts.length") == 0
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert browser.evaluate("document.querySelectorAll('figure.waterfall').length") == 7
        assert browser.evaluate("document.querySelectorAll('figure.ranks').length") == 2
        assert browser.evaluate("document.querySelectorAll('figure.distribution line').length") > 100
        for selector in ("figure", ".scroll", "figure .bar", "figure svg", "h2", "h3"):
            assert browser.evaluate(f"{VISIBLE}('{selector}')"), selector
        # Bars are drawn: a stylesheet that the policy blocked would leave them without width.
        assert browser.evaluate(
            "[...document.querySelectorAll('.waterfall .total i')].every(one => one.getBoundingClientRect().width > 10)"
        )


def test_what_did_not_engage_is_called_saved_nowhere(mtpprof: Call, tmp_path: Path) -> None:
    idle = replace(
        RECIPE,
        models=("deepseek-v3.2",),
        cpus=1,
        seen=lambda arm, ledger: tuple(replace(entry, fused="") for entry in ledger),
        speed=lambda arm: 0.9 if arm == "allreduce-norm-fusion" else 1.0,
    )
    run = write_run(tmp_path / "run", idle)
    for style in ("table", "md", "html"):
        text = mtpprof("report", str(run.root), "--format", style).stdout
        assert "differs, not engaged" in text, style
        assert "did not engage" in text or "engaged in no arm" in text or "not engaged" in text, style
        assert "saved 10" not in text, style
    report = json.loads(mtpprof("report", str(run.root), "--format", "json").stdout)
    (case,) = report["cases"]
    assert {entry["arm"]: entry["step"]["claim"] for entry in case["differences"]}[
        "allreduce-norm-fusion"
    ] == ("differs, not engaged")
    assert "saved" not in {effect["claim"] for effect in case["effects"]}


def test_effects_name_the_floor_and_the_shared_cores(mtpprof: Call, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", replace(RECIPE, models=("deepseek-v3.2",), cpus=1))
    table = mtpprof("report", str(run.root)).stdout
    (effect,) = json.loads(mtpprof("report", str(run.root), "--format", "json").stdout)["cases"][0][
        "effects"
    ][1:2]
    assert effect["optimizations"] == ["local-argmax"]
    floor = time_text(effect["noise"]["floor"])
    assert f"A/A floor: {floor} for an effect, " in table
    rows = [line for line in table.splitlines() if line.strip().startswith("local-argmax ")]
    assert any(line.rstrip().endswith(" saved (CPU)") for line in rows), rows
    assert f"(saved (CPU), A/A floor {floor})" in mtpprof("report", str(run.root), "--format", "md").stdout


def test_what_the_engine_runs_instead_is_one_list_under_one_heading(mtpprof: Call, tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", replace(RECIPE, models=("nemotron-3-super",)))
    deviations = ["eager mode", "no <b>sparse</b> attention"]
    directory.write_run(msgspec.structs.replace(directory.run(), deviations=deviations))
    answers = {
        style: mtpprof("report", str(directory.root), "--format", style).stdout
        for style in ("table", "md", "html")
    }
    for style, answer in answers.items():
        assert answer.count("The engine runs something else than was asked for:") == 1, style
    assert (
        "asked for:\n- eager mode\n- no <b>sparse</b> attention\nCalls and bytes are exact."
        in answers["table"]
    )
    assert "asked for:\n\n- eager mode\n- no &lt;b>sparse&lt;/b> attention\n\n" in answers["md"]
    assert (
        "asked for:<ul><li>eager mode</li><li>no &lt;b&gt;sparse&lt;/b&gt; attention</li></ul>"
        in answers["html"]
    )
    report = json.loads(mtpprof("report", str(directory.root), "--format", "json").stdout)
    assert report["deviations"] == deviations
