"""Files and batches through OpenAI's own client, faults in their lines, and other keys."""

from __future__ import annotations

import base64
import errno
import io
import json
import os
import time
from types import SimpleNamespace

import httpx
import openai
import pytest

from izwi.errors import IzwiError
from izwi_api.batches import runner as runner_module
from izwi_api.batches.lines import check_lines
from izwi_api.batches.results import Begun, Lease, ResultFile
from izwi_api.batches.store import AudioFile, Batch, BatchStore, Page, audio_file_id
from izwi_api.serve.app import create_app
from izwi_api.settings import Access, Settings
from izwi_api.usage.keys import add_key
from izwi_api.usage.limits import KeyLimits
from tests.api.conftest import (
    FakeChat,
    FakeEngine,
    FakeRegistry,
    FakeSpeech,
    FakeTranscription,
    listening,
    wait_for,
)

CHAT, SPEECH = "/v1/chat/completions", "/v1/audio/speech"
TRANSCRIPTIONS, RESPONSES = "/v1/audio/transcriptions", "/v1/responses"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    keys = home / "keys.toml"
    secrets = {name: add_key(keys, name, KeyLimits()) for name in ("ann", "bob")}
    secrets["poor"] = add_key(keys, "poor", KeyLimits(characters_per_day=10))
    log = home / "audit.jsonl"
    settings = Settings(
        home=home,
        batches=True,
        max_json_bytes=100_000,
        max_batch_file_bytes=1 << 20,
        access=Access(api_keys_file=keys, audit_log=log),
    )
    engine = FakeEngine()
    models = {"tts": FakeSpeech(), "asr": FakeTranscription(), "chat": FakeChat()}
    app = create_app(engine, FakeRegistry(**models), settings)
    with listening(app) as port:
        yield SimpleNamespace(
            url=f"http://127.0.0.1:{port}/v1",
            engine=engine,
            log=log,
            keys=secrets,
            keys_file=keys,
        )


@pytest.fixture
def ann(place):
    with openai.OpenAI(base_url=place.url, api_key=place.keys["ann"], max_retries=0) as client:
        yield client


@pytest.fixture
def bob(place):
    with openai.OpenAI(base_url=place.url, api_key=place.keys["bob"], max_retries=0) as client:
        yield client


def line(custom_id: str, endpoint: str, **body: object) -> dict[str, object]:
    return {"custom_id": custom_id, "method": "POST", "url": endpoint, "body": body}


def said(custom_id: str, text: str = "hello", **more: object) -> dict[str, object]:
    body = {"model": "tts", "voice": "Ann", "input": text, "response_format": "wav"} | more
    return line(custom_id, SPEECH, **body)


def stored(client, lines, name="in.jsonl"):
    content = lines if isinstance(lines, bytes) else b"\n".join(map(to_json, lines))
    return client.files.create(file=(name, content), purpose="batch")


def to_json(one):
    return json.dumps(one).encode()


def ended(client, lines, endpoint):
    batch = client.batches.create(
        input_file_id=stored(client, lines).id, endpoint=endpoint, completion_window="24h"
    )
    wait_for(lambda: client.batches.retrieve(batch.id).status in ENDED)
    return client.batches.retrieve(batch.id)


ENDED = ("completed", "failed", "cancelled", "expired")


def results(client, file_id):
    lines = client.files.content(file_id).read().splitlines()
    return {one["custom_id"]: one for one in map(json.loads, lines)}


