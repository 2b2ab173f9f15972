"""Requests are placed by what is known of each engine, and counted while they run."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from izwi.cache.radix import page_chain
from izwi.errors import InvalidRequest, Overloaded
from izwi.router.options import RouterOptions
from izwi.router.placement import Placement, ReplicaLoad
from izwi.router.prefixes import KnownPrefixes, prompt_chain
from izwi.router.work import WorkPredictor
from tests.engine.toy import ToyPrompt, toy_request

PAGE = 4


def asked(name, ids=(1, 2), **fields):
    return replace(toy_request(name, 2, 1, 40), prompt=ToyPrompt(tuple(ids)), **fields)


def placement(num_replicas=2, **options):
    loads = [ReplicaLoad(number, accepts=True) for number in range(num_replicas)]
    return Placement(RouterOptions(page_size=PAGE, **options), loads)


def place(made, request, **rest):
    replica = made.choose([request], **rest)
    return replica, made.place_request(replica, request)


def test_a_conversation_stays_where_its_first_turn_ran():
    made = placement(3)
    history = list(range(1, 17))
    first, _ = place(made, asked("a", history))
    place(made, asked("b", range(40, 60)))
    place(made, asked("c", range(60, 80)))
    assert place(made, asked("d", [*history, 30, 31, 32, 33]))[0] == first
    assert place(made, asked("e", [9, *history]))[0] != first  # not a prefix


def test_a_published_prefix_attracts_requests_until_it_is_gone():
    made = placement(2)
    keys = list(range(8))
    made.place_request(0, asked("short", range(50, 60)))
    made.place_request(
        1, asked("long", range(50, 80))
    )  # without a prefix the first engine is better
    made.loads[1].prefixes.publish({"toy": page_chain(keys, PAGE)})
    assert made.choose([asked("a", keys)]) == 1
    assert made.choose([asked("b", keys, model="other")]) == 0
    made.loads[1].prefixes.publish({"toy": []})
    assert made.choose([asked("c", keys)]) == 0


def test_an_engine_that_died_has_no_prefixes():
    made = placement(2)
    keys = list(range(8))
    first, work = place(made, asked("a", keys))
    made.end(first, work)
    made.loads[first].prefixes.clear()
    made.place_request(first, asked("b", range(20, 30)))
    assert made.choose([asked("c", keys)]) != first


def test_prompts_that_are_not_kept_attract_nothing():
    made = placement(2)
    keys = list(range(8))
    first, _ = place(made, asked("a", keys, cacheable=False))
    made.place_request(first, asked("b", range(20, 30)))
    assert made.choose([asked("c", keys)]) != first


def test_requests_of_one_listener_go_to_one_engine_while_it_accepts():
    made = placement(2, policy="round_robin")
    replicas = [place(made, asked(f"a{n}", listener="ann"))[0] for n in range(3)]
    assert len(set(replicas)) == 1
    assert place(made, asked("b", listener="ben"))[0] != replicas[0]
    made.loads[replicas[0]].accepts = False
    moved, _ = place(made, asked("c", listener="ann"))
    assert moved != replicas[0]
    made.loads[replicas[0]].accepts = True
    assert place(made, asked("d", listener="ann"))[0] == moved


def test_work_spreads_and_is_forgotten_when_it_ends():
    made = placement(2, policy="least_load")
    placed = [place(made, asked(f"a{n}")) for n in range(6)]
    assert sorted(replica for replica, _ in placed) == [0, 0, 0, 1, 1, 1]
    for replica, work in placed:
        made.end(replica, work)
    assert [(load.num_in_flight, load.work) for load in made.loads] == [(0, 0.0)] * 2


def test_requests_of_other_processes_count():
    made = placement(2, policy="least_load")
    made.loads[0].figures = {"toy": {"running": 3.0, "waiting": 1.0}, "chat": {"paused": 1.0}}
    assert made.loads[0].num_elsewhere == 5
    assert made.choose([asked("a")]) == 1
    made.place_request(0, asked("b"))
    assert made.loads[0].num_elsewhere == 4  # one of them is this process's own


@pytest.mark.parametrize("policy", ["prefix", "least_load", "round_robin", "random", "fcfs"])
def test_limits_hold_under_every_policy(policy):
    made = placement(2, policy=policy, max_in_flight=5, max_in_flight_each=3)
    placed = [place(made, asked(f"a{n}")) for n in range(5)]
    assert max(load.num_in_flight for load in made.loads) == 3
    with pytest.raises(Overloaded, match="5 requests are in flight"):
        made.choose([asked("b")])
    assert made.choose([asked("c", continues=True)]) in (0, 1)  # an answer is not cut off
    made.end(*placed[0])
    place(made, asked("d"))
    with pytest.raises(Overloaded):
        made.choose([asked("e")])


def test_a_full_engine_is_passed_over_and_all_full_ones_refuse():
    made = placement(2, max_in_flight_each=1)
    keys = list(range(8))
    first, _ = place(made, asked("a", keys))
    second, _ = place(made, asked("b", keys))
    assert {first, second} == {0, 1}
    with pytest.raises(Overloaded, match="every replica has 1"):
        made.choose([asked("c", keys)])


@pytest.mark.parametrize("limit", ["max_in_flight", "max_in_flight_each"])
def test_requests_that_start_together_run_alone_if_they_are_more_than_the_limit(limit):
    made = placement(1, **{limit: 2})
    pieces = [asked(f"a{n}") for n in range(3)]
    assert made.choose(pieces) == 0  # else no wait would ever let them in
    work = made.place_request(0, asked("b"))
    with pytest.raises(Overloaded):
        made.choose(pieces)
    made.end(0, work)
    assert made.choose(pieces) == 0


def test_engines_that_refused_or_do_not_accept_are_left_out():
    made = placement(3, policy="round_robin")
    made.loads[1].accepts = False
    assert {place(made, asked(f"a{n}"))[0] for n in range(6)} == {0, 2}
    assert made.choose([asked("b")], without=frozenset({0})) == 2


def test_requests_go_to_engines_that_serve_their_model():
    made = placement(3, policy="round_robin")
    made.loads[0].models = frozenset({"other"})
    made.loads[1].models = frozenset({"other", "toy"})  # those of the last are not known yet
    assert {place(made, asked(f"a{n}"))[0] for n in range(6)} == {1, 2}
    made.loads[2].models = frozenset({"other"})
    assert [load.replica for load in made.takes([asked("b")])] == [1]
    assert made.takes([asked("c", model="none")]) == []


def test_an_unknown_policy_or_a_negative_limit_is_refused():
    with pytest.raises(InvalidRequest, match="prefix, least_load, round_robin, random, fcfs"):
        RouterOptions(policy="nearest")
    with pytest.raises(InvalidRequest, match="max_in_flight_each"):
        RouterOptions(max_in_flight_each=-1)


def test_remembered_digests_are_bounded_and_the_oldest_go(monkeypatch):
    monkeypatch.setattr("izwi.router.prefixes._MOST_PLACED", 3)
    known = KnownPrefixes()
    known.place("toy", [1, 2, 3])
    known.place("toy", [1, 4])
    assert [known.has("toy", digest) for digest in (1, 2, 3, 4)] == [True, False, True, True]


def test_only_whole_pages_are_looked_up_and_only_the_first_ones(monkeypatch):
    request = asked("a", range(11))
    assert prompt_chain(request, PAGE) == page_chain(list(range(11)), PAGE)
    monkeypatch.setattr("izwi.router.prefixes._MOST_PAGES", 1)
    assert prompt_chain(request, PAGE) == page_chain(list(range(4)), PAGE)


def test_predicted_work_follows_the_answers_of_the_same_model():
    predictor = WorkPredictor()
    before = predictor.predict(asked("a"))
    for _ in range(50):
        predictor.learn("toy", 2)
        predictor.learn("other", 4000)
    short = predictor.predict(asked("a"))
    assert short < before
    assert predictor.predict(asked("b", range(10))) == short + 8
    assert predictor.predict(asked("c", max_entries=1)) < short
