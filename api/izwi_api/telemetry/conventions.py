"""Names of OpenTelemetry's conventions for generative AI and hardware, and our own.

The conventions are in development. Operations and attributes of speech are those of the drafts for
voice and realtime; names of ours begin with `izwi.`.
"""

from __future__ import annotations

from enum import StrEnum


class Operation(StrEnum):
    """Values of `gen_ai.operation.name`."""

    SPEECH = "text_to_speech"
    TRANSCRIPTION = "speech_to_text"
    CHAT = "chat"
    REALTIME = "realtime_inference"
    ALIGNMENT = "izwi.alignment"
    ENCODING = "izwi.voice_encoding"


PROVIDER = "izwi"

OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
OUTPUT_TYPE = "gen_ai.output.type"
CONVERSATION_ID = "gen_ai.conversation.id"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_TOP_P = "gen_ai.request.top_p"
REQUEST_TOP_K = "gen_ai.request.top_k"
REQUEST_SEED = "gen_ai.request.seed"
REQUEST_STREAM = "gen_ai.request.stream"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
RESPONSE_TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ = "gen_ai.usage.cache_read.input_tokens"
ERROR_TYPE = "error.type"
HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"

# of the drafts for voice and for realtime sessions
SPEECH_VOICE = "gen_ai.speech.voice"
SPEECH_INPUT_LANGUAGE = "gen_ai.speech.input.language"
USAGE_OUTPUT_AUDIO_TOKENS = "gen_ai.usage.output_audio_tokens"
REALTIME_SESSION_ID = "gen_ai.realtime_session.id"
END_REASON = "gen_ai.agent.invocation.end_reason"

# ours
REQUEST_ID = "izwi.request.id"
AUDIO_SECONDS = "izwi.audio.output.seconds"
UNDERRUN_SECONDS = "izwi.audio.underrun.seconds"
REAL_TIME_FACTOR = "izwi.audio.real_time_factor"
INTERRUPTED = "izwi.realtime.interrupted"
EVENT_SECONDS = "izwi.seconds"

# metrics
REQUEST_DURATION = "gen_ai.server.request.duration"
TIME_TO_FIRST_TOKEN = "gen_ai.server.time_to_first_token"
TIME_PER_OUTPUT_TOKEN = "gen_ai.server.time_per_output_token"

# metrics of hardware
GPU_UTILIZATION = "hw.gpu.utilization"
GPU_MEMORY_USAGE = "hw.gpu.memory.usage"
GPU_MEMORY_LIMIT = "hw.gpu.memory.limit"
HARDWARE_POWER = "hw.power"
HARDWARE_ID = "hw.id"
HARDWARE_NAME = "hw.name"
