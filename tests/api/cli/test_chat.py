"""`izwi chat`: once, through pipes, and as a dialogue; in this process and with a server."""

from __future__ import annotations

import json
import signal

import pytest
from typer.testing import CliRunner

from izwi.errors import ModelNotFound
from izwi_api.cli import chat
from izwi_api.cli.main import app
from izwi_api.serve import local_services
from izwi_api.serve.app import create_app
from izwi_api.services.context import Services
from izwi_api.settings import Settings
from izwi_api.voices.store import VoiceStore
from tests.api.conftest import (
    FakeAnswerReader,
    FakeChat,
    FakeEngine,
    FakeRegistry,
    FakeSpeech,
    listening,
)


@pytest.fixture
def cli(monkeypatch, tmp_path):
    engine, model = FakeEngine(), FakeChat()

    def open_services(sources, where):
        if "missing" in sources:
            raise ModelNotFound("no checkpoint 'missing'", param="model")
        registry = FakeRegistry(
            **{name: FakeSpeech() if name == "tts" else model for name in sources}
        )
        settings = Settings(home=tmp_path / "home")
        return Services(engine, registry, settings, VoiceStore(settings.home / "voices"))

    monkeypatch.setattr(local_services, "open_services", open_services)
    monkeypatch.setenv("IZWI_SERVER", "none")

    def run(*arguments, code=0, **options):
        result = CliRunner().invoke(app, ["chat", *arguments], **options)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    run.asked, run.engine = model.asked, engine
    return run


@pytest.fixture
def talk(cli, monkeypatch):
    monkeypatch.setattr(chat, "_at_terminal", lambda: True)
    return cli


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    model = FakeChat()
    registry = FakeRegistry(tts=FakeSpeech(), there=model)
    settings = Settings(home=tmp_path_factory.mktemp("home"))
    with listening(create_app(FakeEngine(), registry, settings)) as port:
        yield f"http://127.0.0.1:{port}", model.asked


HERE = ("--model", "here")


def test_chat_command_prints_one_answer(cli):
    result = cli("hello", *HERE, "--system", "Be brief.", "--seed", "3", "--temperature", "0")
    assert (result.stdout, result.stderr) == ("hello\n", "")
    ask = cli.asked[-1]
    assert [message.role for message in ask.messages] == ["system", "user"]
    assert (ask.seed, ask.temperature, ask.thinking, ask.max_new_tokens) == (3, 0.0, None, None)


@pytest.mark.parametrize("arguments", [("-",), ()])
def test_a_pipe_is_read_to_its_end(cli, arguments):
    assert cli(*arguments, *HERE, input="two\nlines\n").stdout == "two\nlines\n"


def test_each_answer_has_a_seed_of_its_own(cli):
    cli("a", *HERE)
    cli("a", *HERE)
    assert cli.asked[0].seed != cli.asked[1].seed


def test_thoughts_go_to_stderr(cli):
    result = cli("hello", *HERE, "--think")
    assert (result.stdout, result.stderr) == ("hello\n", "5 long\n")
    assert cli("hello", *HERE, "--no-think").stderr == ""
    assert cli.asked[-1].thinking is False


def test_without_a_model_the_embedded_one_answers(cli, monkeypatch):
    opened, open_services = [], local_services.open_services

    def noted(sources, where):
        opened.extend(sources)
        return open_services(sources, where)

    monkeypatch.setattr(local_services, "open_services", noted)
    assert cli("hello").stdout == "hello\n"
    assert opened == ["izwi-tiny-chat"]


def test_json(cli):
    fields = json.loads(cli("héllo", *HERE, "--think", "--json").stdout)
    assert fields == {
        "text": "héllo",
        "reasoning": "5 long",
        "finish_reason": "stop",
        "prompt_tokens": 5,
        "completion_tokens": 13,
    }
    assert "reasoning" not in json.loads(cli("hello", *HERE, "--json").stdout)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((" ", *HERE), 2, "no text"),
        (("hello", "--model", "missing"), 2, "missing"),
        (("hello", "--model", "tts"), 2, "not a chat model"),
        (("hello", *HERE, "--seed", str(2**63)), 2, "seed"),
        (("hel\x01lo", *HERE), 1, "broke"),
        (("hello", "--server", "http://127.0.0.1:9"), 1, "no server responds"),
        (("hello", "--server", "here"), 2, "address"),
    ],
)
def test_chat_command_failures_are_one_line_and_an_exit_code(cli, arguments, code, message):
    result = cli(*arguments, code=code)
    assert message in result.stderr
    assert result.stderr.strip().count("\n") == 0
    assert not cli.engine.live


