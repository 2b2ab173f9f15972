"""Voices and consents over HTTP, with one API server and with two."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace

import httpx
import numpy as np
import openai
import pytest

from izwi.engine_client.protocol import Answer, Answers
from izwi.errors import ModelNotFound
from izwi.inputs.speech import VoicePrompt
from izwi_api.serve.app import create_app
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModels
from izwi_api.services.voices.encoding import encoded_voice
from izwi_api.settings import Settings
from izwi_api.voices import files as voice_files
from izwi_api.voices.store import VoiceStore
from tests.api.conftest import FakeEngine, FakeRegistry, FakeSpeech, FakeTranscription, listening

VOICES = "/v1/audio/voices"
CONSENTS = "/v1/audio/voice_consents"
SPEECH = "/v1/audio/speech"


class Encoders(FakeSpeech):
    """Counts how often it encodes."""

    def __init__(self):
        super().__init__()
        self.num_encoded = 0

    def prepare_voice(self, request_id, model, samples, text):
        self.num_encoded += 1
        return super().prepare_voice(request_id, model, samples, text)


class Base(Encoders):
    speakers = ()


class Designer(FakeSpeech):
    speakers = ()
    can_clone = False


class Registry(FakeRegistry):
    def default(self, task):
        for name, model in self.models.items():
            if task in model.capabilities:
                return name
        raise ModelNotFound("no model does that", param="model")


def world():
    return Registry(tts=Encoders(), second=Base(), design=Designer(), asr=FakeTranscription())


@pytest.fixture
def api_servers(tmp_path):
    """Two servers with one folder of voices; the second requires consent recordings."""
    with ExitStack() as stack:
        made = []
        for require_consent in (False, True):
            engine, registry = FakeEngine(), world()
            settings = Settings(home=tmp_path, decode_workers=0, require_consent=require_consent)
            port = stack.enter_context(listening(create_app(engine, registry, settings)))
            url = f"http://127.0.0.1:{port}"
            client = stack.enter_context(httpx.Client(base_url=url, timeout=60))
            sdk = stack.enter_context(
                openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            )
            made.append(
                SimpleNamespace(client=client, sdk=sdk, engine=engine, registry=registry, url=url)
            )
        yield made


@pytest.fixture
def services(api_servers):
    return api_servers[0]


@pytest.fixture
def upload(tone_wav):
    def send(client, name="me", file=None, **fields):
        form = {"name": name, "consent": "yes", "ref_text": "la"} | fields
        form = {key: value for key, value in form.items() if value is not None}
        files = {"audio_sample": ("a.wav", file or tone_wav(1.0))}
        return client.post(VOICES, data=form, files=files)

    return send


def check(answer, status, code, param=None):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param)


def left_in(tmp_path):
    return [path.name for path in (tmp_path / "voices").glob("*") if path.is_dir()]


def say(client, voice, model="tts"):
    return client.post(SPEECH, json={"model": model, "input": "hi", "voice": voice})


def test_a_clip_is_checked_before_a_voice_is_made(services, tone_wav):
    def report(file):
        return services.client.post(f"{VOICES}/check", files={"audio_sample": ("a.wav", file)})

    good = report(tone_wav(3.0)).json()
    assert (good["duration"], good["speech"]) == (3.0, 3.0)
    assert good["level_dbfs"] < 0
    short = report(tone_wav(1.5)).json()
    assert short["faults"][0]["name"] == "length"
    assert "2 s" in short["faults"][0]["message"]
    check(report(tone_wav(0.6)), 400, "audio_too_short", "audio_sample")
    check(report(b"nothing"), 400, "invalid_audio", "audio_sample")
    # nothing was stored, and nothing ran
    assert services.client.get(VOICES).json()["uploaded_voices"] == []


def test_no_voice_is_made_from_less_than_a_second(services, upload, tone_wav, tmp_path):
    check(upload(services.client, file=tone_wav(0.6)), 400, "audio_too_short", "audio_sample")
    assert left_in(tmp_path) == []


def test_the_sdk_makes_speaks_with_and_deletes_a_voice(services, tone_wav):
    sdk = services.sdk
    file = ("a.wav", io.BytesIO(tone_wav(2.0)))
    voice = sdk.audio.voices.create(name="My voice", audio_sample=file, consent="cons_1234")
    assert voice.id.startswith("voice_")
    assert (voice.object, voice.type, voice.name) == ("audio.voice", "audio_sample", "My voice")
    # Nobody said what the clip says, so it was heard.
    assert services.client.get(f"{VOICES}/{voice.id}").json()["ref_text"] == "word word"
    for spoken in (voice.id, {"id": voice.id}, "My voice"):
        answer = sdk.audio.speech.create(model="tts", voice=spoken, input="hello")
        assert answer.content
        assert isinstance(services.registry.models["tts"].asked[-1].voice, VoicePrompt)
    with pytest.raises(openai.BadRequestError) as taken:
        sdk.audio.voices.create(name="My voice", audio_sample=file, consent="cons_1234")
    assert (taken.value.code, taken.value.param) == ("voice_exists", "name")
    deleted = sdk.audio.voices.delete(voice.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (voice.id, "audio.voice.deleted", True)
    with pytest.raises(openai.NotFoundError) as gone:
        sdk.audio.voices.delete(voice.id)
    assert gone.value.code == "voice_not_found"
    check(say(services.client, voice.id), 404, "voice_not_found", "voice")


def test_the_sdk_keeps_consents(api_servers, tone_wav):
    sdk = api_servers[0].sdk
    recording = ("r.wav", io.BytesIO(tone_wav(1.0)))
    made = [
        sdk.audio.voice_consents.create(name=f"c{index}", language="en-US", recording=recording)
        for index in range(5)
    ]
    assert made[0].id.startswith("cons_")
    assert (made[0].object, made[0].language) == ("audio.voice_consent", "en-US")
    assert sdk.audio.voice_consents.retrieve(made[0].id) == made[0]
    page = sdk.audio.voice_consents.list(limit=2)
    assert (len(page.data), page.has_more) == (2, True)
    none = sdk.audio.voice_consents.list(limit=0)  # as with stored completions
    assert (none.data, none.has_more) == ([], True)
    listed = [consent.id for consent in page]  # asks for the pages that follow
    assert listed == sorted((consent.id for consent in made), reverse=True)
    renamed = sdk.audio.voice_consents.update(made[0].id, name="another")
    # The other API server sees what this one did.
    assert api_servers[1].sdk.audio.voice_consents.retrieve(made[0].id) == renamed
    gone = sdk.audio.voice_consents.delete(made[0].id)
    assert (gone.id, gone.object, gone.deleted) == (made[0].id, "audio.voice_consent", True)
    with pytest.raises(openai.NotFoundError) as caught:
        api_servers[1].sdk.audio.voice_consents.retrieve(made[0].id)
    assert caught.value.code == "consent_not_found"


def test_a_server_that_asks_for_a_recording(api_servers, upload, tone_wav):
    strict = api_servers[1]
    for words in ("yes", "cons_1234", "cons_" + "0" * 32):
        check(upload(strict.client, consent=words), 400, "invalid_request", "consent")
    for services in api_servers:
        check(upload(services.client, consent=None), 400, "invalid_request", "consent")
        check(upload(services.client, consent=" "), 400, "invalid_request", "consent")
    consent = strict.sdk.audio.voice_consents.create(
        name="Ann", language="en", recording=("r.wav", io.BytesIO(tone_wav(1.0)))
    )
    made = upload(strict.client, consent=consent.id)
    assert made.status_code == 200
    assert made.json()["consent"] == consent.id
    strict.sdk.audio.voice_consents.delete(consent.id)
    assert say(strict.client, "me").status_code == 200


def test_what_clients_read_of_the_list(services, upload):
    made = upload(services.client, "me", ref_text="la").json()
    upload(services.client, "alloy")
    answer = services.client.get(VOICES).json()
    assert answer["object"] == "list"
    assert answer["data"] == answer["voices"]  # speaches and mlx-audio; Kokoro and open-webui
    by_name = {voice["name"]: voice for voice in answer["voices"]}
    assert len(by_name) == len(answer["voices"])
    for voice in answer["voices"]:
        assert say(services.client, voice["id"]).status_code == 200  # open-webui sends what it got
    assert by_name["me"] == made
    assert by_name["alloy"]["kind"] == "cloned"  # it is OpenAI's name no more
    assert by_name["echo"]["kind"] == "alias"
    uploaded = {voice["name"]: voice for voice in answer["uploaded_voices"]}  # vllm-omni
    assert uploaded.keys() == {"me", "alloy"}
    assert uploaded["me"]["file_size"] == 32044
    assert (uploaded["me"]["mime_type"], uploaded["me"]["ref_text"]) == ("audio/wav", "la")
    for key in ("me", made["id"]):
        assert services.client.get(f"{VOICES}/{key}").json() == made
    assert services.client.get(f"{VOICES}/ann").json()["kind"] == "speaker"
    assert services.client.get(f"{VOICES}/echo").json()["kind"] == "alias"
    check(services.client.get(f"{VOICES}/nobody"), 404, "voice_not_found", "voice")
    check(services.client.delete(f"{VOICES}/Ann"), 404, "voice_not_found", "voice")


def test_the_sample_comes_back_byte_for_byte(services, upload, tone_wav):
    clip = tone_wav(1.0)
    made = upload(services.client, file=clip).json()
    answer = services.client.get(f"{VOICES}/{made['id']}/sample")
    assert (answer.content, answer.headers["content-type"]) == (clip, "audio/wav")
    assert answer.headers["cache-control"] == "no-store"
    check(services.client.get(f"{VOICES}/Ann/sample"), 404, "voice_not_found", "voice")


def test_twenty_uploads_at_two_api_servers(api_servers, upload, tmp_path):
    def send(index):
        return upload(api_servers[0].client, "same", ref_text=str(index))

    def speak(_):
        return say(api_servers[1].client, "same").status_code

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(send, range(20)))
        spoken = list(pool.map(speak, range(4)))
    won = [answer for answer in answers if answer.status_code == 200]
    assert len(won) == 1
    for answer in answers:
        if answer is not won[0]:
            check(answer, 400, "voice_exists", "name")
    assert spoken == [200] * 4
    assert left_in(tmp_path) == [won[0].json()["id"]]


BAD_FORMS = {
    "traversal": ({"name": "../../etc/x"}, "name"),
    "absolute": ({"name": "/etc/x"}, "name"),
    "backslash": ({"name": "..\\x"}, "name"),
    "nul": ({"name": "a\0"}, "name"),
    "empty": ({"name": ""}, "name"),
    "no name": ({"name": None}, "name"),
    "an id": ({"name": "voice_" + "0" * 32}, "name"),
    "speaker": ({"name": "ann"}, "name"),
    "unknown": ({"colour": "red"}, "colour"),
    "type": ({"type": "song"}, "type"),
    "vector": ({"x_vector_only": "perhaps"}, "x_vector_only"),
    "long text": ({"ref_text": "a" * 5000}, "ref_text"),
    "long consent": ({"consent": "a" * 5000}, "consent"),
    "twice": ({"name": ["a", "b"]}, "name"),
}


@pytest.mark.parametrize("case", BAD_FORMS)
def test_forms_that_are_refused(services, upload, tmp_path, case):
    fields, param = BAD_FORMS[case]
    name = fields.get("name", "me")
    answer = upload(services.client, name, **{k: v for k, v in fields.items() if k != "name"})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("file", [b"", b"no audio", b"RIFF\0\0\0\0WAVE"])
def test_clips_that_are_refused(services, upload, tmp_path, file):
    files = {"audio_sample": ("../../a.wav", file)}
    form = {"name": "me", "consent": "yes", "ref_text": "la"}
    check(
        services.client.post(VOICES, data=form, files=files), 400, "invalid_audio", "audio_sample"
    )
    files = {"recording": ("../../a.wav", file)}
    form = {"name": "c", "language": "en"}
    check(services.client.post(CONSENTS, data=form, files=files), 400, "invalid_audio", "recording")
    nothing = services.client.post(VOICES, data={"name": "me", "consent": "yes"}, files={"x": b"y"})
    assert nothing.status_code == 400
    assert left_in(tmp_path) == []


def test_a_clip_over_ten_mebibytes_is_not_read_to_its_end(services, upload, tmp_path):
    check(upload(services.client, file=bytes(10 * 2**20 + 1)), 413, "too_large", "audio_sample")
    sent = []

    def endless():
        yield b'--x\r\ncontent-disposition: form-data; name="audio_sample"; filename="a"\r\n\r\n'
        for _ in range(1000):
            sent.append(1)
            yield bytes(2**18)

    headers = {"content-type": "multipart/form-data; boundary=x"}
    for path, param in ((VOICES, "audio_sample"), (CONSENTS, "recording")):
        sent.clear()
        try:
            answer = httpx.post(services.url + path, content=endless(), headers=headers, timeout=60)
            check(answer, 413, "too_large", param)
        except httpx.WriteError:
            pass  # it hung up before we had sent all
        assert len(sent) < 400
    assert left_in(tmp_path) == []
    assert services.client.get("/readyz").status_code == 200


def test_a_full_disk_gets_507_and_leaves_no_voice(services, upload, tmp_path, monkeypatch):
    def fsync(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(voice_files.os, "fsync", fsync)
        answer = upload(services.client)
    check(answer, 507, "storage_full")
    assert answer.headers["x-should-retry"] == "false"
    assert left_in(tmp_path) == []
    assert upload(services.client).status_code == 200


def test_a_voice_that_is_deleted_in_use_is_heard_to_the_end(services, upload):
    upload(services.client)
    services.engine.step_s = 0.05
    heard = []

    def listen():
        ask = {"model": "tts", "input": "0123456789" * 2, "voice": "me", "response_format": "pcm"}
        with services.client.stream("POST", SPEECH, json=ask) as answer:
            for piece in answer.iter_bytes():
                heard.append(len(piece))
                begun.set()

    begun = threading.Event()
    listener = threading.Thread(target=listen)
    listener.start()
    assert begun.wait(10)
    assert services.client.delete(f"{VOICES}/me").status_code == 200
    check(say(services.client, "me"), 404, "voice_not_found", "voice")
    listener.join(60)
    assert sum(heard) == 20 * 1920 * 2


def test_a_clip_that_cannot_be_encoded_leaves_nothing(services, upload, tmp_path, monkeypatch):
    def refuse(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(services.registry.models["tts"], "read_voice", refuse)
    assert upload(services.client).status_code == 500
    assert left_in(tmp_path) == []


def test_without_a_listener_only_the_speaker_is_followed(api_servers, upload):
    services = api_servers[0]
    assert (
        upload(services.client, "a", ref_text=None, x_vector_only="true").json()["ref_text"] is None
    )
    del services.registry.models["asr"]
    assert upload(services.client, "b", ref_text=None).json()["ref_text"] is None
    assert say(services.client, "b").status_code == 200
    assert services.registry.models["tts"].asked[-1].voice.codes is None


# -- from a description ---------------------------------------------------------------------------
def test_a_voice_from_a_description(services):
    script = "a script that is long enough to be a voice"
    voice = services.sdk.audio.voices.create(
        name="calm", prompt="a calm, low voice", type="prompt", script_hint=script
    )
    assert (voice.type, voice.prompt) == ("prompt", "a calm, low voice")
    (ask,) = services.registry.models["design"].asked
    assert (ask.text, ask.instruct) == (script, "a calm, low voice")
    assert say(services.client, voice.id).status_code == 200
    assert services.registry.models["tts"].asked[-1].voice.text == script
    body = {"name": "json", "prompt": "bright", "type": "prompt", "model": "auto"}
    assert services.client.post(VOICES, json=body).status_code == 200
    clip = services.client.get(f"{VOICES}/json/sample")
    assert clip.headers["content-type"] == "audio/wav"


def test_a_clip_that_was_made_from_a_description_keeps_it(services, upload):
    entry = upload(services.client, "made", prompt="a calm old man").json()
    assert (entry["type"], entry["prompt"]) == ("prompt", "a calm old man")
    assert services.client.get(f"{VOICES}/made").json() == entry
    assert upload(services.client, "asked", prompt="x", consent=None).status_code == 400


def test_descriptions_that_are_refused(services, tmp_path):
    body = {"name": "calm", "prompt": "a calm voice", "type": "prompt"}
    for change, param in (
        ({"prompt": "  "}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"script_hint": "short"}, "script_hint"),
        ({"model": "tts"}, "model"),
        ({"model": "../x"}, "model"),
        ({"name": "Bob"}, "name"),
        ({"consent": "yes"}, "consent"),
    ):
        answer = services.client.post(VOICES, json=body | change)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    del services.registry.models["design"]
    answer = services.client.post(VOICES, json=body)
    check(answer, 400, "invalid_request", "type")
    assert "description" in answer.json()["error"]["message"]
    assert left_in(tmp_path) == []


# -- once for each model --------------------------------------------------------------------------
def test_a_new_voice_is_encoded_once(services, upload):
    upload(services.client)
    for _ in range(3):
        assert say(services.client, "me").status_code == 200
    assert services.registry.models["tts"].num_encoded == 1


async def test_of_many_first_uses_one_encodes(tmp_path, tone_wav):
    made = VoiceStore(tmp_path).create("me", tone_wav(1.0), "la")
    engine, registry, settings = FakeEngine(), world(), Settings(home=tmp_path)
    # Two API servers, as two processes have them, each with its own memory.
    api_servers = [
        Services(engine, ServedModels(engine, registry), settings, VoiceStore(tmp_path))
        for _ in "ab"
    ]
    asks = [
        encoded_voice(services, services.registry.speech("second"), made)
        for services in api_servers
        for _ in range(8)
    ]
    prompts = await asyncio.gather(*asks)
    assert registry.models["second"].num_encoded == 1
    for prompt in prompts:
        np.testing.assert_array_equal(prompt.speaker_embedding, np.ones(8, np.float32))
    assert [path.name for path in (made.folder / "prompts").iterdir()] == ["second%40f.npz"]


async def test_disconnect_while_encoding_frees_the_turn(tmp_path, tone_wav):
    store = VoiceStore(tmp_path)
    made = store.create("me", tone_wav(1.0), "la")
    engine, registry = FakeEngine(), world()
    models = ServedModels(engine, registry)
    services = Services(engine, models, Settings(home=tmp_path), store)
    began = asyncio.Event()
    model = registry.models["tts"]
    real = engine.submit_all

    def submit_all(requests):
        began.set()
        return Answers([SlowStream()]) if model.num_encoded == 1 else real(requests)

    class SlowStream(Answer):
        async def __anext__(self):
            await asyncio.sleep(60)

        def abort(self):
            services.engine.aborted.append("slow")

    engine.submit_all = submit_all
    first = asyncio.create_task(encoded_voice(services, models.speech("tts"), made))
    await began.wait()
    second = asyncio.create_task(encoded_voice(services, models.speech("tts"), made))
    await asyncio.sleep(0.05)
    first.cancel()
    assert (await asyncio.wait_for(second, 60)).text == "la"
    assert services.engine.aborted == ["slow"]
    assert model.num_encoded == 2
    store.delete("me")


def test_pages_of_consents_that_cannot_be(services):
    for query, param in (("limit=-1", "limit"), ("limit=101", "limit"), ("after=x", "after")):
        answer = services.client.get(f"{CONSENTS}?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    empty = services.client.get(CONSENTS).json()
    assert (empty["data"], empty["has_more"]) == ([], False)
    check(services.client.get(f"{CONSENTS}/..%2Fx"), 404, "not_found")
    missing = services.client.post(f"{CONSENTS}/cons_1", content=json.dumps({"name": "x"}))
    assert missing.status_code == 400  # no content type
    answer = services.client.post(f"{CONSENTS}/cons_1", json={"name": "x"})
    check(answer, 404, "consent_not_found", "consent")
