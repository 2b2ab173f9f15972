"""Chat about images against the reference's numbers in tests/golden/vl.npz, and against itself."""

from __future__ import annotations

import hashlib
import json
import math
from copy import copy
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.numpy import load_file, save_file

from izwi.backends.torch import kv as torch_kv
from izwi.backends.torch.backend import TorchBackend, torch_backend
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.errors import CheckpointError, ContextTooLong, InvalidImage, InvalidRequest
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.inputs.images import ChatImage, Detail, ImageSizing
from izwi.request.request import Reason, Request
from izwi.request.sequence import Sequence
from izwi.request.serialization import decode, encode
from izwi.runner.batch import row_of
from izwi.sandbox.image_decode import decode_image
from izwi_models import FAMILIES
from izwi_models.qwen3_vl import FAMILY
from izwi_models.qwen3_vl.config import HEAD, config_of, tensor_shapes
from izwi_models.qwen3_vl.pixels import normalized, patches_of
from izwi_models.qwen3_vl.prompt import VLPrompt
from tests.backends.torch.eager import EagerOps, drawn_by_torch
from tests.images import png_of
from tests.models.loading import Checkpoint, load_checkpoint
from tests.models.tiny_vl import TINY, UNTIED, drawn_image, write_tiny_vl

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "vl.npz")
IMAGES: list[dict[str, Any]] = json.loads(str(GOLDEN["images"]))
CASES: list[dict[str, Any]] = json.loads(str(GOLDEN["cases"]))
REAL: dict[str, dict[str, Any]] = json.loads(str(GOLDEN["real"]))
LOGIT_STEP, CODE_STEP = 7, 5
BACKEND = torch_backend("cpu")
SIZING = ImageSizing(16, 32 * 32, 128 * 128)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[bool, Checkpoint]:
    """By whether the head is tied."""
    torch.set_num_threads(1)  # larger is slower at this size
    folder = tmp_path_factory.mktemp("tiny")
    return {
        tied: load_checkpoint(FAMILY, write_tiny_vl(folder / str(tied), config), BACKEND)
        for tied, config in ((True, TINY), (False, UNTIED))
    }


@pytest.fixture(scope="module")
def model(models) -> Checkpoint:
    return models[True]


@pytest.fixture(scope="module")
def pixels() -> list[np.ndarray]:
    """The golden images, decoded as a server does."""
    pytest.importorskip("PIL")
    return [
        decode_image(png_of(drawn_image(i["width"], i["height"], i["seed"])), SIZING)
        for i in IMAGES
    ]


def conversation(turns: list[list[Any]], pixels: list[Any], **settings: Any) -> ChatInput:
    """Turns of the user and the assistant; a number is an image."""
    messages = []
    for n, turn in enumerate(turns):
        text, images = "", []
        for part in turn:
            if isinstance(part, str):
                text += part
            else:
                images.append(ChatImage(len(text), pixels=pixels[part]))
        role = (Role.USER, Role.ASSISTANT)[n % 2]
        messages.append(ChatMessage(role, text, images=tuple(images)))
    return ChatInput(tuple(messages), **settings)


def engine_of(checkpoint: Checkpoint, **settings: Any) -> Engine:
    return Engine({"m": checkpoint.model}, BACKEND, EngineConfig(kv_bytes=1 << 22, **settings))


def run(engine: Engine, requests: list[Any]) -> dict[str, list[int]]:
    for request in requests:
        engine.submit(request)
    ids: dict[str, list[int]] = {request.request_id: [] for request in requests}
    while engine.has_work:
        for chunk in engine.step():
            assert chunk.reason is not Reason.ERROR, chunk.error
            ids[chunk.request_id] += chunk.entries[:, 0].tolist()
    return ids


def test_family_is_listed():
    assert FAMILY in FAMILIES


