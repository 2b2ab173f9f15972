"""Whatever a schema multiplies, to find out whether it can be used takes bounded processor time."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from izwi.errors import InvalidRequest, Overloaded
from izwi.inputs.chat import ChatInput
from izwi.inputs.grammar import Grammar, answer_grammar
from izwi.sandbox import grammar_check
from izwi.sandbox.grammar_check import GrammarCheck
from tests.api.conftest import wait_for

# Its limits are 0.2 and 1 s; starting its processes takes 0.5 to 1.2 s. Without limits
# these schemas take minutes.
CPU_BOUND_S = 4.0


def grammar_of(schema, **more):
    ask = ChatInput((), response_schema=json.dumps(schema), grammar_param="the_field", **more)
    return answer_grammar(ask)


def patterns(count):
    """Strings that contain each of so many texts: llguidance intersects automata."""
    texts = [a + b for a in "abcdefghijkl" for b in "abcdefghijkl"][:count]
    return {"allOf": [{"type": "string", "pattern": f".*{text}.*"} for text in texts]}


def multiples(count):
    """Multiples of many numbers: as many states as their least common multiple."""
    primes = [2, 3, 5, 7, 11, 13, 17, 19, 23]
    return {"allOf": [{"type": "integer", "multipleOf": prime} for prime in primes[:count]]}


def product(factors, choices):
    """An intersection of alternatives: their product."""

    def choice(factor, place):
        name = f"p{factor}_{place}"
        return {"type": "object", "properties": {name: {"const": place}}, "required": [name]}

    rows = [[choice(factor, place) for place in range(choices)] for factor in range(factors)]
    return {"allOf": [{"anyOf": row} for row in rows]}


def doubling(keyword, levels):
    """References that each name the next one twice."""
    definitions = {"d0": {"type": "string", "pattern": "^a*b$"}}
    for level in range(1, levels + 1):
        twice = [{"$ref": f"#/$defs/d{level - 1}"}] * 2
        definitions[f"d{level}"] = (
            {"type": "array", "prefixItems": twice, "minItems": 2}
            if keyword == "prefixItems"
            else {keyword: twice}
        )
    return {"$ref": f"#/$defs/d{levels}", "$defs": definitions}


def repetition(text, counts):
    """Counted repetitions of counted repetitions."""
    for count in counts:
        text = f"({text}){{{count}}}"
    return {"type": "string", "pattern": f"^{text}$"}


LEAVES = st.one_of(
    st.builds(patterns, st.integers(1, 30)),
    st.builds(multiples, st.integers(1, 9)),
    st.builds(product, st.integers(1, 8), st.integers(1, 12)),
    st.builds(doubling, st.sampled_from(["allOf", "anyOf", "prefixItems"]), st.integers(1, 40)),
    st.builds(
        repetition,
        st.sampled_from(["a", "a|b", ".", "\\\\p{L}", "a?"]),
        st.lists(st.integers(1, 1000), min_size=1, max_size=4),
    ),
    st.builds(lambda n: {"type": "array", "minItems": n, "items": {}}, st.integers(0, 10**9)),
    st.builds(lambda n: {"type": "string", "minLength": n}, st.integers(0, 10**9)),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(
            lambda word, parts: {word: parts},
            st.sampled_from(["allOf", "anyOf", "oneOf"]),
            st.lists(inner, min_size=1, max_size=3),
        ),
        st.builds(lambda part: {"not": part}, inner),
        st.builds(lambda part: {"type": "array", "items": part}, inner),
        st.builds(lambda part: {"type": "object", "additionalProperties": part}, inner),
    ),
    max_leaves=3,
)


@pytest.fixture(scope="module")
def check():
    made = GrammarCheck()
    made.start()
    yield made
    made.stop()


def processes(check):
    return [*check._quick.pool.processes, *check._slow.pool.processes]


def cpu_s(check):
    """Processor time of the processes of a check, those that have ended included."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = 0
    for process in processes(check):
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ended.ru_utime + ended.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def message_for(check, schema):
    """Return the refusal of a schema, empty if it can be used."""
    refused = None
    try:
        checked = asyncio.run(check.check(grammar_of(schema)))
    except InvalidRequest as error:
        refused = error
    if refused is None:
        assert checked.is_checked
        return ""
    assert refused.param == "the_field"
    assert len(str(refused)) < 600
    return str(refused)


def check_bound(check, schema):
    before_s = cpu_s(check)
    message_for(check, schema)
    # a process that was started meanwhile is part of it
    assert cpu_s(check) - before_s < CPU_BOUND_S


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


@needs_proc
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@example(schema=patterns(16))
@example(schema=multiples(9))
@example(schema=product(3, 20))
@example(schema={"anyOf": [doubling("anyOf", 40), {"not": patterns(20)}]})
@given(schema=SCHEMAS)
def test_cost_of_multiplying_schemas_is_bounded(check, schema):
    check_bound(check, schema)


@needs_proc
@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=SCHEMAS)
def test_what_multiplies_is_bounded_at_length(check, schema):
    check_bound(check, schema)


ORDINARY = {
    "type": "object",
    "properties": {f"f{n}": {"type": "string"} for n in range(5)},
    "required": ["f0"],
}


