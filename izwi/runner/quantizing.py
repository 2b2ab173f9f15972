"""Quantize a checkpoint of text to 4 bits, calibrated on what it computes of given texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from izwi.arrays import Float32
from izwi.backends.protocol import Backend
from izwi.checkpoints.awq_writer import Errors, calibrate, check_group, read_floats, write_awq
from izwi.checkpoints.registry import family_of
from izwi.errors import InvalidRequest
from izwi.inputs.chat import ChatInput
from izwi.model.adapters import TakesAdapters
from izwi.model.capability import Capability
from izwi.model.frontend import ChatFrontend
from izwi.model.protocol import RepeatsPrompts
from izwi.runner.recorded_inputs import recorded_inputs

# Positions of each text that are computed.
_MOST_POSITIONS = 512


def quantize_checkpoint(
    source: Path, folder: Path, texts: Sequence[str], group: int, backend: Backend
) -> Errors:
    """Write a checkpoint in AWQ's layout.

    Args:
        source: Folder of a chat model in float.
        folder: Is made; must not exist, or be empty.
        texts: Are read one by one; control tokens in them are tokens. Without any, weights are
            rounded to nearest.
        group: Inputs that share a scale.
        backend: Computes the activations, in float32.

    Returns:
        The errors of products on the texts.

    Raises:
        InvalidRequest: The model is of another kind, cannot be rounded in such groups, or the
            folder has files.
        CheckpointError: The checkpoint is broken, or packed.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InvalidRequest(f"{folder} has files already", param="output")
    family = family_of(source)
    shapes = family.read_sizes(source).adaptable
    frontend = family.load_frontend(source)
    if not shapes or Capability.CHAT not in frontend.capabilities:
        raise InvalidRequest(
            f"a checkpoint of {family.model_type!r} cannot be quantized here: Qwen3 chat can",
            param="model",
        )
    check_group(shapes, group)
    weights, ops = read_floats(source), backend.ops

    def multiply(x: Float32, weight: Float32) -> Float32:
        product: Float32 = ops.numpy(ops.linear(ops.array(x), ops.array(weight)))
        return product

    errors = Errors(0.0, 0.0)
    if texts:
        model = family.load_model(source, backend)
        if not (isinstance(model, TakesAdapters) and isinstance(model, RepeatsPrompts)):
            raise InvalidRequest("this model's products cannot be recorded", param="model")
        prompts, chat = [], cast(ChatFrontend, frontend)
        for text in texts:
            ask = ChatInput((), text=text, max_new_tokens=1)
            ids = model.prompt_ids(chat.prepare_chat("calibrate", "model", ask))
            prompts.append(list(ids)[:_MOST_POSITIONS])
        with backend.running():
            inputs = recorded_inputs(model, ops, prompts)
            scalings = model.adapted.scalings
            # not by numpy, whose threads wait for each other where other work runs
            errors = calibrate(weights, scalings, inputs, group, multiply)
    write_awq(folder, source, weights, shapes.__contains__, group)
    return errors
