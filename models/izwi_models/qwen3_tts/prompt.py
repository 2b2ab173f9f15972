"""Build the prompt of an utterance: its turn's ids, and a text id and a codec id for each position.

The text is encoded in the chat template of qwen-tts 0.1.1, inference/qwen3_tts_model.py, which
tokenizes a whole turn and cuts it by counting ids. So a line break at the start of the text may
share a token with the role's, and a tokenizer of single bytes leaves most of the role in the text.
Here the turn is cut in the same places (`SpeechText`), but special tokens are inserted by id, so
that a user's text cannot close its turn.

The input at every position of a Qwen3-TTS prompt is the sum of a projected text token and
an item of the codec track: nothing, an id of the codec vocabulary (a code, a control, a language,
a speaker), the vector of a cloned speaker, or a frame of the reference clip.

    instruct? | role | (no)think .. language? .. | speaker? | tts_bos + codec_pad | tail

    tail, full:            text + codec_pad ..., tts_eos + codec_pad, tts_pad + codec_bos
    tail, streaming:       text[0] + codec_bos; the rest of the text is added to the frames
    tail, clip, full:      clip text, text, tts_eos, all + codec_pad; codec_bos, clip, all + tts_pad
    tail, clip, streaming: clip text, text, tts_eos, added to codec_bos, clip; the rest of the text
                           is added to the frames

Source: qwen-tts 0.1.1, Qwen3TTSForConditionalGeneration.generate and generate_icl_prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from izwi.inputs.speech import TextMode, VoicePrompt
from izwi.request.digests import digest_array, digest_ints
from izwi.request.request import EncodeInput
from izwi_models.qwen3.tokenizer import IncrementalTokenizer, QwenTokenizer
from izwi_models.qwen3_tts.config import TTSConfig

Int64 = npt.NDArray[np.int64]

_START, _END = "<|im_start|>", "<|im_end|>"
# Number of ids at the edges of a turn that are not its text.
ROLE_IDS, _CLOSING_IDS, _REFERENCE_CLOSING_IDS = 3, 5, 2

# Markers in the codec track instead of ids of the codec vocabulary.
NOTHING = -1
SPEAKER = -2
FIRST_FRAME = -3  # frame k of the reference clip is FIRST_FRAME - k

# A content key packs the text id over the codec id, or it is a digest with the top bit set.
_CODEC_BITS, _DIGEST_BIT = 32, 1 << 62

# Encoders of the model, as `EncodeInput.kind`.
ENCODE_SPEAKER = "speaker"  # (frames, mel_dim) log mel -> (hidden,)
ENCODE_CODES = "codes"  # (samples,) -> (frames, codebooks) int64


class SpeechPrompt(Struct, frozen=True, eq=False, omit_defaults=True, tag=True):
    """The talker's prompt. Implements `izwi.request.request.Prompt`.

    Attributes:
        text: (positions,) text id of each position.
        codec: (positions,) codec id of each position, or one of the negative markers above.
        text_track: (n,) text ids that are added to the frames, ending with tts_eos unless more text
            will be written. Frames after its end get tts_pad.
        keys: (positions,) int64 content keys: equal keys mean equal inputs to the talker.
        encode_inputs: Inputs of the encoders, if the reference clip is not encoded yet: for the
            speaker vector, then for the codes if the clip's frames are in the prompt.
        voice: The cloned voice, if it is encoded already.
        num_text_ids: Number of text ids in the prompt and the text track.
        limits_frames: The text is still being written, and once it is complete its ids limit the
            frames (`TTSConfig.most_frames`): the caller set no limit.
    """

    text: Int64
    codec: Int64
    text_track: Int64
    keys: Int64
    encode_inputs: tuple[EncodeInput, ...] = ()
    voice: VoicePrompt | None = None
    num_text_ids: int = 0
    limits_frames: bool = False

    @property
    def num_positions(self) -> int:
        """Number of positions of the prompt."""
        return len(self.text)

    @property
    def content_keys(self) -> Int64:
        """Content keys of the positions, (positions,) int64."""
        return self.keys

    @property
    def num_reference_frames(self) -> int:
        """Number of reference frames in the prompt."""
        return int(np.count_nonzero(self.codec <= FIRST_FRAME))


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference clip that the talker continues: its text ids and its length in frames."""

    text: Sequence[int]
    frames: int


