"""The official SDK's client against `izwi mcp`: `pip install .[clients,mcp]`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from socket import socket

import pytest

pytest.importorskip("mcp", reason="mcp is not installed")
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

START = "from izwi_api.cli.run import main; main()"
SENTENCE = "The house is near the river."


def command(folder):
    options = ["mcp", "--folder", str(folder), "--server", "none", "--device", "cpu"]
    return [sys.executable, "-c", START, *options, "--dtype", "float32"]


def environ(folder):
    return os.environ | {"IZWI_HOME": str(folder / "home"), "IZWI_DECODE_WORKERS": "1"}


def start(arguments, folder):
    with (folder / "mcp.log").open("wb") as log:
        return subprocess.Popen(arguments, env=environ(folder), stdout=log, stderr=log)


@asynccontextmanager
async def over_stdio(folder):
    program, *arguments = command(folder)
    parameters = StdioServerParameters(command=program, args=arguments, env=environ(folder))
    async with Client(stdio_client(parameters)) as client:
        yield client


@asynccontextmanager
async def over_http(folder):
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [*command(folder), "--http", "--port", str(port)]
    process = start(arguments, folder)
    try:
        async with asyncio.timeout(120):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    await writer.wait_closed()
                    break
                except OSError:
                    assert process.poll() is None, (folder / "mcp.log").read_text()
                    await asyncio.sleep(0.1)
        async with Client(f"http://127.0.0.1:{port}/mcp") as client:
            yield client
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 60)


def text_of(result):
    return "".join(part.text for part in result.content)


@pytest.mark.parametrize("connected", [over_stdio, over_http])
async def test_an_assistant_speaks_listens_and_clones(connected, tmp_path):
    async with connected(tmp_path) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"say", "transcribe", "clone", "list_voices"}
        assert tools["say"].input_schema["required"] == ["text", "file"]
        assert "consent" in tools["clone"].description
        said = await client.call_tool("say", {"text": SENTENCE, "file": "house.wav"})
        assert not said.is_error, text_of(said)
        assert str(tmp_path / "house.wav") in text_of(said)
        heard = await client.call_tool("transcribe", {"file": "house.wav"})
        assert "river" in text_of(heard).lower()
        made = await client.call_tool(
            "clone", {"name": "mine", "file": "house.wav", "consent": "It is a synthetic voice."}
        )
        assert not made.is_error, text_of(made)
        voices = await client.call_tool("list_voices", {})
        assert "mine" in text_of(voices)
        refused = await client.call_tool("transcribe", {"file": "../secret.wav"})
        assert refused.is_error
        assert "not in the speech folder" in text_of(refused)
