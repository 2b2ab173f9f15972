"""An LTX-Video of random weights, a few hundred kilobytes, as diffusers publishes them."""

from __future__ import annotations

import torch


def write_tiny_video_pipeline(folder):
    """Write a pipeline whose latents have a quarter of each side, and of the frames."""
    from diffusers import (
        AutoencoderKLLTXVideo,
        FlowMatchEulerDiscreteScheduler,
        LTXPipeline,
        LTXVideoTransformer3DModel,
    )
    from transformers import T5Config, T5EncoderModel

    torch.manual_seed(0)
    four, five = (8,) * 4, (1,) * 5
    scaling = (True, True, False, False)
    vae = AutoencoderKLLTXVideo(
        latent_channels=8,
        block_out_channels=four,
        decoder_block_out_channels=four,
        layers_per_block=five,
        decoder_layers_per_block=five,
        spatio_temporal_scaling=scaling,
        decoder_spatio_temporal_scaling=scaling,
        patch_size=1,
    )
    transformer = LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=4,
        attention_head_dim=8,
        cross_attention_dim=32,
        num_layers=1,
        caption_channels=32,
    )
    text = T5Config(d_model=32, d_ff=37, d_kv=8, num_layers=1, num_heads=4, vocab_size=64)
    pipeline = LTXPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=vae,
        text_encoder=T5EncoderModel(text).eval(),
        tokenizer=letters_of(),
        transformer=transformer,
    )
    pipeline.save_pretrained(folder)


def letters_of():
    """A tokenizer that knows single letters."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = ["<pad>", "</s>", "<unk>", *letters]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=128,
    )
