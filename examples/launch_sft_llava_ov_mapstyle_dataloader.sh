#!/usr/bin/env bash
# Fine-tunes Qwen3-VL-8B on 4000 records of LLaVA-OneVision, fetched before the run, for 60 steps. A variable that is set
# already wins over the defaults here, and so do arguments.
set -euo pipefail
examples="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

: "${TOML_FILE:=$examples/toml/sft_config/llava_ov_mapstyle_dataloader.toml}"
set -- --trainer.max_iter 60 --checkpoint.save_iter 50 "$@"
source "$examples/_launch.sh"
