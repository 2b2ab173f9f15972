"""The endpoints of videos, without diffusers."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from izwi.errors import FileNotStored
from izwi_api.drawing.videos import KEPT_S, Video, VideoStore, new_video_id
from izwi_api.serve.app import create_app
from izwi_api.settings import ImageModel, Settings
from tests.api.conftest import FakeEngine, FakeRegistry
from tests.drawing.conftest import until

VIDEOS = "/v1/videos"
# What openai-python sends: a form without files.
FORM = {"prompt": (None, "a"), "seconds": (None, "4"), "size": (None, "64x32")}


@pytest.fixture
async def client(drawing, tmp_path):
    settings = Settings(home=tmp_path, video_model=ImageModel("film", tmp_path, drawing[0]))
    app = create_app(FakeEngine(), FakeRegistry(), settings)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client


async def ended(client, name):
    while (video := (await client.get(f"{VIDEOS}/{name}")).json())["status"] != "completed":
        assert video["error"] is None
    return video


async def test_video_is_drawn_polled_read_and_deleted(client, drawing):
    _, runner, _ = drawing
    answer = await client.post(VIDEOS, files=FORM)
    assert answer.status_code == 200, answer.text
    video = answer.json()
    assert (video["object"], video["status"], video["seconds"]) == ("video", "queued", "4")
    content = f"{VIDEOS}/{video['id']}/content"
    assert (await client.get(content)).status_code == 400
    runner.may_draw.set()
    video = await ended(client, video["id"])
    assert (video["progress"], video["size"], video["model"]) == (100, "64x32", "film")
    assert video["expires_at"] == video["completed_at"] + KEPT_S
    file = await client.get(content)
    assert (file.headers["content-type"], file.content[:2]) == ("video/mp4", b"a ")
    assert runner.jobs[0].seconds == 4
    gone = await client.delete(f"{VIDEOS}/{video['id']}")
    assert gone.json() == {"id": video["id"], "object": "video.deleted", "deleted": True}
    assert (await client.get(content)).status_code == 404
    assert (await client.get(VIDEOS)).json()["data"] == []


async def test_videos_are_listed_in_pages(client, drawing):
    drawing[1].may_draw.set()
    assert (await client.get(VIDEOS)).json()["data"] == []
    ids = set()
    for _ in range(3):
        video = (await client.post(VIDEOS, json={"prompt": "a"})).json()
        ids.add((await ended(client, video["id"]))["id"])
    page = (await client.get(VIDEOS, params={"limit": 2})).json()
    assert page["has_more"]
    rest = (await client.get(VIDEOS, params={"after": page["last_id"]})).json()
    assert {video["id"] for video in page["data"] + rest["data"]} == ids
    backwards = (await client.get(VIDEOS, params={"order": "asc"})).json()["data"]
    assert backwards[::-1] == page["data"] + rest["data"]


async def test_deleted_video_is_not_drawn_on(client, drawing):
    _, runner, _ = drawing
    video = (await client.post(VIDEOS, json={"prompt": "a"})).json()
    await until(lambda: runner.began)
    assert (await client.delete(f"{VIDEOS}/{video['id']}")).status_code == 200
    runner.may_draw.set()
    assert (await client.post(f"{VIDEOS}/generations", json={"prompt": "b"})).status_code == 200
    assert not list((drawing[0].parent / "videos").iterdir())


async def test_failure_is_part_of_the_video(client, drawing):
    drawing[1].may_draw.set()
    video = (await client.post(VIDEOS, json={"prompt": "wrong"})).json()
    while video["status"] == "queued":
        video = (await client.get(f"{VIDEOS}/{video['id']}")).json()
    assert video["status"] == "failed"
    assert video["error"] == {"code": "invalid_value", "message": "no such size"}


async def test_generations_answer_with_the_video(client, drawing):
    drawing[1].may_draw.set()
    body = {"prompt": "a", "seed": 3, "seconds": 2}
    answer = await client.post(f"{VIDEOS}/generations", json=body)
    (entry,) = answer.json()["data"]
    assert base64.b64decode(entry["b64_json"]) == b"a 3"
    answer = await client.post(f"{VIDEOS}/generations", json=body | {"response_format": "url"})
    file = await client.get(answer.json()["data"][0]["url"])
    assert (file.content, file.headers["content-type"]) == (b"a 3", "video/mp4")


async def test_what_is_refused(client):
    for body, status, param in (
        ({"model": "other"}, 404, "model"),
        ({"seconds": "0"}, 400, "seconds"),
        ({"seconds": "4.5"}, 400, "seconds"),
        ({"size": "64x33"}, 400, "size"),
        ({"fps": 3}, 400, "fps"),
    ):
        answer = await client.post(VIDEOS, json={"prompt": "a"} | body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    files = FORM | {"input_reference": ("a.png", b"a")}
    answer = await client.post(VIDEOS, files=files)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input_reference")
    assert (await client.get(f"{VIDEOS}/../secret")).status_code == 404


def stored(pid, **more):
    video = Video(
        id=new_video_id(),
        owner="",
        model="film",
        prompt="a",
        seconds="4",
        size="auto",
        created_at=0,
        pid=pid,
    )
    for name, value in more.items():
        setattr(video, name, value)
    return video


def test_video_of_an_api_server_that_ended_has_failed(tmp_path):
    store = VideoStore(tmp_path / "videos")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    store.add(lost := stored(ended.pid))
    store.add(mine := stored(os.getpid()))
    assert store.find("", lost.id).error[0] == "engine_stopped"
    assert store.find("", mine.id).is_open
    assert store.num_open() == {"": 1}
    with pytest.raises(FileNotStored):
        store.find("another", mine.id)


def test_file_that_did_not_change_is_read_once(tmp_path, monkeypatch):
    store, other = (VideoStore(tmp_path / "videos") for _ in range(2))
    store.add(video := stored(os.getpid()))
    assert len(store.videos("")) == 1
    read = []
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (read.append(path), read_bytes(path))[1])
    store.videos("")[0].progress = 77
    store.add(stored(os.getpid()))
    assert [one.progress for one in store.videos("")] == [0, 0]
    assert len(read) == 1  # the new one
    video.progress = 50
    assert other.save(video)
    assert store.find("", video.id).progress == 50


def test_videos_expire(tmp_path):
    now = [1000.0]
    store = VideoStore(tmp_path / "videos", lambda: now[0])
    store.add(video := stored(os.getpid()))
    store.complete(video, b"mp4")
    assert store.content(video.id).read_bytes() == b"mp4"
    now[0] += KEPT_S
    with pytest.raises(FileNotStored):
        store.find("", video.id)
    store.add(stored(os.getpid()))
    assert not store.content(video.id).exists()
