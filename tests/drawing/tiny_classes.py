"""Pipelines of several classes with random weights, a few hundred kilobytes each."""

from __future__ import annotations

import torch

from tests.drawing.tiny_pipeline import letters_tokenizer, write_tiny_pipeline
from tests.drawing.tiny_video_pipeline import letters_of, write_tiny_video_pipeline


def write_sdxl(folder):
    from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline, UNet2DConditionModel

    blocks = {"block_out_channels": (32, 64), "layers_per_block": 1}
    unet = UNet2DConditionModel(
        sample_size=32,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=(2, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        transformer_layers_per_block=(1, 2),
        projection_class_embeddings_input_dim=6 * 8 + 32,
        cross_attention_dim=64,
        **blocks,
    )
    tokenizer = _clip_tokenizer(folder)
    StableDiffusionXLPipeline(
        unet=unet,
        vae=_kl(4),
        scheduler=EulerDiscreteScheduler(),
        text_encoder=_clip(),
        text_encoder_2=_clip(projects=True),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
    ).save_pretrained(folder)


def write_sd3(folder):
    from diffusers import (
        FlowMatchEulerDiscreteScheduler,
        SD3Transformer2DModel,
        StableDiffusion3Pipeline,
    )

    transformer = SD3Transformer2DModel(
        sample_size=32,
        patch_size=1,
        in_channels=16,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=64,
        pooled_projection_dim=64,
        out_channels=16,
    )
    tokenizer = _clip_tokenizer(folder)
    StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=_kl(16, shift_factor=0.06),
        text_encoder=_clip(projects=True),
        text_encoder_2=_clip(projects=True),
        text_encoder_3=_t5(64),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        tokenizer_3=letters_of(),
    ).save_pretrained(folder)


def write_flux(folder):
    from diffusers import (
        FlowMatchEulerDiscreteScheduler,
        FluxPipeline,
        FluxTransformer2DModel,
    )

    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    )
    FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=_kl(4, shift_factor=0.06),
        text_encoder=_clip(),
        tokenizer=_clip_tokenizer(folder),
        text_encoder_2=_t5(),
        tokenizer_2=letters_of(),
        transformer=transformer,
    ).save_pretrained(folder)


def write_qwen_image(folder):
    from diffusers import (
        AutoencoderKLQwenImage,
        FlowMatchEulerDiscreteScheduler,
        QwenImagePipeline,
        QwenImageTransformer2DModel,
    )

    torch.manual_seed(0)
    vae = AutoencoderKLQwenImage(
        base_dim=24,
        z_dim=4,
        dim_mult=[1, 2, 4],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.5, -0.2, 0.3, 0.0],
        latents_std=[2.0, 1.5, 0.7, 1.0],
    )
    transformer = QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(8, 4, 4),
    )
    QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=vae,
        text_encoder=_qwen_vl(),
        tokenizer=_qwen_tokenizer(folder),
        transformer=transformer,
    ).save_pretrained(folder)


def write_z_image(folder):
    from diffusers import (
        FlowMatchEulerDiscreteScheduler,
        ZImagePipeline,
        ZImageTransformer2DModel,
    )
    from transformers import Qwen3Config, Qwen3Model

    torch.manual_seed(0)
    text = Qwen3Config(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=400,
    )
    transformer = ZImageTransformer2DModel(
        in_channels=4,
        dim=32,
        n_layers=1,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=16,
        axes_dims=[8, 4, 4],
        axes_lens=[1024, 64, 64],
    )
    ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=_kl(4, shift_factor=0.06),
        text_encoder=Qwen3Model(text).eval(),
        tokenizer=_qwen_tokenizer(folder),
        transformer=transformer,
    ).save_pretrained(folder)


def write_wan(folder):
    from diffusers import (
        AutoencoderKLWan,
        FlowMatchEulerDiscreteScheduler,
        WanPipeline,
        WanTransformer3DModel,
    )
    from transformers import UMT5Config, UMT5EncoderModel

    torch.manual_seed(0)
    vae = AutoencoderKLWan(
        base_dim=3,
        z_dim=16,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
    )
    transformer = WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        text_dim=32,
        freq_dim=256,
        ffn_dim=32,
        num_layers=1,
        rope_max_seq_len=64,
    )
    text = UMT5Config(d_model=32, d_ff=37, d_kv=8, num_layers=1, num_heads=4, vocab_size=64)
    WanPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0),
        vae=vae,
        text_encoder=UMT5EncoderModel(text).eval(),
        tokenizer=letters_of(),
        transformer=transformer,
    ).save_pretrained(folder)


def write_cogvideox(folder):
    from diffusers import (
        AutoencoderKLCogVideoX,
        CogVideoXDDIMScheduler,
        CogVideoXPipeline,
        CogVideoXTransformer3DModel,
    )

    torch.manual_seed(0)
    vae = AutoencoderKLCogVideoX(
        down_block_types=("CogVideoXDownBlock3D",) * 4,
        up_block_types=("CogVideoXUpBlock3D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=2,
        temporal_compression_ratio=4,
    )
    transformer = CogVideoXTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        time_embed_dim=2,
        text_embed_dim=32,
        num_layers=1,
        sample_width=8,
        sample_height=8,
        sample_frames=9,
        max_text_seq_length=226,
        use_rotary_positional_embeddings=True,
    )
    CogVideoXPipeline(
        tokenizer=letters_of(),
        text_encoder=_t5(),
        vae=vae,
        transformer=transformer,
        scheduler=CogVideoXDDIMScheduler(),
    ).save_pretrained(folder)


def _kl(channels, **more):
    from diffusers import AutoencoderKL

    torch.manual_seed(0)
    return AutoencoderKL(
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2,
        latent_channels=channels,
        **more,
    )


def _clip(*, projects=False):
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        hidden_size=32,
        intermediate_size=37,
        num_attention_heads=4,
        num_hidden_layers=3,
        projection_dim=32,
        vocab_size=1000,
        bos_token_id=0,
        eos_token_id=1,
    )
    return (CLIPTextModelWithProjection if projects else CLIPTextModel)(config).eval()


def _clip_tokenizer(folder):
    return letters_tokenizer(folder.with_name(folder.name + "-tokenizer"))


def _t5(width=32):
    from transformers import T5Config, T5EncoderModel

    text = T5Config(d_model=width, d_ff=37, d_kv=8, num_layers=1, num_heads=4, vocab_size=64)
    return T5EncoderModel(text).eval()


def _qwen_vl():
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    config = Qwen2_5_VLConfig(
        text_config={
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "rope_scaling": {"mrope_section": [1, 1, 2], "rope_type": "default"},
            "vocab_size": 400,
        },
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": 16,
        },
    )
    return Qwen2_5_VLForConditionalGeneration(config).eval()


def _qwen_tokenizer(folder):
    """Bytes alone, with Qwen's names of special tokens, and a template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    made.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
        "<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    )
    return made


IMAGES = {
    "StableDiffusionPipeline": write_tiny_pipeline,
    "StableDiffusionXLPipeline": write_sdxl,
    "StableDiffusion3Pipeline": write_sd3,
    "FluxPipeline": write_flux,
    "QwenImagePipeline": write_qwen_image,
    "ZImagePipeline": write_z_image,
}
VIDEOS = {
    "LTXPipeline": write_tiny_video_pipeline,
    "WanPipeline": write_wan,
    "CogVideoXPipeline": write_cogvideox,
}
