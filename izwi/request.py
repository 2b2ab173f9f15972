"""Requests, and their logs while they run. Knows no model and no HTTP.

A request is frozen. A `Sequence` is the request's life: its log (what was emitted so far) and the
caches of that log (encoded audio, KV pages, codec row), which may be dropped and rebuilt from it.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from izwi.chat import ChatInput
from izwi.digests import digest_array

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Entries = tuple[tuple[int, ...], ...]


class Samples(Protocol):
    """(n,) float32 mono, read in parts: an array, or a sound that does not lie in memory."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Float32: ...


class Task(StrEnum):
    """What a model does with a request."""

    SPEECH = "speech"
    TRANSCRIPTION = "transcription"
    ALIGNMENT = "alignment"
    CHAT = "chat"


class TextMode(StrEnum):
    """How text reaches a speech model: all of it first, or one token a frame beside the sound."""

    FULL = "full"
    STREAMING = "streaming"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one kind of token is drawn.

    Attributes:
        temperature: 0 takes the most likely token.
        top_k: Keep the k most likely tokens; 0 keeps all. Ties with the k-th are kept.
        top_p: Keep the smallest set of tokens whose probability reaches top_p; 1 keeps all.
        repetition_penalty: Divides positive and multiplies negative logits of the tokens that
            this request emitted before in the same codebook; 1 leaves them.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class EncodeInput:
    """One piece of audio that an encoder turns into part of a prompt.

    Attributes:
        kind: Which encoder of the model; the model's own word.
        values: What that encoder reads (features or samples), float32.
        digest: 64 bits of the values; equal pieces are encoded once and share their positions.
    """

    kind: str
    values: Float32
    digest: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", digest_array(self.values))


class Prompt(Protocol):
    """What a model is conditioned on. Only its length and its audio concern the engine."""

    @property
    def num_positions(self) -> int:
        """Positions of KV that the prompt takes."""
        ...

    @property
    def encode_inputs(self) -> tuple[EncodeInput, ...]:
        """Audio to encode before the first position can run, in order."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One thing asked of one model.

    Attributes:
        request_id: Unique among live requests.
        model: Name under which the model is served.
        prompt: Model-specific; made by the model's own `prepare_*`.
        sampling: For codebook 0 (or the only one).
        codebook_sampling: For the other codebooks of a frame.
        seed: With the step and the codebook it fixes every random pick.
        max_entries: Tokens or frames after which the request ends with "length".
        min_entries: Stop tokens are suppressed before this many entries.
        stop_ids: A first codebook's token among these ends the request and is not emitted.
        encode_only: End after encoding; the encoded arrays are the answer.
        output_positions: Positions of the prompt, ascending, whose outputs give the entries, one
            each; entries then take no positions. Empty: entries follow the prompt.
        priority: Larger runs first where the policy looks at it.
        streams: The audio is played while it is made, so its playback clock counts.
        open_input: Text may still be written to it with `Engine.write`.
        listener: Who hears it: requests of one listener are played one after the other, in the
            order in which they were submitted. Empty: a listener of its own.
        continues: Its listener was given earlier requests of the same answer, so it is not refused
            where the queue is full: the answer would break off in the middle.
        cacheable: Its prompt may be shared by later requests, so its pages are kept while there is
            room. False for audio that is transcribed once.
        logprobs: Chunks say how likely each entry was; batches with it are not recorded on CUDA.
        ask: What it was prepared from, kept for recordings.
    """

    request_id: str
    model: str
    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    codebook_sampling: SamplingParams = SamplingParams()
    seed: int = 0
    max_entries: int = 1
    min_entries: int = 0
    stop_ids: tuple[int, ...] = ()
    encode_only: bool = False
    output_positions: tuple[int, ...] = ()
    priority: int = 0
    streams: bool = True
    open_input: bool = False
    listener: str = ""
    continues: bool = False
    cacheable: bool = True
    logprobs: bool = False
    ask: SpeechInput | TranscriptionInput | AlignmentInput | ChatInput | None = None


