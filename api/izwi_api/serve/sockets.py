"""ZeroMQ sockets of API servers and engine: nothing is dropped, large frames are not copied."""

from __future__ import annotations

from collections.abc import Sequence

import zmq

from izwi.request.serialization import Frame

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

# Sending without a copy costs some 10 us a frame, the time of copying 16 KiB.
_LARGE_BYTES = 16 << 10


def open_socket(context: Context, kind: int) -> Socket:
    """Open a PUSH or PULL socket with an unlimited queue; the sender limits what it queues."""
    socket = context.socket(kind)
    socket.set_hwm(0)
    socket.linger = 0
    socket.copy_threshold = _LARGE_BYTES
    return socket


def send(socket: Socket, frames: Sequence[Frame]) -> None:
    """Send a message. Its large frames must not be modified afterwards."""
    socket.send_multipart(frames, copy=max(map(len, frames)) < _LARGE_BYTES)


def receive(socket: Socket) -> list[Frame] | None:
    """Return a message that has arrived, without a copy, or None."""
    try:
        return [frame.buffer for frame in socket.recv_multipart(zmq.NOBLOCK, copy=False)]
    except zmq.Again:
        return None
