"""Every tensor of a codec checkpoint by name and shape, including unused ones."""

from __future__ import annotations

from izwi_models.qwen3_codec.config import CodecConfig, DecoderConfig, EncoderConfig

Shapes = dict[str, tuple[int, ...]]

# Dilations of the residual units of a decoder block; the reference fixes them.
DILATIONS = (1, 3, 9)
DECODER_KERNEL = 7
PRE_CONV_KERNEL = 3


def tensor_shapes(config: CodecConfig) -> Shapes:
    """Name and shape of each tensor in model.safetensors, for strict loading.

    The file has tensors that are not used: the encoder's codebooks past the 16th, the quantiser
    projections of the other direction, and the flags of Mimi's codebook training.
    """
    decoder, encoder = config.decoder_config, config.encoder_config
    return {
        **_encoder_convs(encoder),
        **_encoder_transformer(encoder),
        "encoder.downsample.conv.weight": (
            encoder.hidden_size,
            encoder.hidden_size,
            2 * config.downsample_stride,
        ),
        **_encoder_quantizer(encoder),
        **_decoder_quantizer(decoder),
        **_decoder_transformer(decoder),
        **_decoder_upsample(decoder),
        **_decoder_blocks(decoder),
    }


def _conv(name: str, outputs: int, inputs: int, kernel: int) -> Shapes:
    return {f"{name}.conv.weight": (outputs, inputs, kernel), f"{name}.conv.bias": (outputs,)}


def _conv_transpose(name: str, inputs: int, outputs: int, kernel: int) -> Shapes:
    return {f"{name}.conv.weight": (inputs, outputs, kernel), f"{name}.conv.bias": (outputs,)}


def _linear(name: str, outputs: int, inputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _attention(name: str, config: EncoderConfig | DecoderConfig) -> Shapes:
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    return {
        f"{name}.self_attn.q_proj.weight": (queries, config.hidden_size),
        f"{name}.self_attn.k_proj.weight": (keys, config.hidden_size),
        f"{name}.self_attn.v_proj.weight": (keys, config.hidden_size),
        f"{name}.self_attn.o_proj.weight": (config.hidden_size, queries),
        f"{name}.self_attn_layer_scale.scale": (config.hidden_size,),
        f"{name}.mlp_layer_scale.scale": (config.hidden_size,),
    }


def _encoder_convs(config: EncoderConfig) -> Shapes:
    name, width, layer = "encoder.encoder.layers", config.num_filters, 1
    shapes = _conv(f"{name}.0", width, 1, config.kernel_size)
    for ratio in reversed(config.upsampling_ratios):
        reduced = width // config.compress
        for _ in range(config.num_residual_layers):
            block = f"{name}.{layer}.block"
            shapes |= _conv(f"{block}.1", reduced, width, config.residual_kernel_size)
            shapes |= _conv(f"{block}.3", width, reduced, 1)
            layer += 1
        shapes |= _conv(f"{name}.{layer + 1}", 2 * width, width, 2 * ratio)  # after an ELU
        width, layer = 2 * width, layer + 2
    return shapes | _conv(f"{name}.{layer + 1}", config.hidden_size, width, config.last_kernel_size)


def _encoder_transformer(config: EncoderConfig) -> Shapes:
    shapes: Shapes = {}
    hidden, wide = config.hidden_size, config.intermediate_size
    for index in range(config.num_hidden_layers):
        layer = f"encoder.encoder_transformer.layers.{index}"
        shapes |= _attention(layer, config)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}.{norm}.weight"] = (hidden,)
            shapes[f"{layer}.{norm}.bias"] = (hidden,)
        shapes[f"{layer}.mlp.fc1.weight"] = (wide, hidden)
        shapes[f"{layer}.mlp.fc2.weight"] = (hidden, wide)
    return shapes


