"""The limit on frames of a request, which an engine applies again when open text is complete."""

from __future__ import annotations

from izwi.errors import TooLarge
from izwi.inputs.speech import SpeechInput
from izwi_models.qwen3_tts.config import GenerationConfig, TTSConfig

# The first two tokens cannot be the end, as in the reference package.
MIN_FRAMES = 2


def max_frames(
    config: TTSConfig,
    generation: GenerationConfig,
    ask: SpeechInput,
    text_tokens: int | None,
    prompt_positions: int,
) -> int:
    """Return the limit on frames of a request: one fewer than tokens, as in the reference.

    Args:
        config: Sizes of the checkpoint that speaks.
        generation: Its limit.
        ask: The input, with the caller's own limit if any.
        text_tokens: Number of text ids; None while the text is being written.
        prompt_positions: Positions that the prompt takes.

    Raises:
        TooLarge: The prompt leaves no room for speech.
    """
    frames = generation.max_new_tokens - 1
    if ask.max_new_tokens is not None:
        frames = ask.max_new_tokens - 1
    elif text_tokens is not None:
        guard = config.guard_frames + config.guard_frames_per_token * text_tokens
        frames = min(frames, guard)
    room = config.talker_config.max_position_embeddings - prompt_positions
    if room < MIN_FRAMES:
        raise TooLarge(
            f"text, instructions and clip take {prompt_positions} positions of "
            f"{config.talker_config.max_position_embeddings}",
            param="input",
        )
    return max(1, min(frames, room))
