"""Chat templates render as in transformers, and harmful ones are stopped."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from izwi.errors import InvalidRequest
from izwi.inputs.chat import ChatInput, ChatMessage, Role, ToolCall, ToolChoice
from izwi.sandbox.chat_template import SandboxedTemplate
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_chat.template import ChatTemplate as QwenTemplate
from izwi_models.qwen3_chat.template import read_template
from tests.models.tiny_chat import TEMPLATES, write_tokenizer

LIGHTS = {
    "type": "function",
    "function": {
        "name": "set_light",
        "description": "Switch a light <on> & off — “gently”",
        "parameters": {"type": "object", "properties": {"on": {"type": "boolean"}}},
    },
}
CALL = ToolCall("call_1", "set_light", '{"on": true, "room": "küche", "n": [1, 2.5, null]}')
CONVERSATIONS = {
    "plain": ((ChatMessage(Role.USER, "Hi"),), ()),
    "tools": ((ChatMessage(Role.SYSTEM, "Be brief."), ChatMessage(Role.USER, "on!")), (LIGHTS,)),
    "called": (
        (
            ChatMessage(Role.USER, "on!"),
            ChatMessage(Role.ASSISTANT, "", "the light?", (CALL, CALL)),
            ChatMessage(Role.TOOL, "done", call_id="call_1", name="set_light"),
            ChatMessage(Role.TOOL, '{"ok": 1}', call_id="call_2"),
        ),
        (LIGHTS, LIGHTS),
    ),
    "said and called": (
        (
            ChatMessage(Role.USER, "on!"),
            ChatMessage(Role.ASSISTANT, "Well.", None, (CALL,)),
            ChatMessage(Role.TOOL, "done", call_id="call_1"),
            ChatMessage(Role.ASSISTANT, "It is on."),
            ChatMessage(Role.USER, "thanks"),
        ),
        (),
    ),
}
TOKENS = {"bos_token": "<|begin|>", "eos_token": "<|im_end|>"}
MORE = {
    "headers": "{{ bos_token }}{% set ns = namespace(n=0) %}{% for m in messages %}"
    "{% set ns.n = ns.n + 1 %}<|h|>{{ m['role'] }} {{ ns.n }}<|/h|>\n\n{{ m['content'] | trim }}"
    "{% endfor %}{% if add_generation_prompt %}<|h|>assistant<|/h|>\n\n{% endif %}",
    "a block a line": """{% for m in messages %}
    {% if m.role == 'tool' %}
        {% continue %}
    {% endif %}
  [{{ m.role }}] {{ m.content }}
    {% generation %}{{ m.role | upper }}{% endgeneration %}
{% endfor %}
{{ dict(a=1, b=tools) | tojson(indent=2, sort_keys=true) }}""",
    "the system's message in the user's": "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "{% set first = messages[0].content ~ '\n\n' %}{% set rest = messages[1:] %}{% else %}"
    "{% set first = '' %}{% set rest = messages %}{% endif %}{% for m in rest %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ (first if loop.first else '') ~ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    "no tool's role": "{{ bos_token }}"
    "{% for m in messages if m['role'] in ['user', 'assistant'] %}"
    "[INST]{{ m['content'] }}{% if not loop.last %}[/INST]{% endif %}{% endfor %}{{ eos_token }}",
    "today": "{% set today = strftime_now('%d %b %Y') %}Today Date: {{ today }}"
    "{% if tools is not none %}"
    "{% for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}{% endif %}"
    "{%- for m in messages %}{%- if 'tool_calls' in m %}{{ m.tool_calls[0].function.arguments"
    " | tojson }}{%- elif m.role == 'tool' %}ipython {{ m.content | tojson }}{%- else %}"
    "{{ m.role ~ m.content }}{%- endif %}{%- endfor %}",
    "values": "{{ tools }}{{ messages | length }}{{ documents is none }}{{ x is defined }}"
    "{{ messages[-1] | tojson }}{{ messages[0].reasoning_content is defined }}"
    "{% macro f(m, n=2) %}{{ m.role ~ n }}{% endmacro %}{{ f(messages[0], n=3) }}",
}


def values_of(name):
    messages, tools = CONVERSATIONS[name]
    return ChatInput(messages, tools=json.dumps(tools) if tools else "")


def reference(source, ask, **more):
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = []
    for message in ask.messages:
        values = {"role": str(message.role), "content": message.content}
        if message.reasoning is not None:
            values["reasoning_content"] = message.reasoning
        if message.tool_calls:
            values["tool_calls"] = [
                {
                    "type": "function",
                    "id": call.call_id,
                    "function": {"name": call.name, "arguments": json.loads(call.arguments)},
                }
                for call in message.tool_calls
            ]
        if message.call_id is not None:
            values["tool_call_id"] = message.call_id
        if message.name is not None:
            values["name"] = message.name
        messages.append(values)
    tools = json.loads(ask.tools) if ask.tools else None
    (text,), _ = render_jinja_template(
        [messages], tools=tools, chat_template=source, add_generation_prompt=True, **TOKENS, **more
    )
    return text


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    write_tokenizer(folder)
    return QwenTokenizer(folder)


@pytest.mark.parametrize("template", [*TEMPLATES, *MORE])
def test_the_text_is_that_of_transformers(tokenizer, template):
    source = {**TEMPLATES, **MORE}[template]
    ours = QwenTemplate(tokenizer, source, TOKENS)
    for name in CONVERSATIONS:
        ask = values_of(name)
        for thinks in (True, False):
            more = {"enable_thinking": thinks} if template == "ASKED" else {}
            expected = reference(source, ask, **more)
            assert ours.render(ask, thinks=thinks, max_chars=100_000) == expected
            assert len(expected) > 20


def test_without_choice_the_tools_are_left_out(tokenizer):
    template = QwenTemplate(tokenizer, TEMPLATES["ASKED"])
    messages, tools = CONVERSATIONS["tools"]
    ask = ChatInput(messages, tools=json.dumps(tools), tool_choice=ToolChoice.NONE)
    without = template.render(ask, thinks=False, max_chars=9999)
    assert without == template.render(ChatInput(messages), thinks=False, max_chars=9999)


@pytest.mark.parametrize("place", ["list", "folder"])
def test_a_template_for_tools_is_used_for_conversations_with_tools(tmp_path, place):
    write_tokenizer(tmp_path)
    templates = {"default": "plain {{ messages[0].content }}", "tool_use": "{{ tools | tojson }}"}
    config_path = tmp_path / "tokenizer_config.json"
    config = json.loads(config_path.read_text()) if config_path.exists() else {}
    if place == "list":
        named = [{"name": name, "template": text} for name, text in templates.items()]
        config["chat_template"] = named
    else:
        config.pop("chat_template", None)
        (tmp_path / "chat_template.jinja").write_text(templates["default"])
        more = tmp_path / "additional_chat_templates"
        more.mkdir()
        (more / "tool_use.jinja").write_text(templates["tool_use"])
    config_path.write_text(json.dumps(config))
    template = read_template(tmp_path, QwenTokenizer(tmp_path))
    message = (ChatMessage(Role.USER, "Hi"),)

    def text(**more):
        return template.render(ChatInput(message, **more), thinks=False, max_chars=9999)

    tools = json.dumps([LIGHTS])
    assert text() == text(tools=tools, tool_choice=ToolChoice.NONE) == "plain Hi"
    assert text(tools=tools) == reference(templates["tool_use"], ChatInput(message, tools=tools))


def test_arguments_that_are_no_json_go_in_as_they_were_written(tokenizer):
    template = QwenTemplate(tokenizer, TEMPLATES["ASKED"])
    call = ToolCall("c", "f", '{"cut o')
    ask = ChatInput((ChatMessage(Role.USER, "a"), ChatMessage(Role.ASSISTANT, "", None, (call,))))
    assert '"arguments": {"cut o}' in template.render(ask, thinks=False, max_chars=9999)


def test_arguments_with_half_a_surrogate_pair_go_in_as_they_were_written(tokenizer):
    template = QwenTemplate(tokenizer, TEMPLATES["ASKED"])
    call = ToolCall("c", "f", '{"a": "\\ud83d"}')
    ask = ChatInput((ChatMessage(Role.USER, "a"), ChatMessage(Role.ASSISTANT, "", None, (call,))))
    assert '"arguments": {"a": "\\ud83d"}}' in template.render(ask, thinks=False, max_chars=9999)


HARM = {
    "a loop of loops": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "processor time",
    ),
    "a long string": ("{{ 'x' * n }}", "memory"),
    "a long constant": ("{{ 'x' * 10 ** 10 }}", "memory"),
    "doubling": (
        "{% set s = namespace(x='x') %}{% for i in range(99) %}{% set s.x = s.x ~ s.x %}"
        "{% endfor %}",
        "memory",
    ),
    "padding": ("{{ '%9999999999d' % 1 }}", "memory"),
    "much text": ("{% for a in range(99999) %}some text{% endfor %}", "characters"),
    "a long range": ("{% for a in range(10 ** 9) %}{% endfor %}", "Range too big"),
    "an import": ("{% import 'os' as os %}", "no loader"),
    "an include": ("{% include '/etc/passwd' %}", "no loader"),
    "internals": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "a namespace's internals": ("{% set x = namespace(__class__=1) %}", "underscore"),
    "no recursion's end": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    "a change of what it was given": ("{{ messages.append(1) }}", "unsafe"),
    "its own refusal": ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    "undefined": ("{{ nothing.at.all }}", "undefined"),
    "an unknown filter": ("{{ 1 | nothing }}", "not valid"),
}


@pytest.mark.parametrize("name", HARM)
def test_a_template_that_does_harm_is_stopped(name):
    source, message = HARM[name]
    template = SandboxedTemplate(source, cpu_limit_s=1, memory_bytes=64 << 20)
    # the next conversation gets the same error; of processor time one second is enough
    for _ in range(1 if message == "processor time" else 2):
        with pytest.raises(InvalidRequest, match=message) as refused:
            template.render({"messages": [], "n": 10**10}, 1000)
        assert refused.value.param == "messages"
    template.close()


def test_a_conversation_that_cannot_be_put_in_stops_no_other():
    template = SandboxedTemplate(
        "{% if n %}{{ 'x' * n }}{% else %}ok{% endif %}", memory_bytes=64 << 20
    )
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="memory"):
            template.render({"n": 10**10}, 100)
        assert template.render({"n": 0}, 100) == "ok"
    template.close()


def test_a_process_that_ended_while_idle_costs_nothing():
    template = SandboxedTemplate("{{ n }}")
    for n in range(3):  # the first starts the process
        assert template.render({"n": n}, 100) == str(n)
        (process,) = template._pool.processes
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    template.close()


def test_many_threads_share_one_process():
    template = SandboxedTemplate("{{ n }}{% for i in range(50) %}{{ n }}{% endfor %}")
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda n: template.render({"n": n}, 1000), range(40)))
    assert texts == [str(n) * 51 for n in range(40)]


def test_an_invalid_template_fails_at_load():
    with pytest.raises(ValueError, match="Jinja"):
        SandboxedTemplate("{% for %}")