def test_files_as_openai_has_them(ann) -> None:
    made = ann.files.create(
        file=("../../etc/a name", io.BytesIO(b"some audio")),
        purpose="user_data",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert (made.bytes, made.filename, made.object) == (10, "../../etc/a name", "file")
    assert made.expires_at == made.created_at + 3600
    other = stored(ann, b"{}")
    assert ann.files.retrieve(made.id) == made
    assert [file.id for file in ann.files.list(limit=1)] == [other.id, made.id]  # page by page
    assert [file.id for file in ann.files.list(purpose="user_data", order="asc")] == [made.id]
    assert ann.files.content(made.id).read() == b"some audio"
    for one in (made, other):
        assert ann.files.delete(one.id).deleted
    with pytest.raises(openai.NotFoundError):
        ann.files.retrieve(made.id)


def test_speech_and_its_faults(ann, place) -> None:
    lines = [said("a"), said("b", "more words", voice="Bob"), said("c", ""), said("d", voice="no")]
    batch = ended(ann, lines, SPEECH)
    assert batch.status == "completed"
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (4, 2, 2)
    good, bad = results(ann, batch.output_file_id), results(ann, batch.error_file_id)
    assert good.keys() == {"a", "b"}
    body = good["a"]["response"]["body"]
    assert body["content_type"] == "audio/wav"
    alone = ann.audio.speech.create(model="tts", voice="Ann", input="hello", response_format="wav")
    assert len(base64.b64decode(body["data"])) == len(alone.read())
    statuses = {name: one["response"]["status_code"] for name, one in bad.items()}
    assert statuses == {"c": 400, "d": 404}
    assert bad["d"]["response"]["body"]["error"]["code"] == "voice_not_found"

    # each line is a call of its owner in the audit log
    def audited() -> int:
        calls = [json.loads(one) for one in place.log.read_text().splitlines()]
        return sum(one["route"] == SPEECH and one["key"] == "ann" for one in calls)

    wait_for(lambda: audited() == 5)
    assert ann.batches.list(limit=1).data[0].id == batch.id


def test_audio_as_files(ann, bob) -> None:
    file = stored(ann, [said("a/../b"), said("bad", ""), said("c", response_format="mp3")])
    batch = ann.batches.create(
        input_file_id=file.id,
        endpoint=SPEECH,
        completion_window="24h",
        extra_body={"audio_output": "files"},
    )
    wait_for(lambda: ann.batches.retrieve(batch.id).status == "completed")
    good = results(ann, ann.batches.retrieve(batch.id).output_file_id)
    body = good["a/../b"]["response"]["body"]
    assert (body["object"], body["content_type"]) == ("audio", "audio/wav")
    made = ann.files.retrieve(body["file_id"])
    assert (made.filename, made.purpose) == ("a/../b.wav", "batch_output")
    alone = ann.audio.speech.create(model="tts", voice="Ann", input="hello", response_format="wav")
    content = ann.files.content(made.id).read()
    assert (content[:4], len(content), made.bytes) == (b"RIFF", len(alone.read()), len(content))
    assert ann.files.retrieve(good["c"]["response"]["body"]["file_id"]).filename == "c.mp3"
    with pytest.raises(openai.NotFoundError):
        bob.files.content(made.id)
    ann.files.delete(made.id)


def test_a_second_run_of_a_line_replaces_its_audio(tmp_path) -> None:
    store = BatchStore(tmp_path)
    assert store.files("ann", Page(None, 10), None) == ([], False)
    name = audio_file_id("batch_1", 3)
    assert name != audio_file_id("batch_1", 4)
    for content in (b"a part", b"all of it"):
        store.put_audio("ann", AudioFile(name, "a.wav", content))
    files, _ = store.files("ann", Page(None, 10), None)
    assert [(file.id, file.bytes) for file in files] == [(name, 9)]
    assert [path.read_bytes() for path in (tmp_path / "files").iterdir()] == [b"all of it"]


def test_a_line_waits_for_the_quota_of_its_key(ann, place, monkeypatch) -> None:
    monkeypatch.setattr(runner_module, "_FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(runner_module, "_MAX_WAIT_S", 0.02)
    keys = place.keys_file
    with openai.OpenAI(base_url=place.url, api_key=place.keys["poor"], max_retries=0) as poor:
        file = stored(poor, [said(f"{n}") for n in range(4)])  # of five characters each
        body = {"input_file_id": file.id, "endpoint": SPEECH, "completion_window": "24h"}
        batch = poor.batches.create(**body)
        wait_for(lambda: poor.batches.retrieve(batch.id).request_counts.completed == 2)
        with pytest.raises(openai.RateLimitError):
            poor.audio.speech.create(model="tts", voice="Ann", input="hello")
        # the lines of others do not wait with it
        assert ended(ann, [said("a")], SPEECH).request_counts.completed == 1
        waiting = poor.batches.retrieve(batch.id)
        assert (waiting.status, waiting.request_counts.completed) == ("in_progress", 2)
        content = keys.read_text()
        keys.write_text(content.replace("characters_per_day = 10", "characters_per_day = 20"))
        wait_for(lambda: poor.batches.retrieve(batch.id).status == "completed")
        assert poor.batches.retrieve(batch.id).request_counts.completed == 4


def test_transcriptions_by_file_id_and_data_url(ann, bob, tone_wav, monkeypatch) -> None:
    monkeypatch.setattr(FakeTranscription, "follows_context", False)
    wav = tone_wav()
    audio = ann.files.create(file=("a.wav", wav), purpose="user_data")
    url = "data:audio/wav;base64," + base64.b64encode(wav).decode()
    batch = ended(
        ann,
        [
            line("id", TRANSCRIPTIONS, model="asr", file=audio.id),
            line("url", TRANSCRIPTIONS, model="asr", file=url, response_format="text", prompt="a"),
            line("none", TRANSCRIPTIONS, model="asr"),
            line("path", TRANSCRIPTIONS, model="asr", file="../index.sqlite"),
            line("bad", TRANSCRIPTIONS, model="asr", file="data:audio/wav,x"),
        ],
        TRANSCRIPTIONS,
    )
    good, bad = results(ann, batch.output_file_id), results(ann, batch.error_file_id)
    assert good["id"]["response"]["body"]["text"]
    assert good["url"]["response"]["body"]["object"] == "text"
    assert "ignored" not in good["id"]["response"]
    assert good["url"]["response"]["ignored"] == ["prompt"]
    statuses = {name: one["response"]["status_code"] for name, one in bad.items()}
    assert statuses == {"none": 400, "path": 404, "bad": 400}
    other = ended(bob, [line("x", TRANSCRIPTIONS, model="asr", file=audio.id)], TRANSCRIPTIONS)
    assert results(bob, other.error_file_id)["x"]["response"]["status_code"] == 404


@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES])
def test_text_endpoints(ann, endpoint) -> None:
    said = (
        {"messages": [{"role": "user", "content": "hi"}]} if endpoint == CHAT else {"input": "hi"}
    )
    batch = ended(ann, [line("a", endpoint, model="chat", **said)], endpoint)
    assert batch.request_counts.completed == 1, batch
    body = results(ann, batch.output_file_id)["a"]["response"]["body"]
    assert body["object"] == ("chat.completion" if endpoint == CHAT else "response")


