"""The plugin inside pytest: what passes, what fails and how, the page that documents it, and suites without it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from longturn.errors import ConfigError
from longturn.pytest_plugin.cached_prefix import CachedPrefix

pytest_plugins = ["pytester"]

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
EXAMPLES = dict(re.findall(r"<!-- executed by the tests: (.+?) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL))
ASKING = """
import httpx, pytest

def ask(system, *turns, path="/v1/chat/completions"):
    said = [{"role": ("user", "assistant")[i % 2], "content": words} for i, words in enumerate(turns)]
    body = {"model": "m", "messages": [{"role": "system", "content": system}, *said]}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json={}))
    with httpx.Client(transport=transport) as client:
        client.post(f"http://model.test{path}", json=body)
"""


def run(pytester: pytest.Pytester, code: str, *arguments: str) -> pytest.RunResult:
    """Run a test file in a process of its own, where the plugin is found by its entry point."""
    pytester.makepyfile(f"{ASKING}\n{code}")
    return pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", *arguments)


def test_the_example_of_the_page(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(my_agent=EXAMPLES["my_agent.py"], test_agent=EXAMPLES["the test"])
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=1)
    clock = 'self.messages[0]["content"] = f"You mend programs. It is 12:00:0{len(self.messages) // 2}."'
    call = "        self.client.chat"
    pytester.makepyfile(my_agent=EXAMPLES["my_agent.py"].replace(call, f"        {clock}\n{call}"))
    failed = pytester.runpytest_subprocess("-q")
    failed.assert_outcomes(failed=1)
    assert EXAMPLES["what it prints"].strip() in failed.stdout.str()


def test_it_fails_the_test_and_not_its_teardown(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def test_clock(cached_prefix):
    ask("It is 12:00:01.", "Who are you?")
    ask("It is 12:00:02.", "Who are you?", "A model.", "Which one?")

@pytest.mark.xfail(strict=True)
def test_known(cached_prefix):
    test_clock(cached_prefix)

@pytest.mark.usefixtures("cached_prefix")
async def test_in_a_loop():
    test_clock(None)

def test_own_failure_comes_first(cached_prefix):
    ask("It is 12:00:01.", "Who are you?")
    ask("It is 12:00:02.", "Who are you?", "A model.", "Which one?")
    assert 1 == 2

def test_without():
    test_clock(None)
""",
        "-o",
        "asyncio_mode=auto",
    )
    result.assert_outcomes(failed=3, xfailed=1, passed=1)
    result.stdout.fnmatch_lines(["*the cached prefix moved once without a stated reason", "volatile_text*"])
    result.stdout.fnmatch_lines(["*assert 1 == 2"])
    result.stdout.no_fnmatch_line("*taps.py*")


def test_reasons(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def talk():
    ask("You help.", "Who are you?")
    ask("You help.", "Who were you?", "A model.", "Which one?", "This one.", "Sure?")

def grow(cached_prefix):
    ask("You help. It is 12:00:01.", "Who are you?")
    ask("You help. It is 12:00:02.", "Who are you?", "A model.", "Which one?")

def test_stated(cached_prefix):
    with cached_prefix.expect_break("the clock belongs there"):
        grow(cached_prefix)
    assert [one.reason for one in cached_prefix.breaks] == ["the clock belongs there"]

def test_stated_by_name(cached_prefix):
    with cached_prefix.expect_break("the clock belongs there", "volatile_text", "client_nonce"):
        grow(cached_prefix)

def test_other_name(cached_prefix):
    with cached_prefix.expect_break("tools come later", "tools_reordered"):
        grow(cached_prefix)

def test_nothing_moves(cached_prefix):
    ask("You help.", "Who are you?")
    with cached_prefix.expect_break("compaction"):
        ask("You help.", "Who are you?", "A model.", "Which one?")

def test_only_inside(cached_prefix):
    with cached_prefix.expect_break("once"):
        grow(cached_prefix)
    ask("You help. It is 12:00:03.", "Who are you?", "A model.", "Which one?", "This one.", "Sure?")

def test_errors_pass_through(cached_prefix):
    with pytest.raises(ZeroDivisionError), cached_prefix.expect_break("never"):
        1 / 0
""",
    )
    result.assert_outcomes(passed=3, failed=3)
    result.stdout.fnmatch_lines(["no prefix moved because of 'tools come later'*"])
    result.stdout.fnmatch_lines(["no prefix moved because of 'compaction'*"])
    result.stdout.fnmatch_lines(["request 3 (openai-chat, m) after request 2:"])


def test_a_reason_has_to_be_one() -> None:
    prefix = CachedPrefix()
    with pytest.raises(ConfigError, match="needs a reason"), prefix.expect_break(" "):
        pass
    with (
        pytest.raises(ConfigError, match="no mechanism is called compaction: use some of volatile_text"),
        prefix.expect_break("why", "compaction"),
    ):
        pass


def test_suites_without_it_load_nothing() -> None:
    code = (
        "import sys, longturn.pytest_plugin\n"
        "print(sorted(name for name in sys.modules if name.startswith(('longturn', 'httpx', 'aiohttp', 'msgspec'))))"
    )
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert loaded.strip() == "['longturn', 'longturn.pytest_plugin']"
