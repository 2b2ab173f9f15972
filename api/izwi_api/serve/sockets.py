"""ZeroMQ sockets of API servers and engine: nothing is dropped, large frames are not copied.

Addresses are `ipc://PATH` on one machine. Between machines they are `tcp://HOST:PORT/KEY`: KEY is
the public key of the socket's owner, in hexadecimal. Such connections are encrypted (CurveZMQ), and
nobody can open one without knowing the key.
"""

from __future__ import annotations

from collections.abc import Sequence

import zmq
import zmq.utils.z85

from izwi.request.serialization import Frame

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

# Sending without a copy costs some 10 us a frame, the time of copying 16 KiB.
_LARGE_BYTES = 16 << 10
# Between machines: milliseconds from one heartbeat of ZeroMQ to the next, and without any until a
# connection counts as lost.
_HEARTBEAT_MS, _SILENT_MS = 1000, 3500


def open_socket(context: Context, kind: int) -> Socket:
    """Open a PUSH or PULL socket with an unlimited queue; the sender limits what it queues."""
    socket = context.socket(kind)
    socket.set_hwm(0)
    socket.linger = 0
    socket.copy_threshold = _LARGE_BYTES
    return socket


def bind(socket: Socket, address: str) -> str:
    """Let a socket be reached, and return where.

    Args:
        socket: A new socket.
        address: `ipc://PATH`, or `tcp://HOST` with an address of this machine: any free port.
    """
    if not is_remote(address):
        socket.bind(address)
        return address
    public, secret = zmq.curve_keypair()
    socket.curve_secretkey, socket.curve_publickey, socket.curve_server = secret, public, True
    _set_up_tcp(socket)
    socket.bind(f"{address}:*")
    bound = socket.get_string(zmq.LAST_ENDPOINT)
    return f"{bound}/{zmq.utils.z85.decode(public).hex()}"


def connect(socket: Socket, address: str) -> None:
    """Connect a new socket to an address that `bind` has returned, possibly elsewhere."""
    if not is_remote(address):
        socket.connect(address)
        return
    endpoint, _, key = address.rpartition("/")
    socket.curve_serverkey = zmq.utils.z85.encode(bytes.fromhex(key))
    socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
    _set_up_tcp(socket)
    socket.connect(endpoint)


def is_remote(address: str) -> bool:
    """Whether an address may be on another machine."""
    return address.startswith("tcp:")


def _set_up_tcp(socket: Socket) -> None:
    # a process that dies closes its connections; a machine that dies only falls silent
    socket.heartbeat_ivl, socket.heartbeat_timeout = _HEARTBEAT_MS, _SILENT_MS
    socket.ipv6 = True


def open_monitor(socket: Socket) -> Socket:
    """Open a socket that receives a message whenever a connection of another one is lost."""
    return socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)


def close_monitored(socket: Socket, monitor: Socket | None) -> None:
    """Close a socket, and its monitor if it has one."""
    if monitor is not None:
        socket.disable_monitor()
        monitor.close(linger=0)
    socket.close()


def send(socket: Socket, frames: Sequence[Frame]) -> None:
    """Send a message. Its large frames must not be modified afterwards."""
    socket.send_multipart(frames, copy=max(map(len, frames)) < _LARGE_BYTES)


def receive(socket: Socket) -> list[Frame] | None:
    """Return a message that has arrived, without a copy, or None."""
    try:
        return [frame.buffer for frame in socket.recv_multipart(zmq.NOBLOCK, copy=False)]
    except zmq.Again:
        return None
