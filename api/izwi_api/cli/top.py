"""`izwi top`: what a server does now, from its /metrics."""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from izwi.errors import InvalidRequest
from izwi_api.cli.options import ApiKey, ServerUrl
from izwi_api.console import report_failures

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table

Labels = tuple[tuple[str, str], ...]

EveryOption = Annotated[
    float, typer.Option("--every", min=0.2, help="Seconds between two readings.")
]
OnceOption = Annotated[bool, typer.Option("--once", help="Print the figures once, and end.")]


@dataclass(frozen=True, slots=True)
class Reading:
    """The figures of a server at one time.

    Attributes:
        at_s: When they were read, on a monotonic clock.
        samples: Values by name and labels.
    """

    at_s: float
    samples: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)

    @classmethod
    def from_text(cls, text: str, at_s: float) -> Reading:
        """Read the text format of Prometheus."""
        from prometheus_client.parser import text_string_to_metric_families

        samples: dict[str, dict[Labels, float]] = defaultdict(dict)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples[sample.name][tuple(sorted(sample.labels.items()))] = sample.value
        return cls(at_s, samples)

    def sum(self, name: str, **labels: str) -> float:
        """Return the sum of a figure over all series with these labels."""
        asked = set(labels.items())
        found = self.samples.get(name, {})
        return sum(value for series, value in found.items() if asked <= set(series))

    def models(self) -> list[tuple[str, str]]:
        """Return the served models, each with the number of its engine if there are several."""
        found = map(dict, self.samples.get("izwi_engine_running", {}))
        return sorted((of["model"], of.get("replica", "")) for of in found)

    def trouble(self, replica: str) -> str:
        """Return the status of an engine that gets no requests, or an empty text."""
        found = self.samples.get("izwi_replica", {})
        known = (dict(series) for series, value in found.items() if value)
        status = next((of["status"] for of in known if of["replica"] == replica), "ready")
        return "" if status == "ready" else f" {status}"