@pytest.mark.parametrize("schema", [patterns(18), multiples(8)])
def test_slow_schema_is_refused_once_and_remembered(check, schema):
    message = message_for(check, schema)
    assert "the JSON schema is too expensive" in message
    assert "1 s of processor time" in message
    known = {process.pid for process in processes(check)}
    num_jobs = sum(process._num_jobs for process in processes(check))
    assert message_for(check, schema) == message
    assert {process.pid for process in processes(check)} == known
    assert sum(process._num_jobs for process in processes(check)) == num_jobs
    assert message_for(check, ORDINARY) == ""


@needs_proc
def test_what_takes_too_much_memory_is_refused(monkeypatch):
    monkeypatch.setattr(grammar_check, "MEMORY_BYTES", 16 << 20)
    check = GrammarCheck()
    with pytest.raises(InvalidRequest, match="or more than 16 MB") as refused:
        check.check_now(grammar_of(patterns(12)))
    assert refused.value.__cause__ is None, "it is remembered"
    check.stop()


def test_a_machine_that_is_too_slow_is_not_the_fault_of_a_grammar(monkeypatch):
    monkeypatch.setattr(grammar_check, "TIME_LIMIT_S", 0.01)
    check = GrammarCheck()
    with pytest.raises(Overloaded):
        check.check_now(grammar_of(patterns(23)))
    monkeypatch.undo()
    with pytest.raises(InvalidRequest, match="too expensive"):
        check.check_now(grammar_of(patterns(23)))
    assert message_for(check, {"type": "integer"}) == ""
    check.stop()


async def test_an_ordinary_schema_waits_for_none_that_takes_long(check):
    hostile = asyncio.create_task(check.check(grammar_of(patterns(20))))
    await asyncio.to_thread(wait_for, lambda: check._slow.pool._busy)
    (stuck,) = check._slow.pool._busy
    os.kill(stuck.pid, signal.SIGSTOP)
    try:
        ordinary = await check.check(grammar_of(ORDINARY | {"title": "another"}))
        assert ordinary.is_checked
        assert not ordinary.is_slow
        assert not hostile.done()
    finally:
        os.kill(stuck.pid, signal.SIGCONT)
    with pytest.raises(InvalidRequest, match="too expensive"):
        await hostile


async def test_a_caller_that_leaves_ends_its_compilation(check):
    schema = patterns(21)
    leaving = asyncio.create_task(check.check(grammar_of(schema)))
    await asyncio.to_thread(wait_for, lambda: check._slow.pool._busy)
    (process,) = check._slow.pool._busy
    leaving.cancel()
    await asyncio.to_thread(wait_for, lambda: process not in processes(check))
    # it ends after it has left the pool
    await asyncio.to_thread(wait_for, lambda: not Path(f"/proc/{process.pid}").exists())
    assert check._look_up(grammar_of(schema)) is None, "nobody knows yet whether it can be used"


async def test_a_schema_that_comes_many_times_at_once_is_compiled_once(check, monkeypatch):
    compiled = []
    run = check._quick.run

    async def count(*job):
        compiled.append(job)
        return await run(*job)

    monkeypatch.setattr(check._quick, "run", count)
    grammar = grammar_of({"const": "many times"})
    first, *others = [asyncio.create_task(check.check(grammar)) for _ in range(8)]
    await asyncio.sleep(0)
    first.cancel()  # the next one takes its turn
    assert all([(await other).is_checked for other in others])
    assert len(compiled) == 2


async def test_the_queue_has_an_end(check, monkeypatch):
    monkeypatch.setattr(check._quick, "_max_jobs", 0)
    with pytest.raises(Overloaded, match="too many grammars"):
        await check.check(grammar_of({"const": "never seen"}))
    assert (await check.check(grammar_of(ORDINARY))).is_checked, "it is known"


async def test_a_grammar_whose_first_mask_takes_long_is_slow(check, monkeypatch):
    """The engine computes that mask on the thread on which it compiles, too."""
    monkeypatch.setattr(grammar_check, "QUICK_CPU_S", 0.05)
    assert (await check.check(grammar_of(repetition("a", [90, 90, 90])))).is_slow
    assert not (await check.check(grammar_of({"const": "quick"}))).is_slow


def test_a_process_that_ended_while_idle_costs_nothing(check):
    assert message_for(check, {"const": "one more"}) == ""
    idle = check._quick.pool.processes
    for process in idle:
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert message_for(check, {"const": "and another"}) == ""
    assert not {*check._quick.pool.processes} & {*idle}


def test_tools_are_compiled_together(check):
    """Each of them may be within the limit that they exceed together."""
    rules = "".join(
        f"a{n}: %json {json.dumps(product(3, 14) | {'title': str(n)})}\n" for n in range(12)
    )
    names = " | ".join(f"a{n}" for n in range(12))
    whole = Grammar(f"start: {names}\n{rules}", param="tools")
    with pytest.raises(InvalidRequest) as refused:
        asyncio.run(check.check(whole))
    assert refused.value.param == "tools"


def test_a_known_grammar_needs_no_event_loop(check):
    with pytest.raises(InvalidRequest, match="too expensive"):
        check.check_now(grammar_of(patterns(22)))
    assert check.check_now(grammar_of({"const": 5})).is_checked


def test_half_a_surrogate_pair_is_refused(check):
    with pytest.raises(InvalidRequest, match="cannot be read"):
        check.check_now(Grammar("start: /\ud83d/", source="regex"))
