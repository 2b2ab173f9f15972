"""The table of sizes in docs/operations.md is what the memory plan says today."""

from __future__ import annotations

import pytest

from benchmarks.serving import sizing

pytestmark = pytest.mark.slow


def test_the_table_of_the_page_is_up_to_date() -> None:
    page = sizing.PAGE.read_text(encoding="utf-8")
    _, _, rest = page.partition(sizing.BEGIN)
    written, end, _ = rest.partition(sizing.END)
    assert end
    assert written == sizing.table(), "python -m benchmarks.serving.sizing --write"


def test_a_smaller_card_has_fewer_streams_until_nothing_fits() -> None:
    names = sizing.CASES["Qwen3 chat 8B"]
    plans = [sizing.plan(names, gib, "auto") for gib in (14, 17.5, 18, 24)]
    assert plans[0] is None
    streams = [0 if one is None else one.num_streams for one in plans]
    assert streams == sorted(streams)
    assert streams[-1] == 64
    assert 0 < min(streams[1:]) < 64
