"""Views by the names of their fields, so that a test names only what matters."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from izwi.scheduler.plan import FramesDue, Progress, Urgency, View

GROUPS = {"progress": Progress, "urgency": Urgency, "audio": FramesDue}


def view_of(
    key: int, num_positions: int, num_computed: int = 0, num_pages: int = 0, **fields: Any
) -> View:
    """A view; `fields` are those of `View` and of its groups."""
    progress = Progress(num_positions=num_positions, num_computed=num_computed)
    return changed(View(key=key, progress=progress, num_pages=num_pages), **fields)


def changed(view: View, **fields: Any) -> View:
    """A copy with other values; `fields` are those of `View` and of its groups."""
    for name, group in GROUPS.items():
        inner = {field: fields.pop(field) for field in group.__struct_fields__ if field in fields}
        if inner:
            view = replace(view, **{name: replace(getattr(view, name), **inner)})
    return replace(view, **fields)
