"""The figures of API servers are current, also when the engine is idle."""

from __future__ import annotations

from izwi_api.serve.engine_process import MAX_UNACKNOWLEDGED
from izwi_api.serve.remote_engine import RemoteEngine
from izwi_api.serve.wire import RequestCodec
from tests.engine.toy import ToyPrompt
from tests.serve.over_sockets import OverSockets, toy_engine, until
from tests.serve.test_remote_engine import endless


async def test_figures_are_right_after_many_requests_were_aborted_at_once() -> None:
    engine = OverSockets(toy_engine())
    await engine.open()
    other = RemoteEngine("other", engine.side.path, RequestCodec([ToyPrompt]))
    other.connect(engine.side.address)
    await until(lambda: other.alive)
    try:
        # more than the messages that make the engine wait until an API server has read them
        requests = [
            endless(f"r{number}", number, 10_000) for number in range(2 * MAX_UNACKNOWLEDGED)
        ]
        streams = engine.submit_all(requests)
        await until(lambda: engine.load["toy"]["running"] > 0)
        for stream in streams:
            stream.abort()
        for client in (engine, other):
            await until(lambda client=client: client.load["toy"]["running"] == 0)
            assert client.load["toy"]["waiting"] == 0
    finally:
        await other.stop()
        await engine.stop()
