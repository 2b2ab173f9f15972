"""A process that decodes files for another one, so that a crash of the decoder is contained.

    python -P -m izwi.sandbox.decode_worker MEMORY_BYTES

It uses the frames of `izwi.sandbox.process`.

    in    J  a `DecodeJob` in JSON, followed by the file's bytes
    out   B  a block of samples, float32
          X  a `Refusal` in JSON, after any number of blocks

Uploaded files are parsed by a million lines of C. So the process has limited memory and processor
time, and cannot open files, start processes or write core dumps. It knows no secrets, because its
parent starts it with a small environment. It ends when its socket is closed.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys

import msgspec
import numpy as np

from izwi.audio.decode import decode_blocks
from izwi.audio.encode import wav_header
from izwi.audio.limits import DecodeLimits
from izwi.audio.resample import Resampling
from izwi.errors import InvalidRequest, TooLarge
from izwi.sandbox.process import (
    JOB,
    READY,
    begin_job,
    end_job,
    limit_process,
    read_exactly,
    read_frame,
    send_frame,
)

BLOCK, REFUSED = b"B", b"X"


class DecodeJob(msgspec.Struct, frozen=True):
    """A file to decode.

    Attributes:
        num_bytes: Size of the file, which follows.
        rate: Sample rate of the output, Hz.
        max_audio_s: As in `DecodeLimits`.
        max_decoded_bytes: As in `DecodeLimits`.
        cpu_s: Processor time limit.
        resampling: The filter.
    """

    num_bytes: int
    rate: int
    max_audio_s: float
    max_decoded_bytes: int
    cpu_s: int
    resampling: Resampling = Resampling.LIBROSA


class Refusal(msgspec.Struct, frozen=True):
    """The reason why a file was not decoded.

    Attributes:
        is_too_large: It exceeds a limit; otherwise it is not valid audio.
        message: Message for the caller.
    """

    is_too_large: bool
    message: str


def main(memory_bytes: int) -> None:
    """Decode files until the socket closes."""
    stream = socket.socket(fileno=0)
    # Modules and codecs are loaded on first use, which must be before files are forbidden.
    silence = np.zeros(4096, np.int16).tobytes()
    au_header = b".snd" + struct.pack(">5I", 24, len(silence), 3, 8000, 1)  # 16 bits, by FFmpeg
    for header in (wav_header(8000, len(silence)), au_header):
        for _ in decode_blocks(header + silence, 16_000, DecodeLimits()):
            pass
    with contextlib.suppress(InvalidRequest):
        list(decode_blocks(b"this is not audio", 16_000, DecodeLimits()))
    limit_process(memory_bytes)
    send_frame(stream, READY)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            _answer(stream)


def _answer(stream: socket.socket) -> None:
    kind, content = read_frame(stream)
    assert kind == JOB
    job = msgspec.json.decode(content, type=DecodeJob)
    file = bytes(read_exactly(stream, job.num_bytes))
    begin_job(stream, job.cpu_s)
    limits = DecodeLimits(job.max_audio_s, job.max_decoded_bytes)
    try:
        for block in decode_blocks(file, job.rate, limits, job.resampling):
            send_frame(stream, BLOCK, block.astype("<f4", copy=False).tobytes())
    except InvalidRequest as error:
        refusal = Refusal(isinstance(error, TooLarge), str(error))
        send_frame(stream, REFUSED, msgspec.json.encode(refusal))
    end_job(stream)


if __name__ == "__main__":
    main(int(sys.argv[1]))