# -- pixels ----------------------------------------------------------------------------------
@pytest.mark.parametrize("n", range(len(IMAGES)))
def test_preprocessing_is_the_references_bit_for_bit(model, pixels, n):
    config = model.frontend._config.vision
    patches = patches_of(config, pixels[n])
    assert list(patches.shape[:2]) == IMAGES[n]["grid"]
    values = normalized(model.frontend._pixels, patches).reshape(-1, 3, 1, 64)
    assert values.dtype == np.float32
    film = np.ascontiguousarray(np.repeat(values, 2, axis=2))
    assert hashlib.sha256(film.tobytes()).hexdigest() == IMAGES[n]["digest"]


def test_sizes_are_multiples_within_limits():
    sizing = ImageSizing(32, 65_536, 4_194_304)
    assert sizing.fit(1080, 1920) == (1088, 1920)
    assert sizing.fit(1, 100) == (32, 2560)
    height, width = sizing.fit(6000, 8000)
    assert height * width <= sizing.max_pixels
    assert (height % 32, width % 32) == (0, 0)
    low = sizing.for_detail(Detail.LOW)
    assert low.fit(1080, 1920) == (384, 672)
    assert sizing.for_detail(Detail.HIGH) == sizing
    with pytest.raises(InvalidImage, match="too narrow"):
        sizing.fit(1, 201)


