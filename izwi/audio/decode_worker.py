"""A process that decodes files for another one, so that a crash of the decoder stays contained.

    python -P -m izwi.audio.decode_worker MEMORY_BYTES

It talks over the socket that is its standard input, in frames: a byte that says which kind, the
length in 4 bytes, little end first, and the content.

    in    J  a `Job` in JSON, with the file's bytes behind it
    out   R  it is ready, empty; once, at its start
          B  a block of samples, float32
          E  the end of the samples, empty
          X  a `Refusal` in JSON, at any place before E

Files of strangers are read by a million lines of C. So the process takes as much memory and
processor time as it was given, can open no file, start no process and write no core dump, and knows
no secret: its parent starts it with a small environment. It ends when its socket does.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import struct
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

from izwi.audio.decode import DecodeLimits, decode_blocks
from izwi.audio.encode import wav_header
from izwi.errors import InvalidRequest, TooLarge

HEAD = struct.Struct("<cI")
JOB, READY, BLOCK, END, REFUSED = b"J", b"R", b"B", b"E", b"X"


class Job(msgspec.Struct, frozen=True):
    """What is to be decoded.

    Attributes:
        num_bytes: Of the file, which follows.
        rate: Sample rate of the answer in Hz.
        max_audio_s: As in `DecodeLimits`.
        max_decoded_bytes: As in `DecodeLimits`.
        cpu_s: Processor time that it may take.
    """

    num_bytes: int
    rate: int
    max_audio_s: float
    max_decoded_bytes: int
    cpu_s: int


class Refusal(msgspec.Struct, frozen=True):
    """Why a file was not decoded.

    Attributes:
        is_too_large: It is over a limit; else it is no audio.
        message: For the caller.
    """

    is_too_large: bool
    message: str


def read_exactly(stream: socket.socket, num_bytes: int) -> bytearray:
    """Read so many bytes. Raises EOFError where the other side has left."""
    content = bytearray(num_bytes)
    view = memoryview(content)
    while view:
        num_read = stream.recv_into(view)
        if num_read == 0:
            raise EOFError
        view = view[num_read:]
    return content


def main(memory_bytes: int) -> None:
    """Decode one file after the other until the socket closes."""
    stream = socket.socket(fileno=0)
    # What is used for the first time is loaded from files, and soon none can be opened.
    silence = np.zeros(4096, np.int16).tobytes()
    for _ in decode_blocks(wav_header(8000, len(silence)) + silence, 16_000, DecodeLimits()):
        pass
    with contextlib.suppress(InvalidRequest):
        list(decode_blocks(b"this is not audio", 16_000, DecodeLimits()))
    _limit(memory_bytes)
    stream.sendall(HEAD.pack(READY, 0))
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            _answer(stream)


def _answer(stream: socket.socket) -> None:
    kind, size = HEAD.unpack(read_exactly(stream, HEAD.size))
    assert kind == JOB
    job = msgspec.json.decode(read_exactly(stream, size), type=Job)
    content = bytes(read_exactly(stream, job.num_bytes))
    _limit_time(job.cpu_s)
    limits = DecodeLimits(job.max_audio_s, job.max_decoded_bytes)
    try:
        for block in decode_blocks(content, job.rate, limits):
            samples = block.astype("<f4", copy=False).tobytes()
            stream.sendall(HEAD.pack(BLOCK, len(samples)) + samples)
    except InvalidRequest as error:
        reported = msgspec.json.encode(Refusal(isinstance(error, TooLarge), str(error)))
        stream.sendall(HEAD.pack(REFUSED, len(reported)) + reported)
    else:
        stream.sendall(HEAD.pack(END, 0))


def _limit(memory_bytes: int) -> None:
    """Give up what decoding does not need. Platforms differ; what they cannot limit stays free."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", "ascii")
    try:
        import resource
    except ImportError:
        return
    used_bytes = 0
    with contextlib.suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        used_bytes = pages * os.sysconf("SC_PAGE_SIZE")
    wanted = {
        "RLIMIT_AS": used_bytes + memory_bytes,
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_NPROC": 0,
        "RLIMIT_NOFILE": 3,
    }
    for name, value in wanted.items():
        with contextlib.suppress(AttributeError, OSError, ValueError):
            resource.setrlimit(getattr(resource, name), (value, value))


def _limit_time(cpu_s: int) -> None:
    """Let the system end this process when a file has taken so much more of the processor."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        until_s = math.ceil(time.process_time()) + cpu_s
        resource.setrlimit(resource.RLIMIT_CPU, (until_s, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main(int(sys.argv[1]))