@dataclass(frozen=True, slots=True, eq=False)
class Conditioning:
    """What an utterance is conditioned on besides its text; all pieces of one request share it.

    Attributes:
        instruct: A user's turn, complete with its markers, or empty.
        language: Codec id of the language, or None to let the model choose.
        speaker: Codec id of a speaker, SPEAKER for a cloned one, or None.
        reference: The clip to continue, or None.
        encode_inputs: See `SpeechPrompt`.
        voice: See `SpeechPrompt`.
        mode: FULL puts all text first, STREAMING adds one token to each frame.
        gain: The factor of the audio.
    """

    instruct: Sequence[int] = ()
    language: int | None = None
    speaker: int | None = None
    reference: Reference | None = None
    encode_inputs: tuple[EncodeInput, ...] = ()
    voice: VoicePrompt | None = None
    mode: TextMode = TextMode.FULL
    gain: float = 1.0

    @property
    def first_ids(self) -> int:
        """Text ids that a streaming prompt needs before its first frame, so that it can begin."""
        if self.reference is None:
            return 1
        return max(1, self.reference.frames + 1 - len(self.reference.text))


def assemble(
    config: TTSConfig,
    conditioning: Conditioning,
    role: Sequence[int],
    text: Sequence[int],
    *,
    is_open: bool = False,
) -> SpeechPrompt:
    """Build the prompt of an utterance.

    Args:
        config: The checkpoint's ids.
        conditioning: What it is conditioned on.
        role: The three ids that open the assistant's turn.
        text: Ids of the text to speak; at least one.
        is_open: More text will be written, so tts_eos does not follow yet. The mode is STREAMING,
            and `text` has at least `Conditioning.first_ids` ids, because the prompt itself cannot
            wait for text.
    """
    spoken = list(text) if is_open else [*text, config.tts_eos_token_id]
    head_text, head_codec = _head(config, conditioning, role)
    lay_tail = _text_tail if conditioning.reference is None else _reference_tail
    tail_text, tail_codec, track = lay_tail(config, conditioning, spoken)
    text_ids = np.array(head_text + tail_text, np.int64)
    codec_ids = np.array(head_codec + tail_codec, np.int64)
    inputs, voice = conditioning.encode_inputs, conditioning.voice
    return SpeechPrompt(
        text=text_ids,
        codec=codec_ids,
        text_track=np.array(track, np.int64),
        keys=_content_keys(text_ids, codec_ids, inputs, voice),
        encode_inputs=inputs,
        voice=voice,
        num_text_ids=len(text),
    )


def frame_key(codes: Iterable[int], text_id: int) -> int:
    """Return the content key of a position with a frame of codes and a text id."""
    return digest_ints((*codes, text_id)) % _DIGEST_BIT | _DIGEST_BIT


def encode_only(encode_inputs: tuple[EncodeInput, ...]) -> SpeechPrompt:
    """Make a prompt without positions, for a request that only encodes."""
    empty = np.zeros(0, np.int64)
    return SpeechPrompt(empty, empty, empty, empty, encode_inputs)


def _content_keys(
    text: Int64, codec: Int64, encode_inputs: Sequence[EncodeInput], voice: VoicePrompt | None
) -> Int64:
    """Pack the two ids of each position; for a marker, digest what it stands for: (positions,)."""
    keys = text << _CODEC_BITS | (codec - NOTHING)
    for position in np.flatnonzero(codec < NOTHING).tolist():
        mark, text_id = int(codec[position]), int(text[position])
        frame = FIRST_FRAME - mark
        if voice is not None and voice.codes is not None and mark != SPEAKER:
            keys[position] = frame_key(voice.codes[frame].tolist(), text_id)
            continue
        if voice is not None:
            source = digest_array(voice.speaker_embedding)
        else:
            source = encode_inputs[mark != SPEAKER].digest
        # markers are negative and codes are not, so these keys never equal those of frames
        keys[position] = frame_key((mark, source), text_id)
    return keys


_Tail = tuple[list[int], list[int], list[int]]  # text, codec, text track


