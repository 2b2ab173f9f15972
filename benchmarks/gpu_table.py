"""Collect the main figures of one GPU from the results of other benchmarks, and plot them.

Rows without a result are left out and listed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from benchmarks.measure import RESULTS
from benchmarks.pictures import Curve, Panel, draw

Rows = list[dict[str, Any]]
CLOSED, CLOSED_SMALL = "closed_loop_tts-1.7b", "closed_loop_tts-0.6b"
OPEN = "open_loop_tts-1.7b"
TEXTS, CLIPS, FILES = "by_length_texts", "by_length_clips", "by_length_files"
_RATIO = "ratio_to_faster_qwen3_tts"
# id -> unit, result, and where in it
TABLE: dict[str, tuple[str, str, Callable[[Rows], Any]]] = {
    "frame_ms": ("ms", "frame_time", lambda rows: find(rows, streams=1)["frame_ms"]),
    "stream_rtf": ("x", CLOSED, lambda rows: closed(rows, 1)["rtf_p50"]),
    "ttfa_p50_ms_1rps": ("ms", OPEN, lambda rows: opened(rows, 1)["ttfa_ms_p50"]),
    "underruns_1rps": ("streams", OPEN, lambda rows: opened(rows, 1)["underruns"]),
    "ttfa_p95_ms_10rps": ("ms", OPEN, lambda rows: opened(rows, 10)["ttfa_ms_p95"]),
    "underruns_10rps": ("streams", OPEN, lambda rows: opened(rows, 10)["underruns"]),
    "ttfa_p95_ms_20rps": ("ms", OPEN, lambda rows: opened(rows, 20)["ttfa_ms_p95"]),
    "underruns_20rps": ("streams", OPEN, lambda rows: opened(rows, 20)["underruns"]),
    "audio_s_per_s_c64": ("s/s", CLOSED, lambda rows: closed(rows, 64)["audio_s_per_s"]),
    "ttfa_p50_ms_c64": ("ms", CLOSED, lambda rows: closed(rows, 64)["ttfa_ms_p50"]),
    "audio_s_per_s_c64_0.6b": ("s/s", CLOSED_SMALL, lambda rows: closed(rows, 64)["audio_s_per_s"]),
    "asr_x_real_time_c32": ("x", "asr_throughput", lambda rows: closed(rows, 32)["x_real_time"]),
    "asr_x_real_time_c32_http": (
        "x",
        "asr_throughput",
        lambda rows: find(rows, loop="closed over http", streams=32)["x_real_time"],
    ),
    "compiled_after_ready": ("delays", TEXTS, lambda _: sum(map(delays, (TEXTS, CLIPS, FILES)))),
    "ttfa_ms_4000_chars": ("ms", TEXTS, lambda rows: again(rows, "text", chars=4000)["ttfa_ms"]),
    "ttfa_p95_ms_beside_16_long": (
        "ms",
        TEXTS,
        lambda rows: find(rows, what="short beside 16 long", turn="first")["ttfa_ms_p95"],
    ),
    "ttfa_p50_ms_clone_1rps": ("ms", CLIPS, lambda rows: clones(rows, 1)["ttfa_ms_p50"]),
    "ttfa_p95_ms_clone_20rps": ("ms", CLIPS, lambda rows: clones(rows, 20)["ttfa_ms_p95"]),
    "underruns_clone_20rps": ("streams", CLIPS, lambda rows: clones(rows, 20)["underruns"]),
    "asr_ms_1s_after_outlier": (
        "ms",
        FILES,
        lambda rows: find(rows, what="1 s after the longest", turn="first")["ms_p50"],
    ),
    "asr_ms_8s_http": ("ms", FILES, lambda rows: again(rows, "file", seconds=8.0)["ms"]),
    "asr_s_600s_http": ("s", FILES, lambda rows: again(rows, "file", seconds=600.0)["ms"] / 1e3),
    "start_s_cold": ("s", TEXTS, lambda rows: find(rows, what="ready")["start_s"]),
    "start_s_warm": ("s", f"{TEXTS}_warm", lambda rows: find(rows, what="ready")["start_s"]),
    _RATIO: ("x", "peers", lambda rows: find(rows, peer="izwi")[_RATIO]),
}


def find(rows: Rows, **wanted: Any) -> dict[str, Any]:
    """Return the first row with these values.

    Raises:
        LookupError: There is no such row.
    """
    for row in rows:
        if all(row.get(key) == value for key, value in wanted.items()):
            return row
    raise LookupError(f"no row with {wanted}")


def closed(rows: Rows, streams: int) -> dict[str, Any]:
    """Return the closed loop's row with this number of listeners."""
    return find(rows, loop="closed", streams=streams)