# -- the network -----------------------------------------------------------------------------
@pytest.mark.parametrize("n", range(len(IMAGES)))
def test_encoder_is_the_references(model, pixels, n):
    patches = patches_of(model.frontend._config.vision, pixels[n])
    with torch.inference_mode():
        out = model.model._images.encode(patches).numpy()
    np.testing.assert_allclose(out[:, ::CODE_STEP], GOLDEN[f"encoded_{n}"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("n", range(len(CASES)))
def test_prompts_are_the_references(models, pixels, n):
    case = CASES[n]
    frontend = models[case["tied"]].frontend
    prompt = frontend.prepare_chat("r", "m", conversation(case["turns"], pixels)).prompt
    assert prompt.token_ids.tolist() == case["ids"]
    if prompt.rotary is None:
        assert not prompt.image_starts
        return
    assert prompt.rotary.prompt.tolist() == case["rotary"]
    assert prompt.rotary.shift == max(map(max, case["rotary"])) + 1 - len(case["ids"])


@pytest.mark.parametrize("n", range(len(CASES)))
def test_logits_are_the_references_when_its_ids_are_forced(models, pixels, n):
    case = CASES[n]
    checkpoint, seen = models[case["tied"]], list[Any]()
    request = checkpoint.frontend.prepare_chat("r", "m", conversation(case["turns"], pixels))
    sequence = Sequence(request, 0)
    sequence.encoded = checkpoint.model.encode(request.prompt.encode_inputs)
    kv = BACKEND.paged_kv(_spec(checkpoint), 64, 16, "auto")
    sequence.kv.pages = list(range(64))
    start = 0
    for token in case["greedy"]:
        row = row_of(sequence, start, sequence.num_positions)
        with torch.inference_mode():
            hidden = checkpoint.model.run(checkpoint.model.embed([row]), kv.context([row]))
            checkpoint.model.draw(
                hidden[-1:], lambda logits, _: seen.append(logits) or logits[:, 0]
            )
        start = sequence.num_positions
        sequence.emitted.append((token,))
    ours = torch.cat(seen).numpy()
    np.testing.assert_allclose(ours[:, ::LOGIT_STEP], GOLDEN[f"logits_{n}"], atol=1e-4, rtol=0)


def _spec(checkpoint: Checkpoint) -> Any:
    from izwi.model.layers import KVSpec

    return KVSpec.from_layers(checkpoint.model.layers)


@pytest.mark.parametrize(
    "settings",
    [{}, {"page_size": 4, "max_step_tokens": 13, "max_running": 8}, {"max_running": 2}],
    ids=["defaults", "small chunks", "two at a time"],
)
@pytest.mark.parametrize("tied", [True, False])
def test_the_engine_writes_the_references_ids(models, pixels, tied, settings):
    """Together: conversations with and without images, in chunks of prompts beside decodes."""
    cases = {str(n): case for n, case in enumerate(CASES) if case["tied"] is tied}
    frontend = models[tied].frontend
    requests = [
        frontend.prepare_chat(
            n, "m", conversation(case["turns"], pixels, temperature=0.0, max_new_tokens=20)
        )
        for n, case in cases.items()
    ]
    written = run(engine_of(models[tied], **settings), requests)
    for n, case in cases.items():
        greedy = case["greedy"]
        # the reference was not stopped
        end = min([greedy.index(i) for i in (271, 269) if i in greedy], default=len(greedy))
        assert written[n] == greedy[:end]
    assert sum(map(len, written.values())) > 60


def test_the_next_turn_finds_images_and_encodes_only_new_ones(model, pixels):
    encoded: list[int] = []
    engine = Engine(
        {"m": _counting(model.model, encoded)},
        BACKEND,
        EngineConfig(kv_bytes=1 << 22, page_size=4, encoded_bytes=0),
    )
    first = [[1, "What is it?"]]
    ask = conversation(first, pixels, temperature=0.0, max_new_tokens=8)
    request = model.frontend.prepare_chat("a", "m", ask)
    (ids,) = run(engine, [request]).values()
    assert encoded == [1]
    reader = model.frontend.open_answer(request)
    answer = (reader.read(ids) + reader.close())[1]
    turns = [*first, [answer], ["And now ", 5]]
    ask = conversation(turns, pixels, temperature=0.0, max_new_tokens=8)
    before = engine.load["m"]["prefix_positions_hit"]
    second = model.frontend.prepare_chat("b", "m", ask)
    found = run(engine, [second])
    hit = engine.load["m"]["prefix_positions_hit"] - before
    assert hit >= request.prompt.num_positions - 4
    assert encoded == [1, 1]  # the first image is in the cache of keys and values
    assert run(engine_of(model), [second]) == found
    # another image of the same size in its place is no hit
    other = [pixels[0], drawn_image(96, 64, 99), *pixels[2:]]
    assert pixels[1].shape == other[1].shape
    before = engine.load["m"]["prefix_positions_hit"]
    run(engine, [model.frontend.prepare_chat("c", "m", conversation(first, other))])
    assert engine.load["m"]["prefix_positions_hit"] - before < request.prompt.image_starts[0] + 4


def _counting(model: Any, encoded: list[int]) -> Any:
    """The model, which notes how many images it encodes."""
    counting = copy(model)
    counting.encode = lambda inputs: encoded.append(len(inputs)) or model.encode(inputs)
    return counting


def test_an_equal_image_is_encoded_once(model, pixels):
    encoded: list[int] = []
    engine = Engine({"m": _counting(model.model, encoded)}, BACKEND, EngineConfig(kv_bytes=1 << 22))
    asks = [
        conversation([["x", 1, "?", 1]], pixels, max_new_tokens=2),
        conversation([["yes", 1]], pixels, max_new_tokens=2),
    ]
    run(engine, [model.frontend.prepare_chat(str(n), "m", ask) for n, ask in enumerate(asks)])
    assert encoded == [1]


def test_steps_of_text_have_no_more_inputs_and_turn_by_their_positions(model, pixels, monkeypatch):
    """What images cost is paid by steps that have some."""
    widths: list[int] = []
    by_axes: list[bool] = []
    run_model, rows_of = model.model.run, torch_kv.rotary_positions

    def run_noted(x: Any, context: Any) -> Any:
        widths.append(x.shape[1])
        return run_model(x, context)

    def rotary_noted(*of: Any) -> Any:
        found = rows_of(*of)
        by_axes.append(found is not None)
        return found

    noting = copy(model.model)
    noting.run = run_noted
    monkeypatch.setattr(torch_kv, "rotary_positions", rotary_noted)
    engine = Engine({"m": noting}, BACKEND, EngineConfig(kv_bytes=1 << 22))
    text = model.frontend.prepare_chat(
        "t", "m", conversation([["words"]], pixels, max_new_tokens=3, temperature=0.0)
    )
    assert text.prompt.rotary is None
    run(engine, [text])
    assert set(widths) == {48}
    assert not any(by_axes)
    seeing = conversation([[0]], pixels, max_new_tokens=3, temperature=0.0)
    run(engine, [model.frontend.prepare_chat("i", "m", seeing)])
    assert widths.count(3 * 48) == 1  # the prompt
    assert widths[-1] == 48
    assert by_axes[-1]


def test_answers_do_not_depend_on_the_batch(model, pixels):
    asks = {
        str(n): conversation([[n, f"number {n}"]] if n % 2 else [[f"{n}?"]], pixels, seed=n)
        for n in range(4)
    }

    def answers(names: list[str]) -> dict[str, list[int]]:
        requests = [
            replace(model.frontend.prepare_chat(n, "m", asks[n]), max_entries=12) for n in names
        ]
        return run(engine_of(model), requests)

    together = answers(list(asks))
    assert len({tuple(ids) for ids in together.values()}) == 4
    for name in ("1", "2"):
        assert answers([name]) == {name: together[name]}


def test_captured_steps_write_what_plain_ones_do(tmp_path, pixels):
    """Text after an image turns by less than its position, also in captured steps."""
    pytest.importorskip("triton")
    backend = TorchBackend(EagerOps())
    frontend, captured = load_checkpoint(FAMILY, write_tiny_vl(tmp_path / "m"), backend)
    config = EngineConfig(
        max_running=4, kv_bytes=1 << 22, page_size=8, max_step_tokens=24, chunk_ramp=(1, 2)
    )

    def turns() -> list[Any]:
        first = [[1, "What is this?"]]
        said = [first, [["words"]], [["and ", 2, " or ", 4]], [*first, ["It is."], ["Sure?"]]]
        return [
            replace(
                frontend.prepare_chat(str(n), "m", conversation(one, pixels, temperature=0.0)),
                max_entries=10 + n,
            )
            for n, one in enumerate(said)
        ]

    plain = run(Engine({"m": captured}, backend, replaced(config, graphs=False)), turns())
    with drawn_by_torch():
        engine = Engine({"m": captured}, backend, config)
        found: dict[str, list[int]] = {}
        for request in turns():  # the last one finds the first one's pages
            found |= run(engine, [request])
        assert found == plain
        assert engine.load["m"]["prefix_positions_hit"] > 0
        assert run(Engine({"m": captured}, backend, config), turns()) == plain
    assert len({tuple(ids) for ids in plain.values()}) == 4


# -- requests --------------------------------------------------------------------------------
def test_images_count_against_the_context(model, pixels):
    ask = conversation([[3] * 20], pixels)
    with pytest.raises(ContextTooLong, match="1024 tokens"):
        model.frontend.prepare_chat("r", "m", ask)


def test_an_image_of_a_wrong_size_is_refused(model):
    for shape in ((16, 24, 3), (0, 16, 3), (16, 16, 4)):
        image = ChatImage(0, pixels=np.zeros(shape, np.uint8))
        ask = ChatInput((ChatMessage(Role.USER, "", images=(image,)),))
        with pytest.raises(InvalidRequest, match="image"):
            model.frontend.prepare_chat("r", "m", ask)
    with pytest.raises(InvalidRequest, match="not decoded"):
        model.frontend.prepare_chat(
            "r", "m", ChatInput((ChatMessage(Role.USER, "", images=(ChatImage(0, "data:,"),)),))
        )


def test_a_pad_in_the_text_is_text_and_one_in_ids_is_refused(model, pixels):
    ask = conversation([["<|image_pad|>", 0]], pixels)
    prompt = model.frontend.prepare_chat("r", "m", ask).prompt
    assert (prompt.token_ids == 278).sum() == sum(prompt.image_tokens)
    with pytest.raises(InvalidRequest, match="places for 0 images"):
        model.frontend.prepare_chat("r", "m", ChatInput((), token_ids=(5, 278)))


def test_the_proportions_of_an_image_are_part_of_its_key(model):
    config = model.frontend._config.vision
    flat = np.zeros((32, 64, 3), np.uint8)
    keys = [
        model.frontend.prepare_chat("r", "m", conversation([[0]], [image])).prompt.content_keys
        for image in (flat, flat.transpose(1, 0, 2).copy())
    ]
    assert patches_of(config, flat).size == 32 * 64 * 3
    assert len(keys[0]) == len(keys[1])
    assert keys[0].tolist() != keys[1].tolist()


def test_a_prompt_survives_the_way_to_an_engine(model, pixels):
    request = model.frontend.prepare_chat("r", "m", conversation([[0, "?"]], pixels))
    sent = decode(encode(request), Request[VLPrompt])
    assert sent.prompt.rotary.prompt.tolist() == request.prompt.rotary.prompt.tolist()
    assert sent.prompt.encode_inputs[0].digest == request.prompt.encode_inputs[0].digest
    assert sent.prompt.encode_inputs[0].values.dtype == np.uint8
    assert np.array_equal(sent.ask.messages[0].images[0].pixels, pixels[0])


# -- checkpoints -----------------------------------------------------------------------------
@pytest.mark.parametrize(("size", "million"), [("2B", 2127.5), ("4B", 4437.8), ("8B", 8767.1)])
def test_published_sizes_have_the_references_tensors(size, million):
    facts = REAL[size]
    shapes = tensor_shapes(config_of(facts["config"], "config.json"))
    assert len(shapes) == facts["names"]
    count = sum(math.prod(shape) for shape in shapes.values())
    assert count == facts["parameters"]
    assert round(count / 1e6, 1) == million
    listed = json.dumps(sorted((name, list(shape)) for name, shape in shapes.items()))
    assert hashlib.sha256(listed.encode()).hexdigest() == facts["digest"]
    assert (HEAD in shapes) is (size == "8B")


def test_weights_in_several_files_and_the_newer_keys_are_read(tmp_path, model, pixels):
    folder = write_tiny_vl(tmp_path / "m")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    index = {}
    for n in range(2):
        file = f"model-0000{n + 1}-of-00002.safetensors"
        save_file({name: weights[name] for name in names[n::2]}, folder / file)
        index |= dict.fromkeys(names[n::2], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    config = json.loads((folder / "config.json").read_text())
    text = config["text_config"]
    text["rope_parameters"] = {**text.pop("rope_scaling"), "rope_theta": text.pop("rope_theta")}
    text["tie_word_embeddings"] = config.pop("tie_word_embeddings")
    (folder / "config.json").write_text(json.dumps(config))
    again = load_checkpoint(FAMILY, folder, BACKEND)
    assert again.model.layers == model.model.layers
    asks = [
        one.frontend.prepare_chat(
            "r", "m", conversation([[0]], pixels, temperature=0.0, max_new_tokens=6)
        )
        for one in (model, again)
    ]
    assert run(engine_of(model), asks[:1]) == run(engine_of(again), asks[1:])


@pytest.mark.parametrize(
    ("file", "place", "value", "message"),
    [
        ("config.json", "vision_config.hidden_act", "relu", "hidden_act"),
        ("config.json", "vision_config.depth", 2, "deepstack_visual_indexes"),
        ("config.json", "vision_config.num_position_embeddings", 35, "num_position_embeddings"),
        ("config.json", "vision_config.out_hidden_size", 64, "out_hidden_size"),
        ("config.json", "vision_config.patch_size", 0, "patch_size"),
        ("config.json", "text_config.rope_scaling", {"rope_type": "yarn"}, "rope_scaling"),
        ("config.json", "text_config.rope_scaling", {"mrope_section": [4, 4]}, "mrope_section"),
        ("config.json", "image_token_id", 9999, "image_token_id"),
        ("config.json", "vision_config", None, "vision_config"),
        ("preprocessor_config.json", "patch_size", 14, "patch_size"),
        ("preprocessor_config.json", "resample", 2, "resample"),
        ("preprocessor_config.json", "do_resize", False, "do_resize"),
        ("preprocessor_config.json", "size", {"shortest_edge": 9, "longest_edge": 2}, "size"),
        ("preprocessor_config.json", "image_mean", "x", "mean"),
    ],
)
def test_a_checkpoint_that_we_do_not_compute_is_refused(tmp_path, file, place, value, message):
    folder = write_tiny_vl(tmp_path / "m")
    values = json.loads((folder / file).read_text())
    *path, last = place.split(".")
    inner = values
    for key in path:
        inner = inner[key]
    inner[last] = value
    (folder / file).write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(FAMILY, folder, BACKEND)
