"""Every tensor of LFM2-Audio's encoder and codecs by name and shape, for strict loading."""

from __future__ import annotations

from collections.abc import Container

from izwi_models.lfm2_audio.audio_config import DetokenizerConfig, EncoderConfig, MimiConfig

Shapes = dict[str, tuple[int, ...]]

# Of the detokenizer, fixed by the reference's code.
DETOKENIZER_CODEBOOKS = 8
DETOKENIZER_CODEBOOK_SIZE = 2048
DETOKENIZER_FFT = 1280
# Of Mimi's convolutions.
MIMI_KERNEL = 7
MIMI_UNIT_KERNEL = 3
MIMI_LAST_KERNEL = 3


def encoder_shapes(config: EncoderConfig, output_dim: int) -> Shapes:
    """Tensors of `conformer.` and `audio_adapter.` in model.safetensors.

    Args:
        config: Sizes of the encoder.
        output_dim: Width of the adapter's output, that of the backbone.
    """
    width, channels = config.d_model, config.subsampling_conv_channels
    convs = "conformer.pre_encode.conv"
    shapes: Shapes = {}
    shapes |= _affine(f"{convs}.0", channels, 1, 3, 3)
    for depthwise in (2, 5):
        shapes |= _affine(f"{convs}.{depthwise}", channels, 1, 3, 3)
        shapes |= _affine(f"{convs}.{depthwise + 1}", channels, channels, 1, 1)
    shapes |= _affine("conformer.pre_encode.out", width, channels * config.num_bands)
    for index in range(config.n_layers):
        shapes |= _conformer_layer(f"conformer.layers.{index}", config)
    shapes |= _norm("audio_adapter.model.0", width)
    shapes |= _affine("audio_adapter.model.1", output_dim, width)
    return shapes | _affine("audio_adapter.model.3", output_dim, output_dim)


def _conformer_layer(layer: str, config: EncoderConfig) -> Shapes:
    width, wide = config.d_model, config.d_model * config.ff_expansion_factor
    shapes: Shapes = {}
    for norm in ("feed_forward1", "self_att", "conv", "feed_forward2", "out"):
        shapes |= _norm(f"{layer}.norm_{norm}", width)
    for part in ("feed_forward1", "feed_forward2"):
        shapes |= _affine(f"{layer}.{part}.linear1", wide, width)
        shapes |= _affine(f"{layer}.{part}.linear2", width, wide)
    attention, conv = f"{layer}.self_attn", f"{layer}.conv"
    for part in ("linear_q", "linear_k", "linear_v", "linear_out"):
        shapes |= _affine(f"{attention}.{part}", width, width)
    shapes[f"{attention}.linear_pos.weight"] = (width, width)
    for bias in ("pos_bias_u", "pos_bias_v"):
        shapes[f"{attention}.{bias}"] = (config.n_heads, config.head_dim)
    shapes |= _affine(f"{conv}.pointwise_conv1", 2 * width, width, 1)
    shapes |= _affine(f"{conv}.depthwise_conv", width, 1, config.conv_kernel_size)
    shapes |= _affine(f"{conv}.pointwise_conv2", width, width, 1)
    shapes |= _norm(f"{conv}.batch_norm", width)
    for statistic in ("running_mean", "running_var"):
        shapes[f"{conv}.batch_norm.{statistic}"] = (width,)
    return shapes | {f"{conv}.batch_norm.num_batches_tracked": ()}


def mimi_shapes(config: MimiConfig, names: Container[str] = ()) -> Shapes:
    """Tensors of tokenizer-e351c8d8-checkpoint125.safetensors, including the unused encoder.

    Args:
        config: Sizes of Mimi.
        names: Of the tensors in the file. Attention's projections are called `in_proj_weight` in
            Kyutai's files and `in_projs.0.weight` in files of newer code; both are supported.
    """
    hidden = config.hidden_size
    shapes: Shapes = {
        "downsample.conv.conv.conv.weight": (hidden, hidden, 4),
        "upsample.convtr.convtr.convtr.weight": (hidden, 1, 4),
    }
    shapes |= _mimi_encoder(config) | _mimi_decoder(config) | _mimi_quantizer(config)
    for half in ("encoder", "decoder"):
        for index in range(config.num_layers):
            layer = f"{half}_transformer.transformer.layers.{index}"
            shapes |= _norm(f"{layer}.norm1", hidden) | _norm(f"{layer}.norm2", hidden)
            packed, listed = f"{layer}.self_attn.in_proj_weight", f"{layer}.self_attn.in_projs.0"
            is_listed = f"{listed}.weight" in names
            shapes[f"{listed}.weight" if is_listed else packed] = (3 * hidden, hidden)
            out = f"{layer}.self_attn.out_proj"
            shapes[f"{out}s.0.weight" if is_listed else f"{out}.weight"] = (hidden, hidden)
            shapes[f"{layer}.linear1.weight"] = (config.intermediate_size, hidden)
            shapes[f"{layer}.linear2.weight"] = (hidden, config.intermediate_size)
            for scale in ("layer_scale_1", "layer_scale_2"):
                shapes[f"{layer}.{scale}.scale"] = (hidden,)
    return shapes


