"""GGUF files: weights, configuration and tokenizer are those of the checkpoint that they hold."""

from __future__ import annotations

import json
import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from izwi.backends.choice import open_backend
from izwi.checkpoints import added as added_checkpoints
from izwi.checkpoints.added import add, added, remove
from izwi.checkpoints.folder import read_json
from izwi.checkpoints.formats.gguf_blocks import BLOCK_FORMATS
from izwi.checkpoints.gguf_folder import gguf_path
from izwi.checkpoints.registry import Registry, all_families, find, named
from izwi.errors import CheckpointError, InvalidRequest, ModelNotFound
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_chat import FAMILY
from izwi_models.qwen3_chat.gguf import published_name
from tests.models.test_published_formats import check_twin, run
from tests.models.tiny_chat import TINY, write_tiny_chat

needs_gguf = pytest.mark.skipif(find_spec("gguf") is None, reason="gguf is not installed")
# 256 inputs, as the K formats need.
CONFIG = TINY | {
    "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "head_dim": 64,
}  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IZWI_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def drawn(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Random bytes whose numbers are about 1 / 16 in size."""
    form = BLOCK_FORMATS[kind]
    blocks = rng.integers(0, 256, (shape[0], shape[1] // form.inputs, form.num_bytes), np.uint8)
    sizes = {"Q8_0": 8e-4, "Q4_K": 1e-4, "Q5_K": 6e-5, "Q6_K": 3e-5}
    for at in (208,) if kind == "Q6_K" else (0, 2) if kind[-1] == "K" else (0,):
        size = np.full((*blocks.shape[:2], 1), sizes.get(kind, 1e-2), np.float16)
        blocks[..., at : at + 2] = size.view(np.uint8)
    return blocks.reshape(shape[0], -1)


def write_gguf(folder: Path, kinds: tuple[str, ...], **metadata: Any) -> tuple[Path, Path]:
    """Write a chat checkpoint as a GGUF file, its matrices of these kinds in turn; and its twin."""
    import gguf

    twin = write_tiny_chat(folder / "twin", CONFIG)
    tokenizer, rng = read_json(twin / "tokenizer_config.json"), np.random.default_rng(4)
    path = folder / "tiny.Q4_K_M.gguf"
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_block_count(CONFIG["num_hidden_layers"])
    writer.add_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_head_count_kv(CONFIG["num_key_value_heads"])
    writer.add_key_length(CONFIG["head_dim"])
    writer.add_value_length(CONFIG["head_dim"])
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    writer.add_rope_freq_base(CONFIG["rope_theta"])
    vocabulary = read_json(twin / "vocab.json")
    special = tokenizer["added_tokens_decoder"]
    tokens = [f"[PAD{n}]" for n in range(CONFIG["vocab_size"])]
    kind_of = [int(gguf.TokenType.UNUSED)] * len(tokens)
    for token, index in vocabulary.items():
        tokens[index], kind_of[index] = token, int(gguf.TokenType.NORMAL)
    for index, entry in special.items():
        kind = gguf.TokenType.CONTROL if entry["special"] else gguf.TokenType.USER_DEFINED
        tokens[int(index)], kind_of[int(index)] = entry["content"], int(kind)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types(kind_of)
    writer.add_token_merges((twin / "merges.txt").read_text().splitlines()[1:])
    writer.add_eos_token_id(271)
    writer.add_chat_template(tokenizer["chat_template"])
    for key, value in metadata.items():
        writer.add_key_value(key, value, gguf.GGUFValueType.STRING)
    numbers: dict[str, np.ndarray] = {}
    matrices = 0
    for name, weight in weights_of(twin).items():
        stored = next(n for n in names() if published_name(n) == name)
        if weight.ndim == 1:
            writer.add_tensor(stored, weight)
            numbers[name] = weight
            continue
        kind = kinds[matrices % len(kinds)]
        matrices += 1
        if kind in ("F32", "F16", "BF16"):
            data = gguf.quantize(weight, gguf.GGMLQuantizationType[kind])
            wide = gguf.dequantize(data, gguf.GGMLQuantizationType[kind])
        else:
            data = drawn(kind, weight.shape, rng)
            wide = gguf.dequantize(data, gguf.GGMLQuantizationType[kind])
        writer.add_tensor(stored, data, raw_dtype=gguf.GGMLQuantizationType[kind])
        numbers[name] = np.array(wide, np.float32).reshape(weight.shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(numbers, twin / "model.safetensors")
    return path, twin


def weights_of(folder: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


def names() -> list[str]:
    """All names of tensors of the architecture."""
    of_layer = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm",
                "attn_k_norm", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")  # fmt: skip
    layers = [f"blk.{n}.{name}.weight" for n in range(2) for name in of_layer]
    return ["token_embd.weight", "output.weight", "output_norm.weight", *layers]


@needs_gguf
@pytest.mark.parametrize("backend", ["cpu", "mlx"])
@pytest.mark.parametrize(
    "kinds", [("Q4_K", "Q6_K", "Q5_K"), ("Q8_0", "Q4_0"), ("F16", "BF16", "F32")], ids="-".join
)
def test_a_file_answers_as_its_widened_twin(
    kinds: tuple[str, ...], backend: str, tmp_path: Path
) -> None:
    if backend == "mlx":
        pytest.importorskip("mlx")
    path, twin = write_gguf(tmp_path, kinds)
    made = open_backend(backend, "float32")
    folder = find(str(path))
    frontend: Any = FAMILY.load_frontend(folder)
    texts = ("what is the term?", "yes", "the system of the user")
    requests = [
        frontend.prepare_chat(
            str(n),
            "m",
            ChatInput(
                (ChatMessage(Role.USER, text),), max_new_tokens=16, temperature=0.7, seed=n,
                logprobs=True,
            ),
        )
        for n, text in enumerate(texts)
    ]  # fmt: skip
    ours: Any = FAMILY.load_frontend(twin)
    asked = ours.prepare_chat("0", "m", ChatInput((ChatMessage(Role.USER, texts[0]),)))
    assert asked.prompt.token_ids.tolist() == requests[0].prompt.token_ids.tolist()
    model = FAMILY.load_model(folder, made)
    check_twin(run(model, made, requests), run(FAMILY.load_model(twin, made), made, requests))


@needs_gguf
def test_configuration_and_tokenizer_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    path, twin = write_gguf(tmp_path, ("Q8_0",))
    name, folder = named(str(path))
    assert name == "tiny.Q4_K_M"
    assert gguf_path(folder) == path
    config = read_json(folder / "config.json")
    for key, value in config.items():
        assert CONFIG[key] == pytest.approx(value) if type(value) is float else CONFIG[key] == value
    assert read_json(folder / "generation_config.json")["eos_token_id"] == [271, 269]
    ours, theirs = QwenTokenizer(folder), QwenTokenizer(twin)
    text = "The system's user: <|im_end|> <think>\n\n\n ärger"
    assert ours.encode(text) == theirs.encode(text)
    assert ours.added_tokens == theirs.added_tokens
    assert ours.control_tokens == theirs.control_tokens
    assert ours.spell_vocabulary(512) == theirs.spell_vocabulary(512)


@needs_gguf
def test_a_file_is_served_and_given_a_name(tmp_path: Path, home: Path) -> None:
    path, _ = write_gguf(tmp_path, ("Q4_0",))
    place = add(path, "mine", all_families())
    assert added() == {"mine": place}
    registry = Registry(open_backend("cpu", "float32"))
    assert registry.load("mine") == "mine"
    assert registry.load(f"again={path}") == "again"
    assert registry.fingerprint("mine") == registry.fingerprint("again")
    assert registry.locate("mine", offline=True) == place
    assert len(list((home / "gguf").iterdir())) == 1
    path.rename(tmp_path / "moved.gguf")
    with pytest.raises(CheckpointError, match=r"tiny\.Q4_K_M\.gguf is named by .* but is missing"):
        Registry(open_backend("cpu", "float32")).load("mine")
    assert remove("mine")
    assert not remove("mine")
    with pytest.raises(ModelNotFound, match="mine"):
        find("mine")


@needs_gguf
def test_a_file_of_other_contents_is_read_anew(tmp_path: Path) -> None:
    path, _ = write_gguf(tmp_path, ("Q4_0",))
    first = find(str(path))
    assert find(str(path)) == first
    path.write_bytes(path.read_bytes() + bytes(32))
    assert find(str(path)) != first


@needs_gguf
def test_broken_files_are_refused_by_name(tmp_path: Path) -> None:
    path, _ = write_gguf(tmp_path, ("Q4_K", "Q8_0"))
    whole = path.read_bytes()
    for size in (0, 3, 20, 300, 4000, len(whole) // 2, len(whole) - 4096):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"Q4_K_M\.gguf is not a GGUF file, or it is cut"):
            find(str(path))
    key = b"tokenizer.ggml.token_type"  # a list of numbers: its length is behind two types
    at = whole.index(key) + len(key) + 8
    path.write_bytes(whole[:at] + (1 << 60).to_bytes(8, "little") + whole[at + 8 :])
    with pytest.raises(CheckpointError, match=r"is not a GGUF file, or it is cut off: \d+ bytes"):
        find(str(path))
    path.write_bytes(b"GGML" + whole[4:])
    with pytest.raises(CheckpointError, match="is not a GGUF file"):
        find(str(path))
    head = whole[:8] + struct.pack("<QQQ", 0, 1, 1) + b"a" + struct.pack("<I", 9)
    path.write_bytes(head + 10_000 * struct.pack("<IQ", 9, 1))  # a list of a list of a list ...
    with pytest.raises(CheckpointError, match="is not a GGUF file"):
        find(str(path))


@needs_gguf
def test_what_is_not_supported_is_named(tmp_path: Path) -> None:
    import gguf

    def written(name: str, architecture: str, *tensors: str, kind: str = "F32") -> Path:
        path = tmp_path / f"{name}.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        for tensor in tensors:
            width = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
            data = np.zeros((4, width), np.uint8)
            writer.add_tensor(tensor, data, raw_dtype=gguf.GGMLQuantizationType[kind])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    for path, message in (
        (written("a", "llama"), "architecture 'llama' is not supported: qwen3 is"),
        (written("b", "qwen3", "rope_freqs.weight"), "unexpected tensor 'rope_freqs.weight'"),
        (written("c", "qwen3"), "lacks the key 'qwen3.embedding_length'"),
    ):
        with pytest.raises(CheckpointError, match=message):
            find(str(path))


@needs_gguf
def test_types_of_tensors_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    import gguf

    path, _ = write_gguf(tmp_path, ("Q8_0",))
    folder = find(str(path))
    other = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(other, "qwen3")
    reader = gguf.GGUFReader(path)
    for tensor in reader.tensors:
        kind, data = tensor.tensor_type, tensor.data
        if tensor.name == "blk.1.ffn_up.weight":
            kind = gguf.GGMLQuantizationType.IQ4_NL
            data = np.zeros((256, 8 * 18), np.uint8)
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    index = read_json(folder / "model.gguf.index.json") | {"file": str(other)}
    (folder / "model.gguf.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"'blk\.1\.ffn_up\.weight' has the type IQ4_NL, wh"):
        FAMILY.load_model(folder, open_backend("cpu", "float32"))


def test_without_the_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    monkeypatch.setattr("izwi.checkpoints.gguf_file.find_spec", lambda _: None)
    with pytest.raises(CheckpointError, match=r"pip install 'izwi\[gguf\]'"):
        find(str(path))


def test_folders_are_given_names(tmp_path: Path) -> None:
    folder = write_tiny_chat(tmp_path / "chat")
    place = add(folder, "mine", all_families())
    assert find("mine") == place
    assert place.resolve() == folder
    assert add(folder, "mine", ()) == place  # replaced
    assert named("mine") == ("mine", place)
    for name in ("", "../up", "a/b", ".hidden", "a b"):
        with pytest.raises(InvalidRequest, match="name must have only"):
            add(folder, name, ())
    with pytest.raises(CheckpointError, match="neither a checkpoint's folder nor a GGUF file"):
        add(tmp_path / "nothing", "other", ())
    assert added_checkpoints.default_name(folder) == "chat"
