"""Count what one speech request passes on its way to the first forward pass of its model.

The embedded voice speaks in this process, through the same endpoint as over HTTP. From the call of
the route to the model's `run`, a profile function sees every call and return of our own functions:

* modules: those of izwi, izwi_api and izwi_models in which a function ran;
* takers: modules of these in which a function was given the text, its ids, or a form of them;
* takers_libraries_as_one: the same, with one for all modules of a library that is entered through
  one of them: what reads English text (`izwi_models.english.text`), and what notes times for
  traces and metrics (`izwi_api.telemetry.calls`), of which a reader of a request has to know no
  more;
* forms: classes of values (dataclasses, structs, named tuples, pydantic models) that a function was
  given or returned, and that hold the text, its ids, or another form that does.

    python -m benchmarks.serving.request_path
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

import msgspec
import numpy as np
from pydantic import BaseModel

from benchmarks.measure import write_result
from izwi_api.client import Client

MODEL = "izwi-tiny-tts"
TEXT = "the house is near the river and the water is cold today."
CORE = "house is near the river and the water is cold"  # of it, however its ends are written
OURS = ("izwi.", "izwi_api.", "izwi_models.")
ROUTE = "izwi_api.routes.speech"
CLIENT = "izwi_api.client."  # the other end of the connection, in the same process
LIBRARIES = ("izwi_models.english", "izwi_api.telemetry")
# A form holds the text at most this many values deep; a longer way leads through an index of all.
_DEPTH = 5
_MIN_IDS = 5


class RequestPath:
    """A profile function that follows one request at a time.

    Attributes:
        modules: Modules in the order of their first call.
        takers: Those of them in which a function was given the request, in whatever form.
        forms: Classes in the order in which they first held the request.
        is_armed: Whether the next call of a route begins the path.
        is_complete: Whether the forward pass has begun.
    """

    is_armed = False

    def __init__(self, core: str):
        self._text, self._ids = core, set[tuple[int, ...]]()
        self.modules: dict[str, str] = {}
        self.takers: dict[str, str] = {}
        self.forms: dict[str, str] = {}
        self.is_complete = self._has_begun = False
        self._lock = threading.Lock()

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        """See a call or a return of any function, in any thread."""
        if not self.is_armed or self.is_complete or event not in ("call", "return"):
            return
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(OURS) or module.startswith(CLIENT):
            return
        with self._lock:
            self._see(frame, event, result, module)

    def _see(self, frame: FrameType, event: str, result: Any, module: str) -> None:
        self._has_begun = self._has_begun or module.startswith(ROUTE)
        if not self._has_begun:
            return
        where = f"{module}.{frame.f_code.co_name}"
        if event == "call":
            if module.startswith("izwi_models.") and frame.f_code.co_name == "run":
                self.is_complete = True
                return
            self.modules.setdefault(module, where)
            values = [frame.f_locals.get(name) for name in argument_names(frame)]
        else:
            values = [result]
            self._learn_ids(frame, result)
        for value in values:
            found = self._forms_of(value, _DEPTH)
            if event == "call" and (found or self._holds(value)):
                self.takers.setdefault(module, where)
            for form in found:
                self.forms.setdefault(form, where)

    def _learn_ids(self, frame: FrameType, result: Any) -> None:
        """Take the integers that a function makes of the text for its ids."""
        ids = integers(result)
        if len(ids) > _MIN_IDS and any(
            isinstance(value, str) and self._text in value for value in frame.f_locals.values()
        ):
            middle = len(ids) // 2
            self._ids.add(ids[middle : middle + _MIN_IDS])

    def _forms_of(self, value: Any, depth: int) -> list[str]:
        """Return the forms of which a value is the outermost, if it holds the request."""
        if depth == 0:
            return []
        if isinstance(value, list | tuple | dict) and not is_value(value):
            inner = value.values() if isinstance(value, dict) else value
            return [form for one in list(inner)[:64] for form in self._forms_of(one, depth - 1)]
        if not is_value(value) or not type(value).__module__.startswith(OURS):
            return []
        inner_forms = [
            form
            for _, field in fields_of(value)
            if not self._holds(field)
            for form in self._forms_of(field, depth - 1)
        ]
        holds = any(self._holds(field) for _, field in fields_of(value))
        if not (holds or inner_forms):
            return []
        return [f"{type(value).__module__}.{type(value).__qualname__}", *inner_forms]

    def _holds(self, value: Any) -> bool:
        """Return whether this is the text, or its ids."""
        if isinstance(value, str):
            return self._text in value
        if isinstance(value, bytes | bytearray):
            return self._text.encode() in value
        found = integers(value)
        return any(contains(found, ids) for ids in self._ids)


def is_value(value: Any) -> bool:
    """Return whether a value is an instance of a class of values."""
    if isinstance(value, type):
        return False
    return (
        dataclasses.is_dataclass(value)
        or isinstance(value, msgspec.Struct | BaseModel)
        or (isinstance(value, tuple) and hasattr(value, "_fields"))
    )


def fields_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a value's fields."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    elif isinstance(value, msgspec.Struct):
        names = list(value.__struct_fields__)
    elif isinstance(value, BaseModel):
        names = list(type(value).model_fields)
    else:
        names = list(value._fields)
    for name in names:
        yield name, getattr(value, name, None)


def integers(value: Any) -> tuple[int, ...]:
    """Return a flat sequence of integers as a tuple; an empty one for anything else."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.size <= 4096:
        return tuple(map(int, value.ravel()))
    if isinstance(value, list | tuple) and value and len(value) <= 4096:
        return tuple(value) if all(type(one) is int for one in value) else ()
    return ()


def contains(whole: tuple[int, ...], part: tuple[int, ...]) -> bool:
    """Return whether a sequence has another one in it."""
    return any(
        whole[start : start + len(part)] == part for start in range(len(whole) - len(part) + 1)
    )


def argument_names(frame: FrameType) -> tuple[str, ...]:
    """Return the names of a function's parameters."""
    code = frame.f_code
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def follow() -> RequestPath:
    """Speak the text, and return what the request passed.

    Raises:
        RuntimeError: The request did not reach a forward pass.
    """
    path = RequestPath(CORE)
    threading.setprofile(path)
    sys.setprofile(path)
    try:
        with Client(models=[MODEL]) as client:
            # the first imports, and fills caches; both are short, since frames do not matter
            client.say("Good morning.", voice="amber", seed=0, max_new_tokens=2)
            path.is_armed = True
            client.say(TEXT, voice="amber", seed=0, max_new_tokens=2)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if not path.is_complete:
        raise RuntimeError("the request did not reach a forward pass of its model")
    return path


def libraries_as_one(modules: Iterable[str]) -> set[str]:
    """Return modules, with one for all of a library."""
    return {
        next((library for library in LIBRARIES if module.startswith(f"{library}.")), module)
        for module in modules
    }


def table(found: Mapping[str, str]) -> list[dict[str, str]]:
    """Return what was found, each with the function where it was seen first."""
    return [{"name": name, "first_seen": where} for name, where in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    path = follow()
    found = {"forms": path.forms, "takers": path.takers, "modules": path.modules}
    for kind, names in found.items():
        for name, where in names.items():
            print(f"{kind}: {name}  ({where})")
    rows = [
        {kind: len(names) for kind, names in found.items()}
        | {"takers_libraries_as_one": len(libraries_as_one(path.takers))}
    ]
    write_result("request_path", rows, **{kind: table(names) for kind, names in found.items()})


if __name__ == "__main__":
    main()