def _mimi_encoder(config: MimiConfig) -> Shapes:
    width, layer = config.num_filters, 1
    shapes = _affine("encoder.model.0.conv.conv", width, 1, MIMI_KERNEL)
    for ratio in reversed(config.ratios):
        shapes |= _mimi_unit(f"encoder.model.{layer}", width)
        conv = f"encoder.model.{layer + 2}.conv.conv"  # after an ELU
        shapes |= _affine(conv, 2 * width, width, 2 * ratio)
        width, layer = 2 * width, layer + 3
    conv = f"encoder.model.{layer + 1}.conv.conv"
    return shapes | _affine(conv, config.hidden_size, width, MIMI_LAST_KERNEL)


def _mimi_decoder(config: MimiConfig) -> Shapes:
    width = config.num_filters << len(config.ratios)
    shapes = _affine("decoder.model.0.conv.conv", width, config.hidden_size, MIMI_KERNEL)
    for index, ratio in enumerate(config.ratios):
        layer = 2 + 3 * index
        conv = f"decoder.model.{layer}.convtr.convtr"
        shapes[f"{conv}.weight"] = (width, width // 2, 2 * ratio)
        shapes[f"{conv}.bias"] = (width // 2,)
        width //= 2
        shapes |= _mimi_unit(f"decoder.model.{layer + 1}", width)
    conv = f"decoder.model.{2 + 3 * len(config.ratios)}.conv.conv"
    return shapes | _affine(conv, 1, width, MIMI_LAST_KERNEL)


def _mimi_unit(unit: str, width: int) -> Shapes:
    first = _affine(f"{unit}.block.1.conv.conv", width // 2, width, MIMI_UNIT_KERNEL)
    return first | _affine(f"{unit}.block.3.conv.conv", width, width // 2, 1)


def _mimi_quantizer(config: MimiConfig) -> Shapes:
    shapes: Shapes = {}
    outer, inner = config.hidden_size, config.codebook_dim
    for kind, count in (("first", 1), ("rest", config.num_file_codebooks - 1)):
        group = f"quantizer.rvq_{kind}"
        shapes[f"{group}.input_proj.weight"] = (inner, outer, 1)
        shapes[f"{group}.output_proj.weight"] = (outer, inner, 1)
        for index in range(count):
            codebook = f"{group}.vq.layers.{index}._codebook"
            shapes[f"{codebook}._initialized"] = (1,)
            shapes[f"{codebook}.cluster_usage"] = (config.codebook_size,)
            shapes[f"{codebook}.embedding_sum"] = (config.codebook_size, inner)
    return shapes


def detokenizer_shapes(config: DetokenizerConfig) -> Shapes:
    """Tensors of audio_detokenizer/model.safetensors, including its unused text embedding."""
    hidden, head = config.hidden_size, config.head_dim
    keys = config.num_key_value_heads * head
    shapes: Shapes = {
        "emb.emb.weight": (DETOKENIZER_CODEBOOKS * DETOKENIZER_CODEBOOK_SIZE, hidden),
        "lfm.embed_tokens.weight": (config.vocab_size, hidden),
        "lfm.embedding_norm.weight": (hidden,),
        **_affine("lin", DETOKENIZER_FFT + 2, hidden),
        "istft.window": (DETOKENIZER_FFT,),
    }
    for index, kind in enumerate(config.layer_types):
        layer = f"lfm.layers.{index}"
        for norm in ("operator_norm", "ffn_norm"):
            shapes[f"{layer}.{norm}.weight"] = (hidden,)
        for part in ("w1", "w3"):
            shapes[f"{layer}.feed_forward.{part}.weight"] = (config.feed_forward_size, hidden)
        shapes[f"{layer}.feed_forward.w2.weight"] = (hidden, config.feed_forward_size)
        if kind == "conv":
            shapes[f"{layer}.conv.conv.weight"] = (hidden, 1, config.conv_L_cache)
            shapes[f"{layer}.conv.in_proj.weight"] = (3 * hidden, hidden)
            shapes[f"{layer}.conv.out_proj.weight"] = (hidden, hidden)
            continue
        attention = f"{layer}.self_attn"
        for part, width in (("q_proj", hidden), ("k_proj", keys), ("v_proj", keys)):
            shapes[f"{attention}.{part}.weight"] = (width, hidden)
        shapes[f"{attention}.out_proj.weight"] = (hidden, hidden)
        for norm in ("q_layernorm", "k_layernorm"):
            shapes[f"{attention}.{norm}.weight"] = (head,)
    return shapes


def _affine(name: str, *shape: int) -> Shapes:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}
