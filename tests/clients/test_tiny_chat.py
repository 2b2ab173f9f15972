"""Agents' frameworks, unmodified, against the embedded chat model: text, functions, streams.

Functions are declared in each framework's own way, so the model reads its own rendering of them.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.api.served import served
from tests.clients.installed import needs_agents, needs_livekit, needs_pipecat

MODEL = "izwi-tiny-chat"
ASKED = "Please set a timer for five minutes."
DONE = "The timer is set for 5 minutes."
OK = json.dumps({"ok": True})
SECONDS = {"type": "integer", "minimum": 1}


@pytest.fixture(scope="module")
def base_url(tmp_path_factory):
    with served(tmp_path_factory.mktemp("served"), "--model", MODEL) as server:
        yield f"{server.url}/v1"


# -- openai-agents ---------------------------------------------------------------------------
@pytest.fixture(params=["OpenAIResponsesModel", "OpenAIChatCompletionsModel"])
async def agent(request, base_url):
    import agents
    import openai

    called = []

    @agents.function_tool
    def set_timer(seconds: int) -> str:
        """Start a timer."""
        called.append(("set_timer", seconds))
        return OK

    @agents.function_tool
    def set_light(room: str, on: bool) -> str:
        """Switch the light of a room."""
        called.append(("set_light", room, on))
        return OK

    async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as client:
        made = agents.Agent(
            name="home",
            instructions="You are a helpful assistant.",
            model=getattr(agents, request.param)(MODEL, client),
            tools=[set_timer, set_light],
        )
        made.called = called
        made.quiet = agents.RunConfig(tracing_disabled=True)
        made.run, made.run_streamed = agents.Runner.run, agents.Runner.run_streamed
        yield made


@needs_agents
async def test_agents_sdk_answers_in_text(agent):
    answer = await agent.run(agent, "What is the capital of France?", run_config=agent.quiet)
    assert answer.final_output == "The capital of France is Paris."
    again = [*answer.to_input_list(), {"role": "user", "content": "And of Spain?"}]
    answer = await agent.run(agent, again, run_config=agent.quiet)
    assert answer.final_output == "The capital of Spain is Madrid."


@needs_agents
async def test_agents_sdk_calls_functions(agent):
    answer = await agent.run(agent, ASKED, run_config=agent.quiet)
    assert agent.called == [("set_timer", 300)]
    assert answer.final_output == DONE
    again = [*answer.to_input_list(), {"role": "user", "content": "Kitchen light on."}]
    answer = await agent.run(agent, again, run_config=agent.quiet)
    assert agent.called[1:] == [("set_light", "kitchen", True)]
    assert answer.final_output == "The light in the kitchen is on."


@needs_agents
async def test_agents_sdk_streams(agent):
    result = agent.run_streamed(agent, ASKED, run_config=agent.quiet)
    grown = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert "".join(grown) == result.final_output == DONE
    assert len(grown) > 5
    assert agent.called == [("set_timer", 300)]


# -- livekit ---------------------------------------------------------------------------------
@needs_livekit
async def test_livekit_calls_functions(base_url):
    from livekit import agents
    from livekit.plugins import openai

    @agents.function_tool
    async def set_timer(seconds: int) -> str:
        """Start a timer."""
        return OK

    llm = openai.LLM(model=MODEL, base_url=base_url, api_key="none")
    context = agents.ChatContext.empty()
    context.add_message(role="user", content=ASKED)
    async with llm.chat(chat_ctx=context, tools=[set_timer]) as stream:
        chunks = [chunk async for chunk in stream]
    (call,) = [call for chunk in chunks if chunk.delta for call in chunk.delta.tool_calls]
    assert (call.name, json.loads(call.arguments)) == ("set_timer", {"seconds": 300})
    output = agents.llm.FunctionCallOutput(
        call_id=call.call_id, name=call.name, output=OK, is_error=False
    )
    asked = agents.llm.FunctionCall(call_id=call.call_id, name=call.name, arguments=call.arguments)
    context.items.extend([asked, output])
    async with llm.chat(chat_ctx=context, tools=[set_timer]) as stream:
        chunks = [chunk async for chunk in stream]
    await llm.aclose()
    assert "".join(chunk.delta.content or "" for chunk in chunks if chunk.delta) == DONE


# -- pipecat ---------------------------------------------------------------------------------
@needs_pipecat
async def test_pipecat_calls_functions(base_url):
    pytest.importorskip("pipecat.services.openai.llm")  # its first import warns of audioop
    from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
    from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
    from pipecat.frames.frames import ErrorFrame, LLMContextFrame, LLMTextFrame
    from pipecat.processors.aggregators.llm_context import LLMContext
    from pipecat.services.openai.llm import OpenAILLMService
    from pipecat.tests.utils import run_test

    timer = FunctionSchema("set_timer", "Start a timer.", {"seconds": SECONDS}, ["seconds"])
    settings = OpenAILLMService.Settings(model=MODEL)
    service = OpenAILLMService(base_url=base_url, api_key="none", settings=settings)
    called = []

    async def set_timer(params):
        called.append((params.tool_call_id, params.function_name, dict(params.arguments)))
        await params.result_callback({"ok": True})

    async def ask(messages):
        frame = LLMContextFrame(LLMContext(messages=messages, tools=ToolsSchema([timer])))
        down, up = await asyncio.wait_for(run_test(service, frames_to_send=[frame]), 60)
        assert not [frame for frame in up if isinstance(frame, ErrorFrame)]
        return "".join(frame.text for frame in down if isinstance(frame, LLMTextFrame))

    service.register_function("set_timer", set_timer)
    messages = [{"role": "user", "content": ASKED}]
    try:
        assert await ask(messages) == ""
        ((name, *call),) = called
        assert call == ["set_timer", {"seconds": 300}]
        function = {"name": "set_timer", "arguments": json.dumps({"seconds": 300})}
        calls = [{"id": name, "type": "function", "function": function}]
        messages += [
            {"role": "assistant", "tool_calls": calls},
            {"role": "tool", "tool_call_id": name, "content": OK},
        ]
        assert await ask(messages) == DONE
    finally:
        await service._client.close()  # the service leaves it open
