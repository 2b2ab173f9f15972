"""The tools as an MCP server, by the official SDK (the extra `mcp`). Imported only when it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from izwi import __version__
from izwi.errors import IzwiError
from izwi_api.mcp.tools import SpeechTools

Tool = Callable[..., Awaitable[Any]]

_INSTRUCTIONS = (
    "Speak texts, transcribe recordings and clone voices with izwi. Files are in the speech "
    "folder: {folder}"
)


def mcp_server(tools: SpeechTools) -> MCPServer:
    """Return the server of the tools; it runs over stdio or over HTTP."""
    server = MCPServer(
        "izwi", version=__version__, instructions=_INSTRUCTIONS.format(folder=tools.folder)
    )
    for tool in (tools.say, tools.transcribe, tools.clone, tools.list_voices):
        server.add_tool(_reporting(tool))
    return server


def _reporting(tool: Tool) -> Tool:
    """Return a tool whose errors an assistant can read: the SDK shows those of this kind alone."""

    @wraps(tool)
    async def reporting(*args: Any, **arguments: Any) -> Any:
        try:
            return await tool(*args, **arguments)
        except IzwiError as error:
            raise ToolError(str(error)) from error

    return reporting


async def serve_stdio(tools: SpeechTools) -> None:
    """Serve one assistant over the standard streams, until it closes them."""
    await mcp_server(tools).run_stdio_async()


async def serve_http(tools: SpeechTools, host: str, port: int) -> None:
    """Serve assistants of this machine over streamable HTTP at /mcp."""
    await mcp_server(tools).run_streamable_http_async(host=host, port=port)
