"""How values become figures, tables and charts."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.peers.chart import chart
from bench.peers.prompts import Prompts
from bench.peers.report import Row
from bench.peers.samples import BUSY_GAP_MAX, BUSY_OVER_IDLE, RATE, TTFT, cached, figure
from bench.peers.table import cell, ratio
from bench.peers.workloads import table
from bench.peers.workloads.batch import Mixed, tokens_per_s
from longturn.lab.wire import Reply


def reply(*arrivals_s: float, started_s: float = 0.0, **known: object) -> Reply:
    made = Reply({"reusable": 0}, 0, started_s, list(arrivals_s), outcome="ok", error=None)
    for name, value in known.items():
        setattr(made, name, value)
    return made


def test_a_figure_pools_values_and_spreads_over_repeats() -> None:
    one = figure([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]])
    assert (one.median, one.values, one.repeats) == (3.0, 6, 2)
    assert one.spread == pytest.approx((4 - 2) / 3)
    assert figure([[7.0]]).spread is None
    assert figure([[float(i) for i in range(101)]]).p95 == pytest.approx(95)


def test_ratios_are_taken_to_the_best_peer() -> None:
    cold = table(quick=True)["cold"]
    values = {"longturn": 2.0, "llamacpp": 4.0, "vllm": 8.0}
    figures = {engine: figure([[value]]) for engine, value in values.items()}
    assert Row(cold, "", TTFT, figures, floor=1.0).over_peer == 0.5
    assert Row(cold, "", TTFT, figures, floor=1.0).over_floor == 2.0
    assert Row(cold, "", RATE, figures, floor=None).over_peer == 0.25
    alone = Row(cold, "", RATE, {"longturn": figures["longturn"]}, floor=None)
    assert (alone.over_peer, alone.over_floor, ratio(None)) == (None, None, "")


def test_rates_count_what_all_streams_share() -> None:
    streams = [reply(0.0, 1.0, 2.0, 3.0, output_tokens=4), reply(1.0, 2.0, 3.0, 4.0, output_tokens=8)]
    # From 1 to 3 s: two chunks of one token and two of two.
    assert tokens_per_s(streams) == pytest.approx(3.0)
    assert tokens_per_s([*streams, Reply({}, 0)]) is None
    assert tokens_per_s([reply(1.0, output_tokens=1)]) is None


def test_gaps_are_sorted_into_before_and_while() -> None:
    mixed = Mixed(streams=1, prompt=100)
    # Two gaps of 0.1 s, then one of 1 s around the prompt, then one after its answer, which belongs to neither.
    running, long = reply(0.0, 0.1, 0.2, 1.2, 9.0), reply(1.0, started_s=0.3)
    values = {sample.metric: sample.value for sample in mixed._samples([running], long)}
    assert values[BUSY_GAP_MAX] == pytest.approx(1.0)
    assert values[BUSY_OVER_IDLE] == pytest.approx(10.0)


def test_cached_shares_stay_within_what_was_reusable() -> None:
    replies = [reply(1.0, cached_tokens=90), reply(1.0, cached_tokens=50)]
    for one in replies:
        one.labels["reusable"] = 80
    [sample] = cached("", replies)
    assert sample.value == pytest.approx((80 + 50) / 160)
    assert cached("", [reply(1.0, cached_tokens=5)]) == []
    assert cached("", [reply(1.0, cached_tokens=None)]) == []


def test_cells_and_charts_show_median_tail_and_floor() -> None:
    one = figure([[0.010, 0.020], [0.030, 0.040]])
    assert cell(one, TTFT) == "25.0 ms [38.5 ms] ±40%"
    assert cell(None, TTFT) == "-"
    rows = [Row(table(quick=True)["cold"], "a < b", TTFT, {"longturn": one, "vllm": one}, floor=0.01)]
    root = ElementTree.fromstring(chart(rows, "Today & here."))
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "a < b" in texts
    assert any("Longturn  25.0 ms" in text for text in texts)
    dashed = [line for line in root.iter("{http://www.w3.org/2000/svg}line") if line.get("stroke-dasharray")]
    assert len(dashed) == 1


def test_prompts_are_words_by_seed_and_key(tmp_path: Path) -> None:
    tmp_path.joinpath("tokenizer.json").write_text('{"model": {"vocab": {"Ġone": 1, "Ġtwo": 2, "Ġab": 3, "one": 4}}}')
    prompts = Prompts(tmp_path, 7)
    drawn = prompts.draw(64, "a", 1)
    assert set(drawn) == {1, 2}
    assert drawn == Prompts(tmp_path, 7).draw(64, "a", 1)
    assert drawn != prompts.draw(64, "a", 2)
    assert drawn != Prompts(tmp_path, 8).draw(64, "a", 1)
