"""Requests, and the chunks that answer them. Knows no model and no HTTP.

A request is frozen. `izwi.request.sequence` is the request while it runs.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Generic, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import force_setattr
from typing_extensions import TypeVar

from izwi.arrays import Float32, Int64
from izwi.inputs.chat import ChatInput
from izwi.inputs.conversation import ConversationInput
from izwi.inputs.grammar import Grammar
from izwi.inputs.speech import AlignmentInput, SpeechInput, TranscriptionInput
from izwi.request.adapter import AdapterRef
from izwi.request.correlation import Correlation
from izwi.request.deadlines import Deadlines
from izwi.request.digests import digest_array
from izwi.request.timing import Timing

Entries = tuple[tuple[int, ...], ...]

_UNKNOWN_DIGEST = -1  # digests have 63 bits


class SamplingParams(Struct, frozen=True):
    """How one kind of token is drawn.

    Attributes:
        temperature: 0 takes the most likely token.
        top_k: Keep the k most likely tokens; 0 keeps all. Ties with the k-th are kept.
        top_p: Keep the smallest set of tokens whose probability reaches top_p; 1 keeps all.
        repetition_penalty: Divides positive and multiplies negative logits of the tokens that
            this request emitted before in the same codebook; 1 leaves them.
        presence_penalty: Subtracted from the logits of tokens that this request emitted.
        frequency_penalty: Subtracted once for each time that the request emitted the token.
        min_p: Keep tokens with at least this share of the largest probability; 0 keeps all.
        logit_bias: Pairs of an id and the value added to its logit.

    The last four apply to codebook 0 only, in this order: bias, repetition penalty, presence and
    frequency penalty, temperature, min_p, top_k, top_p.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_p: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def counts(self) -> bool:
        """Whether a draw depends on how often tokens were emitted."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed by more than the repetition penalty."""
        return self.counts or self.min_p > 0.0 or bool(self.logit_bias)

    @property
    def reads_log(self) -> bool:
        """Whether a draw needs all earlier entries on the host."""
        return self.counts or (self.adjusts and self.repetition_penalty != 1.0)


_ENCODED = (np.float32, np.uint8)


class EncodeInput(Struct, frozen=True, eq=False):
    """One piece of audio, or one image, that an encoder turns into part of a prompt.

    Attributes:
        kind: The model's name for the encoder.
        values: The encoder's input: features or samples, float32, or pixels, uint8.
        digest: Of the values, computed if not given; equal pieces are encoded once and share their
            positions.
    """

    kind: str
    values: npt.NDArray[Any]
    digest: int = _UNKNOWN_DIGEST

    def __post_init__(self) -> None:
        if self.values.dtype.type not in _ENCODED:  # of a message, too
            raise ValueError(f"an encoder takes float32 or uint8, not {self.values.dtype}")
        if self.digest == _UNKNOWN_DIGEST:  # it is known if it comes from another process
            force_setattr(self, "digest", digest_array(self.values))


class Prompt(Protocol):
    """The input of a model. The engine uses only its length and its audio.

    A family's prompts are tagged msgspec structs, listed in `Family.prompts`, so that they can be
    sent between processes.
    """

    @property
    def num_positions(self) -> int:
        """Positions that the prompt takes."""
        ...

    @property
    def encode_inputs(self) -> tuple[EncodeInput, ...]:
        """Audio to encode before the first position can run, in order."""
        ...

    @property
    def content_keys(self) -> Int64:
        """Keys of its positions, (positions,) int64, as `izwi.model.protocol.Model.content_keys`.

        A router compares them with the prefixes that engines have.
        """
        ...


@runtime_checkable
class KnowsEncodeEnds(Protocol):
    """A prompt whose encode inputs are read at their own positions only."""

    @property
    def encode_ends(self) -> tuple[int, ...]:
        """One past the last position that each is read at: if those are cached, it need not run."""
        ...


class TrackParams(Struct, frozen=True, omit_defaults=True):
    """How entries of one track are drawn, and what ends the request on it; as in `Request`."""

    sampling: SamplingParams = SamplingParams()
    codebook_sampling: SamplingParams = SamplingParams()
    min_entries: int = 0
    stop_ids: tuple[int, ...] = ()


PromptT = TypeVar("PromptT", bound=Prompt, default=Prompt, covariant=True)


