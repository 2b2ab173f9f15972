"""A live session over WebRTC: Opus audio tracks, and events on the data channel `oai-events`.

Needs aiortc (the extra `webrtc`). Imported only when a call arrives.
"""

from __future__ import annotations

import asyncio
import logging
import time
from fractions import Fraction

import numpy as np
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCDataChannel,
    RTCPeerConnection,
    RTCSessionDescription,
)
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame, AudioResampler

from izwi.errors import InvalidRequest
from izwi_api.realtime.answering.speaker import WIRE, Speaker
from izwi_api.realtime.session import AppendAudio, Work
from izwi_api.realtime.transport.lost_packets import Filler, PacketBuffer
from izwi_api.sessions.core import Message
from izwi_api.sessions.errors import ClientLeft

logger = logging.getLogger(__name__)

CHANNEL = "oai-events"
_FRAME_MS = 20
# Time for a peer to connect.
CONNECT_S = 20.0
# Without a packet for so long, the sender is taken to be silent. A busy server is late by less.
_QUIET_S = 0.4
# Maximum message size that browsers accept on a data channel.
_MAX_MESSAGE_BYTES = 256 << 10
_MAX_UNSENT_BYTES = 1 << 20
# Maximum number of queued events.
_MAX_INBOX = 1024
_NO_SAMPLES = np.zeros(0, np.int16)
# Name of the private attribute for the jitter buffer in aiortc's receivers.
_BUFFER = "_RTCRtpReceiver__jitter_buffer"
_TOO_LARGE = (
    '{"type":"error","event_id":"event_too_large","error":{"type":"server_error",'
    '"code":"event_too_large","message":"an event is too large for a data channel",'
    '"param":null,"event_id":null}}'
)


