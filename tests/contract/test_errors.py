"""Errors form one tree, and HTTP knows each of them from one place."""

from __future__ import annotations

import ast
import builtins
from pathlib import Path

from izwi import errors
from izwi.errors import IzwiError
from izwi_api.http.errors import STATUS, body_of, response_to, status_of
from tests.contract.sources import statements

ROOT = Path(__file__).parents[2]
PACKAGES = ("izwi", "models", "api", "web")
TREE = {
    name: cls
    for name, cls in vars(errors).items()
    if isinstance(cls, type) and issubclass(cls, IzwiError)
}
# Exceptions that never leave the module or the process that raises them.
OUTSIDE = {
    "api/izwi_api/http/bodies.py: _Overflow": "makes the form parser clean up",
    "api/izwi_api/http/bodies.py: _Gone": "makes the form parser clean up",
    "api/izwi_api/drawing/client.py: _NotBegunError": "another process is asked",
    "api/izwi_api/drawing/pipeline.py: _ClientLeft": "ends a drawing; nobody is left to tell",
    "api/izwi_api/client/socket.py: SocketClosed": "becomes an error of the tree in the client",
    "api/izwi_api/client/socket.py: SocketRefused": "becomes an error of the tree in the client",
    "api/izwi_api/client/speech.py: _NeedsWholeText": "the client sends the text whole instead",
    "api/izwi_api/realtime/protocol/client_events.py: BadEvent": "an event, with its id",
    "api/izwi_api/realtime/protocol/errors.py: EventError": "an event, with OpenAI's code",
    "models/izwi_models/tiny/recipes/chat/wording.py: NoWordingError": "a script's own",
    "api/izwi_api/sessions/core.py: _Done": "ends a session as it should",
    "api/izwi_api/sessions/errors.py: ClientLeft": "ends a session; nobody is left to tell",
    "api/izwi_api/sessions/errors.py: SessionOver": "carries a WebSocket close code",
    "izwi/backends/torch/persistent/device_code.py: CompileError": "the usual kernels run instead",
    "models/izwi_models/borrowed_chat/engine.py: RunnerDied": "ends the engine",
    "izwi/runner/ranks.py: RankFailed": "ends the step thread, and with it the engine",
    "izwi/sandbox/client.py: JobStopped": "becomes the refusal of a file, a template or a grammar",
    "izwi/sandbox/client.py: _Killed": "the job is done again in another process",
    "izwi/sandbox/chat_template_worker.py: _Raised": "becomes a refusal, within the worker",
    "api/izwi_api/voices/index.py: NameTaken": "becomes VoiceExists, or another name is tried",
    "api/izwi_api/voices/reference_connections.py: NotReached": "its reason is for the log",
}


def exceptions() -> set[str]:
    """Classes that inherit from an exception, as `path: name`."""
    classes: dict[str, list[str]] = {}  # bases by place
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in statements(path):
                if isinstance(node, ast.ClassDef):
                    bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
                    classes[f"{path.relative_to(ROOT)}: {node.name}"] = bases
    found: dict[str, str] = {}

    def is_exception(base: str) -> bool:
        known = getattr(builtins, base, None)
        if isinstance(known, type) and issubclass(known, BaseException):
            return True
        return base.endswith(("Error", "Exception")) or base in TREE or base in found.values()

    while True:
        more = {
            place: place.rpartition(" ")[2]
            for place, bases in classes.items()
            if place not in found and any(map(is_exception, bases))
        }
        if not more:
            return set(found)
        found |= more


def test_every_exception_is_in_the_tree_or_stays_where_it_is() -> None:
    found = exceptions()
    tree = {f"izwi/errors.py: {name}" for name in TREE}
    assert tree <= found, "this test sees fewer classes than there are"
    assert found - tree == set(OUTSIDE), "raise an error of izwi/errors.py, or say why not"


def test_every_error_has_one_status_and_a_code_of_its_own() -> None:
    assert set(STATUS) <= set(TREE.values())
    codes = [cls.code for cls in TREE.values() if cls.code != IzwiError.code]
    assert len(codes) == len(set(codes))
    for name, cls in TREE.items():
        error = cls("because")
        assert 400 <= status_of(error) < 600, name
        assert response_to(error).status_code == status_of(error), name
        body = body_of(error)["error"]
        assert isinstance(body, dict)
        assert body["code"] == cls.code
        # what went wrong inside is for the log
        assert body["message"] == ("internal error" if status_of(error) == 500 else "because")


def test_statuses_that_clients_rely_on() -> None:
    expected = {
        "InvalidRequest": 400,
        "InvalidValue": 400,
        "MissingParameter": 400,
        "UnsupportedParameter": 400,
        "InvalidAudio": 400,
        "InvalidImage": 400,
        "DoesNotFit": 400,
        "AudioTooShort": 400,
        "ModelNotFound": 404,
        "VoiceNotFound": 404,
        "ConsentNotFound": 404,
        "CompletionNotFound": 404,
        "FileNotStored": 404,
        "BatchNotFound": 404,
        "VoiceExists": 400,
        "ContextTooLong": 400,
        "TooLarge": 413,
        "RequestTimeout": 408,
        "UnsupportedMediaType": 415,
        "UnsupportedTranslation": 400,
        "ReferenceNotFetched": 400,
        "RateLimited": 429,
        "QuotaExceeded": 429,
        "CheckpointError": 500,
        "Overloaded": 503,
        "DeviceFull": 503,
        "StorageFull": 507,
        "EngineStopped": 503,
        "DeadlineExceeded": 504,
        "EngineFault": 500,
        "InvalidMessage": 500,
        "StartFailed": 500,
        "IzwiError": 500,
    }
    assert {name: status_of(cls("because")) for name, cls in TREE.items()} == expected
