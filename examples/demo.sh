#!/usr/bin/env bash
# The main job, end to end, on a CPU: make a small video dataset, train a video generator on it, export it as a
# diffusers pipeline, generate videos for prompts it never saw, and measure them. Each step is a public command that
# does nothing when its result is already there, so the script may be run again at any time.
# DEMO=quick goes the same way in a minute, to see that everything works; its videos are noise.
set -euo pipefail
cd "$(dirname "$0")/.."
source examples/_environment.sh

name=moving_shapes data=() measure=()
train=(-- trainer.run_validation=true trainer.validation_iter=200)
if [[ ${DEMO:-} == quick ]]; then
    name=moving_shapes_quick data=(--clips 8 --val-clips 1) measure=(--steps 1)
    train+=(job.name=$name trainer.max_iter=2 dataloader_train.max_samples_per_batch=2)
fi
data_folder=examples/data/$name
run_folder=outputs/train/worldsmith/demo/$name
export DATASET_PATH="$PWD/$data_folder" VAL_DATASET_PATH="$PWD/$data_folder/val" WORLDSMITH_OUTPUT_ROOT=outputs/train

step() {
    printf '\n\033[1m$ %s\033[0m\n' "$*"
    "$@"
}

step worldsmith dataset moving-shapes $data_folder "${data[@]}"
step worldsmith train --sft-toml=examples/toml/sft_config/moving_shapes.toml "${train[@]}"
step worldsmith export $run_folder --dtype float32 -o $run_folder/pipeline
step worldsmith report $run_folder
step worldsmith evaluate $run_folder/pipeline --untrained $run_folder --prompts $data_folder/prompts.jsonl "${measure[@]}" -o $run_folder/evaluation
