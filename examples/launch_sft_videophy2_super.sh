#!/usr/bin/env bash
# Cosmos3-Super learns to score the physical plausibility of clips. A variable that is set already wins over the
# defaults here.
set -euo pipefail
examples="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

: "${TOML_FILE:=$examples/toml/sft_config/videophy2_sft_super.toml}"
: "${VIDEOPHYSICS_ROOT:=$examples/data/videophysics}"
: "${VLM_SAFETENSORS_PATH:=$examples/checkpoints/Cosmos3-Super-VLM}"
source "$examples/_launch.sh"