class Request(Struct, Generic[PromptT], frozen=True, eq=False, omit_defaults=True):
    """One request to one model.

    Attributes:
        request_id: Unique among live requests.
        model: Name under which the model is served.
        prompt: Model-specific; made by the model's own `prepare_*`.
        sampling: For codebook 0 (or the only one).
        codebook_sampling: For the other codebooks of a frame.
        seed: Together with the step and the codebook it determines every random draw.
        max_entries: Tokens and frames after which the request ends with "length".
        min_entries: Stop tokens are suppressed before this many entries.
        stop_ids: One of these ids in codebook 0 ends the request and is not emitted.
        other_tracks: The four fields above are for the first track; these are for the others.
        encode_only: End after encoding; the output is the encoded arrays.
        output_positions: Positions of the prompt, ascending, whose outputs give the entries, one
            each; entries then take no positions. Empty: entries follow the prompt.
        priority: Larger runs first, if the policy uses it. Below 0: it runs only while the engine
            has no other request, and no deadline ends it (ADR 50).
        streams: The audio is played while it is made, so its playback clock counts.
        open_input: Text may still be written to it with `Engine.write`.
        listener: Requests with the same listener are played one after the other, in the order in
            which they were submitted. Empty: a listener of its own.
        continues: The listener has received earlier requests of the same answer, so a full queue
            does not refuse this one, which would cut off the answer.
        awaits_engine: If the engine has died, the request waits for the next one, like requests in
            flight, instead of being refused.
        cacheable: Its prompt may be shared by later requests, so its pages are kept while there is
            room. False for audio that is transcribed once.
        logprobs: Chunks have the log probability of each entry.
        top_logprobs: With `logprobs`: how many of the most likely ids are reported as well.
        grammar: Grammar that the entries must match; None allows any entries.
        gain: The factor of its audio, which levels a voice.
        ask: The input that it was prepared from, kept for recordings.
        caller: Who asked; callers have equal shares where the device is short. See
            `izwi.fairness.callers`.
        correlation: The call that it is part of, for logs and traces; None outside calls.
        adapter: The adapter of the model that it runs with; None: the model as it is.
        deadlines: How long its phases may take, beside the engine's own limits; None: as those say.
    """

    request_id: str
    model: str
    prompt: PromptT
    sampling: SamplingParams = SamplingParams()
    codebook_sampling: SamplingParams = SamplingParams()
    seed: int = 0
    max_entries: int = 1
    min_entries: int = 0
    stop_ids: tuple[int, ...] = ()
    other_tracks: tuple[TrackParams, ...] = ()
    encode_only: bool = False
    output_positions: tuple[int, ...] = ()
    priority: int = 0
    streams: bool = True
    open_input: bool = False
    listener: str = ""
    continues: bool = False
    awaits_engine: bool = False
    cacheable: bool = True
    logprobs: bool = False
    top_logprobs: int = 0
    grammar: Grammar | None = None
    gain: float = 1.0
    ask: (
        SpeechInput | TranscriptionInput | AlignmentInput | ChatInput | ConversationInput | None
    ) = None
    caller: str = ""
    correlation: Correlation | None = None
    adapter: AdapterRef | None = None
    deadlines: Deadlines | None = None

    @property
    def is_idle_work(self) -> bool:
        """Whether it runs only while the engine has no other request."""
        return self.priority < 0

    @property
    def reads_log(self) -> bool:
        """Whether an entry is drawn only once the host knows all earlier ones."""
        if self.grammar is not None or self.sampling.reads_log:
            return True
        return any(params.sampling.reads_log for params in self.other_tracks)

    def adjusts(self, track: int) -> bool:
        """Whether logits of a track are changed by more than the repetition penalty."""
        constrained = track == 0 and self.grammar is not None
        return constrained or self.params(track).sampling.adjusts

    def params(self, track: int) -> Request | TrackParams:
        """Return how entries of a track are drawn; the model's default without parameters."""
        if track == 0:
            return self
        return self.other_tracks[track - 1] if track <= len(self.other_tracks) else _DEFAULT


_DEFAULT = TrackParams()


class Reason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    ERROR = "error"


class Chunk(Struct, frozen=True, eq=False, omit_defaults=True):
    """Output of one request at the end of a step.

    Attributes:
        entries: (n, codebooks) int64, the entries emitted since the last chunk; -1 fills entries of
            a track with fewer codebooks than the widest.
        pcm: (samples,) float32 in [-1, 1] at the model's rate, or None if there is no audio.
        encoded: The output of an encode-only request.
        reason: Set on the last chunk.
        error: Set if the reason is ERROR.
        logprobs: (n,) float32, one for each entry: see
            `izwi.backends.protocol.StepSampler.logprobs`. None if not requested. With
            `top_logprobs` = k: (n, 1 + 2 k), the entry's own log probability, then k pairs of an id
            (exact, below 2^24) and its log probability, most likely first.
        tracks: (n,) int64, the track of each entry; None if the model has one track.
        timing: When the request passed its phases so far; on the first chunk and on the last.
    """

    request_id: str
    entries: Int64
    pcm: Float32 | None = None
    encoded: tuple[npt.NDArray[Any], ...] = ()
    reason: Reason | None = None
    error: BaseException | None = None
    logprobs: Float32 | None = None
    tracks: Int64 | None = None
    timing: Timing | None = None

    def of_track(self, track: int) -> Int64:
        """Return the entries of one track in order, (m, codebooks of the track) int64."""
        if self.tracks is None:
            return self.entries if track == 0 else self.entries[:0]
        of = self.entries[self.tracks == track]
        width = int((of[0] >= 0).sum()) if len(of) else of.shape[1]
        entries: Int64 = of[:, :width]
        return entries
