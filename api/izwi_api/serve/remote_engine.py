"""A client of an engine in another process, on the event loop of an API server."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from math import inf
from pathlib import Path
from typing import NoReturn, Protocol
from weakref import ref

import zmq

from izwi.engine_client.output_stream import Stream, aborted, failure
from izwi.engine_client.protocol import Answer, Answers
from izwi.errors import EngineFault, EngineStopped, InvalidMessage, InvalidRequest, Overloaded
from izwi.model.protocol import Model
from izwi.request.request import Chunk, Request
from izwi.request.serialization import Frame
from izwi_api.serve import wire
from izwi_api.serve.resumable_request import ResumableRequest
from izwi_api.serve.sockets import (
    Context,
    Socket,
    bind,
    close_monitored,
    connect,
    is_remote,
    open_monitor,
    open_socket,
    receive,
    send,
)
from izwi_api.serve.suspects import Trials, count_death, is_suspect

logger = logging.getLogger(__name__)

# The engine's messages are acknowledged in groups of this size.
ACKNOWLEDGE_EVERY = 32
# Messages that are read in one turn of the event loop.
_MOST_AT_ONCE = 64
# Seconds after which a refusal comes from a long wait, not from a full queue.
_REFUSED_AT_ONCE_S = 1.0


class Router(Protocol):
    """What decides over several engines, as each of their clients sees it."""

    def welcomed(self, engine: RemoteEngine) -> None:
        """An engine accepts requests; those that waited for it were sent."""
        ...

    def lost(self, engine: RemoteEngine) -> None:
        """The connection to an engine on another machine is lost."""
        ...

    def published(self, engine: RemoteEngine, digests: dict[str, list[int]]) -> None:
        """An engine has published the prefixes that it knows."""
        ...

    def begun(self, engine: RemoteEngine, request: Request) -> float:
        """Count a request of an engine; return its predicted work."""
        ...

    def has_output(self, engine: RemoteEngine, resumable: ResumableRequest) -> None:
        """Note that the reader of a request was given its first output."""
        ...

    def paused(self, engine: RemoteEngine, resumable: ResumableRequest) -> None:
        """Note that a request was paused by its caller."""
        ...

    def ended(self, engine: RemoteEngine, resumable: ResumableRequest, last: Chunk | None) -> None:
        """Count a request that has ended with a chunk, or moves to another engine."""
        ...

    def refused(self, engine: RemoteEngine, resumables: Sequence[ResumableRequest]) -> bool:
        """Move requests that an engine's queue refused to another; False if none takes them."""
        ...

    def failed(self, engine: RemoteEngine, resumable: ResumableRequest) -> bool:
        """Move a request that an engine failed to run to another; False if none takes it."""
        ...


def is_fault(error: BaseException | None) -> bool:
    """Whether an engine failed to run a request, for a reason that is not the request's."""
    return isinstance(error, EngineFault)


