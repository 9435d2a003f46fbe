#!/usr/bin/env bash
# Fine-tunes Cosmos3-Nano with vision_sft_nano_mapstyle_dataloader. A variable that is set already wins over the
# defaults here.
set -euo pipefail
examples="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

: "${TOML_FILE:=$examples/toml/sft_config/vision_sft_nano_mapstyle_dataloader.toml}"
: "${DATASET_PATH:=$examples/data/BridgeData2-Subset-Synthetic-Captions/sft_dataset_bridge}"
: "${BASE_CHECKPOINT_PATH:=$examples/checkpoints/Cosmos3-Nano}"
: "${WAN_VAE_PATH:=$examples/checkpoints/wan22_vae/Wan2.2_VAE.pth}"
source "$examples/_launch.sh"
