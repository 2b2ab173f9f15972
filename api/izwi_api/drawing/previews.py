"""Previews of an image that is being drawn: its latents as they are, decoded."""

from __future__ import annotations

from typing import Any


def can_preview(pipeline: Any) -> bool:
    """Whether the latents of a pipeline of diffusers are scaled in a way that is known here."""
    config = getattr(getattr(pipeline, "vae", None), "config", {})
    known = config.get("scaling_factor") is not None or _has_statistics(config)
    # a norm over batches, as FLUX.2 has, scales otherwise
    return known and hasattr(pipeline, "image_processor") and not hasattr(pipeline.vae, "bn")


def preview_steps(num_partials: int, num_steps: int) -> dict[int, int]:
    """Return after which steps a preview is made, and its number: evenly before the end."""
    steps = [num_steps * (n + 1) // (num_partials + 1) for n in range(num_partials)]
    kept = sorted({step for step in steps if 0 < step < num_steps})
    return {step: number for number, step in enumerate(kept)}


def preview(pipeline: Any, latents: Any, width: int, height: int) -> Any | None:
    """Decode latents.

    Args:
        pipeline: For which `can_preview` holds.
        latents: (1, channels, rows, columns), with frames before the rows, or packed as (1,
            positions, channels).
        width: Of the image, in pixels.
        height: Of the image, in pixels.

    Returns:
        An image of Pillow; None if the latents are packed for an image of another size.
    """
    vae = pipeline.vae
    if latents.ndim == 3:  # Flux, Qwen-Image and their like
        side = 2 * pipeline.vae_scale_factor  # of what one position stands for
        fits = (height // side) * (width // side) == latents.shape[1]
        if not fits or not hasattr(pipeline, "_unpack_latents"):
            return None
        latents = pipeline._unpack_latents(latents, height, width, pipeline.vae_scale_factor)
    pixels = vae.decode(_unscaled(vae.config, latents).to(vae.dtype), return_dict=False)[0]
    if pixels.ndim == 5:  # a decoder of videos: the image is the first frame
        pixels = pixels[:, :, 0]
    return pipeline.image_processor.postprocess(pixels.detach(), output_type="pil")[0]


def _has_statistics(config: Any) -> bool:
    """Whether a mean and a deviation of each channel are known."""
    return config.get("latents_mean") is not None and config.get("latents_std") is not None


def _unscaled(config: Any, latents: Any) -> Any:
    """Return latents as the decoder takes them."""
    scale = config.get("scaling_factor") or 1.0
    if not _has_statistics(config):
        return latents / scale + (config.get("shift_factor") or 0.0)
    shape = (1, -1, *[1] * (latents.ndim - 2))
    mean, std = (
        latents.new_tensor(config[f"latents_{name}"]).view(shape) for name in ("mean", "std")
    )
    return latents * std / scale + mean
