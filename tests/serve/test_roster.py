"""Which models a server serves while they come and go: phases, failures, restarts, shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from izwi_api.serve.control import ForgetModel, ServeModel
from izwi_api.serve.roster import Roster

FOLDER = Path("/models/b")


class Host:
    """Two engines of the start with model "a", and two API servers."""

    def __init__(self, num_shares=3, places=(0, 1)):
        self.said, self.started, self.ended, self.removed = [], [], [], []
        self.api_servers, self.runs = {"first", "second"}, True
        self.answers = []
        self.roster = Roster({"a": Path("/models/a")}, lambda _: places, num_shares, self)

    def start_beside(self, replica, name, folder, num_beside):
        self.started.append((replica, name, folder, num_beside))
        return 1 + len(self.started)

    def end_engine(self, replica):
        self.ended.append(replica)
        return self.runs

    def remove_model(self, replica, name):
        self.removed.append((replica, name))
        return self.runs

    def tell_api_servers(self, message):
        self.said.append(message)
        return set(self.api_servers)

    def load(self, name="b"):
        self.roster.load(name, FOLDER, self.answers.append)

    def unload(self, name):
        self.roster.unload(name, self.answers.append)

    def loaded(self):
        self.load()
        for number in (2, 3):
            self.roster.engine_ready(number)
        for name in sorted(self.api_servers):
            self.roster.known(name, "b")
        self.said.clear()
        self.answers.clear()
        return self


def test_a_load_is_done_when_all_engines_and_then_all_api_servers_have_the_model():
    host = Host()
    host.load()
    assert host.started == [(0, "b", FOLDER, 1), (1, "b", FOLDER, 1)]
    host.roster.engine_ready(2)
    assert not host.said
    assert "b" not in host.roster.served
    host.roster.engine_ready(3)
    assert host.said == [ServeModel("b", FOLDER, (2, 3))]
    host.roster.known("first", "b")
    assert not host.answers
    host.roster.known("second", "b")
    assert host.answers == [""]
    assert host.roster.models_of(2) == ["b"]
    assert host.roster.models_of(0) == ["a"]


def test_a_model_of_one_place_starts_one_engine():
    host = Host(places=(1,))
    host.load()
    assert [place for place, *_ in host.started] == [1]


def test_an_engine_that_cannot_load_ends_the_load_and_the_other_engines():
    host = Host()
    host.load()
    host.roster.engine_ready(3)
    host.roster.engine_failed(2, "there is no room")
    assert (host.answers, sorted(host.ended), host.said) == (["there is no room"], [2, 3], [])
    assert list(host.roster.served) == ["a"]
    assert not host.roster.is_loading(3)
    host.load()  # again
    assert len(host.started) == 4


def test_shares_of_the_memory_limit_the_models():
    host = Host(num_shares=2).loaded()
    host.load("c")
    assert host.answers == ["2 models share the memory already: unload one first"]
    host.unload("b")
    for name in ("first", "second"):
        host.roster.known(name, "b")
    for number in (2, 3):
        host.roster.engine_ended(number)
    host.load("c")
    assert [name for _, name, *_ in host.started[2:]] == ["c", "c"]


def test_an_unload_ends_engines_after_all_api_servers_have_finished():
    host = Host().loaded()
    host.unload("b")
    host.unload("b")  # one who asks for the same
    assert host.said == [ForgetModel("b")]
    assert "b" not in host.roster.served
    host.load("b")
    assert "already being" in host.answers.pop()
    host.roster.known("first", "b")
    assert not host.ended
    assert not host.answers
    host.roster.known("second", "b")
    assert (sorted(host.ended), host.answers) == ([2, 3], [])
    host.roster.engine_ended(2)
    assert not host.answers
    host.roster.engine_ended(3)
    assert host.answers == ["", ""]


def test_a_model_of_the_start_leaves_its_engines_and_they_stay():
    host = Host()
    host.unload("a")
    host.roster.api_server_gone("first")
    host.roster.known("second", "a")
    assert host.removed == [(0, "a"), (1, "a")]
    assert not host.ended
    assert host.roster.models_of(0) == []  # also not of the engine that replaces this one
    host.roster.model_removed(0, "a")
    assert not host.answers
    host.roster.engine_ended(1)
    assert host.answers == [""]


def test_without_a_process_there_is_nothing_to_wait_for():
    host = Host()
    host.runs, host.api_servers = False, set()
    host.unload("a")
    assert host.answers == [""]


@pytest.mark.parametrize("name", ["b", "nobody"])
def test_what_is_not_served_is_not_unloaded(name):
    host = Host()
    if name == "b":
        host.load()
    host.unload(name)
    assert host.answers == [f"no model {name!r} is served"]


def test_an_api_server_that_starts_late_is_told_what_it_lacks():
    host = Host().loaded()
    old = {"a": Path("/models/a")}
    serve = ServeModel("b", FOLDER, (2, 3))
    assert host.roster.news_for(old) == [serve]
    assert host.roster.news_for(dict(host.roster.served)) == [serve]  # where its engines are
    host.unload("b")
    assert host.roster.news_for(old | {"b": FOLDER}) == [ForgetModel("b")]


def test_an_adapter_is_loaded_by_api_servers_alone(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    host = Host(num_shares=1)
    host.roster.load("a:poet", tmp_path, host.answers.append)
    assert not host.started
    assert host.said == [ServeModel("a:poet", tmp_path, ())]
    assert not host.answers
    for name in ("first", "second"):
        host.roster.known(name, "a:poet")
    assert host.answers == [""]
    assert host.roster.served["a:poet"] == tmp_path
    assert host.roster.models_of(0) == ["a"]
    assert host.roster.news_for({"a": Path("/models/a")}) == [ServeModel("a:poet", tmp_path, ())]
    host.unload("a:poet")
    assert host.said[1:] == [ForgetModel("a:poet")]
    for name in ("first", "second"):
        host.roster.known(name, "a:poet")
    assert host.answers == ["", ""]
    assert (host.removed, host.ended) == ([], [])
    assert list(host.roster.served) == ["a"]


def test_adapters_of_the_start_are_served_without_engines_of_their_own():
    host = Host()
    adapters = {"a:poet": Path("/adapters/poet")}
    roster = Roster({"a": Path("/models/a")}, lambda _: (0, 1), 3, host, adapters)
    assert list(roster.served) == ["a", "a:poet"]
    assert roster.models_of(0) == ["a"]
    assert roster.engines_of("a:poet") == ()
