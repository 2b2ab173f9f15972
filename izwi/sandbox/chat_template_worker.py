"""A process that executes one checkpoint's chat template, which is untrusted code.

    python -P -m izwi.sandbox.chat_template_worker MEMORY_BYTES

It uses the frames of `izwi.sandbox.process`.

    in    T  the template's text; once, first
          J  a `TemplateJob` in JSON
    out   O  the text that the template makes of a job
          X  the reason why there is none, a message for the caller

The environment is that of transformers' `apply_chat_template` (utils/chat_template_utils.py of
5.23): Jinja's immutable sandbox, `trim_blocks` and `lstrip_blocks`, loop controls, the tag
`generation`, the functions `raise_exception` and `strftime_now`, a `tojson` that escapes no HTML,
and stand-ins for `dict` and `namespace` that give access to no internals of Python.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import jinja2.debug  # imports what reporting an error needs, while files can be opened
import jinja2.ext
import msgspec
from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from izwi.sandbox.process import READY, begin_job, end_job, limit_process, read_frame, send_frame

TEMPLATE, OUTPUT, REFUSED = b"T", b"O", b"X"
_MAX_MESSAGE_CHARS = 300
# Jinja and Python import modules when these are first used: date and JSON, names and characters
# beyond ASCII, tags, filler text. The error at the end imports what reports errors.
_LOADS = (
    "{{ strftime_now('%Y') | tojson }}{% set é = '\\N{DIGIT ONE}' %}{{ é | striptags }}"
    "{{ lipsum(1) | wordwrap | pprint }}{{ none.x.y }}"
)


class TemplateJob(msgspec.Struct, frozen=True):
    """A conversation to render.

    Attributes:
        variables: The template's variables: messages, tools and so on, plain JSON.
        max_chars: Maximum length of the text.
        cpu_s: Processor time limit.
    """

    variables: dict[str, Any]
    max_chars: int
    cpu_s: int


class _Raised(TemplateError):
    """An error raised by the template itself: it rejects the conversation."""


class _Generation(jinja2.ext.Extension):
    """The tag around the assistant's text, which only training uses."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """Keep the text and drop the tag; its block is a scope, as in transformers."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller: Macro) -> str:
        return str(caller())


class _Dict:
    """`dict` without its attributes."""

    def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
        return dict(*args, **values)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        """As `dict.fromkeys`."""
        return dict.fromkeys(keys, value)


class _Namespace(Namespace):
    """A namespace whose names do not begin with an underscore."""

    def __init__(*args: Any, **values: Any) -> None:
        self, rest = args[0], args[1:]
        named = dict(*rest, **values)
        for name in named:
            _check_name(name)
        Namespace.__init__(self, named)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a name in a namespace must not begin with an underscore: {name!r}")


def environment() -> ImmutableSandboxedEnvironment:
    """Return the environment in which a template is parsed and executed."""
    extensions = [_Generation, jinja2.ext.loopcontrols]
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=extensions
    )
    made.filters["tojson"] = _to_json
    made.globals |= {
        "raise_exception": _raise,
        "strftime_now": _now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return made


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: object) -> None:
    raise _Raised(str(message))


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def main(memory_bytes: int) -> None:
    """Execute the template for jobs until the socket closes."""
    stream = socket.socket(fileno=0)
    made = environment()
    with contextlib.suppress(TemplateError):  # loads what is loaded once, while files can be opened
        made.from_string(_LOADS).render()
    limit_process(memory_bytes)
    send_frame(stream, READY)
    with contextlib.suppress(EOFError, ConnectionError):
        _, source = read_frame(stream)
        template: jinja2.Template | None = None
        is_out_of_memory = False
        while not is_out_of_memory:  # the process is of no use after that
            _, content = read_frame(stream)
            job = msgspec.json.decode(content, type=TemplateJob)
            begin_job(stream, job.cpu_s)
            kind = OUTPUT
            try:
                # compiling evaluates constants, so it is limited, too
                template = template or made.from_string(source.decode())
                answer = _rendered(template, job).encode()
            except (Exception, RecursionError) as error:
                is_out_of_memory = isinstance(error, MemoryError)
                kind, answer = REFUSED, _refusal(error).encode()
            send_frame(stream, kind, answer)
            end_job(stream)


def _rendered(template: jinja2.Template, job: TemplateJob) -> str:
    parts: list[str] = []
    left = job.max_chars
    for part in template.generate(job.variables):
        left -= len(part)
        if left < 0:
            raise OverflowError(f"it makes more than {job.max_chars} characters")
        parts.append(part)
    return "".join(parts)


def _refusal(error: BaseException) -> str:
    if isinstance(error, _Raised):
        return f"the model's chat template refuses this: {_short(error)}"
    if isinstance(error, MemoryError):
        return "the model's chat template takes too much memory"
    if isinstance(error, TemplateSyntaxError):
        return f"the model's chat template is not valid: line {error.lineno}: {_short(error)}"
    if isinstance(error, OSError | ImportError):
        error = PermissionError("what it uses of Python is not loaded, and it may not open files")
    failed = f"{type(error).__name__}: {_short(error)}"
    return f"the model's chat template failed on this conversation: {failed}"


def _short(error: BaseException) -> str:
    text = str(error).encode(errors="backslashreplace").decode()
    return text if len(text) <= _MAX_MESSAGE_CHARS else text[:_MAX_MESSAGE_CHARS] + "..."


if __name__ == "__main__":
    main(int(sys.argv[1]))