@pytest.mark.parametrize(
    ("content", "code", "number"),
    [
        (b"", "empty_file", None),
        (b"\n\n", "empty_file", None),
        (to_json(said("a")) + b"\n{", "invalid_line", 2),
        (b"[1]", "invalid_line", 1),
        (b"\xff\xfe", "invalid_line", 1),
        (b"[" * 90_000, "invalid_line", 1),
        (to_json(said("a", "x" * 100_001)), "line_too_large", 1),
        (b"x" * 500_000, "line_too_large", 1),
        (b"\n".join([to_json(said("a"))] * 2), "invalid_line", 2),
        (to_json(said("")), "invalid_line", 1),
        (to_json(said("a", stream_format="sse")), "invalid_line", 1),
        (to_json(line("a", CHAT, model="tts")), "invalid_line", 1),
        (to_json(said("a") | {"method": "GET"}), "invalid_line", 1),
        (to_json(said("a") | {"body": "x"}), "invalid_line", 1),
    ],
)
def test_a_file_with_a_fault_runs_nothing(ann, content, code, number) -> None:
    batch = ended(ann, content or b" ", SPEECH)
    assert (batch.status, batch.output_file_id) == ("failed", None)
    first = batch.errors.data[0]
    assert (first.code, first.line) == (code, number)


