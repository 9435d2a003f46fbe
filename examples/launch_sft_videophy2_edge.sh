#!/usr/bin/env bash
# Plans Cosmos3-Edge on the physical plausibility of clips; training is not supported yet, and a start prints the reason. A variable
# that is set already wins over the defaults here.
set -euo pipefail
examples="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

: "${TOML_FILE:=$examples/toml/sft_config/videophy2_sft_edge.toml}"
: "${VIDEOPHYSICS_ROOT:=$examples/data/videophysics}"
source "$examples/_launch.sh"
