"""A process that compiles grammars from outside, to find out whether they can be used.

    python -P -m izwi.sandbox.grammar_worker MEMORY_BYTES

It uses the frames of `izwi.sandbox.process`.

    in    J  a `GrammarJob` in JSON
    out   O  the grammar compiles, empty
          X  the reason why it does not, a message for the caller

It compiles as the engine does, but for a vocabulary of single bytes. The masks of the steps are
limited by llguidance itself; the first one may still take half a second.
"""

from __future__ import annotations

import contextlib
import socket
import sys

import msgspec
from llguidance import LLTokenizer, TokenizerWrapper

from izwi.inputs.grammar import compile_grammar, explain
from izwi.sandbox.process import READY, begin_job, end_job, limit_process, read_frame, send_frame

USABLE, REFUSED = b"O", b"X"
# Ids of tokens that a grammar may name, like those of function calls, are below this.
MAX_TOKENS = 1 << 18
_SAMPLES = ('start: %json {"type": "object"}', "start: /a{2}/", "start: nothing")


class GrammarJob(msgspec.Struct, frozen=True):
    """A grammar to compile.

    Attributes:
        text: As in `izwi.inputs.grammar.Grammar`.
        source: The same.
        cpu_s: Processor time limit.
        with_mask: Whether to compute the mask of the first token, too.
    """

    text: str
    source: str
    cpu_s: float
    with_mask: bool = False


class _Bytes:
    """A vocabulary of the bytes, and of ids without text that a grammar may name."""

    tokens = [bytes([byte]) for byte in range(256)] + [b""] * (MAX_TOKENS - 256)
    special_token_ids: list[int] = []  # noqa: RUF012
    eos_token_id = 256
    bos_token_id = None

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def byte_tokenizer() -> LLTokenizer:
    """Return a tokenizer whose tokens are single bytes."""
    # without slices, which make masks faster and are no part of compiling
    return LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=MAX_TOKENS, slices=[])


def problem(tokenizer: LLTokenizer, job: GrammarJob) -> str | None:
    """Compile a grammar; return the message for the caller if it cannot be used."""
    try:
        matcher = compile_grammar(tokenizer, job.text)
    except ValueError as error:
        return explain(str(error), job.source)
    if matcher.is_error():
        return explain(matcher.get_error(), job.source)
    if job.with_mask:
        matcher.compute_bitmask()
    return None


def main(memory_bytes: int) -> None:
    """Compile grammars until the socket closes."""
    stream = socket.socket(fileno=0)
    tokenizer = byte_tokenizer()
    for sample in _SAMPLES:  # loads what is loaded once, while files can be opened
        problem(tokenizer, GrammarJob(sample, "", 0.0, with_mask=True))
    limit_process(memory_bytes)
    send_frame(stream, READY)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            _, content = read_frame(stream)
            job = msgspec.json.decode(content, type=GrammarJob)
            begin_job(stream, job.cpu_s)
            found = problem(tokenizer, job)
            send_frame(stream, USABLE if found is None else REFUSED, (found or "").encode())
            end_job(stream)


if __name__ == "__main__":
    main(int(sys.argv[1]))
