"""Pipelines of diffusers by class: images, previews, edits and videos over HTTP."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from contextlib import asynccontextmanager, suppress
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from izwi_api.settings import ImageModel, Settings
from tests.drawing.test_image_requests import EDITS, GENERATIONS, app_client, edit, mask

pytest.importorskip("diffusers")
from izwi_api.drawing.job_server import JobServer
from izwi_api.drawing.jobs import DrawJob
from izwi_api.drawing.options import PipelineOptions
from izwi_api.drawing.pipeline import Pipeline, _Drawing
from izwi_api.drawing.previews import preview
from tests.drawing.tiny_classes import IMAGES, VIDEOS

pytestmark = [
    pytest.mark.slow,
    # diffusers and transformers warn of the tiny checkpoints
    pytest.mark.filterwarnings("ignore"),
]


SIZE = (64, 32)


@pytest.fixture(scope="module", params=[*IMAGES, *VIDEOS])
def name(request):
    torch.set_num_threads(1)
    return request.param


@pytest.fixture(scope="module")
def pipeline(name, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipelines") / name
    (IMAGES | VIDEOS)[name](folder)
    return Pipeline(PipelineOptions(folder=str(folder), device="cpu"))


@pytest.fixture
def images(name):
    if name not in IMAGES:
        pytest.skip("draws videos")


@asynccontextmanager
async def client_of(pipeline, listener, path, tmp_path):
    """A client of an API server whose images are drawn by a pipeline."""
    server = asyncio.create_task(JobServer(pipeline, 1).serve(listener))
    model = ImageModel("tiny", tmp_path, path)
    settings = Settings(home=tmp_path, image_model=model, video_model=model, decode_workers=0)
    try:
        async with app_client(settings) as client:
            client.timeout = 120
            yield client
    finally:
        server.cancel()
        with suppress(asyncio.CancelledError):
            await server


def events_of(answer):
    assert answer.status_code == 200, answer.text
    lines = [part.split("\n") for part in answer.text.strip().split("\n\n")]
    return [json.loads(line[1].removeprefix("data: ")) for line in lines if len(line) > 1]


def pixels_of(entry):
    return np.array(Image.open(BytesIO(b64decode(entry["b64_json"]))).convert("RGB")).astype(int)


async def test_an_image_is_drawn_with_previews(images, pipeline, listener, path, tmp_path):
    body = {"prompt": "a red cat", "size": "64x32", "steps": 4, "seed": 7, "stream": True}
    async with client_of(pipeline, listener, path, tmp_path) as client:
        events = events_of(await client.post(GENERATIONS, json=body | {"partial_images": 2}))
        whole = await client.post(GENERATIONS, json=body | {"stream": False})
    assert [one["type"].rpartition(".")[2] for one in events] == ["partial_image"] * 2 + [
        "completed"
    ]
    assert [pixels_of(one).shape for one in events] == [(32, 64, 3)] * 3
    assert len({one["b64_json"] for one in events}) == 3
    assert whole.json()["data"][0]["b64_json"] == events[-1]["b64_json"]
    assert events[-1]["usage"]["input_tokens"] > 2


def test_a_preview_of_the_last_latents_is_the_image(images, pipeline):
    """Packed latents are unpacked, and scaled as the pipeline does."""
    loaded = pipeline._pipeline_for(DrawJob(prompt="a"))

    def run(**more):
        noise = torch.Generator().manual_seed(3)
        ask = {"width": SIZE[0], "height": SIZE[1], "num_inference_steps": 2}
        return loaded("a red cat", generator=noise, **ask, **more).images

    with torch.no_grad():
        shown = preview(loaded, run(output_type="latent"), *SIZE)
    (image,) = run()
    assert shown.size == image.size == SIZE
    assert np.abs(np.array(shown).astype(int) - np.array(image)).max() <= 1
    assert np.array(image).std() > 1


def test_packed_latents_of_another_size_have_no_preview(images, pipeline):
    loaded = pipeline._pipeline_for(DrawJob(prompt="a"))
    if not hasattr(loaded, "_unpack_latents"):
        pytest.skip("its latents are not packed")
    assert preview(loaded, torch.zeros(1, 30, 16), *SIZE) is None


async def test_an_image_is_edited(images, name, pipeline, listener, path, tmp_path):
    ask = {"seed": "7", "steps": "8", "strength": "0.5", "stream": "true", "partial_images": "1"}
    async with client_of(pipeline, listener, path, tmp_path) as client:
        whole = events_of(await client.post(EDITS, **edit(**ask)))
        masked = edit(**ask, files={"mask": ("m.png", mask(96, 64))})
        part = events_of(await client.post(EDITS, **masked))
    for events in (whole, part):
        assert [pixels_of(one).shape for one in events] == [(64, 96, 3)] * 2
        assert events[0]["b64_json"] != events[1]["b64_json"]
    assert whole[-1]["b64_json"] != part[-1]["b64_json"]


async def test_a_client_that_leaves_ends_the_pipeline(name, pipeline, listener, path, tmp_path):
    more = {"seconds": 1, "frames_per_s": 4} if name in VIDEOS else {}
    url = "/v1/videos/generations" if name in VIDEOS else GENERATIONS
    began = asyncio.Event()
    loop, after_step = asyncio.get_running_loop(), _Drawing._after_step

    def noted(*of):
        loop.call_soon_threadsafe(began.set)
        return after_step(*of)

    body = {"prompt": "a", "size": "64x32", "steps": 200, **more}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Drawing, "_after_step", noted)
        async with client_of(pipeline, listener, path, tmp_path) as client:
            asking = asyncio.create_task(client.post(url, json=body))
            await asyncio.wait_for(began.wait(), 60)
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
            short = await client.post(url, json=body | {"steps": 1})
            assert short.status_code == 200, short.text


async def test_a_video_is_drawn(name, pipeline, listener, path, tmp_path):
    if name not in VIDEOS:
        pytest.skip("draws images")
    import av

    body = {"prompt": "a", "size": "64x32", "seconds": 1, "steps": 2, "frames_per_s": 8, "seed": 3}
    async with client_of(pipeline, listener, path, tmp_path) as client:
        answer = await client.post("/v1/videos/generations", json=body)
        assert answer.status_code == 200, answer.text
        again = await client.post("/v1/videos/generations", json=body)
    content = b64decode(answer.json()["data"][0]["b64_json"])
    with av.open(BytesIO(content)) as container:
        frames = list(container.decode(video=0))
    assert (len(frames), frames[0].width, frames[0].height) == (9, 64, 32)
    assert answer.json()["data"] == again.json()["data"]