class Phase(StrEnum):
    """Where a sequence stands."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    PAUSED = "paused"
    FINISHED = "finished"


class PauseReason(StrEnum):
    """Why a sequence does not run although it has not ended."""

    TURN = "turn"  # asked for: the user speaks over it
    INPUT = "input"  # its next frame needs text that is not written yet
    MEMORY = "memory"  # its pages went to others


class Reason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    ERROR = "error"


@dataclass(slots=True)
class Pending:
    """What steps in flight will add to a sequence."""

    entries: int = 0  # 1 at most when a step is planned
    frames: int = 0  # that go through the codec, in so many chunks
    chunks: int = 0
    ends: bool = False  # no more entries follow


@dataclass(slots=True, eq=False)
class Sequence:
    """A request and its log, and the caches of that log.

    The log is `emitted`, `written`, and how far sound was made of it; all else is rebuilt from it.

    Attributes:
        arrival: Number of arrivals before it, in the whole engine.
        submitted_s: When, on the engine's clock.
        emitted: The log: one entry a step, (codebooks,) ids; a token is an entry of one id.
        written: The log of its input: text ids written after the prompt.
        input_open: More may be written.
        logprobs: Of each entry emitted, where the request asks for them; else empty.
        num_vocoded: Frames that went through the codec.
        num_delivered: Entries delivered to its reader.
        num_chunks: Chunks of sound that left, for the chunk ramp.
        ended: It emits no more; its last sound may still be owed.
        reason: Why it ended.
        paused: Why it does not run, or None.
        backpressured: Its reader is behind; it emits nothing until the reader catches up.
        encoded: Results of the prompt's encode inputs, None where not run yet.
        num_computed: Positions whose keys and values are in the pages.
        pages: Page ids, in position order.
        keys: Content keys of the first positions, as far as they were asked for.
        page_chain: A running digest of each whole page of the prompt's keys.
        num_published: Whole pages that were offered to the prefix tree.
        num_reused: Positions that the prefix tree gave when it was last admitted.
        state_row: Row of the codec state arena, or None.
        saved_state: The codec's state while it holds no row, or None: rebuilt from the log.
        last_step: The scheduler's step in which it last had a row, or arrived.
        seen: What the sampler keeps of the log: how much of it, and the ids in it.
        limit: Entries after which it ends, once that is known for good.
        pending: What steps in flight will add to it.
        epoch: How often it has let go of its pages. What was launched before is dropped.
        num_prompt: Positions of the prompt.
        output_positions: Positions of the prompt where entries are drawn, if not behind it.
    """

    request: Request
    arrival: int
    submitted_s: float = 0.0
    phase: Phase = Phase.WAITING
    emitted: list[tuple[int, ...]] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    input_open: bool = False
    logprobs: list[float] = field(default_factory=list)
    num_vocoded: int = 0
    num_delivered: int = 0
    num_chunks: int = 0
    ended: bool = False
    reason: Reason | None = None
    paused: PauseReason | None = None
    backpressured: bool = False
    encoded: list[Any] = field(default_factory=list)
    num_computed: int = 0
    pages: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    page_chain: tuple[int, ...] | None = None
    num_published: int = 0
    num_reused: int = 0
    state_row: int | None = None
    saved_state: Any = None
    last_step: int = 0
    seen: Any = None
    limit: int | None = None
    pending: Pending = field(default_factory=Pending)
    epoch: int = 0
    num_prompt: int = field(init=False)
    output_positions: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt, self.output_positions = (
            self.request.prompt.num_positions,
            self.request.output_positions,
        )
        self.encoded = [None] * len(self.request.prompt.encode_inputs)
        self.input_open = self.request.open_input

    @property
    def num_entries(self) -> int:
        """Entries emitted, and those that a step in flight draws."""
        return len(self.emitted) + self.pending.entries

    @property
    def num_positions(self) -> int:
        """Positions of the prompt, and one for each entry after it."""
        return self.num_prompt + (0 if self.output_positions else self.num_entries)

    @property
    def next_drawn(self) -> int:
        """The position whose output gives the next entry: a mark, or the last one known."""
        count = len(self.emitted)
        return (
            self.output_positions[count] if self.output_positions else self.num_prompt + count - 1
        )

    def drawn_before(self, stop: int) -> tuple[int, ...]:
        """Positions before `stop` whose outputs give the next entries, one each."""
        if self.output_positions:
            return self.output_positions[
                len(self.emitted) : bisect_left(self.output_positions, stop)
            ]
        last = self.num_prompt + len(self.emitted) - 1
        return (last,) if last < stop else ()


class Chunk(NamedTuple):
    """What leaves the engine for one request at the end of a step.

    Attributes:
        entries: (n, codebooks) int64, the entries emitted since the last chunk.
        pcm: (samples,) float32 in [-1, 1] at the model's rate, or None where nothing was made.
        encoded: The answer of an encode-only request.
        reason: Set on the last chunk.
        error: Why, when the reason is ERROR.
        logprobs: (n,) float32, one an entry: see `izwi.runner.sampler.Sampler.logprobs`. None where
            the request did not ask.
    """

    request_id: str
    entries: Int64
    pcm: Float32 | None = None
    encoded: tuple[npt.NDArray[Any], ...] = ()
    reason: Reason | None = None
    error: BaseException | None = None
    logprobs: Float32 | None = None


@dataclass(frozen=True, slots=True, eq=False)
class VoicePrompt:
    """A voice to speak with: what a reference clip was encoded to, once.

    Attributes:
        speaker_embedding: (hidden,) float32.
        codes: (frames, codebooks) int64 of the clip, or None for the embedding alone.
        text: What the clip says; needed with codes.
    """

    speaker_embedding: Float32
    codes: Int64 | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceClip:
    """A clip whose voice is to be followed.

    Attributes:
        samples: (n,) float32 mono at 24 kHz.
        text: What it says; None follows the speaker embedding alone.
    """

    samples: Float32
    text: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SpeechInput:
    """What an API server asks of a speech model. None takes the checkpoint's default."""

    text: str
    voice: str | VoicePrompt | ReferenceClip | None = None
    language: str | None = None
    instruct: str | None = None
    text_mode: TextMode | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    max_new_tokens: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TranscriptionInput:
    """What an API server asks of a transcription model.

    Attributes:
        samples: At 16 kHz.
        language: Forced language name or code, None detects it.
        context: Text that the transcription follows on or whose words are likely.
        logprobs: As in `Request`.
    """

    samples: Samples
    language: str | None = None
    context: str = ""
    temperature: float = 0.0
    seed: int = 0
    max_new_tokens: int | None = None
    logprobs: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class AlignmentInput:
    """What an API server asks of an alignment model.

    Attributes:
        samples: At 16 kHz.
        text: What they say.
        language: Name or code; None cuts words at white space, and between Chinese characters.
    """

    samples: Samples
    text: str
    language: str | None = None


@dataclass(frozen=True, slots=True)
class Transcript:
    """What a transcription model's tokens say."""

    language: str
    text: str
