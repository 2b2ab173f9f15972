"""A text that ends while a step is in flight publishes the positions that it knows, and no more."""

from __future__ import annotations

from msgspec.structs import replace

from izwi.request.request import Reason
from tests.engine.ahead import one_step_ahead
from tests.engine.toy import toy_request
from tests.engine.world import PAGE, World, alone


def test_a_text_ends_one_step_ahead_at_the_border_of_a_page() -> None:
    num_borders = 0
    for seed in (4, 5, 7, 8, 10, 11, 13, 14):
        prompt = 5 + seed % 4
        asked = toy_request("a", prompt, seed, frames=16, model="text")
        asked = replace(asked, stop_ids=(), min_entries=0)
        said = [entry[0] for entry in alone(asked).entries]
        for at in range(1, len(said)):
            # the step in flight has computed one position more, the last of a page
            if (prompt + at + 1) % PAGE or said[at] in said[:at]:
                continue
            num_borders += 1
            with one_step_ahead():
                world = World()
                world.submit(replace(asked, stop_ids=(said[at],)))
                world.run()
            log = world.logs["a"]
            assert (log.error, log.reason) == (None, Reason.STOP)
            assert [entry[0] for entry in log.entries] == said[:at]
            world.check_nothing_is_lost()
    assert num_borders > 0