@dataclass(frozen=True, slots=True)
class Interval:
    """Two readings of a server; rates are those of the time between them.

    Without an earlier reading, rates are those since the server's start, where that makes sense.
    """

    now: Reading
    before: Reading | None = None

    def grown(self, name: str, **labels: str) -> float:
        """Return by how much a counter has grown. A server that has restarted counts from 0."""
        value = self.now.sum(name, **labels)
        old = self.before.sum(name, **labels) if self.before is not None else 0.0
        return value - old if value >= old else value

    def rate(self, name: str, **labels: str) -> float | None:
        """Return the growth of a counter per second; None without an earlier reading."""
        if self.before is None or self.now.at_s <= self.before.at_s:
            return None
        return self.grown(name, **labels) / (self.now.at_s - self.before.at_s)

    def ratio(self, name: str, of: str, **labels: str) -> float | None:
        """Return the growth of a counter for each 1 of another; None if that has not grown."""
        whole = self.grown(of, **labels)
        return self.grown(name, **labels) / whole if whole else None

    def quantile(self, name: str, share: float, **labels: str) -> float | None:
        """Return a quantile of a histogram, linear within a bucket; None without values."""
        buckets: dict[float, float] = defaultdict(float)
        for series in self.now.samples.get(f"{name}_bucket", {}):
            known = dict(series)
            top = known.pop("le")
            if labels.items() <= known.items():
                bound = math.inf if top == "+Inf" else float(top)
                buckets[bound] += self.grown(f"{name}_bucket", **known, le=top)
        return quantile(buckets, share)


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Return a quantile of cumulative buckets: upper bound -> values up to it."""
    total = max(buckets.values(), default=0.0)
    if not total:
        return None
    low = below = 0.0
    for top, count in sorted(buckets.items()):
        if count >= share * total:
            if top == math.inf:
                return low
            return low + (top - low) * (share * total - below) / max(count - below, 1e-12)
        low, below = top, count
    return low


def summary(interval: Interval) -> list[tuple[str, str]]:
    """Return what is shown of the whole server: names and values."""
    now = interval.now
    # a probe's 503 says that a server drains: no caller's request failed
    failed = sum(
        interval.grown(_REQUESTS, **of)
        for of in map(dict, now.samples.get(_REQUESTS, {}))
        if of["status"].startswith("5") and of["route"] not in _PROBES
    )
    latency = [
        _ms(interval.quantile("izwi_live_latency_seconds", share, until="audio"))
        for share in (0.5, 0.95)
    ]
    return [
        ("requests in flight", f"{now.sum('izwi_http_in_flight'):.0f}"),
        ("requests/s", _number(interval.rate(_REQUESTS))),
        ("failed", f"{failed:.0f}"),
        ("live sessions", f"{now.sum('izwi_websocket_sessions'):.0f}"),
        ("live answers", f"{interval.grown('izwi_live_answers_total'):.0f}"),
        ("live first audio p50/p95", " / ".join(latency)),
        ("live gaps", f"{interval.grown('izwi_live_gaps_total'):.0f}"),
    ]


_OF_ENGINE = ("model", "run", "wait", "pause", "batch", "step", "slack", "memory", "hits")
_OF_CALLERS = ("tokens/s", "first p50", "first p95", "RTF", "underrun")
COLUMNS = (*_OF_ENGINE, *_OF_CALLERS)


def row(interval: Interval, model: str, replica: str = "") -> list[str]:
    """Return what is shown of a model, in the order of `COLUMNS`.

    Of several engines each has a row; what callers saw is that of all of them.

    Args:
        interval: The figures.
        model: The served model.
        replica: The number of an engine, or an empty text if there is only one.
    """
    now, asked = interval.now, {"gen_ai_request_model": model}
    of = {"model": model, "replica": replica} if replica else {"model": model}
    slack_s = now.sum("izwi_engine_least_slack_seconds", **of)
    pages = now.sum("izwi_engine_pages", **of)
    used = 1.0 - now.sum("izwi_engine_available_pages", **of) / pages if pages else None
    first = "gen_ai_server_time_to_first_token_seconds"
    if interval.quantile("izwi_audio_time_to_first_audio_seconds", 0.5, **asked) is not None:
        first = "izwi_audio_time_to_first_audio_seconds"
    steps_s = [
        interval.ratio(f"izwi_engine_{part}_seconds_total", "izwi_engine_steps_total", **of)
        for part in ("schedule", "launch", "wait", "process")
    ]
    step_s = sum(part_s for part_s in steps_s if part_s is not None)
    hits = interval.ratio(
        "izwi_engine_prefix_positions_hit_total", "izwi_engine_prefix_positions_asked_total", **of
    )
    return [
        f"{model} [{replica}{now.trouble(replica)}]" if replica else model,
        *(f"{now.sum(f'izwi_engine_{state}', **of):.0f}" for state in _STATES),
        _number(interval.ratio("izwi_engine_rows_total", "izwi_engine_steps_total", **of)),
        _ms(step_s or None),
        "-" if math.isinf(slack_s) else f"{slack_s:.2f} s",
        _percent(used),
        _percent(hits),
        _number(interval.rate("izwi_tokens_total", **asked, kind="output")),
        _ms(interval.quantile(first, 0.5, **asked)),
        _ms(interval.quantile(first, 0.95, **asked)),
        _number(
            interval.ratio(
                "izwi_audio_real_time_factor_sum", "izwi_audio_real_time_factor_count", **asked
            )
        ),
        f"{interval.grown('izwi_audio_underrun_seconds_total', **asked):.1f} s",
    ]


def screen(address: str, interval: Interval, console: Console) -> Group:
    """Return what is shown: a row for each model, or two if the terminal is too narrow for one."""
    from rich.console import Group
    from rich.text import Text

    shown = [f"[dim]{name}[/dim] {value}" for name, value in summary(interval)]
    head = [Text.from_markup("   ".join(part)) for part in (shown[:4], shown[4:])]
    rows = [row(interval, *of) for of in interval.now.models()]
    tables = [_table(COLUMNS, rows)]
    endless = console.options.update(max_width=_ANY_WIDTH)
    if console.measure(tables[0], options=endless).maximum > console.width:
        split = len(_OF_ENGINE)
        tables = [
            _table(_OF_ENGINE, [one[:split] for one in rows]),
            _table([COLUMNS[0], *_OF_CALLERS], [[one[0], *one[split:]] for one in rows]),
        ]
    spaced = [part for table in tables for part in (Text(), table)]
    return Group(Text(f"izwi at {address}", style="bold"), *head, *spaced)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table whose first column is folded where a terminal is too narrow for it."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(columns[0], overflow="fold")
    for name in columns[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for cells in rows:
        table.add_row(*map(escape, cells))
    return table


def top(
    every_s: EveryOption = 2.0,
    once: OnceOption = False,
    server: ServerUrl = None,
    api_key: ApiKey = None,
) -> None:
    """Show what a running server does: requests, slack, batches, memory, live sessions."""
    from rich.console import Console

    from izwi_api.cli.running_server import running_server

    with report_failures():
        address = running_server(server, api_key)
        if address is None:
            raise InvalidRequest("no server runs here; name one with --server", param="server")
        console = Console()
        asyncio.run(_watch(console, address, api_key, every_s, once or not console.is_terminal))


async def _watch(
    console: Console, address: str, api_key: str | None, every_s: float, once: bool
) -> None:
    from rich.live import Live

    from izwi_api.client import AsyncClient

    async with AsyncClient(address, api_key=api_key) as client:
        reading = Reading.from_text(await client.metrics(), time.monotonic())
        if once:
            console.print(screen(address, Interval(reading), console))
            return
        shown = screen(address, Interval(reading), console)
        with Live(shown, console=console, screen=True) as live:
            while True:
                await asyncio.sleep(every_s)
                before = reading
                reading = Reading.from_text(await client.metrics(), time.monotonic())
                live.update(screen(address, Interval(reading, before), console))


_ANY_WIDTH = 10_000
_STATES: Iterable[str] = ("running", "waiting", "paused")
_REQUESTS = "izwi_http_requests_total"
_PROBES = ("/livez", "/readyz")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{1000 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"
