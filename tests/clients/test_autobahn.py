"""The cases of the Autobahn test suite, run by kosoku, against a WebSocket of this server."""

from __future__ import annotations

import pytest

from tests.serve.echoing import echoing

kosoku = pytest.importorskip("kosoku", reason="kosoku is not installed")


async def test_every_autobahn_case_passes(tmp_path):
    with echoing(tmp_path) as port:
        # 12 and 13 are about compression, which is not offered
        results = await kosoku.run_fuzzingclient(
            f"127.0.0.1:{port}", exclude_cases=["12.*", "13.*"], concurrency=4
        )
    assert len(results) > 290
    assert [case.case_id for case in results if not case.passed] == []