def test_input_that_is_not_utf_8_is_rejected(cli):
    assert "UTF-8" in cli("-", *HERE, input=b"\xff\xfe", code=2).stderr


def test_a_talk_remembers(talk):
    result = talk(*HERE, "--system", "Be brief.", input="one\n\ntwo\n")
    assert result.stdout == "one\ntwo\n"
    reported = [(message.role.value, message.content) for message in talk.asked[-1].messages]
    assert reported == [
        ("system", "Be brief."),
        ("user", "one"),
        ("assistant", "one"),
        ("user", "two"),
    ]


def test_a_talk_outlives_what_fails(talk):
    result = talk(*HERE, input="one\nb\x01d\ntwo\n")
    assert result.stdout == "one\nbtwo\n"
    assert "izwi: " in result.stderr
    assert [message.content for message in talk.asked[-1].messages] == ["one", "one", "two"]


def test_ctrl_c_stops_an_answer_and_not_the_talk(talk, monkeypatch):
    class Interrupted(FakeAnswerReader):
        def read(self, token_ids):
            text = super().read(token_ids)
            if "!" in text.content:
                signal.raise_signal(signal.SIGINT)
            return text

    monkeypatch.setattr(FakeChat, "open_answer", lambda *_: Interrupted())
    # a job in the background ignores it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    result = talk(*HERE, input="one! and a lot more\ntwo\n")
    signal.signal(signal.SIGINT, before)
    assert result.stdout.endswith("two\n")
    said = [message.content for message in talk.asked[-1].messages]
    assert said[::2] == ["one! and a lot more", "two"]
    # on a busy machine the signal comes before all that was drawn is printed
    assert said[0].startswith(said[1])
    assert 0 < len(said[1]) < len(said[0])
    assert not talk.engine.live


def test_a_talk_in_json_is_a_line_an_answer(talk):
    lines = talk(*HERE, "--json", input="one\ntwo\n").stdout.splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["one", "two"]


# -- a running server ------------------------------------------------------------------------
def test_a_server_answers(cli, remote):
    url, asked = remote
    result = cli("hello", "--server", url, "--think", "--seed", "4", "--max-new-tokens", "40")
    assert (result.stdout, result.stderr) == ("hello\n", "5 long\n")
    ask = asked[-1]
    assert (ask.seed, ask.thinking, ask.max_new_tokens) == (4, True, 40)
    fields = json.loads(cli("hello", "--server", url, "--json", "--model", "there").stdout)
    assert (fields["prompt_tokens"], fields["completion_tokens"]) == (5, 5)
    assert "broke" not in cli("hello", "--server", url).stderr


def test_a_talk_with_a_server(talk, remote, monkeypatch):
    monkeypatch.setenv("IZWI_SERVER", remote[0])
    assert talk(input="one\ntwo\n").stdout == "one\ntwo\n"
    assert [message.content for message in remote[1][-1].messages] == ["one", "one", "two"]


def test_chat_command_reports_a_servers_refusals(cli, remote, tmp_path):
    url, _ = remote
    assert "served" in cli("hello", "--server", url, "--model", "none", code=2).stderr
    cli("hel\x01lo", "--server", url, code=1)
    settings = Settings(home=tmp_path)
    with listening(create_app(FakeEngine(), FakeRegistry(tts=FakeSpeech()), settings)) as port:
        refused = cli("hello", "--server", f"http://127.0.0.1:{port}", code=2).stderr
    assert "serves no model for chat; start it with: izwi serve --model izwi-tiny-chat" in refused
