"""Which modules are mutated, and which test files must notice: the fast ones first."""

from __future__ import annotations

_PLANS = ("tests/scheduler/test_draft.py", "tests/scheduler/test_policy.py")
_PURE = {
    "cost": ("test_boundaries", "test_cost"),
    "playback": ("test_boundaries", "test_playback"),
    "batching_delay": ("test_boundaries", "test_batching_delay"),
    "shadow": ("test_shadow",),
    "ordered": ("test_draft", "test_policy", "test_progress"),
    "deadline": ("test_deadline", "test_draft", "test_policy", "test_progress"),
    "step_builder": ("test_draft", "test_policy", "test_progress"),
}
_QUEUES = (
    *_PLANS,
    "tests/scheduler/test_progress.py",
    "tests/engine/test_engine.py",
    "tests/engine/test_pressure.py",
)
_CACHE = (
    "tests/cache/test_pages.py",
    "tests/cache/test_page_chain.py",
    "tests/cache/test_radix.py",
)
_ENGINE = (
    "tests/engine/test_engine.py",
    "tests/engine/test_pause.py",
    "tests/engine/test_ahead.py",
    "tests/engine/test_pressure.py",
    "tests/engine/test_prefix.py",
    "tests/engine/test_sound_beside.py",
    "tests/engine/test_async_engine.py",
)
_RUNNER = ("tests/runner/test_sampler.py", "tests/runner/test_staging.py", *_ENGINE)
_SERVE = (
    "tests/serve/test_wire.py",
    "tests/serve/test_alive.py",
    "tests/serve/test_remote_engine.py",
    "tests/serve/test_going_on.py",
    "tests/serve/test_processes.py",
)
_KEYS = (
    "tests/api/test_limits_boundaries.py",
    "tests/api/test_auth_boundaries.py",
    "tests/api/test_keys_file.py",
    "tests/api/test_limits.py",
    "tests/api/test_keys.py",
    "tests/api/test_shared_counts.py",
)

AREAS: dict[str, tuple[str, ...]] = {
    **{
        f"izwi/scheduler/{name}.py": tuple(f"tests/scheduler/{test}.py" for test in tests)
        for name, tests in _PURE.items()
    },
    **{
        f"izwi/scheduler/{name}.py": _QUEUES
        for name in ("scheduler", "waiting_queue", "playback_clocks", "codec_rows")
    },
    "izwi/cache/pages.py": _CACHE,
    "izwi/cache/radix.py": _CACHE,
    "izwi/cache/edge.py": (*_CACHE, *_ENGINE),
    "izwi/cache/memory.py": (*_CACHE, *_ENGINE),
    "izwi/cache/tiers.py": (*_CACHE, "tests/cache/test_tiers.py", *_ENGINE),
    "izwi/cache/kv.py": ("tests/cache/test_kv.py", *_ENGINE),
    "izwi/cache/state.py": _ENGINE,
    "izwi/model_worker.py": _ENGINE,
    "izwi/in_flight.py": _ENGINE,
    "izwi/step_thread.py": _ENGINE,
    "izwi/serialization.py": ("tests/serve/test_wire.py", "tests/engine/test_recording.py"),
    **{f"izwi/runner/{name}.py": _RUNNER for name in ("runner", "sampler", "staging")},
    "api/izwi_api/http/limits.py": _KEYS,
    "api/izwi_api/http/auth.py": _KEYS,
    "api/izwi_api/http/keys.py": _KEYS,
    **{
        f"api/izwi_api/serve/{name}.py": _SERVE
        for name in (
            *("control", "engine_process", "api_server_process", "resumable_request"),
            *("remote_engine", "supervisor", "wire"),
        )
    },
}
