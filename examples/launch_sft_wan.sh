#!/usr/bin/env bash
# Fine-tunes a Wan: RECIPE is one of toml/sft_config/wan*.toml. A variable that is set already wins over the defaults
# here.
set -euo pipefail
examples="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

: "${RECIPE:=wan21_t2v_1b_lora}"
case $RECIPE in
    wan21_t2v_14b*) model=Wan2.1-T2V-14B ;;
    wan21_i2v_14b*) model=Wan2.1-I2V-14B-480P ;;
    wan22_ti2v_5b*) model=Wan2.2-TI2V-5B ;;
    wan22_t2v_a14b*) model=Wan2.2-T2V-A14B ;;
    wan22_i2v_a14b*) model=Wan2.2-I2V-A14B ;;
    *) model=Wan2.1-T2V-1.3B ;;
esac
: "${TOML_FILE:=$examples/toml/sft_config/$RECIPE.toml}"
: "${DATASET_PATH:=$examples/data/BridgeData2-Subset-Synthetic-Captions/sft_dataset_bridge}"
: "${WAN_PATH:=Wan-AI/$model-Diffusers}"
source "$examples/_launch.sh"
