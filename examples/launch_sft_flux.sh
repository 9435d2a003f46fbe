#!/usr/bin/env bash
# Fine-tunes a FLUX.1: RECIPE is one of toml/sft_config/flux_*.toml. A variable that is set already wins over the
# defaults here.
set -euo pipefail
examples="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

: "${RECIPE:=flux_dev_lora}"
case $RECIPE in
    flux_schnell*) model=FLUX.1-schnell ;;
    *) model=FLUX.1-dev ;;
esac
: "${TOML_FILE:=$examples/toml/sft_config/$RECIPE.toml}"
: "${DATASET_PATH:=$examples/data/BridgeData2-Subset-Synthetic-Captions/sft_dataset_bridge}"
: "${FLUX_PATH:=black-forest-labs/$model}"
source "$examples/_launch.sh"
