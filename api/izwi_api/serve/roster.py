"""Which models a server serves while they come and go, and on which engines. Knows no process.

A load is: engines of the model's own start, one beside each engine that its place names; then all
API servers read its configuration; then the load is done. An unload is the same backwards: API
servers forget the model, and finish what runs; then its engines end, or free its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from izwi.checkpoints.adapter_folder import is_adapter
from izwi_api.serve.control import ForgetModel, Message, ServeModel

# Called when a change has ended, with why it failed; "" if it did not.
Answer = Callable[[str], None]


class EngineHost(Protocol):
    """Starts and ends engines, and talks to API servers: the supervisor."""

    def start_beside(self, replica: int, name: str, folder: Path, num_beside: int) -> int:
        """Start an engine with one model on the device of another one; return its number."""
        ...

    def end_engine(self, replica: int) -> bool:
        """End an engine that was started beside another one, for good; False if none runs."""
        ...

    def remove_model(self, replica: int, name: str) -> bool:
        """Let an engine free a model; False if it does not run, so that the next one lacks it."""
        ...

    def tell_api_servers(self, message: Message) -> set[str]:
        """Send a message to all API servers that are ready; return their names."""
        ...


@dataclass(slots=True)
class _Change:
    """A load or an unload that has not ended.

    Attributes:
        folder: Of the model to be loaded; None: it is unloaded.
        engines: Those that start, or that free the model.
        api_servers: Those that have not followed yet.
    """

    folder: Path | None
    answers: list[Answer]
    engines: set[int] = field(default_factory=set)
    api_servers: set[str] = field(default_factory=set)


class Roster:
    """The models of a server.

    Args:
        models: Those of the start, by name.
        places: Numbers of the first engines that serve a model, by its name.
        num_shares: Models that share the memory of each of the first engines.
        host: Starts and ends engines.
        adapters: Adapters of the start by name, which the engines of their models run.

    Attributes:
        served: Folders of the models that API servers serve, by name.
    """

    def __init__(
        self,
        models: Mapping[str, Path],
        places: Callable[[str], Sequence[int]],
        num_shares: int,
        host: EngineHost,
        adapters: Mapping[str, Path] | None = None,
    ):
        self.served = {**models, **(adapters or {})}
        self._places, self._num_shares, self._host = places, num_shares, host
        # name -> engine of the start -> the engine that runs it: itself, or one of its own
        self._engines: dict[str, dict[int, int]] = {
            name: {number: number for number in places(name)} for name in models
        } | {name: {} for name in adapters or {}}
        self._first = frozenset(models)
        self._changes: dict[str, _Change] = {}

    def engines_of(self, name: str) -> tuple[int, ...]:
        """Return the engines that run a model."""
        return tuple(self._engines.get(name, {}).values())

    def models_of(self, replica: int) -> list[str]:
        """Return the models that an engine runs."""
        return [name for name in self._engines if replica in self.engines_of(name)]

    def load(self, name: str, folder: Path, answer: Answer) -> None:
        """Serve another model."""
        if name in self._changes:
            answer(f"model {name!r} is already being loaded or unloaded")
            return
        if name in self.served:
            answer("")
            return
        places = () if is_adapter(folder) else self._places(name)
        beside = {place: self._num_on(place) for place in places}
        if any(count >= self._num_shares for count in beside.values()):
            answer(f"{self._num_shares} models share the memory already: unload one first")
            return
        change = self._changes[name] = _Change(folder, [answer])
        self._engines.setdefault(name, {})
        for place, count in beside.items():
            number = self._host.start_beside(place, name, folder, count)
            self._engines[name][place] = number
            change.engines.add(number)
        if not change.engines:  # an adapter waits for none
            self._go_on(name)

    def unload(self, name: str, answer: Answer) -> None:
        """Serve a model no more; those that ask for the same are answered together."""
        change = self._changes.get(name)
        if change is not None and change.folder is None:
            change.answers.append(answer)
            return
        if change is not None or name not in self.served:
            answer(f"no model {name!r} is served")
            return
        del self.served[name]
        change = self._changes[name] = _Change(None, [answer])
        change.api_servers = self._host.tell_api_servers(ForgetModel(name))
        self._go_on(name)

    def engine_ready(self, replica: int) -> None:
        """Note that an engine is ready."""
        for name, change in list(self._changes.items()):
            if change.folder is not None and replica in change.engines:
                change.engines.discard(replica)
                self._go_on(name)

    def is_loading(self, replica: int) -> bool:
        """Whether an engine loads a model that is not served yet."""
        return any(
            change.folder is not None and replica in change.engines
            for change in self._changes.values()
        )

    def engine_failed(self, replica: int, error: str) -> None:
        """End a load, of which an engine has ended before it was ready."""
        for name, change in list(self._changes.items()):
            if change.folder is None or replica not in change.engines:
                continue
            del self._changes[name]
            numbers = self._engines.pop(name).values()
            for number in numbers:
                self._host.end_engine(number)
            _answer(change, error)

    def model_removed(self, replica: int, name: str) -> None:
        """Note that an engine has freed a model, or has ended."""
        change = self._changes.get(name)
        if change is not None and change.folder is None and replica in change.engines:
            change.engines.discard(replica)
            self._end_if_done(name)

    def engine_ended(self, replica: int) -> None:
        """Note that an engine has ended; the next one has none of the models that leave."""
        for name in list(self._changes):
            self.model_removed(replica, name)

    def known(self, api_server: str, name: str) -> None:
        """Note that an API server has followed a change of a model, or is gone."""
        change = self._changes.get(name)
        if change is not None and api_server in change.api_servers:
            change.api_servers.discard(api_server)
            self._go_on(name)

    def api_server_gone(self, api_server: str) -> None:
        """Wait for an API server no longer."""
        for name in list(self._changes):
            self.known(api_server, name)

    def news_for(self, known: Mapping[str, Path]) -> list[Message]:
        """Return what an API server must be told that was started with these models."""
        news: list[Message] = [
            ServeModel(name, folder, self.engines_of(name))
            for name, folder in self.served.items()
            if name not in known or name not in self._first
        ]
        return news + [ForgetModel(name) for name in known if name not in self.served]

    def _num_on(self, place: int) -> int:
        """Return how many models share the memory of one of the first engines, and beside it."""
        return sum(place in engines for engines in self._engines.values())

    def _go_on(self, name: str) -> None:
        """Begin the next phase of a change, if the present one has ended."""
        change = self._changes[name]
        if change.engines or change.api_servers:
            return
        if change.folder is None:
            self._free(name, change)
        elif name in self.served:
            self._end(name)
        else:
            self.served[name] = change.folder
            message = ServeModel(name, change.folder, self.engines_of(name))
            change.api_servers = self._host.tell_api_servers(message)
            if not change.api_servers:
                self._end(name)

    def _free(self, name: str, change: _Change) -> None:
        for place, number in self._engines.pop(name).items():
            if number != place:
                is_running = self._host.end_engine(number)
            else:
                is_running = self._host.remove_model(number, name)
            if is_running:
                change.engines.add(number)
        self._end_if_done(name)

    def _end_if_done(self, name: str) -> None:
        change = self._changes[name]
        if not change.engines and not change.api_servers and name not in self._engines:
            self._end(name)

    def _end(self, name: str) -> None:
        _answer(self._changes.pop(name), "")


def _answer(change: _Change, error: str) -> None:
    for answer in change.answers:
        answer(error)
