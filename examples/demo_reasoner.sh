#!/usr/bin/env bash
# The reasoner's job, end to end, on a CPU: make a small set of clips in which laws of physics are broken, train a tiny
# Qwen3-VL on it from random weights, export it as a Hugging Face folder, and let plain transformers answer questions
# about clips it never saw. Each step does nothing when its result is already there.
# DEMO=quick goes the same way in a minute or two, to see that everything works; its answers are guesses.
set -euo pipefail
cd "$(dirname "$0")/.."
source examples/_environment.sh

name=falling_objects data=() train=()
if [[ ${DEMO:-} == quick ]]; then
    name=falling_objects_quick data=(--clips 60 --val-clips 12)
    train=(-- job.name=$name trainer.max_iter=4 "scheduler.warm_up_steps=[1]")
fi
data_folder=examples/data/$name
run_folder=outputs/train/worldsmith/demo/$name
export DATASET_PATH="$PWD/$data_folder" WORLDSMITH_OUTPUT_ROOT=outputs/train

step() {
    printf '\n\033[1m$ %s\033[0m\n' "$*"
    "$@"
}

step worldsmith dataset falling-objects $data_folder "${data[@]}"
step worldsmith train --sft-toml=examples/toml/sft_config/falling_objects.toml "${train[@]}"
step worldsmith export $run_folder --dtype float32 -o $run_folder/reasoner
step worldsmith report $run_folder
step python examples/measure_reasoner.py $run_folder/reasoner $data_folder --out $run_folder/evaluation
