"""Odd chat templates and conversations give transformers' text, or a clear refusal."""

from __future__ import annotations

import json

import pytest

from izwi.errors import CheckpointError, InvalidRequest
from izwi.inputs.chat import ChatInput, ChatMessage, Role, ToolCall
from izwi.sandbox.chat_template import SandboxedTemplate
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_chat import FAMILY
from izwi_models.qwen3_chat.template import ChatTemplate as QwenTemplate
from izwi_models.qwen3_chat.template import read_template
from tests.models.tiny_chat import write_tiny_chat, write_tokenizer
from tests.sandbox.test_chat_template import reference

HI = ChatInput((ChatMessage(Role.USER, "Hi"),))
THOUGHT = ChatInput((*HI.messages, ChatMessage(Role.ASSISTANT, "Yes.", reasoning="hm")))
DEPTHS = (100, 300, 700)
SAME = {
    "a name that is not ASCII": "{% set größe = 3 %}{{ größe }}{{ messages[0].content }}",
    "a character by name": r"{{ '\N{EM DASH}' }}",
    "no tags": "{{ '<b>&amp;</b>' | striptags }}",
    "filler text": "{{ lipsum(1, false, 2, 3) | length > 5 }}",
    "all keys": "{% for m in messages %}{{ m | tojson }}{% endfor %}",
    "noncharacters": "\ufdd0{{ messages[0].content }}\ufdd1",
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    write_tokenizer(folder)
    return QwenTokenizer(folder)


def rendered(tokenizer, source, ask):
    template = QwenTemplate(tokenizer, source)
    return template.render(ask, thinks=False, max_chars=99_999)


@pytest.mark.parametrize("name", SAME)
def test_odd_text_is_that_of_transformers(tokenizer, name):
    for ask in (HI, THOUGHT):
        assert rendered(tokenizer, SAME[name], ask) == reference(SAME[name], ask)


@pytest.mark.parametrize("mark", ["\ufdd0", r"{{ '\ufdd0' }}", r"{{ '\uFDD0' }}"])
def test_the_templates_noncharacters_stay_beside_control_tokens(tokenizer, mark):
    ask = ChatInput((ChatMessage(Role.USER, "<|im_end|>"),))
    text = rendered(tokenizer, mark + "{{ messages[0].content }}", ask)
    assert text == "\ufdd0<|im_end|>"


@pytest.mark.parametrize("source", [r"{{ '\ud800' }}", r"{{ '\ud83d\ude00' }}"])
def test_text_that_is_not_unicode_is_refused(tokenizer, source):
    with pytest.raises(InvalidRequest, match="surrogates not allowed"):
        QwenTemplate(tokenizer, source).encode(HI, thinks=False, max_chars=99)


def test_a_refusal_that_is_not_unicode_reaches_the_caller():
    with pytest.raises(InvalidRequest, match=r"refuses this: no \\ud800"):
        SandboxedTemplate(r"{{ raise_exception('no \ud800') }}").render({}, 99)


def test_a_module_that_cannot_be_loaded_is_named_in_plain_words():
    with pytest.raises(InvalidRequest, match="may not open files"):
        SandboxedTemplate("{{ 'x'.encode('punycode') }}").render({}, 99)


def test_a_template_that_is_not_unicode_fails_at_load():
    with pytest.raises(ValueError, match="surrogates not allowed"):
        SandboxedTemplate("\ud800{{ messages[0].content }}")


@pytest.mark.parametrize("listed", [["x"], [3], [{"name": ["default"], "template": "x"}], {}])
def test_templates_in_an_unknown_form_are_named(tmp_path, listed):
    write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": listed}))
    with pytest.raises(CheckpointError, match="chat_template must be"):
        read_template(tmp_path, QwenTokenizer(tmp_path))


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("content", ["Hi", "<|im_end|>"])
def test_deep_arguments_are_put_in_or_refused(tokenizer, depth, content):
    nested = '{"a":' * depth + "1" + "}" * depth
    call = ToolCall("c", "f", nested)
    source = "{{ (tools or messages) | tojson }}"
    turns = (ChatMessage(Role.USER, content), ChatMessage(Role.ASSISTANT, "", None, (call,)))
    tool = {"type": "function", "function": {"name": "f", "parameters": json.loads(nested)}}
    for ask in (ChatInput(turns), ChatInput(turns[:1], tools=json.dumps([tool]))):
        if depth == max(DEPTHS) and content != "Hi":
            with pytest.raises(InvalidRequest, match="nested too deeply"):
                rendered(tokenizer, source, ask)
        else:
            assert rendered(tokenizer, source, ask).count('"a": ') == depth


@pytest.mark.parametrize("source", ["", "{# nothing #}", "{% for m in [] %}{{ m }}{% endfor %}"])
def test_a_template_without_text_is_refused(tmp_path, source):
    folder = write_tiny_chat(tmp_path / "empty")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": source}))
    model = FAMILY.load_frontend(folder)
    with pytest.raises(InvalidRequest, match="the chat template rendered an empty prompt"):
        model.prepare_chat("r", "empty", HI)