def test_a_line_that_nests_deeply_is_refused_by_name(ann, tmp_path) -> None:
    # between these depths, a thread could read what the event loop could not write
    for depth in range(300, 1300, 25):
        deep = b'{"custom_id":"a","url":"%s","body":{"a":%s%s}}' % (
            *(SPEECH.encode(), b"[" * depth, b"]" * depth),
        )
        (tmp_path / "in").write_bytes(deep)
        (fault,) = check_lines(tmp_path / "in", SPEECH, 100_000).faults
        assert (fault["code"], fault["param"]) == ("invalid_line", "body"), depth
    assert ended(ann, to_json(said("z")) + b"\n" + deep, SPEECH).errors.data[0].line == 2


def test_lines_cannot_make_further_work(ann, tmp_path) -> None:
    file = stored(ann, [said("a")])
    body = {"input_file_id": file.id, "completion_window": "24h"}
    for url in ("/v1/batches", "/v1/files", "/v1/realtime/calls", "/mcp", "/v1/videos", ""):
        (tmp_path / "in").write_bytes(to_json(line("a", url, model="tts")))
        (fault,) = check_lines(tmp_path / "in", SPEECH, 100_000).faults
        assert fault["param"] == "url"
        with pytest.raises(openai.BadRequestError, match="endpoint"):
            ann.post("/batches", body=body | {"endpoint": url}, cast_to=object)


def test_a_line_that_cannot_be_run_ends_as_an_error(ann, monkeypatch) -> None:
    real, calls = runner_module.call_app, []

    async def broken(*args):
        calls.append(args)
        if b"bad" in args[3]:
            raise RecursionError
        answer = await real(*args)
        return answer._replace(body=b"{", headers=runner_module._JSON)

    monkeypatch.setattr(runner_module, "call_app", broken)
    batch = ended(ann, [said("a", "bad"), said("b")], SPEECH)
    assert (batch.status, batch.request_counts.failed) == ("completed", 2)
    for one in results(ann, batch.error_file_id).values():
        assert one["error"]["code"] == "server_error"
    assert len(calls) == 2


def test_a_batch_that_cannot_be_run_waits_and_expires(ann, monkeypatch) -> None:
    shift, runs = 0, []

    def broken(*_):
        runs.append(1)
        raise ValueError("a fault of our own")

    monkeypatch.setattr(BatchStore, "now_s", lambda _: int(time.time()) + shift)
    monkeypatch.setattr(runner_module, "check_lines", broken)
    monkeypatch.setattr(runner_module, "_BROKEN_WAIT_S", 0.2)
    monkeypatch.setattr(runner_module, "POLL_S", 0.05)
    batch = ann.batches.create(
        input_file_id=stored(ann, [said("a")]).id, endpoint=SPEECH, completion_window="1h"
    )
    wait_for(lambda: len(runs) > 1)
    assert ann.batches.retrieve(batch.id).status == "validating"
    shift = 3601
    wait_for(lambda: ann.batches.retrieve(batch.id).status == "expired")


