"""What a rank other than 0 does: it runs the orders of rank 0 over its own part of each model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from izwi.backends.protocol import Backend
from izwi.host.rank_links import FollowerLink
from izwi.runner.rank_orders import CopyPages, OrderDecoder, ReadPages, RunStep, WritePages
from izwi.runner.runner import Runner


def follow(runners: Sequence[Runner], link: FollowerLink, prompts: Sequence[type[Any]]) -> NoReturn:
    """Do what rank 0 tells, until it is gone.

    Args:
        runners: Those of the same models in the same order.
        link: From rank 0.
        prompts: See `izwi.model.protocol.Family.prompts`.
    """
    backend: Backend = runners[0].backend
    orders = OrderDecoder(prompts, backend.ops.array)
    in_flight: deque[Callable[[], object]] = deque()
    with backend.own_stream(), backend.running():
        while True:
            _execute(orders, link, runners, in_flight)


def _execute(
    orders: OrderDecoder,
    link: FollowerLink,
    runners: Sequence[Runner],
    in_flight: deque[Callable[[], object]],
) -> None:
    order = orders.decode(link.receive())
    runner = runners[order.model]
    match order:
        case RunStep():
            batch = orders.batch(order)
            if not order.launched:
                runner.run(batch)
                return
            in_flight.append(runner.launch_batch(batch))
            while len(in_flight) > 1:  # as rank 0: the device has one more step to run
                in_flight.popleft()()
        case CopyPages():
            runner.kv.copy(order.moves)
        case ReadPages():
            link.send([runner.kv.read_pages(order.pages).tobytes()])
        case WritePages():
            runner.kv.write_pages(order.pages, order.data[runner.backend.ops.ranks.index])
