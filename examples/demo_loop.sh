#!/usr/bin/env bash
# The loop around a reasoner, on a CPU: check the data, search for a learning rate, train, measure, find what is answered
# wrongly, train on from there with it, measure on data that nothing has learned from, and quantize. A tiny Qwen3-VL
# learns two questions about clips of falling objects from random weights. Each step does nothing when its result is
# already there.
# DEMO=quick goes the same way in two minutes or three, to see that everything works; its answers are guesses.
set -euo pipefail
cd "$(dirname "$0")/.."
source examples/_environment.sh

name=falling_questions clips=600 val=120 trials=4 tried=60 first=100 second=250
if [[ ${DEMO:-} == quick ]]; then
    name=falling_questions_quick clips=12 val=2 trials=2 tried=2 first=4 second=4
fi
data=examples/data/$name unseen=examples/data/${name}_unseen
export DATASET_PATH="$PWD/$data" WORLDSMITH_OUTPUT_ROOT=outputs/train
runs=outputs/train/worldsmith/demo out=outputs/loop/$name

step() {
    printf '\n\033[1m$ %s\033[0m\n' "$*"
    "$@"
}

steps() { # of a run: NAME NUMBER
    echo "job.name=${name}_$1 trainer.max_iter=$2 scheduler.warm_up_steps=[$(($2 / 5))]"
}

evaluate() { # RUN DATA OUT …
    step worldsmith evaluate $runs/${name}_$1 --dataset LlavaDataset --dataset.path $2/videophy2_val --batch-size 24 \
        --max-new-tokens 4 --slices question -o $out/$3 "${@:4}"
}

topics="--topics left --topics rises"
step worldsmith dataset falling-objects $data --clips $clips --val-clips $val $topics
step worldsmith dataset falling-objects $unseen --clips 1 --val-clips $val --seed 1 $topics
step worldsmith check falling_questions

step worldsmith tune falling_questions $(steps tried $tried) --search optimizer.lr=log:1e-4..3e-3 --keep scheduler \
    --trials $trials --final-data dataset.path=$unseen/videophy2_val -o $out/tune
step worldsmith train $out/tune/best.yaml -- $(steps first $first)
evaluate first $unseen before

# What it answers wrongly of the validation clips, it learns next; so the clips that it is measured on are others.
evaluate first $data validation
[[ -e $out/gaps.parquet ]] || step worldsmith gaps --results-dir $out/validation --gaps-parquet $out/gaps.parquet \
    --annotations-out $out/gaps.json
mixed=dataloader_train.dataset
step worldsmith train $out/tune/best.yaml --parent $runs/${name}_first -- $(steps second $second) \
    trainer.run_validation=false $mixed=MixedDataset \
    +$mixed.datasets.clips=LlavaDataset $mixed.datasets.clips.path=$data/videophy2_train \
    +$mixed.datasets.gaps=LlavaDataset $mixed.datasets.gaps.path=$out/gaps.json
evaluate second $unseen after --against $out/before

[[ -e $out/w4a16 ]] || step worldsmith quantize $runs/${name}_second --scheme W4A16 --out $out/w4a16 \
    --questions LlavaDataset --questions.path $unseen/videophy2_val
step worldsmith lineage $out/w4a16
step python examples/loop_scores.py $out
