"""Keep callers' secrets out of log lines: the one place where they are taken out.

Some clients cannot set headers, and put a key into an address, its query or a subprotocol. All
loggers of the process are covered, also those of libraries, because each record is changed when it
is made.
"""

from __future__ import annotations

import logging
import re
import traceback
from typing import Any

from izwi_api.http.client_secrets import PREFIX as CLIENT_SECRET
from izwi_api.usage.keys import PREFIX as API_KEY

_GONE = "***"
_HEADERS = (
    r"(?:proxy-)?authorization|[a-z_-]{0,24}api[_-]?key|sec-websocket-protocol|(?:set-)?cookie"
    r"|[a-z_-]{0,24}token|x-twilio-signature"
)
_RULES = (
    # our own keys, wherever they are
    (re.compile(rf"{API_KEY}[\w-]{{40,}}"), f"{API_KEY}{_GONE}"),
    (re.compile(rf"\b{CLIENT_SECRET}[\w.=-]+"), f"{CLIENT_SECRET}{_GONE}"),
    # names of files that are readable without a key, and what a carrier of calls connects to
    (re.compile(r"(/v1/telephony/\w+/|/v1/images/results/)[^\s\"'?]+"), rf"\1{_GONE}"),
    # a name and password before a host, and queries
    (re.compile(r"://[^/\s@\"']*@"), f"://{_GONE}@"),
    (re.compile(r"\?[^\s\"'<>?=]*=[^\s\"'<>]*"), ""),
    # headers and fields, as HTTP, in JSON and as Python shows them
    (
        re.compile(rf"(?i)\b({_HEADERS})(['\"]?\s*[:=]\s*b?['\"]?|['\"], b?['\"])[^\r\n'\"]+"),
        rf"\1\2{_GONE}",
    ),
    (re.compile(r"\b(Bearer|Basic) [\w.~+/=-]{8,}"), rf"\1 {_GONE}"),
)


def redacted(text: str) -> str:
    """Return a text without what looks like a secret of a caller."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text


class RedactedRecord(logging.LogRecord):
    """A log record without secrets."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        is_http = self.name.startswith("uvicorn")
        if isinstance(self.args, tuple):
            self.args = tuple(_shown(value, is_http=is_http) for value in self.args)
        elif self.args:
            values = self.args.items()
            self.args = {name: _shown(value, is_http=is_http) for name, value in values}
        if isinstance(self.msg, str):
            self.msg = redacted(self.msg)
        if self.exc_info and self.exc_info[0] is not None:
            lines = traceback.format_exception(*self.exc_info)
            self.exc_text = redacted("".join(lines).rstrip("\n"))

    def getMessage(self) -> str:  # noqa: N802 - logging's name
        """Return the message: a name and its secret may have been two arguments."""
        return redacted(super().getMessage())


def redact_records() -> None:
    """Take secrets out of all log records that this process makes from now on."""
    logging.setLogRecordFactory(RedactedRecord)


def _shown(value: object, *, is_http: bool) -> object:
    """Return an argument of a log line without secrets. Numbers stay numbers."""
    if isinstance(value, int | float | None):
        return value
    text = str(value)
    if is_http and "?" in text:  # an address, whose query may be a secret without a name
        text = text.partition("?")[0]
    shown = redacted(text)
    return value if shown == str(value) else shown
