"""Log lines: as text or JSON, each with the id of its call; and one line for each call.

A line of JSON has `time`, `level`, `logger`, `message`, with a call `request_id`, `trace_id` and
`span_id`, and an `exception`. No line has content of a call: neither text nor audio.
"""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from typing import Any

from izwi.request.correlation import Correlation
from izwi_api.telemetry.calls import Call, current_call
from izwi_api.telemetry.engine_request import EngineRequest

logger = logging.getLogger("izwi_api.calls")

_TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_MAX_REQUESTS_SHOWN = 8


def correlation_of(record: logging.LogRecord) -> Correlation | None:
    """Return the call that a line is about: the one it names, or the one in its context."""
    named: Correlation | None = getattr(record, "correlation", None)
    if named is not None:
        return named
    call = current_call.get()
    return None if call is None else call.correlation


class TextLines(logging.Formatter):
    """Lines for people; the id of the call is at the end."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line without its traceback."""
        line, call = super().formatMessage(record), correlation_of(record)
        return line if call is None or not call.call_id else f"{line} [{call.call_id}]"


class JsonLines(logging.Formatter):
    """Lines for programs: one JSON object each."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "pid": os.getpid(),
        }
        if (call := correlation_of(record)) is not None:
            known = {
                "request_id": call.call_id,
                "trace_id": call.trace_id,
                "span_id": call.span_id,
            }
            line |= {name: value for name, value in known.items() if value}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = record.exc_text or self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def logs_json() -> bool:
    """Return whether this process logs JSON."""
    return any(isinstance(one.formatter, JsonLines) for one in logging.getLogger().handlers)


class CallLog:
    """Logs a line for each call that used a model, with its phases."""

    def request_ended(self, request: EngineRequest) -> None:
        """Do nothing: the line of the call has it."""

    def audio_heard(self, key: str, model: str, seconds: float) -> None:
        """Do nothing: it is counted only."""

    def call_ended(self, call: Call) -> None:
        """Log the call."""
        is_shown = call.requests and call.operation is not None
        if not is_shown or not logger.isEnabledFor(logging.INFO):
            return
        fields = fields_of(call)
        phases = " ".join(f"{name}={seconds:.3f}" for name, seconds in fields["phases_s"].items())
        phases += f" error={call.error}" if call.error else ""
        logger.info(
            "%s %s %d %s %s total=%.3f s: %s",
            *(call.method, call.route, call.status, fields["operation"], fields["model"]),
            *(fields["total_s"], phases),
            extra={"fields": fields, "correlation": call.correlation},
        )


def fields_of(call: Call) -> dict[str, Any]:
    """Return what the line of a call says, in seconds, tokens and seconds of audio."""
    main = call.main_requests
    phases: dict[str, float] = {}
    for phase in call.phases():
        phases[phase.name] = round(phases.get(phase.name, 0.0) + phase.seconds, 6)
    fields: dict[str, Any] = {
        "method": call.method,
        "route": call.route,
        "status": call.status,
        "operation": call.operation,
        "model": call.model,
        "total_s": round(call.ended_s - call.started_s, 6),
        "phases_s": phases,
        "input_tokens": sum(one.wish.num_prompt for one in main),
        "output_tokens": sum(one.num_entries for one in main),
        "audio_s": round(sum(one.audio_s for one in call.requests), 3),
    }
    for name, at_s in (("first_output_s", call.first_s), ("first_audio_s", call.first_audio_s)):
        if at_s is not None:
            fields[name] = round(at_s - call.started_s, 6)
    if call.error:
        fields["error"] = call.error
    if len(call.requests) > 1:
        shown = list(call.requests)[:_MAX_REQUESTS_SHOWN]
        fields["num_requests"] = len(call.requests)
        fields["requests"] = [_request_fields(one) for one in shown]
    if call.turn is not None:
        fields["session_id"], fields["end"] = call.turn.session_id, call.turn.reason
    return fields


def _request_fields(request: EngineRequest) -> dict[str, Any]:
    phases = {phase.name: round(phase.seconds, 6) for phase in request.phases()}
    return {
        "operation": request.wish.operation,
        "model": request.wish.model,
        "reason": request.reason,
        "phases_s": phases,
    }
