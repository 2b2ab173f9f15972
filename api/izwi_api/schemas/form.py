"""The fields and files of a multipart form, before a schema reads them."""

from __future__ import annotations

from dataclasses import dataclass

from izwi.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Form:
    """A multipart form with files.

    Attributes:
        fields: Name -> its values in order; "x[]" is kept under "x".
        files: Name -> the file's bytes; "x[]" is kept under "x". File names are not kept:
            nothing may use one as a path.
    """

    fields: dict[str, list[str]]
    files: dict[str, bytes]

    def value(self, name: str) -> str:
        """Return the value of a field. Raises InvalidRequest if it was given twice."""
        first, *more = self.fields[name]
        if more:
            raise InvalidRequest(f"parameter {name[:64]!r} was given twice", param=name[:64])
        return first

    def values(self, *, empty: str = "") -> dict[str, str]:
        """Return the fields that have a value. An empty one stands for the default.

        Args:
            empty: Name of the field that is returned even if it is empty.

        Raises:
            InvalidRequest: A field was given twice.
        """
        values = {name: self.value(name) for name in self.fields}
        return {name: value for name, value in values.items() if value or name == empty}

    def file(self, name: str) -> bytes:
        """Return the bytes of a file. Raises InvalidRequest if there is no file of that name."""
        if name not in self.files:
            raise InvalidRequest(f"missing required parameter: {name!r}", param=name)
        return self.files[name]

    def pop_file(self, name: str) -> bytes:
        """Return the bytes of a file and release them; raises as `file`."""
        content = self.file(name)
        del self.files[name]
        return content
