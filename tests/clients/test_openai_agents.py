"""openai-agents, unmodified, over responses and over chat completions."""

from __future__ import annotations

import pytest

agents = pytest.importorskip("agents")

from agents import (  # noqa: E402
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI  # noqa: E402

from izwi_api.serve.app import create_app  # noqa: E402
from izwi_api.settings import Settings  # noqa: E402
from tests.api.conftest import FakeChat, FakeEngine, FakeRegistry, listening  # noqa: E402

CALL = '<tool_call>\n{"name": "set_light", "arguments": {"on": true}}\n</tool_call>'
QUIET = RunConfig(tracing_disabled=True)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    settings = Settings(home=tmp_path_factory.mktemp("home"))
    with listening(create_app(FakeEngine(), FakeRegistry(chat=FakeChat()), settings)) as port:
        yield f"http://127.0.0.1:{port}/v1"


@pytest.fixture(params=[OpenAIResponsesModel, OpenAIChatCompletionsModel])
async def agent(request, url):
    switched = []

    @function_tool
    def set_light(on: bool) -> str:
        """Switch the light."""
        switched.append(on)
        return f"the light is {'on' if on else 'off'}"

    async with AsyncOpenAI(base_url=url, api_key="none") as client:
        model = request.param("chat", client)
        made = Agent(name="light", instructions="Help.", model=model, tools=[set_light])
        made.switched = switched
        yield made


async def test_an_agent_answers_in_text(agent):
    answer = await Runner.run(agent, "hello there", run_config=QUIET)
    assert answer.final_output == "hello there"


async def test_a_function_is_called(agent):
    answer = await Runner.run(agent, CALL, run_config=QUIET)
    assert agent.switched == [True]
    assert answer.final_output == "the light is on"
    again = [*answer.to_input_list(), {"role": "user", "content": "thanks"}]
    assert (await Runner.run(agent, again, run_config=QUIET)).final_output == "thanks"


async def test_an_answer_is_streamed(agent):
    result = Runner.run_streamed(agent, CALL, run_config=QUIET)
    grown = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert "".join(grown) == result.final_output == "the light is on"
    assert agent.switched == [True]
