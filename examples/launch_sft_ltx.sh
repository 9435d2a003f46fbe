#!/usr/bin/env bash
# Fine-tunes LTX-Video: RECIPE is one of toml/sft_config/ltx_video_*.toml. A variable that is set already wins over the
# defaults here.
set -euo pipefail
examples="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

: "${RECIPE:=ltx_video_2b_lora}"
: "${TOML_FILE:=$examples/toml/sft_config/$RECIPE.toml}"
: "${DATASET_PATH:=$examples/data/BridgeData2-Subset-Synthetic-Captions/sft_dataset_bridge}"
: "${LTX_PATH:=Lightricks/LTX-Video}"
source "$examples/_launch.sh"
