"""The type for the name or code of a language in requests."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

# Control characters, and the separators that end a line.
_CLASS = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]*"
_PLAIN = re.compile(_CLASS)


def _plain(value: str) -> str:
    if not _PLAIN.fullmatch(value):
        raise ValueError("must have no line breaks and no other control characters")
    return value


# The model decides which languages it supports.
LanguageName = Annotated[
    str, AfterValidator(_plain), Field(json_schema_extra={"pattern": f"^{_CLASS}$"})
]
