"""`izwi chat`: ask a chat model once, or hold a conversation at the terminal."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from izwi.errors import InvalidRequest, IzwiError, ModelNotFound
from izwi_api.cli.options import (
    ApiKey,
    Device,
    Dtype,
    Offline,
    Seed,
    ServerUrl,
    Temperature,
    check_seed,
)
from izwi_api.console import messages, report_failures, tell_failure
from izwi_api.settings import DEFAULT_MODELS

if TYPE_CHECKING:
    from izwi_api.client import Answer, AsyncClient, ChatDelta, ResponseStream
    from izwi_api.client.text import ChatOptions

_START = f"izwi serve --model {DEFAULT_MODELS[3]}"

Text = Annotated[
    str | None,
    typer.Argument(
        help="Question; - reads stdin. Without it, reads a pipe, or starts a conversation at a "
        "terminal.",
        show_default=False,
    ),
]
ModelSource = Annotated[
    str | None,
    typer.Option(
        help="Folder or hub id of a Qwen3 chat checkpoint, such as Qwen/Qwen3-0.6B; by default "
        f"{DEFAULT_MODELS[3]}. With --server its name there, by default the first.",
        show_default=False,
    ),
]
System = Annotated[str | None, typer.Option(help="System message before the first turn.")]
Think = Annotated[
    bool | None,
    typer.Option(
        "--think/--no-think",
        help="Think first; thoughts go to stderr. Default: only if the model always thinks.",
        show_default=False,
    ),
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(min=1, help="At most this many tokens in an answer, including thoughts."),
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json", help="Print text, reasoning and usage as JSON, one line for each answer."
    ),
]


def chat(
    text: Text = None,
    model: ModelSource = None,
    system: System = None,
    think: Think = None,
    temperature: Temperature = None,
    seed: Seed = None,
    max_new_tokens: MaxNewTokens = None,
    as_json: AsJson = False,
    server: ServerUrl = None,
    api_key: ApiKey = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
) -> None:
    """Ask a chat model, or hold a conversation with it."""
    from izwi.model.capability import Capability
    from izwi_api.cli.running_server import running_server
    from izwi_api.client import AsyncClient, RuntimeOptions

    with report_failures():
        check_seed(seed)
        runtime = RuntimeOptions(device, dtype, offline)
        server = running_server(
            server, api_key, local_only=runtime != RuntimeOptions(), serves={Capability.CHAT: model}
        )
        client = AsyncClient(
            server, api_key=api_key, models=[model or DEFAULT_MODELS[3]], runtime=runtime
        )
        options: ChatOptions = {
            "model": model if server else None,
            "enable_thinking": think,
            "temperature": temperature,
            "seed": seed,
            "max_completion_tokens": max_new_tokens,
        }
        no_model = (
            f"{server} serves no model for chat; start it with: {_START}"
            if server
            else f"model {model!r} is not a chat model"
        )
        talk = _Talk(client, options, system, no_model, as_json=as_json)
        if text is None and _at_terminal():
            talk.converse()
        else:
            talk.once(text if text not in (None, "-") else _read_stdin())


class _Talk:
    """A conversation with one model, printed to a console."""

    def __init__(
        self,
        client: AsyncClient,
        options: ChatOptions,
        system: str | None,
        no_model: str,
        *,
        as_json: bool,
    ):
        self._client, self._options, self._no_model = client, options, no_model
        self._messages: list[dict[str, str]] = []
        if system is not None:
            self._messages.append({"role": "system", "content": system})
        self._as_json = as_json
        self._console = messages()

    def once(self, text: str) -> None:
        """Ask one question. Raises IzwiError."""
        if not text.strip():
            raise InvalidRequest("there is no text to answer", param="text")

        async def answered() -> None:
            async with self._client:
                await self._choose_model()
                await self._answer(text)

        asyncio.run(answered())

    def converse(self) -> None:
        """Read and answer until the end of stdin. Raises IzwiError if it cannot start."""
        with suppress(ImportError):  # if available, lines can be edited
            import readline  # noqa: F401
        stack = AsyncExitStack()
        with asyncio.Runner() as runner:
            try:
                runner.run(stack.enter_async_context(self._client))
                runner.run(self._choose_model())
                self._console.print(
                    "Ctrl-C stops an answer, Ctrl-D ends the conversation.", style="dim"
                )
                while (text := self._next_line()) is not None:
                    if text.strip():
                        self._turn(runner, text)
            finally:
                runner.run(stack.aclose())

    def _next_line(self) -> str | None:
        try:
            return self._console.input("[bold]> [/]")
        except (EOFError, KeyboardInterrupt):
            self._console.print()
            return None
        except UnicodeDecodeError as error:
            raise InvalidRequest("the input is not UTF-8", param="text") from error

    def _turn(self, runner: asyncio.Runner, text: str) -> None:
        """Answer one line. A failure is reported, and the line is forgotten."""
        before = list(self._messages)
        try:
            runner.run(self._answer(text))
        except KeyboardInterrupt:  # the answer so far is kept
            self._console.print()
        except IzwiError as error:
            tell_failure(error)
            self._messages = before

    async def _choose_model(self) -> None:
        """Find the model before the user types anything. Raises ModelNotFound."""
        try:
            self._options["model"] = await self._client.model_for(
                "chat", self._options.get("model")
            )
        except ModelNotFound as error:
            raise ModelNotFound(self._no_model, param="model") from error

    async def _answer(self, text: str) -> None:
        """Print the answer to a text as it arrives, and add both to the conversation."""
        self._messages.append({"role": "user", "content": text})
        stream = self._client.stream_chat(tuple(self._messages), **self._options)
        try:
            async with stream:
                await self._print(stream)
        finally:
            self._messages.append({"role": "assistant", "content": stream.result.content})

    async def _print(self, stream: ResponseStream[ChatDelta, Answer]) -> None:
        answer, begun = stream.result, False
        async for delta in stream:
            if self._as_json:
                continue
            if delta.reasoning:
                self._console.print(delta.reasoning, style="dim", markup=False, end="")
            if delta.content:
                if answer.reasoning and not begun:
                    self._console.print()  # thoughts do not end with a line break
                begun = True
                _write(delta.content)
        if self._as_json:
            _write(_json_line(answer))
            return
        if not answer.content.endswith("\n"):
            _write("\n")
        if answer.finish_reason == "length":
            self._console.print(f"cut off after {answer.num_tokens} tokens", style="dim")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _json_line(answer: Answer) -> str:
    fields: dict[str, object] = {"text": answer.content}
    if answer.reasoning:
        fields["reasoning"] = answer.reasoning
    fields |= {
        "finish_reason": answer.finish_reason,
        "prompt_tokens": answer.num_prompt_tokens,
        "completion_tokens": answer.num_tokens,
    }
    return json.dumps(fields, ensure_ascii=False) + "\n"


def _at_terminal() -> bool:
    return sys.stdin.isatty()


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest("the text on stdin is not UTF-8", param="text") from error