def _head(
    config: TTSConfig, conditioning: Conditioning, role: Sequence[int]
) -> tuple[list[int], list[int]]:
    talker = config.talker_config
    bare = [*conditioning.instruct, *role]
    codec = [talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id]
    if conditioning.language is not None:
        codec[0] = talker.codec_think_id
        codec.insert(2, conditioning.language)
    if conditioning.speaker is not None:
        codec.append(conditioning.speaker)
    text = [config.tts_pad_token_id] * len(codec) + [config.tts_bos_token_id]
    codec.append(talker.codec_pad_id)
    return bare + text, [NOTHING] * len(bare) + codec


def _text_tail(config: TTSConfig, conditioning: Conditioning, spoken: list[int]) -> _Tail:
    talker = config.talker_config
    if conditioning.mode is TextMode.STREAMING:
        return spoken[:1], [talker.codec_bos_id], spoken[1:]
    codec = [talker.codec_pad_id] * len(spoken)
    return [*spoken, config.tts_pad_token_id], [*codec, talker.codec_bos_id], []


def _reference_tail(config: TTSConfig, conditioning: Conditioning, spoken: list[int]) -> _Tail:
    talker, pad = config.talker_config, config.tts_pad_token_id
    reference = conditioning.reference
    assert reference is not None
    text = [*reference.text, *spoken]
    clip = [talker.codec_bos_id, *(FIRST_FRAME - k for k in range(reference.frames))]
    if conditioning.mode is TextMode.FULL:
        codec = [talker.codec_pad_id] * len(text)
        return text + [pad] * len(clip), codec + clip, []
    beside = [token for token, _ in zip_longest(text[: len(clip)], clip, fillvalue=pad)]
    return beside, clip, text[len(clip) :]


class SpeechText:
    """A checkpoint's tokenizer with the template around the text."""

    def __init__(self, tokenizer: QwenTokenizer):
        """Bind a checkpoint's tokenizer.

        Raises:
            CheckpointError: It lacks a token of the template.
        """
        self._tokenizer = tokenizer
        self._start, self._end = tokenizer.id_of(_START), tokenizer.id_of(_END)

    def role_and_text(self, text: str) -> tuple[list[int], list[int]]:
        """Return the ids of the role's three positions, and those of the text after them."""
        turn = self.open_turn()
        ids = [*turn.write(text), *turn.close()]
        return turn.role, ids

    def open_turn(self) -> OpenTurn:
        """Return a turn whose text is still to be written."""
        closing = [self._end, *self._tokenizer.encode("\n"), *self._opening("assistant", "")]
        # a tokenizer of single bytes leaves some of the closing in the text
        last = closing[: len(closing) - _CLOSING_IDS]
        return OpenTurn(IncrementalTokenizer(self._tokenizer), self._start, last)

    def reference(self, text: str) -> list[int]:
        """Return the ids of a reference clip's text."""
        return self._turn("assistant", text)[ROLE_IDS:-_REFERENCE_CLOSING_IDS]

    def instruct(self, text: str) -> list[int]:
        """Return the ids of an instruction, a user's turn with its markers; [] for empty text."""
        return self._turn("user", text) if text else []

    def _opening(self, role: str, text: str) -> list[int]:
        return [self._start, *self._tokenizer.encode(f"{role}\n{text}")]

    def _turn(self, role: str, text: str) -> list[int]:
        return [*self._opening(role, text), self._end, *self._tokenizer.encode("\n")]


class OpenTurn:
    """The assistant's turn while its text is written. Ids that were returned never change.

    Attributes:
        role: Ids of the role's three positions, complete once the text has an id.
    """

    def __init__(self, tokenizer: IncrementalTokenizer, start: int, last: list[int]):
        """Begin with the id `start`; the ids `last` follow the text."""
        self.role = [start]
        self._tokenizer, self._last = tokenizer, last
        self._append_ids(tokenizer.write("assistant\n"))

    def write(self, text: str, *, word_ends: bool = False) -> list[int]:
        """Add text; return its ids that are now settled.

        See `IncrementalTokenizer.write` for `word_ends`.
        """
        return self._append_ids(self._tokenizer.write(text, word_ends=word_ends))

    def close(self) -> list[int]:
        """Return the ids of the rest."""
        return self._append_ids(self._tokenizer.close()) + self._last

    def _append_ids(self, ids: list[int]) -> list[int]:
        missing = ROLE_IDS - len(self.role)
        self.role += ids[:missing]
        return ids[missing:]
