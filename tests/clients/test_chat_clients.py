"""Agents' frameworks talk with a chat model: their services as they come, `pip install .[clients]`.

The model is the tiny one of random weights, behind a real server: what it says means nothing.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.api.served import served
from tests.clients.installed import needs_livekit, needs_pipecat
from tests.models.tiny_chat import write_tiny_chat

ASKED = [{"role": "user", "content": "Hello there, who are you?"}]


@pytest.fixture(scope="module")
def base_url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    write_tiny_chat(folder / "chat", do_sample=False)
    with served(folder, "--model", str(folder / "chat")) as server:
        yield f"{server.url}/v1"


@pytest.fixture(scope="module")
def said(base_url):
    """What the server answers when it is asked plainly."""
    import httpx

    body = {"model": "chat", "messages": ASKED, "max_tokens": 40}
    answer = httpx.post(f"{base_url}/chat/completions", json=body, timeout=60)
    return answer.raise_for_status().json()["choices"][0]["message"]["content"]


@needs_livekit
async def test_livekit_chats(base_url, said):
    from livekit import agents
    from livekit.plugins import openai

    llm = openai.LLM(
        model="chat", base_url=base_url, api_key="none", max_completion_tokens=40, user="ada"
    )
    context = agents.ChatContext.empty()
    context.add_message(**ASKED[0])
    async with llm.chat(chat_ctx=context) as stream:
        chunks = [chunk async for chunk in stream]
    await llm.aclose()
    assert "".join(chunk.delta.content or "" for chunk in chunks if chunk.delta) == said
    (usage,) = [chunk.usage for chunk in chunks if chunk.usage]
    assert usage.completion_tokens == 40
    assert usage.prompt_tokens > len(ASKED[0]["content"]) / 4


@needs_livekit
async def test_livekit_reports_errors(base_url):
    from livekit import agents
    from livekit.plugins import openai

    llm = openai.LLM(model="none", base_url=base_url, api_key="none")
    context = agents.ChatContext.empty()
    context.add_message(**ASKED[0])
    stream = llm.chat(chat_ctx=context, conn_options=agents.APIConnectOptions(max_retry=0))
    with pytest.raises(agents.APIStatusError) as caught:
        await anext(stream)
    await stream.aclose()
    await llm.aclose()
    assert caught.value.status_code == 404


@needs_pipecat
async def test_pipecat_chats(base_url, said):
    from pipecat.frames.frames import ErrorFrame, LLMContextFrame, LLMTextFrame
    from pipecat.processors.aggregators.llm_context import LLMContext
    from pipecat.services.openai.llm import OpenAILLMService
    from pipecat.tests.utils import run_test

    settings = OpenAILLMService.Settings(model="chat", max_completion_tokens=40)
    service = OpenAILLMService(base_url=base_url, api_key="none", settings=settings)
    try:
        frame = LLMContextFrame(LLMContext(messages=list(ASKED)))
        down, up = await asyncio.wait_for(run_test(service, frames_to_send=[frame]), 60)
    finally:
        await service._client.close()  # the service leaves it open
    assert not [frame for frame in up if isinstance(frame, ErrorFrame)]
    assert "".join(frame.text for frame in down if isinstance(frame, LLMTextFrame)) == said