def test_refusals_of_requests(ann, bob, place) -> None:
    file = stored(ann, [said("a")])
    body = {"input_file_id": file.id, "endpoint": SPEECH, "completion_window": "24h"}
    for wrong, status in (
        ({"endpoint": "/v1/models"}, 400),
        ({"completion_window": "0h"}, 400),
        ({"input_file_id": "../index.sqlite"}, 404),
        ({"metadata": {"a": 1}}, 400),
    ):
        with pytest.raises(openai.APIStatusError) as caught:
            ann.post("/batches", body=body | wrong, cast_to=object)
        assert caught.value.status_code == status, wrong
    unknown = stored(ann, [line("a", SPEECH, model="no", input="x")])
    with pytest.raises(openai.NotFoundError):
        ann.post("/batches", body=body | {"input_file_id": unknown.id}, cast_to=object)
    with pytest.raises(openai.APIStatusError, match="larger"):
        stored(ann, b"x" * ((1 << 20) + 1))
    with pytest.raises(openai.BadRequestError):
        ann.files.create(file=b"x", purpose="fine-tune")
    for path in ("..%2findex.sqlite", "%2e%2e", "file-" + "0" * 32, "x" * 4000):
        answer = httpx.get(f"{place.url}/files/{path}/content", headers={"api-key": "x"})
        assert answer.status_code == 401
        answer = httpx.get(
            f"{place.url}/files/{path}/content",
            headers={"authorization": f"Bearer {place.keys['ann']}"},
        )
        assert answer.status_code == 404, path
    # another key sees nothing of it
    assert file.id not in [one.id for one in bob.files.list()]
    for call in (bob.files.retrieve, bob.files.content, bob.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(file.id)
    with pytest.raises(openai.NotFoundError):
        bob.post("/batches", body=body, cast_to=object)


def test_cancelling_keeps_what_is_done(ann, bob, place) -> None:
    place.engine.step_s = 0.02
    lines = [said(f"{n}", "some words") for n in range(200)]
    file = stored(ann, lines)
    batch = ann.batches.create(
        input_file_id=file.id, endpoint=SPEECH, completion_window="24h", metadata={"a": "b"}
    )
    assert batch.metadata == {"a": "b"}
    wait_for(lambda: ann.batches.retrieve(batch.id).request_counts.completed)
    with pytest.raises(openai.NotFoundError):
        bob.batches.cancel(batch.id)
    with pytest.raises(openai.BadRequestError, match="cancel it first"):
        ann.files.delete(file.id)
    assert ann.batches.cancel(batch.id).status == "cancelling"
    wait_for(lambda: ann.batches.retrieve(batch.id).status == "cancelled")
    place.engine.step_s = 0.001
    done = ann.batches.retrieve(batch.id)
    assert 0 < len(results(ann, done.output_file_id)) == done.request_counts.completed < 200
    with pytest.raises(openai.BadRequestError):
        ann.batches.cancel(batch.id)
    wait_for(lambda: not place.engine.live)


def test_an_expired_batch_says_so_of_each_line(ann, place, monkeypatch) -> None:
    place.engine.step_s = 0.02
    shift = 0

    def later(self):
        return int(time.time()) + shift

    monkeypatch.setattr(BatchStore, "now_s", later)
    batch = ann.batches.create(
        input_file_id=stored(ann, [said(f"{n}", "some words") for n in range(200)]).id,
        endpoint=SPEECH,
        completion_window="1h",
    )
    wait_for(lambda: ann.batches.retrieve(batch.id).request_counts.completed)
    shift = 3601
    wait_for(lambda: ann.batches.retrieve(batch.id).status == "expired")
    place.engine.step_s = 0.001
    done = ann.batches.retrieve(batch.id)
    assert done.request_counts.completed + done.request_counts.failed == 200
    left = results(ann, done.error_file_id)
    assert {one["error"]["code"] for one in left.values()} == {"batch_expired"}


def test_a_result_file_forgets_the_line_that_was_cut_off(tmp_path) -> None:
    path = tmp_path / "results"
    first = ResultFile(path)
    for name in ("a", "b"):
        first.append(name, json.dumps({"custom_id": name}).encode())
    first.close()
    whole = path.read_bytes()
    for cut in range(1, 8):
        path.write_bytes(whole[:-cut])
        again = ResultFile(path)
        assert again.done == {"a"}
        again.append("b", b'{"custom_id":"b"}')
        again.close()
        assert [json.loads(one)["custom_id"] for one in path.read_bytes().splitlines()] == [
            *("a", "b")
        ]


@pytest.mark.parametrize(
    "broken",
    [
        b'{"custom_id":"b","resp{"custom_id":"c"}\n',  # a full disk, and then there was room
        b"\0" * 600 + b"\n",  # a file system that lost its last pages
        b"\0" * 600,
        b'{"custom_id":5}\n',
        b"[" * 5000 + b"\n",
        b"\xff\xfe\n",
        b"\n",
    ],
)
def test_lines_of_results_that_were_broken_off_run_again(tmp_path, broken) -> None:
    path = tmp_path / "results"
    path.write_bytes(b'{"custom_id":"a"}\n' + broken + b'{"custom_id":"d"}\n')
    for _ in range(2):
        file = ResultFile(path)
        assert file.done == {"a", "d"} if broken.endswith(b"\n") else {"a"}
        file.close()
    for one in path.read_bytes().splitlines():
        json.loads(one)


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path, monkeypatch) -> None:
    file = ResultFile(tmp_path / "results")
    file.append("a", b'{"custom_id":"a"}')
    write = os.write

    def full(descriptor, content):
        if len(content) > 5:
            return write(descriptor, content[:5])
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="no space"):
        file.append("b", b'{"custom_id":"b"}')
    monkeypatch.undo()
    file.append("c", b'{"custom_id":"c"}')
    file.close()
    assert file.done == {"a", "c"}
    assert (tmp_path / "results").read_bytes() == b'{"custom_id":"a"}\n{"custom_id":"c"}\n'