def _encoder_quantizer(config: EncoderConfig) -> Shapes:
    shapes: Shapes = {}
    hidden, inner = config.hidden_size, config.vector_quantization_hidden_dimension
    semantic = config.num_semantic_quantizers
    for kind, count in (("semantic", semantic), ("acoustic", config.num_quantizers - semantic)):
        group = f"encoder.quantizer.{kind}_residual_vector_quantizer"
        shapes[f"{group}.input_proj.weight"] = (inner, hidden, 1)
        shapes[f"{group}.output_proj.weight"] = (hidden, inner, 1)
        for index in range(count):
            codebook = f"{group}.layers.{index}.codebook"
            shapes[f"{codebook}.initialized"] = (1,)
            shapes[f"{codebook}.cluster_usage"] = (config.codebook_size,)
            shapes[f"{codebook}.embed_sum"] = (config.codebook_size, config.codebook_dim)
    return shapes


def _decoder_quantizer(config: DecoderConfig) -> Shapes:
    shapes: Shapes = {}
    outer, inner = config.codebook_dim, config.codebook_dim // 2
    for kind, count in (("first", 1), ("rest", config.num_quantizers - 1)):
        group = f"decoder.quantizer.rvq_{kind}"
        shapes[f"{group}.input_proj.weight"] = (inner, outer, 1)
        shapes[f"{group}.output_proj.weight"] = (outer, inner, 1)
        for index in range(count):
            codebook = f"{group}.vq.layers.{index}._codebook"
            shapes[f"{codebook}.cluster_usage"] = (config.codebook_size,)
            shapes[f"{codebook}.embedding_sum"] = (config.codebook_size, inner)
    return shapes


def _decoder_transformer(config: DecoderConfig) -> Shapes:
    name, hidden, wide = "decoder.pre_transformer", config.hidden_size, config.intermediate_size
    shapes = {
        **_conv("decoder.pre_conv", config.latent_dim, config.codebook_dim, PRE_CONV_KERNEL),
        **_linear(f"{name}.input_proj", hidden, config.latent_dim),
        **_linear(f"{name}.output_proj", config.latent_dim, hidden),
        f"{name}.norm.weight": (hidden,),
    }
    for index in range(config.num_hidden_layers):
        layer = f"{name}.layers.{index}"
        shapes |= _attention(layer, config)
        shapes[f"{layer}.input_layernorm.weight"] = (hidden,)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (hidden,)
        shapes[f"{layer}.mlp.gate_proj.weight"] = (wide, hidden)
        shapes[f"{layer}.mlp.up_proj.weight"] = (wide, hidden)
        shapes[f"{layer}.mlp.down_proj.weight"] = (hidden, wide)
    return shapes


def _decoder_upsample(config: DecoderConfig) -> Shapes:
    shapes: Shapes = {}
    width = config.latent_dim
    for index, ratio in enumerate(config.upsampling_ratios):
        name = f"decoder.upsample.{index}"
        shapes |= _conv_transpose(f"{name}.0", width, width, ratio)
        shapes |= _conv(f"{name}.1.dwconv", width, 1, DECODER_KERNEL)
        shapes |= _linear(f"{name}.1.pwconv1", 4 * width, width)
        shapes |= _linear(f"{name}.1.pwconv2", width, 4 * width)
        for tensor in ("norm.weight", "norm.bias", "gamma"):
            shapes[f"{name}.1.{tensor}"] = (width,)
    return shapes


def _decoder_blocks(config: DecoderConfig) -> Shapes:
    width = config.decoder_dim
    shapes = _conv("decoder.decoder.0", width, config.latent_dim, DECODER_KERNEL)
    for index, rate in enumerate(config.upsample_rates, start=1):
        block = f"decoder.decoder.{index}.block"
        shapes |= _snake(f"{block}.0", width)
        shapes |= _conv_transpose(f"{block}.1", width, width // 2, 2 * rate)
        width //= 2
        for unit in range(2, 2 + len(DILATIONS)):
            shapes |= _snake(f"{block}.{unit}.act1", width)
            shapes |= _conv(f"{block}.{unit}.conv1", width, width, DECODER_KERNEL)
            shapes |= _snake(f"{block}.{unit}.act2", width)
            shapes |= _conv(f"{block}.{unit}.conv2", width, width, 1)
    last = len(config.upsample_rates) + 1
    shapes |= _snake(f"decoder.decoder.{last}", width)
    return shapes | _conv(f"decoder.decoder.{last + 1}", 1, width, DECODER_KERNEL)


def _snake(name: str, width: int) -> Shapes:
    return {f"{name}.alpha": (width,), f"{name}.beta": (width,)}
