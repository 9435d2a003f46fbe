#!/usr/bin/env bash
# Trains a policy for DROID from Cosmos3-Nano. A variable that is set already wins over the defaults here.
set -euo pipefail
examples="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

: "${TOML_FILE:=$examples/toml/sft_config/action_policy_droid_nano.toml}"
: "${DATASET_PATH:=$examples/data/Cosmos3-DROID}"
: "${DROID_ROOT:=$DATASET_PATH}"
: "${BASE_CHECKPOINT_PATH:=$examples/checkpoints/Cosmos3-Nano}"
: "${WAN_VAE_PATH:=$examples/checkpoints/wan22_vae/Wan2.2_VAE.pth}"
source "$examples/_launch.sh"
