"""The prompt of Qwen3-ForcedAligner: audio, then its words, each with two positions for times.

    <|audio_start|><|audio_pad|>...<|audio_end|>word<timestamp><timestamp>word<timestamp>...

There is nothing between the words. Source: qwen_asr 0.0.6, inference/qwen3_forced_aligner.py
`encode_timestamp`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from izwi.request.request import EncodeInput, Request
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_aligner.config import AlignerConfig
from izwi_models.qwen3_aligner.words import Word
from izwi_models.qwen3_asr.prompt import AsrPrompt, around_audio


class AlignerPrompt(AsrPrompt, frozen=True, eq=False, tag=True):
    """Audio and its words.

    Attributes:
        words: In order.
        output_positions: Positions where times are drawn: start and end of each word.
    """

    words: tuple[Word, ...]
    output_positions: tuple[int, ...]


def build_prompt(
    tokenizer: QwenTokenizer,
    config: AlignerConfig,
    windows: tuple[EncodeInput, ...],
    words: Seq[Word],
) -> AlignerPrompt:
    """Put audio and its words into the template.

    Args:
        tokenizer: The checkpoint's; special tokens go in by id.
        config: Sizes, and the ids of audio and times.
        windows: Features of the audio, from `cut_windows`.
        words: At least one.
    """
    after = [tokenizer.id_of("<|audio_end|>")]
    ends: list[int] = []  # of the words, in `after`
    for word in words:
        after += tokenizer.encode(word.text)
        ends.append(len(after))
        after += [config.timestamp_token_id] * 2
    before = [tokenizer.id_of("<|audio_start|>")]
    pad = config.thinker_config.audio_token_id
    made = around_audio(config.audio, pad, before, windows, after)
    first = made.num_positions - len(after)
    return AlignerPrompt(
        made.token_ids,
        made.content_keys,
        made.audio_start,
        made.num_audio,
        made.encode_inputs,
        tuple(words),
        tuple(first + place for end in ends for place in (end, end + 1)),
    )


def prompt_of(request: Request) -> AlignerPrompt:
    """Return the prompt of a request of this family."""
    assert isinstance(request.prompt, AlignerPrompt)
    return request.prompt