class RemoteEngine:
    """Implements `EngineClient`, and the source of its answers, over sockets.

    An engine is connected between `connect` and `disconnect`, which the supervisor triggers, or
    what knows the engines of several machines.
    Without one, new requests are refused. Requests in flight wait for the next engine, which
    resumes them where their logs end; readers notice only a pause. A request that kills its engines
    ends, and others survive it (`izwi_api.serve.suspects`). A death does not count if the engine
    had not received the request yet, or if the request was paused. Aborted requests are not sent
    again.

    Args:
        name: The API server's name, never reused.
        place: Where its sockets are made: a folder, or for engines on other machines `tcp://HOST`
            with an address of this machine.
        codec: Encodes its requests.
        sends_asks: Send requests with the input that they were prepared from, for recordings.
        patience_s: Seconds for which requests in flight wait for the next engine before they end
            with EngineStopped; 0: they end at once.
        replica: The engine's number, if there are several.
    """

    def __init__(
        self,
        name: str,
        place: Path | str,
        codec: wire.RequestCodec,
        *,
        sends_asks: bool = False,
        patience_s: float = 0.0,
        replica: int = 0,
    ):
        self.replica = replica
        self._name, self._place, self._codec = name, place, codec
        self._peer = name  # the name that its present engine knows
        self._sends_asks, self._patience_s = sends_asks, patience_s
        self._context: Context = zmq.Context.instance()
        self._commands: Socket | None = None
        self._engine_messages: Socket | None = None
        self._monitors: list[Socket] = []  # of both, if the engine may be on another machine
        self._loop: asyncio.AbstractEventLoop | None = None
        self._resumables: dict[str, ResumableRequest] = {}
        self._trials = Trials(self._resubmit)
        # requests that wait for pages of their prompt from another engine, by the first of those
        # that were submitted together
        self._awaiting: dict[str, list[str]] = {}
        self._taken: dict[str, Callable[[], object]] = {}  # to call once the pages are written
        # prompts that this engine computes for others, by request id: called with the path
        self._prefills: dict[str, Callable[[str], object]] = {}
        self._giving_up: asyncio.TimerHandle | None = None
        self._gone_s = -inf  # when the last engine died, on the event loop's clock
        self._num_engines = 0
        self._num_acknowledged = 0
        self._is_welcome = False
        # of ids that moved to another engine: last chunks that are still to come
        self._moved: Counter[str] = Counter()
        self.router: Router | None = None
        self.max_backlog = 1
        self.load: Mapping[str, Mapping[str, float]] = {}

    @property
    def gone_s(self) -> float:
        """When the last engine died, on the event loop's clock."""
        return self._gone_s

    def runs(self, request_id: str) -> bool:
        """Whether a request of this engine, or one that waits for the next one, has the id."""
        return request_id in self._resumables

    @property
    def num_requests(self) -> int:
        """Requests that it runs, or that wait for the next engine."""
        return len(self._resumables)

    def num_requests_of(self, model: str) -> int:
        """Return how many of its requests are for a model."""
        return sum(one.request.model == model for one in self._resumables.values())

    @property
    def alive(self) -> bool:
        """Whether an engine is connected and accepts requests."""
        return self._is_welcome

    def start(self) -> None:
        """Do nothing: the engine runs as long as its process does."""

    async def stop(self) -> None:
        """Disconnect; requests in flight end with EngineStopped."""
        self.disconnect()
        self.give_up()

    def connect(self, address: str) -> None:
        """Connect to an engine; call it on the event loop that reads the streams.

        Args:
            address: Where the engine receives commands.
        """
        self.disconnect()
        self._num_engines += 1
        self._engine_messages = open_socket(self._context, zmq.PULL)
        self._commands = open_socket(self._context, zmq.PUSH)
        self._loop = asyncio.get_running_loop()
        if is_remote(address):
            self._watch((self._commands, self._engine_messages))
        own = bind(self._engine_messages, self._own_address())
        connect(self._commands, address)
        self._loop.add_reader(self._engine_messages.fileno(), self._read)
        self._send(wire.encode_command(self._peer, wire.Hello(own)))
        self._loop.call_soon(self._read)

    def disconnect(self) -> None:
        """Disconnect from an engine that is gone; requests in flight wait for the next one."""
        if self._engine_messages is None or self._commands is None or self._loop is None:
            return
        had_requests, self._is_welcome = self._is_welcome, False
        self._num_acknowledged, self.load = 0, {}
        self._moved.clear()
        self._gone_s = self._loop.time()
        self._loop.remove_reader(self._engine_messages.fileno())
        sockets = self._commands, self._engine_messages
        self._commands = self._engine_messages = None
        self._close(sockets)
        if had_requests:
            count_death(self._ran(), self._trials.spared, self._gone_s)
        self._trials.clear()
        self._awaiting.clear()
        taken, self._taken = self._taken, {}
        for free in taken.values():
            free()
        self.give_up_prefills()
        for resumable in list(self._resumables.values()):
            if resumable.is_aborted:
                self._end(resumable, aborted(resumable.request.request_id))
            elif resumable.is_cause or self._patience_s <= 0:
                self._fail(resumable)
        if self._resumables and self._giving_up is None:
            self._giving_up = self._loop.call_later(self._patience_s, self.give_up)

    def give_up(self) -> None:
        """End all waiting requests with EngineStopped: no engine will start."""
        self._stop_waiting()
        self._gone_s = -inf
        for resumable in list(self._resumables.values()):
            self._fail(resumable)

    def submit(self, request: Request) -> Answer:
        """Submit a request; see `submit_all`."""
        return self.submit_all([request])[0]

    def submit_all(
        self, requests: Sequence[Request], *, awaits_pages: bool = False
    ) -> Answers[Answer]:
        """Submit requests together, so that they enter the same step: all or none.

        If the engine's queue refuses them, every answer ends with that error. Without an engine,
        requests that continue an answer, or have `awaits_engine`, wait for the next one, as those
        in flight do. A request whose answer is dropped is aborted.

        Args:
            requests: The requests.
            awaits_pages: They wait until `start_awaiting`, while another engine computes the prompt
                of the first. This engine is connected.

        Raises:
            EngineStopped: No engine is running.
            InvalidRequest: A request with the same id is running.
        """
        loop = asyncio.get_running_loop()
        waits_s = 0.0
        if not self._is_welcome:
            waits_s = self._gone_s + self._patience_s - loop.time()
            if waits_s <= 0 or not all(one.continues or one.awaits_engine for one in requests):
                raise EngineStopped("the engine is not running")
        ids = [request.request_id for request in requests]
        taken = [name for n, name in enumerate(ids) if name in self._resumables or name in ids[:n]]
        if taken:
            raise InvalidRequest(f"request {taken[0]!r} is running already")
        frames = self._codec.submit(self._peer, requests, with_ask=self._sends_asks)
        streams = [Stream(name, self, loop) for name in ids]
        for request, stream in zip(requests, streams, strict=True):
            dropped = partial(self._stream_dropped, request.request_id, loop)
            self._add(
                ResumableRequest(
                    request, ref(stream, dropped), together=tuple(ids), submitted_s=loop.time()
                )
            )
        if awaits_pages:
            self._awaiting[ids[0]] = ids
        elif self._is_welcome:
            self._send(frames)
        elif self._giving_up is None:
            self._giving_up = loop.call_later(waits_s, self.give_up)
        return Answers(streams)

    def prefill(self, request: Request, done: Callable[[str], object]) -> None:
        """Compute a prompt for another engine.

        Args:
            request: It emits one entry, which nobody reads.
            done: Called with the path of its pages, which is empty if there are none.
        """
        self._prefills[request.request_id] = done
        self._send(self._codec.submit(self._peer, [request], prefills=True))

    def give_up_prefills(self) -> None:
        """Wait for no more prompts: the engines that go on with them compute them."""
        prefills, self._prefills = self._prefills, {}
        for done in prefills.values():
            done("")

    def free_pages(self, request_id: str) -> None:
        """Let the engine free the memory of a prompt that it has computed."""
        self._send_command(wire.FreePages(request_id))

    def start_awaiting(self, request_id: str, path: str, free: Callable[[], object]) -> None:
        """Start requests that wait for the pages of a prompt; nothing if they run elsewhere.

        Args:
            request_id: The first of them.
            path: Where the pages are; empty: there are none, so compute the prompt.
            free: Called once nobody reads them any more.
        """
        if request_id in self._awaiting and path:
            self._taken[request_id] = free
            self._send_command(wire.WritePages(request_id, path))
            return
        free()
        self._start_awaiting(request_id)

    def _start_awaiting(self, request_id: str) -> None:
        """Send requests that waited, and what their callers wanted of them meanwhile."""
        ids = self._awaiting.pop(request_id, [])
        started = [self._resumables[name] for name in ids if name in self._resumables]
        if started:
            requests = [one.request for one in started]
            self._send(self._codec.submit(self._peer, requests, with_ask=self._sends_asks))
        for resumable in started:
            self._repeat_commands(resumable)

    def _is_held(self, request_id: str) -> bool:
        """Whether the engine does not know a request of its own yet."""
        awaits = any(request_id in ids for ids in self._awaiting.values())
        return awaits or self._trials.holds(request_id)

    def _let_go(self, request_id: str) -> None:
        """Forget that a request waits for pages."""
        for first, ids in list(self._awaiting.items()):
            if request_id in ids:
                ids.remove(request_id)
                if not ids:
                    del self._awaiting[first]

    def give_away(
        self, takes: Callable[[Request], bool], *, is_hung: bool = False
    ) -> list[ResumableRequest]:
        """Stop to run requests, for another engine to go on with them; return them in order.

        Requests whose readers have left stay. An engine that is still connected is told to abort
        the others; what it sends of them from now on is dropped.

        Args:
            takes: Whether another engine takes a request; others stay.
            is_hung: The engine has stopped responding, which counts as a death. What is the cause
                of it stays.
        """
        given: list[ResumableRequest] = []
        if is_hung:
            count_death(self._ran(), self._trials.spared, asyncio.get_running_loop().time())
        for name, resumable in list(self._resumables.items()):
            may_move = not resumable.is_aborted and not resumable.is_cause
            if may_move and takes(resumable.request):
                given.append(self.release(name))
        return given

    def release(self, request_id: str, *, has_ended: bool = False) -> ResumableRequest:
        """Stop to run a request; `has_ended`: its engine has sent the last chunk."""
        resumable = self._resumables.pop(request_id)
        was_held = self._is_held(request_id)
        self._let_go(request_id)
        self._trials.forget(resumable)
        if self._is_welcome and not has_ended and not was_held:
            self._send_command(wire.Abort(request_id))
            self._moved[request_id] += 1
        if self.router is not None:
            self.router.ended(self, resumable, None)
        if not self._resumables:
            self._stop_waiting()
        return resumable

    def take_over(self, resumables: Sequence[ResumableRequest], *, is_begun: bool) -> None:
        """Go on with requests of another engine; this one must accept requests.

        Args:
            resumables: From `give_away` or `release` of their clients.
            is_begun: They resume where their logs end; False: they start here, in one step.
        """
        loop = asyncio.get_running_loop()
        for resumable in resumables:
            stream, name = resumable.stream(), resumable.request.request_id
            if stream is not None:
                stream.move(self)
                resumable.stream = ref(stream, partial(self._stream_dropped, name, loop))
            self._add(resumable)
        if is_begun:
            self._start_again(resumables)
        else:
            requests = [resumable.request for resumable in resumables]
            self._send(self._codec.submit(self._peer, requests, with_ask=self._sends_asks))
            for resumable in resumables:
                self._repeat_commands(resumable)
        for resumable in resumables:
            if resumable.stream() is None:
                self.abort(resumable.request.request_id)

    def _repeat_commands(self, resumable: ResumableRequest) -> None:
        """Send what was sent for a request that starts anew, since it was submitted."""
        name = resumable.request.request_id
        if resumable.written or resumable.closed:
            self._send_command(wire.Write(name, list(resumable.written), resumable.closed))
        if resumable.paused:
            self._send_command(wire.Pause(name, True))
        if resumable.backpressured:
            self._send_command(wire.Backpressure(name, True))

    def abort(self, request_id: str) -> None:
        """End a request before the next step; nothing if it has ended."""
        resumable = self._resumables.get(request_id)
        if resumable is None:
            return
        resumable.is_aborted = True
        if self._is_welcome and not self._is_held(request_id):
            self._send_command(wire.Abort(request_id))
        else:  # no engine will respond
            self._end(resumable, aborted(request_id))

    def pause(self, request_id: str) -> None:
        """Stop a request where it is before the next step."""
        self._set_paused(request_id, True)

    def resume(self, request_id: str) -> None:
        """Resume a paused request with the next sample or token."""
        self._set_paused(request_id, False)

    def set_backpressure(self, request_id: str, backpressured: bool) -> None:
        """Turn backpressure on or off for a request."""
        if resumable := self._resumables.get(request_id):
            resumable.backpressured = backpressured
        self._send_command(wire.Backpressure(request_id, backpressured))

    def write(self, request_id: str, text_ids: Sequence[int], closed: bool) -> None:
        """Write text to a request with open input; nothing if it has ended."""
        if resumable := self._resumables.get(request_id):
            resumable.written += text_ids
            resumable.closed |= closed
        self._send_command(wire.Write(request_id, list(text_ids), closed))

    async def add(self, name: str, model: Model | None, folder: Path) -> NoReturn:
        """Refuse: the supervisor starts and ends engines, which `ReplicaRouter.add` asks for it.

        Raises:
            InvalidRequest: Always.
        """
        del model, folder
        raise InvalidRequest(
            f"model {name!r} cannot be added: start the server with --manage-models",
            param="model",
        )

    async def remove(self, name: str) -> NoReturn:
        """Refuse, as `add`. Raises InvalidRequest."""
        raise InvalidRequest(
            f"model {name!r} cannot be removed: start the server with --manage-models",
            param="model",
        )

    def _own_address(self) -> str:
        """Return where messages of an engine are received, and choose the name that it knows."""
        if isinstance(self._place, Path):
            return f"ipc://{self._place / f'{self._name}-{self.replica}-{self._num_engines}'}"
        # an engine that has lost a connection forgets the name for ever
        self._peer = f"{self._name}-{self.replica}-{self._num_engines}"
        return self._place

    def _watch(self, sockets: Sequence[Socket]) -> None:
        assert self._loop is not None
        self._monitors = [open_monitor(socket) for socket in sockets]
        for monitor in self._monitors:
            self._loop.add_reader(monitor.fileno(), self._look, monitor)
            # ZeroMQ signals a message only to who has found nothing before
            self._loop.call_soon(self._look, monitor)

    def _look(self, monitor: Socket) -> None:
        """Tell the router that a connection is lost; it disconnects at once."""
        if monitor in self._monitors and receive(monitor) and self.router is not None:
            self.router.lost(self)

    def _close(self, sockets: Sequence[Socket]) -> None:
        monitors, self._monitors = self._monitors, []
        for monitor in monitors:
            if self._loop is not None:
                self._loop.remove_reader(monitor.fileno())
        for socket, monitor in zip_longest(sockets, monitors):
            close_monitored(socket, monitor)

    def _set_paused(self, request_id: str, paused: bool) -> None:
        if resumable := self._resumables.get(request_id):
            resumable.set_paused(paused, asyncio.get_running_loop().time())
            if paused and self.router is not None:
                self.router.paused(self, resumable)
        self._send_command(wire.Pause(request_id, paused))
        self._trials.try_next()

    def _go_on(self) -> None:
        """Resubmit requests in flight, with their logs, to a new engine."""
        self._stop_waiting()
        self._start_again(list(self._resumables.values()))
        if self._resumables:
            logger.warning("resuming %d requests on the next engine", len(self._resumables))

    def _start_again(self, resumables: Sequence[ResumableRequest]) -> None:
        """Resubmit requests with their logs; those that may have killed engines in turns."""
        suspects = [one for one in resumables if is_suspect(one)]
        for resumable in resumables:
            if resumable not in suspects:
                self._resubmit(resumable)
        self._trials.hold(suspects)

    def _ran(self) -> list[ResumableRequest]:
        """Return the requests that steps of the engine ran."""
        return [
            resumable
            for name, resumable in self._resumables.items()
            if not (resumable.paused or self._is_held(name))
        ]

    def _resubmit(self, resumable: ResumableRequest) -> None:
        now_s = asyncio.get_running_loop().time()
        log = resumable.log(now_s)
        resumable.moves_s.append(now_s - resumable.submitted_s)
        frames = self._codec.submit(
            self._peer, [resumable.request], [log], with_ask=self._sends_asks
        )
        self._send(frames)
        if resumable.backpressured:
            self._send_command(wire.Backpressure(resumable.request.request_id, True))

    def _add(self, resumable: ResumableRequest) -> None:
        self._resumables[resumable.request.request_id] = resumable
        if self.router is not None:
            resumable.work = self.router.begun(self, resumable.request)

    def _stop_waiting(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    def _stream_dropped(
        self, request_id: str, loop: asyncio.AbstractEventLoop, stream: ref[Stream]
    ) -> None:
        """Abort a request whose stream was dropped; called on any thread."""

        def abort() -> None:
            resumable = self._resumables.get(request_id)
            if resumable is not None and resumable.stream is stream:
                self.abort(request_id)

        with suppress(RuntimeError):  # the loop is closed, because the process ends
            loop.call_soon_threadsafe(abort)

    def _fail(self, resumable: ResumableRequest) -> None:
        self._end(
            resumable,
            failure(resumable.request.request_id, EngineStopped("the engine has stopped")),
        )

    def _end(self, resumable: ResumableRequest, last: Chunk) -> None:
        del self._resumables[resumable.request.request_id]
        self._let_go(resumable.request.request_id)
        self._trials.forget(resumable)
        if self.router is not None:
            self.router.ended(self, resumable, last)
        resumable.deliver(last)

    def _send_command(self, command: wire.Command) -> None:
        if self._is_welcome:
            self._send(wire.encode_command(self._peer, command))

    def _send(self, frames: list[Frame]) -> None:
        if self._commands is not None:
            send(self._commands, frames)

    def _read(self) -> None:
        """Read all messages that have arrived: the descriptor signals new ones only once."""
        for _ in range(_MOST_AT_ONCE):
            if self._engine_messages is None:
                return
            frames = receive(self._engine_messages)
            if frames is None:
                return
            self._acknowledge(frames)
        if self._loop is not None:
            self._loop.call_soon(self._read)

    def _acknowledge(self, frames: Sequence[Frame]) -> None:
        try:
            message = wire.decode_engine_message(frames)
        except InvalidMessage as error:
            # the message does not say whose output it was, and no reader may wait for it forever
            logger.exception("the engine sent an invalid message")
            self._fail_all(error)
            return
        match message:
            case wire.Welcome():
                self.max_backlog, self.load = message.max_backlog, message.load
                self._is_welcome = True
                self._go_on()
                if self.router is not None:
                    self.router.welcomed(self)
            case wire.Prefixes():
                if self.router is not None:
                    self.router.published(self, message.digests)
            case wire.Figures():
                self.load = message.load
            case wire.ComputedPages():
                if (done := self._prefills.pop(message.request_id, None)) is not None:
                    done(message.path)
                else:
                    self.free_pages(message.request_id)
            case wire.WrittenPages():
                if (free := self._taken.pop(message.request_id, None)) is not None:
                    free()
                self._start_awaiting(message.request_id)
            case wire.Chunks():
                chunks = (
                    message.chunks if self.router is None else self._place_again(message.chunks)
                )
                for chunk in chunks:
                    self._give(chunk)
                self._num_acknowledged += 1
                if self._num_acknowledged == ACKNOWLEDGE_EVERY:
                    self._num_acknowledged = 0
                    self._send_command(wire.Acknowledge(ACKNOWLEDGE_EVERY))

    def _place_again(self, chunks: list[Chunk]) -> list[Chunk]:
        """Move requests that a full queue refused, or that failed, to another engine.

        Only those of whose answer nothing was sent; the chunks of the others are returned.
        """
        if self.router is None:
            return chunks
        refused = [one.request_id for one in chunks if isinstance(one.error, Overloaded)]
        moved: set[str] = set()
        for name in refused:
            resumable = self._resumables.get(name)
            if resumable is None or name in self._moved or self._has_waited(resumable):
                continue
            names = [one for one in refused if one in resumable.together and one not in self._moved]
            group = [self._resumables[one] for one in names if one in self._resumables]
            if self.router.refused(self, group):
                moved.update(names)
        for chunk in chunks:
            if not is_fault(chunk.error):
                continue
            found = self._resumables.get(chunk.request_id)
            if found is None or chunk.request_id in self._moved:
                continue
            is_new = not (found.has_output or found.is_aborted or found.refused_by)
            if is_new and self.router.failed(self, found):
                moved.add(chunk.request_id)
        return [chunk for chunk in chunks if chunk.request_id not in moved]

    def _has_waited(self, resumable: ResumableRequest) -> bool:
        """Whether a refusal ends a request: it is no longer new, or its reader has left."""
        assert self._loop is not None
        is_late = self._loop.time() - resumable.submitted_s > _REFUSED_AT_ONCE_S
        return is_late or resumable.has_output or resumable.is_aborted

    def _give(self, chunk: Chunk) -> None:
        if self._moved and chunk.request_id in self._moved:  # another engine goes on with it
            if chunk.reason is not None:
                self._moved[chunk.request_id] -= 1
                if not self._moved[chunk.request_id]:
                    del self._moved[chunk.request_id]
            return
        resumable = self._resumables.get(chunk.request_id)
        if resumable is None:
            if (prefilled := self._prefills.pop(chunk.request_id, None)) is not None:
                prefilled("")  # the engine has refused it
            elif chunk.reason is None:  # it still runs, but has no reader
                self._send_command(wire.Abort(chunk.request_id))
        else:
            if chunk.reason is not None:
                del self._resumables[chunk.request_id]
            assert self._loop is not None
            had_output = resumable.has_output
            resumable.give(chunk, self._loop.time())
            if self.router is not None and resumable.has_output and not had_output:
                self.router.has_output(self, resumable)
            if chunk.reason is not None:
                self._trials.forget(resumable)
                if self.router is not None:
                    self.router.ended(self, resumable, chunk)
            else:
                self._trials.given(resumable)

    def _fail_all(self, error: InvalidMessage) -> None:
        for request_id, resumable in list(self._resumables.items()):
            self._send_command(wire.Abort(request_id))
            self._end(resumable, failure(request_id, error))
