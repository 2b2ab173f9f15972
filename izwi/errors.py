"""The error tree. Independent of HTTP: `izwi_api.http.errors` maps it to statuses.

IzwiError                      internal_error
├── InvalidRequest             invalid_request      (param names the field)
│   ├── InvalidValue           invalid_value
│   ├── MissingParameter       missing_required_parameter
│   ├── UnsupportedParameter   unsupported_parameter
│   ├── InvalidAudio           invalid_audio
│   │   └── AudioTooShort      audio_too_short
│   ├── InvalidImage           invalid_image
│   ├── DoesNotFit             model_too_large
│   ├── ModelNotFound          model_not_found
│   ├── VoiceNotFound          voice_not_found
│   │   └── ConsentNotFound    consent_not_found
│   ├── VoiceExists            voice_exists
│   ├── FileNotStored          file_not_found
│   ├── BatchNotFound          batch_not_found
│   ├── ContextTooLong         context_length_exceeded
│   ├── TooLarge               too_large
│   ├── RequestTimeout         request_timeout
│   ├── UnsupportedMediaType   unsupported_media_type
│   ├── UnsupportedTranslation translation_unsupported
│   ├── ReferenceNotFetched    reference_not_fetched
│   └── RateLimited            rate_limit_exceeded  (carries retry_after_s)
│       └── QuotaExceeded      insufficient_quota
├── CheckpointError            invalid_checkpoint   (names the tensor, key or file)
├── Overloaded                 overloaded           (carries retry_after_s)
│   └── DeviceFull             device_full
├── StorageFull                storage_full
├── DeadlineExceeded           deadline_exceeded
├── EngineStopped              engine_stopped
├── EngineFault                internal_error       (an error outside this tree, in another process)
├── InvalidMessage             invalid_message
└── StartFailed                start_failed         (carries exit_code)
"""

from __future__ import annotations


class IzwiError(Exception):
    """Base class of all errors that izwi raises deliberately."""

    code = "internal_error"


class InvalidRequest(IzwiError):
    """The request is invalid, or cannot be fulfilled as stated."""

    code = "invalid_request"
    param: str | None

    def __init__(self, message: str, *, param: str | None = None):
        super().__init__(message)
        self.param = param


class InvalidValue(InvalidRequest):
    """A field has a value that its schema allows, but not what else is requested."""

    code = "invalid_value"


class MissingParameter(InvalidRequest):
    """A field that its schema does not require is required by what else is requested."""

    code = "missing_required_parameter"


class UnsupportedParameter(InvalidRequest):
    """A field has no effect on what is requested, whatever its value."""

    code = "unsupported_parameter"


class InvalidAudio(InvalidRequest):
    """The audio cannot be decoded, is empty, or is too short to use."""

    code = "invalid_audio"


class AudioTooShort(InvalidAudio):
    """The audio is too short to contain a word."""

    code = "audio_too_short"


class InvalidImage(InvalidRequest):
    """The image cannot be decoded, or is of a kind that is not accepted."""

    code = "invalid_image"


class DoesNotFit(InvalidRequest):
    """The device has no room for the models. The message has the memory plan."""

    code = "model_too_large"


class ModelNotFound(InvalidRequest):
    """No served model has this name, or there is no checkpoint at this path."""

    code = "model_not_found"


class VoiceNotFound(InvalidRequest):
    """The model has no such speaker and no cloned voice has that name."""

    code = "voice_not_found"


class VoiceExists(InvalidRequest):
    """A voice of that name is already stored."""

    code = "voice_exists"


class ContextTooLong(InvalidRequest):
    """A conversation has more tokens than the model can look back on."""

    code = "context_length_exceeded"


class TooLarge(InvalidRequest):
    """The input is over a documented limit."""

    code = "too_large"


class ConsentNotFound(VoiceNotFound):
    """No consent recording has that id. Answered as a voice that is not found."""

    code = "consent_not_found"


class CompletionNotFound(InvalidRequest):
    """No stored chat completion has this id: it never had, has expired, or is another caller's."""

    code = "completion_not_found"


class FileNotStored(InvalidRequest):
    """No stored file has this id: it never had, has expired, or is another caller's."""

    code = "file_not_found"


class BatchNotFound(InvalidRequest):
    """No batch has this id, or it is another caller's."""

    code = "batch_not_found"


class RequestTimeout(InvalidRequest):
    """The request body arrived too slowly."""

    code = "request_timeout"


class UnsupportedMediaType(InvalidRequest):
    """The body has a type that the endpoint does not accept."""

    code = "unsupported_media_type"


class UnsupportedTranslation(InvalidRequest):
    """The model transcribes in the spoken language and does not translate."""

    code = "translation_unsupported"


class ReferenceNotFetched(InvalidRequest):
    """The address may be asked, but no clip came from it."""

    code = "reference_not_fetched"


class RateLimited(InvalidRequest):
    """The key has no request left this minute. Try again after `retry_after_s`."""

    code = "rate_limit_exceeded"
    retry_after_s: int

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int = 1):
        super().__init__(message, param=param)
        self.retry_after_s = retry_after_s


class QuotaExceeded(RateLimited):
    """The key's daily quota is used up. It resets after `retry_after_s`, at midnight UTC."""

    code = "insufficient_quota"


class CheckpointError(IzwiError):
    """A checkpoint has missing or unexpected tensors or files, or a wrong shape."""

    code = "invalid_checkpoint"


class Overloaded(IzwiError):
    """The queue is full. Try again after `retry_after_s`."""

    code = "overloaded"
    retry_after_s: int

    def __init__(self, message: str, *, retry_after_s: int = 1):
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeviceFull(Overloaded):
    """The device had no memory for the request, and none could be freed."""

    code = "device_full"


class DeadlineExceeded(IzwiError):
    """The request took longer in one of its phases than this server allows, and was ended."""

    code = "deadline_exceeded"


class StorageFull(IzwiError):
    """The disk for stored voices is full. Nothing was stored."""

    code = "storage_full"


class EngineStopped(IzwiError):
    """The engine was shut down, or crashed, while the request was running."""

    code = "engine_stopped"


class EngineFault(IzwiError):
    """The engine process failed with an error outside this tree."""


class InvalidMessage(IzwiError):
    """A message from another process, or a file, has an invalid format."""

    code = "invalid_message"


class StartFailed(IzwiError):
    """A process of `izwi serve` could not start, so nothing is served.

    `exit_code` is the exit status of the command.
    """

    code = "start_failed"
    exit_code: int

    def __init__(self, message: str, *, exit_code: int = 1):
        super().__init__(message)
        self.exit_code = exit_code
