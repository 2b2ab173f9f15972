"""`izwi serve --videos`: openai-python, unmodified, and the file that it reads."""

from __future__ import annotations

import time
from io import BytesIO

import httpx
import openai
import pytest

from tests.api.served import served
from tests.drawing.tiny_video_pipeline import write_tiny_video_pipeline

pytestmark = [
    pytest.mark.slow,
    # openai-python warns that OpenAI's own service ends
    pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning"),
]
pytest.importorskip("diffusers")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipelines") / "tiny-ltx"
    write_tiny_video_pipeline(folder)
    options = ("--videos", f"sora-2={folder}", "--api-servers", "2")
    with served(tmp_path_factory.mktemp("server"), *options) as server:
        yield server


@pytest.fixture
def videos(server):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)
    with client:
        yield client.videos


def shape_of(content):
    """Frames, width, height and frames per second of an MP4 file."""
    import av

    with av.open(BytesIO(content)) as container:
        frames = list(container.decode(video=0))
        rate = float(container.streams.video[0].average_rate)
    return len(frames), frames[0].width, frames[0].height, rate


def test_openai_python_draws_a_video(videos):
    more = {"steps": 2, "frames_per_s": 8, "seed": 7}
    ask = {"prompt": "a red cat", "model": "sora-2", "size": "64x32", "seconds": "4"}
    video = videos.create_and_poll(**ask, extra_body=more, poll_interval_ms=200)
    assert (video.status, video.progress, video.size, video.error) == (
        "completed",
        100,
        "64x32",
        None,
    )
    # 32 frames are eight and the first
    assert shape_of(videos.download_content(video.id).read()) == (33, 64, 32, 8.0)
    assert [one.id for one in videos.list()] == [video.id]
    assert videos.delete(video.id).deleted
    with pytest.raises(openai.NotFoundError):
        videos.retrieve(video.id)


def test_deleted_video_ends_and_the_next_one_is_drawn(videos):
    more = {"steps": 200, "frames_per_s": 8}
    long = videos.create(prompt="a", size="128x128", seconds="4", extra_body=more)
    while videos.retrieve(long.id).status == "queued":
        time.sleep(0.1)
    videos.delete(long.id)
    more = {"steps": 1, "frames_per_s": 4}
    video = videos.create_and_poll(prompt="b", size="64x32", seconds="4", extra_body=more)
    assert video.status == "completed"


def test_generations_wait_for_the_video(server):
    body = {"prompt": "a", "size": "64x32", "seconds": 1, "steps": 1, "response_format": "url"}
    answer = httpx.post(f"{server.url}/v1/videos/generations", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    content = httpx.get(answer.json()["data"][0]["url"]).content
    assert shape_of(content) == (25, 64, 32, 25.0)
