#!/usr/bin/env bash
# Fine-tunes a CogVideoX: RECIPE is one of toml/sft_config/cogvideox*.toml. A variable that is set already wins over the
# defaults here.
set -euo pipefail
examples="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

: "${RECIPE:=cogvideox_2b_lora}"
case $RECIPE in
    cogvideox1_5_5b_i2v*) model=CogVideoX1.5-5B-I2V ;;
    cogvideox1_5_5b*) model=CogVideoX1.5-5B ;;
    cogvideox_5b_i2v*) model=CogVideoX-5b-I2V ;;
    cogvideox_5b*) model=CogVideoX-5b ;;
    *) model=CogVideoX-2b ;;
esac
: "${TOML_FILE:=$examples/toml/sft_config/$RECIPE.toml}"
: "${DATASET_PATH:=$examples/data/BridgeData2-Subset-Synthetic-Captions/sft_dataset_bridge}"
: "${COGVIDEOX_PATH:=zai-org/$model}"
source "$examples/_launch.sh"