class Call:
    """A peer connection, and the `Wire` of its session."""

    def __init__(self) -> None:
        # no STUN or TURN servers: callers already know this server's address
        self._peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._inbox: asyncio.Queue[Message | None] = asyncio.Queue()
        self._channel: RTCDataChannel | None = None
        self._open, self._moved = asyncio.Event(), asyncio.Event()
        self._microphone: MediaStreamTrack | None = None
        self._heard = asyncio.Event()
        self._has_left = False
        self._peer.on("connectionstatechange", self._see_state)
        self._peer.on("datachannel", self._take_channel)
        self._peer.on("track", self._take_track)

    async def answer(self, offer: str, track: MediaStreamTrack) -> str:
        """Accept a caller's SDP offer and return the SDP answer.

        Raises:
            InvalidRequest: The offer is invalid, or has no audio.
        """
        try:
            await self._peer.setRemoteDescription(RTCSessionDescription(offer, "offer"))
            if all(each.kind != "audio" for each in self._peer.getTransceivers()):
                raise InvalidRequest("the offer has no audio", param="sdp")
            self._peer.addTrack(track)
            await self._peer.setLocalDescription(await self._peer.createAnswer())
        except InvalidRequest:
            await self._peer.close()
            raise
        except Exception as error:  # third-party parser: may raise anything
            await self._peer.close()
            logger.info("an SDP offer was refused: %r", error)
            raise InvalidRequest("the SDP offer cannot be answered", param="sdp") from error
        sdp: str = self._peer.localDescription.sdp
        return sdp

    # -- as a wire -------------------------------------------------------------------------------
    async def receive(self) -> Message:
        """Return the next event. Raises ClientLeft."""
        message = await self._inbox.get()
        if message is None:
            raise ClientLeft
        return message

    async def send(self, message: Message) -> None:
        """Send an event, waiting while the channel's buffer is full. Raises ClientLeft."""
        await self._open.wait()
        channel = self._channel
        if self._has_left or channel is None or channel.readyState != "open":
            raise ClientLeft
        if len(message) > _MAX_MESSAGE_BYTES:
            message = _TOO_LARGE
        while channel.bufferedAmount > _MAX_UNSENT_BYTES and not self._has_left:
            self._moved.clear()
            await self._moved.wait()
        channel.send(message)

    async def close(self, code: int, reason: str) -> None:
        """Close the connection, after a short wait for sent data to arrive."""
        del code, reason
        channel = self._channel
        for _ in range(50):
            if channel is None or not channel.bufferedAmount or self._has_left:
                break
            await asyncio.sleep(0.01)
        await self.hang_up()

    async def hang_up(self) -> None:
        """Close the connection."""
        self._leave()
        await self._peer.close()

    # -- audio ---------------------------------------------------------------------------
    def background_tasks(self, append: AppendAudio) -> tuple[Work, ...]:
        """Return the background tasks: the microphone, and the connection timeout."""
        return self._listen(append), self._expect()

    async def _listen(self, append: AppendAudio) -> None:
        await self._heard.wait()
        assert self._microphone is not None
        resampler = AudioResampler(format="s16", layout="mono", rate=WIRE.rate)
        filler = Filler(WIRE.rate)
        while True:
            receiving = asyncio.ensure_future(self._microphone.recv())
            try:
                # a muted sender may send nothing; its turn ends by silence all the same
                while not (await asyncio.wait({receiving}, timeout=_QUIET_S))[0]:
                    append(filler.silence(_QUIET_S).astype("<i2").tobytes())
                frame = receiving.result()
            except MediaStreamError as error:
                raise ClientLeft from error
            finally:
                receiving.cancel()
            assert isinstance(frame, AudioFrame)
            assert frame.pts is not None
            assert frame.time_base is not None
            samples = [piece.to_ndarray().ravel() for piece in resampler.resample(frame)]
            start_s = float(frame.pts * frame.time_base)
            for piece in filler.pieces(start_s, np.concatenate([*samples, _NO_SAMPLES])):
                append(piece.astype("<i2").tobytes())

    async def _expect(self) -> None:
        """Close the connection if the peer does not connect in time."""
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._open.wait()
        except TimeoutError as error:
            raise ClientLeft from error
        await asyncio.Event().wait()

    # -- callbacks of the peer connection
    # ---------------------------------------------------------------------
    async def _see_state(self) -> None:
        if self._peer.connectionState in ("failed", "closed"):
            self._leave()

    def _leave(self) -> None:
        self._has_left = True
        self._inbox.put_nowait(None)
        self._open.set()
        self._moved.set()

    def _take_channel(self, channel: RTCDataChannel) -> None:
        if self._channel is not None or channel.label != CHANNEL:
            return
        self._channel = channel
        channel.bufferedAmountLowThreshold = _MAX_UNSENT_BYTES // 2
        channel.on("message", self._handle_message)
        channel.on("bufferedamountlow", self._moved.set)
        channel.on("close", self._leave)
        self._open.set()

    def _handle_message(self, message: Message) -> None:
        if self._inbox.qsize() >= _MAX_INBOX:
            self._leave()  # events keep arriving faster than they are processed
            return
        self._inbox.put_nowait(message)

    def _take_track(self, track: MediaStreamTrack) -> None:
        if track.kind == "audio" and self._microphone is None:
            self._microphone = track
            for receiver in self._peer.getReceivers():
                if receiver.track is track and hasattr(receiver, _BUFFER):
                    setattr(receiver, _BUFFER, PacketBuffer())
            self._heard.set()


class SpeakerTrack(MediaStreamTrack):
    """Plays a `Speaker` at 1x, in frames of 20 ms."""

    kind = "audio"

    def __init__(self, speaker: Speaker):
        super().__init__()
        self._speaker = speaker
        self._begun_s: float | None = None
        self._num_frames = 0

    async def recv(self) -> AudioFrame:
        """Return the next frame, at the time when it is due."""
        if self.readyState != "live":
            raise MediaStreamError
        if self._begun_s is None:
            self._begun_s = time.monotonic()
        due_s = self._begun_s + self._num_frames * _FRAME_MS / 1000
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        num_samples = WIRE.rate * _FRAME_MS // 1000
        frame = AudioFrame(format="s16", layout="mono", samples=num_samples)
        frame.planes[0].update(self._speaker.read(num_samples * WIRE.sample_bytes))
        frame.sample_rate, frame.time_base = WIRE.rate, Fraction(1, WIRE.rate)
        frame.pts = self._num_frames * num_samples
        self._num_frames += 1
        return frame
