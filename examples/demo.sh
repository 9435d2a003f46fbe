#!/usr/bin/env bash
# The main job, end to end, on a CPU: make a small video dataset, train a video generator on it, export it as a
# diffusers pipeline, generate videos for prompts it never saw, and measure them. Each step is a public command that
# does nothing when its result is already there, so the script may be run again at any time.
set -euo pipefail
cd "$(dirname "$0")/.."

export DATASET_PATH="$PWD/examples/data/moving_shapes"
export WORLDSMITH_OUTPUT_ROOT="$PWD/outputs/train"
RUN="$WORLDSMITH_OUTPUT_ROOT/worldsmith/demo/moving_shapes"

step() {
    printf '\n\033[1m$ %s\033[0m\n' "$*"
    "$@"
}

step worldsmith dataset moving-shapes "$DATASET_PATH"
step worldsmith train --sft-toml=examples/toml/sft_config/moving_shapes.toml
step worldsmith export "$RUN" --dtype float32 -o "$RUN/pipeline"
step worldsmith evaluate "$RUN/pipeline" --untrained "$RUN" --prompts "$DATASET_PATH/prompts.jsonl" --guidance 3 -o "$RUN/evaluation"