@pytest.mark.parametrize("cut", [b"-", b"--", b"1-", b"9" * 5000, b"\0\0", b"x", "²".encode()])
def test_a_count_that_was_broken_off_is_left_out(tmp_path, cut) -> None:
    path = tmp_path / "begun"
    path.write_bytes(b"2\n" + cut + b"-1\n3\n" + cut)
    begun = Begun(path)
    assert (begun.count(2), begun.count(3)) == (1, 1)
    begun.begin_line(2)
    begun.close()
    again = Begun(path)
    assert again.count(2) == 2
    again.close()


def test_only_lines_that_a_process_died_in_are_counted(tmp_path) -> None:
    begun = Begun(tmp_path / "begun")
    for number in (1, 2, 2):
        begun.begin_line(number)
    begun.give_up(1)
    begun.close()
    again = Begun(tmp_path / "begun")
    assert [again.count(number) for number in (1, 2, 3)] == [0, 2, 0]
    again.close()


def test_one_process_has_a_lease(tmp_path) -> None:
    lease = Lease.claim(tmp_path / "lease")
    assert lease is not None
    assert Lease.claim(tmp_path / "lease") is None
    lease.release()
    assert Lease.claim(tmp_path / "lease") is not None


def test_many_lines_are_too_many(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("izwi_api.batches.lines.MAX_LINES", 3)
    path = tmp_path / "in"
    path.write_bytes(b"\n".join(to_json(said(f"{n}")) for n in range(4)))
    assert [one["code"] for one in check_lines(path, SPEECH, 1000).faults] == ["too_many_lines"]


def test_a_key_has_a_limit_of_files_bytes_and_batches(tmp_path, monkeypatch) -> None:
    store = BatchStore(tmp_path)
    monkeypatch.setattr("izwi_api.batches.store.MAX_BYTES", 10)
    monkeypatch.setattr("izwi_api.batches.store.MAX_OPEN_BATCHES", 1)
    store.add_file("ann", "batch", "a", io.BytesIO(b"123456"))
    with pytest.raises(IzwiError, match="delete some"):
        store.add_file("ann", "batch", "a", io.BytesIO(b"12345"))
    store.add_file("bob", "batch", "a", io.BytesIO(b"12345"))
    assert len(list((tmp_path / "files").iterdir())) == 2
    store.add_batch(Batch("batch_1", "ann", SPEECH, "f", "24h", 0, 1))
    with pytest.raises(IzwiError, match="not ended"):
        store.add_batch(Batch("batch_2", "ann", SPEECH, "f", "24h", 0, 1))


def test_expired_files_leave_the_disk(tmp_path) -> None:
    now = 1000.0
    store = BatchStore(tmp_path, clock=lambda: now)
    file = store.add_file("", "batch", "a", io.BytesIO(b"1"), 3600)
    now += 3601
    with pytest.raises(IzwiError, match="no file"):
        store.file("", file.id)
    store.remove_expired()
    assert not store.path(file.id).exists()
