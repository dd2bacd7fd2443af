"""The report of a real comparison in a real browser: it opens without a network, without errors, with all its parts."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html import escape, unescape
from pathlib import Path

import numpy as np
import pytest

from longturn.engine.cost import CostModel, load_hardware_profile, load_model_profile
from longturn.errors import ConfigError
from longturn.lab.compare import Comparison, Question, Source, compare
from longturn.lab.report import tables, write_report
from longturn.lab.trace import write_requests
from longturn.lab.trace.generate import Generated, Workload

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
COST = CostModel(load_model_profile("llama-3.1-8b"), load_hardware_profile("h100-sxm"))
TALKS = Generated(Workload(sessions=8, turns=3, system_tokens=40, user_tokens=30, output_tokens=12, think=2))
# Names come from whoever gave the file.
NAME = "<script>document.title='owned'<&\"'.jsonl"
SECTIONS = [
    "Hit ratio against device size, device alone",
    "With host memory",
    "Where tokens came from",
    "The ranking that these numbers give",
    "Time to the first token",
    "The five resources",
    "Sensitivity to sessions at a time",
    "Sensitivity to times the recorded think time",
    "What sharing between sessions is worth",
    "What stickiness is worth",
    "Premises",
    "Runs that failed",
]
CHARTS = 8


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    path = tmp_path_factory.mktemp("trace") / NAME
    write_requests(TALKS, path)
    policies = {"vllm-offload": {"block_size": 8}, "longturn": {}, "none": {}}
    found = compare(Source(path), Question(policies, (0.4, 0.8), timed_requests=10, replicas=2), COST, 2)
    found.failed.append("vllm (device 1): <img src=http://example.com/a.png>")
    return found


@pytest.fixture(scope="module")
def page(found: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(found, path)
    return path


def browse(page: Path, *options: str) -> tuple[str, list[str]]:
    """What a browser prints of a page, and the lines of its console."""
    if CHROMIUM is None:
        pytest.skip("no chromium is installed: the report is not looked at in a browser")
    profile = page.parent / "profile"
    shutil.rmtree(profile, ignore_errors=True)
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += [
        "--no-first-run",
        "--disable-component-update",
        "--disable-sync",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ]
    command += [f"--user-data-dir={profile}", "--enable-logging=stderr", "--virtual-time-budget=10000", *options]
    run = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    return run.stdout, [line for line in run.stderr.splitlines() if ":CONSOLE:" in line]


def text(html: str) -> str:
    """Its words, as a person reads them."""
    bare = re.sub(r"<(script|style)\b.*?</\1>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", bare)).split())


def without_library(html: str) -> str:
    """The page without the charts' library, which is the first script."""
    return re.sub(r"<script>.*?</script>", "", html, count=1, flags=re.DOTALL)


@pytest.fixture(scope="module")
def browsed(page: Path) -> tuple[str, list[str]]:
    """The page once all scripts have run, and the console."""
    return browse(page, "--dump-dom")


def headings(html: str) -> list[str]:
    return [unescape(heading) for heading in re.findall(r"<h2>(.*?)</h2>", html)]


def test_a_browser_shows_all_of_it(browsed: tuple[str, list[str]]) -> None:
    dom, console = browsed
    assert console == []
    assert headings(dom) == SECTIONS
    # Every chart has been drawn: three layers each, and lines or bars in it.
    assert dom.count('class="plotly-graph-div') == CHARTS
    assert dom.count('class="main-svg"') >= 2 * CHARTS
    # Device 6, host 3, first tokens 2, and twice two lines of two engines.
    assert dom.count('class="trace scatter') == 19
    assert dom.count('class="trace bars') >= 5
    shown = text(dom)
    assert "vLLM" in shown
    assert "bound: optimum" in shown
    assert "sticky" in shown


