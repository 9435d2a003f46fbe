#!/usr/bin/env bash
# The demo for a family of diffusers: train a tiny network from random weights on moving coloured shapes, export it as a
# pipeline, generate videos for prompts it never saw, and measure them. Each step is a public command that does nothing
# when its result is already there, so the script may be run again at any time.
# Its word is the recipe. DEMO=quick goes the same way in a minute, to see that everything works; its videos are noise.
set -euo pipefail
cd "$(dirname "$0")/.."
source examples/_environment.sh

recipe=${1:-cogvideox_demo}
data_folder=examples/data/moving_shapes name=$recipe data=() train=() measure=(--steps 20)
if [[ ${DEMO:-} == quick ]]; then
    data_folder+=_quick name+=_quick data=(--clips 8 --val-clips 1) measure=(--steps 1)
    train=(-- job.name=$name trainer.max_iter=2 dataloader_train.max_samples_per_batch=2)
fi
run_folder=outputs/train/worldsmith/demo/$name
export DATASET_PATH="$PWD/$data_folder" WORLDSMITH_OUTPUT_ROOT=outputs/train

step() {
    printf '\n\033[1m$ %s\033[0m\n' "$*"
    "$@"
}

step worldsmith dataset moving-shapes $data_folder "${data[@]}"
step worldsmith train --sft-toml=examples/toml/sft_config/$recipe.toml "${train[@]}"
step worldsmith export $run_folder --dtype float32 -o $run_folder/pipeline
step worldsmith report $run_folder
step worldsmith evaluate $run_folder/pipeline --untrained $run_folder --prompts $data_folder/prompts.jsonl --guidance 3 "${measure[@]}" -o $run_folder/evaluation
