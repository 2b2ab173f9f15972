"""A Stable Diffusion of random weights, a few hundred kilobytes, as diffusers publishes them."""

from __future__ import annotations

import json
import warnings

import torch

SIDE = 64


def write_tiny_pipeline(folder):
    """Write a pipeline whose images are 64 x 64 pixels, unless another size is asked for."""
    warnings.filterwarnings("ignore", module="diffusers")
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline
    from diffusers import UNet2DConditionModel as UNet
    from transformers import CLIPTextConfig, CLIPTextModel

    torch.manual_seed(0)
    tokenizer = letters_tokenizer(folder.with_name(folder.name + "-tokenizer"))
    text = CLIPTextConfig(
        hidden_size=32,
        intermediate_size=37,
        num_attention_heads=4,
        num_hidden_layers=2,
        vocab_size=1000,
        bos_token_id=0,
        eos_token_id=1,
    )
    blocks = {"block_out_channels": (32, 64), "layers_per_block": 1}
    pipeline = StableDiffusionPipeline(
        unet=UNet(
            sample_size=SIDE // 2,
            in_channels=4,
            out_channels=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=32,
            **blocks,
        ),
        vae=AutoencoderKL(
            down_block_types=["DownEncoderBlock2D"] * 2,
            up_block_types=["UpDecoderBlock2D"] * 2,
            latent_channels=4,
            **blocks,
        ),
        scheduler=DDIMScheduler(steps_offset=1, clip_sample=False),
        text_encoder=CLIPTextModel(text).eval(),
        tokenizer=tokenizer,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.save_pretrained(folder)


def letters_tokenizer(folder):
    """A tokenizer that knows single letters."""
    from transformers import CLIPTokenizer

    folder.mkdir()
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{one}</w>" for one in letters)]
    (folder / "vocab.json").write_text(json.dumps({word: n for n, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "CLIPTokenizer", "model_max_length": 77})
    )
    return CLIPTokenizer.from_pretrained(folder)
