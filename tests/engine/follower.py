"""Run steps from messages: in this process, or as `python -m tests.engine.follower KIND`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec
from msgspec.structs import replace

from izwi.backends.budget import budget_of
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.model.step_batch import StepBatch
from izwi.request.request import Request
from izwi.runner.planning import plan_models
from izwi.runner.runner import Runner
from izwi.runner.step_message import BatchDecoder, encode_batch
from tests.backends.kinds import backend_of
from tests.engine.toy import ToyPrompt, ToySpeech, ToyText, toy_request
from tests.engine.toy_talk import TalkPrompt, ToyTalk, talk_request

PAGE = 4
CONFIG = EngineConfig(page_size=PAGE, kv_bytes=1 << 20, max_step_tokens=13, max_running=8)
Drawn = list[list[list[int]]]  # the entries of each step


class Kind(NamedTuple):
    """A model, its prompts, and requests to it."""

    model: Callable[[], Any]
    prompt: type[msgspec.Struct]
    requests: list[Request]


def _requests(make: Callable[..., Request], **more: Any) -> list[Request]:
    """Greedy ones, and some that are drawn with penalties; one asks for log probabilities."""
    made = [make(f"{n}", 3 + 5 * n, n, 9 + n, model="m", **more) for n in range(4)]
    return [replace(one, logprobs=n == 1) for n, one in enumerate(made)]


def _talk(name: str, length: int, seed: int, entries: int, model: str) -> Request:
    return replace(talk_request(name, length, seed, 4 * entries), model=model, stop_ids=())


KINDS = {
    "speech": Kind(ToySpeech, ToyPrompt, _requests(toy_request)),
    "text": Kind(ToyText, ToyPrompt, _requests(toy_request, audio=2)),
    "talk": Kind(ToyTalk, TalkPrompt, _requests(_talk)),
}


def runner_of(model: Any, config: EngineConfig = CONFIG) -> Runner:
    """A runner with pages of its own, as another process has it."""
    backend = backend_of("torch")
    plan = plan_models({"m": model}, backend, config, {})
    return Runner(model, backend, config, budget_of(config, plan, "m", 1))


@contextmanager
def messages_of_steps() -> Iterator[list[tuple[list[bytes], Any]]]:
    """Yield each step that any engine runs meanwhile: its message, and what it draws."""
    steps: list[tuple[list[bytes], Any]] = []
    run = Runner.run

    def telling(self: Runner, batch: StepBatch) -> Any:
        track = self._model.tracks[0]
        frames = encode_batch(batch, self._kv.page_size, track.vocabulary, self.to_host)
        steps.append((list(map(bytes, frames)), run(self, batch)))
        return steps[-1][1]

    with patch.object(Runner, "run", telling):
        yield steps


def run_requests(model: Any, requests: Sequence[Request], config: EngineConfig = CONFIG) -> None:
    """Run requests to their ends."""
    engine = Engine({"m": model}, backend_of("torch"), config)
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        assert all(chunk.error is None for chunk in engine.step())


def follow(runner: Runner, prompt: type[msgspec.Struct], steps: Sequence[list[bytes]]) -> list[Any]:
    """Run steps over the runner's pages; return what each draws."""
    decoder = BatchDecoder([prompt], runner.backend.ops.array)
    with runner.backend.running():
        return [runner.run(decoder.decode(frames)) for frames in steps]


if __name__ == "__main__":
    kind = KINDS[sys.argv[1]]
    messages = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=list[list[bytes]])
    drawn = [entries for entries, _ in follow(runner_of(kind.model()), kind.prompt, messages)]
    sys.stdout.buffer.write(msgspec.msgpack.encode(drawn))
