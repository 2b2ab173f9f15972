"""`izwi draw`, without diffusers."""

from __future__ import annotations

import pytest


def test_draw_asks_a_server(cli, monkeypatch):
    asked = []

    async def request(_, fields):
        asked.append({name: value for name, value in fields.items() if value is not None})
        return [b"webp"]

    monkeypatch.setattr("izwi_api.client.async_client.request_images", request)
    there = ("--server", "http://127.0.0.1:9", "--out", "cat.webp")
    result = cli("draw", "a red cat", *there, "--size", "64x32", "--steps", "4", "--seed", "7")
    assert (cli.folder / "cat.webp").read_bytes() == b"webp"
    assert "cat.webp: 4 bytes" in result.stderr
    fields = {"size": "64x32", "steps": 4, "seed": 7, "quality": "auto", "output_format": "webp"}
    assert asked == [fields | {"prompt": "a red cat"}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size", "large"], "size must be"),
        (["--steps", "0"], "steps"),
        (["--out", "cat.bmp"], "suffix"),
        (["--out", "nowhere/cat.png"], "does not exist"),
        (["--compile"], "folder"),
        (["--model", "."], "no pipeline of diffusers"),
        ([], "izwi serve --images"),
    ],
)
def test_draw_refuses_before_it_loads(cli, arguments, message):
    assert message in cli("draw", "a red cat", *arguments, code=2).output.replace("\n", " ")
