"""A thousand streams at once through the gateway: nothing lost, nothing out of place, memory bounded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parent.parent / "bench" / "gateway.py"
MEMORY_MIB = 400


def test_a_thousand_streams_at_once(tmp_path: Path) -> None:
    kept = tmp_path / "result.json"
    command = [sys.executable, str(BENCH), "--streams", "1000", "--rounds", "20", "--json", str(kept)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    result = json.loads(kept.read_text())
    assert (result["load"]["streams"], result["load"]["failed"]) == (1000, 0)
    assert result["lines"] == result["lines_with_usage"] == 1020
    assert max(result["memory_mib"]["peak"]) < MEMORY_MIB
