"""A batch survives the death of engine and API servers: each line is done once, its end is told."""

from __future__ import annotations

import json
import os
import signal

import openai
import pytest

from tests.api.batches.test_webhooks import SECRET, receiver, unwrapped
from tests.api.conftest import wait_for
from tests.api.served import served

pytestmark = pytest.mark.slow
NUM_LINES = 60


def test_every_line_is_done_once_although_processes_are_killed(tmp_path) -> None:
    with receiver(503) as hook, _served(tmp_path, hook) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=5)
        body = {"model": "izwi-tiny-tts", "voice": "alloy", "response_format": "wav"}
        lines = [
            {
                "custom_id": f"{number}",
                "method": "POST",
                "url": "/v1/audio/speech",
                "body": body | {"input": f"This is sentence number {number}."},
            }
            for number in range(NUM_LINES)
        ]
        content = "\n".join(map(json.dumps, lines)).encode()
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/audio/speech", completion_window="24h"
        )

        def completed() -> int:
            return client.batches.retrieve(batch.id).request_counts.completed

        for least, kind in ((5, "engine"), (15, "api_server"), (25, "api_server")):
            wait_for(lambda least=least: completed() >= least, 240)
            living = server.processes(kind)
            assert len(living) == (1 if kind == "engine" else 2)
            for pid in living:
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: client.batches.retrieve(batch.id).status == "completed", 400)
        ended = client.batches.retrieve(batch.id)
        assert ended.request_counts.completed == NUM_LINES
        results = client.files.content(ended.output_file_id).read().splitlines()
        ids = [json.loads(one)["custom_id"] for one in results]
        assert sorted(ids, key=int) == [f"{number}" for number in range(NUM_LINES)]
        assert ended.error_file_id is None
        wait_for(lambda: len(hook.got) == 2)  # refused first
        events = [unwrapped(got) for got in hook.got]
        assert {(event.type, event.data.id) for event in events} == {("batch.completed", batch.id)}
        assert len({event.id for event in events}) == 1


def _served(folder, hook):
    environ = {"IZWI_WEBHOOK_URL": hook.url, "IZWI_WEBHOOK_SECRET": SECRET}
    return served(folder, "--api-servers", "2", IZWI_BATCHES="1", **environ)