def opened(rows: Rows, per_second: float) -> dict[str, Any]:
    """Return the open loop's row at a rate."""
    return find(rows, loop="open", per_second=per_second)


def again(rows: Rows, what: str, **wanted: Any) -> dict[str, Any]:
    """Return the second measurement of a length."""
    return find(rows, what=what, turn="again", **wanted)


def clones(rows: Rows, per_second: float) -> dict[str, Any]:
    """Return the row of clones with new clips of about 4 s, at a rate."""
    return find(rows, what="clones", clip_s=4.0, per_second=per_second)


def delays(result: str) -> int:
    """Count kernels compiled and graphs captured while a benchmark's requests were served."""
    return sum(row.get("compiled", 0) + row.get("captured", 0) for row in rows_of(result))


def panels(closed_rows: Rows, open_rows: Rows) -> list[Panel]:
    """Plot throughput and time to first audio.

    Args:
        closed_rows: Rows of the closed loop.
        open_rows: Rows of the open loop.
    """

    def first_audio(rows: Rows, load: str) -> dict[str, Curve]:
        found = (("half of the listeners", "ttfa_ms_p50"), ("95 %", "ttfa_ms_p95"))
        loads = [row[load] for row in rows]
        return {
            f"first audio, {label}": Curve(loads, [row[name] for row in rows], colour)
            for colour, (label, name) in enumerate(found)
        }

    streams = [row["streams"] for row in closed_rows]
    made = {"audio a second": Curve(streams, [row["audio_s_per_s"] for row in closed_rows])}
    return [
        Panel("listeners at once", "seconds of audio a second", made, log_x=True, log_y=True),
        Panel(
            "listeners at once", "ms", first_audio(closed_rows, "streams"), log_x=True, log_y=True
        ),
        Panel("requests a second (Poisson)", "ms", first_audio(open_rows, "per_second")),
    ]


def rows_of(result: str) -> Rows:
    """Return the rows of a result. Raises FileNotFoundError."""
    found: Rows = json.loads((RESULTS / f"{result}.json").read_text(encoding="utf-8"))["rows"]
    return found


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    rows, devices, commits = [], set(), set()
    for name, (unit, source, read) in TABLE.items():
        path = RESULTS / f"{source}.json"
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            value = read(result["rows"])
        except (FileNotFoundError, LookupError) as error:
            print(f"{name}: no figure ({error})")
            continue
        file = f"benchmarks/results/{path.name}"
        rows.append({"row": name, "value": value, "unit": unit, "source": file})
        devices.add(result.get("gpu", result["device"]))
        commits.add(result["commit"])
        print(f"{name} {value} {unit}")
    table = {"device": ", ".join(sorted(devices)), "commit": ", ".join(sorted(commits))}
    path = RESULTS / "gpu_table.json"
    path.write_text(json.dumps({**table, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    title = f"Qwen3-TTS 1.7B over HTTP, {table['device']}"
    draw("gpu_listeners", title, panels(rows_of(CLOSED), rows_of(OPEN)))


if __name__ == "__main__":
    main()