def test_a_browser_paints_it(page: Path, tmp_path: Path) -> None:
    """Not an empty sheet: charts and text have left many colours."""
    picture = tmp_path / "report.png"
    _, console = browse(page, f"--screenshot={picture}", "--window-size=1200,5000")
    assert console == []
    assert picture.stat().st_size > 50_000


def test_a_browser_would_say_what_is_wrong(tmp_path: Path) -> None:
    """The two tests above can fail: errors and what the page may not load are on the console."""
    page = tmp_path / "page.html"
    page.write_text(
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'\"><img src=http://example.com/a>"
    )
    _, console = browse(page, "--dump-dom")
    assert len(console) == 1
    assert "Content Security Policy" in console[0]


def test_nothing_is_loaded_from_anywhere(page: Path) -> None:
    html = page.read_text()
    assert "default-src 'none'" in html[:1000]
    own = without_library(html)
    assert re.findall(r"<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=", own) == []
    assert "cdn.plot.ly" not in own


def test_names_are_text_and_nothing_else(page: Path, browsed: tuple[str, list[str]]) -> None:
    own = without_library(page.read_text())
    assert "<script>document" not in own
    assert "<img" not in own
    shown = text(own)
    assert f"Cache policies on {NAME}" in shown
    assert "vllm (device 1): <img src=http://example.com/a.png>" in shown
    assert f"<title>Cache policies on {escape(NAME, quote=False)}</title>" in browsed[0]


def test_figures_are_those_of_the_comparison(found: Comparison, page: Path) -> None:
    shown = text(without_library(page.read_text()))
    assert f"{found.requests:,} requests with {found.logical:,} prompt tokens, {found.different:,} of them" in shown
    assert found.ranking is not None
    assert found.ranking.verdict in shown
    for premise in found.premises:
        assert premise in shown
    for one in found.of("device"):
        assert f"{one.cached_share:.3f}" in shown
    for size in found.sizes:
        assert f"{size:,}" in shown
        assert f"{found.bounds[size]['optimum']:.3f}" in shown
    assert "at most 64 requests run at once" in shown


def test_a_small_comparison_leaves_out_what_was_not_asked(found: Comparison, tmp_path: Path) -> None:
    """One policy that is no engine: no ranking, no load, no routers; and one that has refused everything."""
    alone = replace(
        found, outcomes=[one for one in found.outcomes if one.job.policy == "none"], failed=[], ranking=None
    )
    write_report(alone, tmp_path / "alone.html")
    left_out = {"ranking", "Sensitivity", "sharing", "stickiness", "failed"}
    assert headings((tmp_path / "alone.html").read_text()) == [
        section for section in SECTIONS if not any(word in section for word in left_out)
    ]
    refused = [
        replace(one, served=np.zeros_like(one.served), ttft=one.ttft[:0], computed=one.computed[:0])
        for one in found.outcomes
    ]
    write_report(replace(found, outcomes=refused, ranking=None), tmp_path / "refused.html")
    assert browse(tmp_path / "refused.html", "--dump-dom")[1] == []


def test_a_table_escapes_what_is_in_it() -> None:
    html = tables.table(("<a>", "b"), [("<i>&", 1), (0.5, None)])
    assert "<th>&lt;a&gt;</th><th>b</th>" in html
    assert "<tr><td>&lt;i&gt;&amp;</td><td>1</td></tr><tr><td>0.5</td><td>None</td></tr>" in html


def test_a_report_is_written_whole_or_not_at_all(found: Comparison, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("before")
    path.chmod(0o600)
    write_report(found, path)
    assert path.read_text().startswith("<!doctype html>")
    assert path.read_text().endswith("</html>\n")
    assert path.stat().st_mode & 0o777 == 0o644
    for wrong in (tmp_path / "none" / "report.html", tmp_path / "folder"):
        (tmp_path / "folder").mkdir(exist_ok=True)
        with pytest.raises(ConfigError, match="give a file in a folder that is there"):
            write_report(found, wrong)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder", "report.html"]
