"""Which modules are mutated, and in which test files those are looked for that must notice.

Which of their tests a mutant is tried with is found by running them: `reach.py`.
"""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).parents[2]


def _tests(*folders: str) -> tuple[str, ...]:
    found = (path for folder in folders for path in (_ROOT / "tests" / folder).glob("test_*.py"))
    return tuple(sorted(str(path.relative_to(_ROOT)) for path in found))


_LOOP = _tests(
    *("scheduler", "cache", "engine", "runner", "backends", "backends/torch"),
    *("request", "recording"),
)
_SERVE = _tests("serve")
_KEYS = (
    "tests/api/usage/test_limits_boundaries.py",
    "tests/api/http/test_auth_boundaries.py",
    "tests/api/usage/test_keys_file.py",
    "tests/api/usage/test_limits.py",
    "tests/api/usage/test_keys.py",
    "tests/api/usage/test_shared_counts.py",
    "tests/realtime/test_client_secrets.py",
)
_SCHEDULER = (
    *("cost", "playback", "batching_delay", "ordered", "deadline", "step_builder"),
    *("scheduler", "codec_rows"),
)
_CACHE = ("pages", "radix", "edge", "memory", "tiers", "state_rows")
_TORCH = ("kv", "state", "sampler", "captured/staging")
_PROCESSES = (
    *("control", "engine_process", "api_server_process", "resumable_request"),
    *("remote_engine", "supervisor", "wire"),
)

AREAS: dict[str, tuple[str, ...]] = {
    **{f"izwi/scheduler/{name}.py": _LOOP for name in _SCHEDULER},
    **{f"izwi/cache/{name}.py": _LOOP for name in _CACHE},
    "izwi/engine/model_worker.py": _LOOP,
    "izwi/runner/runner.py": _LOOP,
    **{f"izwi/backends/torch/{name}.py": _LOOP for name in _TORCH},
    "izwi/engine/step_thread.py": (*_LOOP, *_SERVE),
    "izwi/request/serialization.py": (
        *("tests/serve/test_wire.py", "tests/serve/test_json_arrays.py"),
        "tests/recording/test_recording.py",
    ),
    **{f"api/izwi_api/{name}.py": _KEYS for name in ("usage/limits", "http/auth", "usage/keys")},
    **{f"api/izwi_api/serve/{name}.py": _SERVE for name in _PROCESSES},
}
