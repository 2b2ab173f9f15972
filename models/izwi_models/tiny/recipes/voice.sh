#!/usr/bin/env bash
# Train the voice again on all GPUs, in one go: the codec with phases in its codes, then its decoder
# on one GPU beside the talker on the others. Goes on from the checkpoint in OUT.
# usage: voice.sh DATA OUT ASR [CODEC_SECONDS [REST_SECONDS]]
set -euo pipefail
data=$1 out=$2 asr=$3 codec_s=${4:-494} rest_s=${5:-505}
recipes=izwi_models.tiny.recipes
gpus=$(nvidia-smi -L | wc -l)

torchrun --standalone --nproc_per_node "$gpus" -m $recipes.codec "$data" "$out" \
  --seconds "$codec_s" --save-every 45 --batch 0.5 --low-band 2 --adversary-from 2

cp -r "$out" "$out.talker" # the talker reads the codes of the codec as it is now
CUDA_VISIBLE_DEVICES=0 python -m $recipes.codec "$data" "$out" --decoder-only \
  --seconds "$rest_s" --rate 5e-4 --low-band 2 --adversary-from 2 &
decoder=$!
others=$(seq -s, 1 $((gpus > 1 ? gpus - 1 : 0)))
CUDA_VISIBLE_DEVICES=${others:-0} torchrun --standalone --nproc_per_node $((gpus > 1 ? gpus - 1 : 1)) \
  -m $recipes.talker "$data" "$out.talker" --seconds "$rest_s" --positions 16384
wait $decoder
cp "$out.talker/model.safetensors" "$out/"
python -m $recipes.evaluate "$data" "$out" "$asr" --out "$out/figures.json"
