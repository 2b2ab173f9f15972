"""Previews of an image that is being drawn: its latents as they are, decoded."""

from __future__ import annotations

from typing import Any


def can_preview(pipeline: Any) -> bool:
    """Whether the latents of a pipeline of diffusers are scaled in the usual way."""
    scale = getattr(getattr(pipeline, "vae", None), "config", {}).get("scaling_factor")
    return scale is not None and hasattr(pipeline, "image_processor")


def preview_steps(num_partials: int, num_steps: int) -> dict[int, int]:
    """Return after which steps a preview is made, and its number: evenly before the end."""
    steps = [num_steps * (n + 1) // (num_partials + 1) for n in range(num_partials)]
    kept = sorted({step for step in steps if 0 < step < num_steps})
    return {step: number for number, step in enumerate(kept)}


def preview(pipeline: Any, latents: Any, width: int, height: int) -> Any:
    """Decode latents.

    Args:
        pipeline: For which `can_preview` holds.
        latents: (1, channels, rows, columns), or packed as (1, positions, channels).
        width: Of the image, in pixels.
        height: Of the image, in pixels.

    Returns:
        An image of Pillow.
    """
    vae = pipeline.vae
    if latents.ndim == 3:  # Flux and its like
        latents = pipeline._unpack_latents(latents, height, width, pipeline.vae_scale_factor)
    scaled = latents / vae.config.scaling_factor + (vae.config.get("shift_factor") or 0.0)
    pixels = vae.decode(scaled.to(vae.dtype), return_dict=False)[0]
    return pipeline.image_processor.postprocess(pixels.detach(), output_type="pil")[0]
