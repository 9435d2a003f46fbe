#!/usr/bin/env bash
# Fine-tunes Qwen3-VL-8B on LLaVA-OneVision, which streams from the hub. A variable that is set already wins over the
# defaults here.
set -euo pipefail
examples="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

: "${TOML_FILE:=$examples/toml/sft_config/llava_ov.toml}"
source "$examples/_launch.sh"
