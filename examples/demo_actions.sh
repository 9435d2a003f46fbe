#!/usr/bin/env bash
# A robot policy, end to end, on a CPU: replay demonstrations of PushT, train a tiny world-action model on them from random
# weights, export it, serve it, play it in the simulator from starts that it has not seen, and measure how well it predicts
# actions and videos. Each step does nothing when its result is already there.
# DEMO=quick goes the same way with two training steps, to see that everything works; its robot has learned nothing.
# DEMO=long trains for 8 times as many steps on all 819 demonstrations, which takes about 90 minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
source examples/_environment.sh

name=pusht_demo episodes=320 train=(trainer.max_iter=2500) starts=50 videos=64 seed=${SEED:-0}
if [[ ${DEMO:-} == quick ]]; then
    name=pusht_demo_quick episodes=8 train=(trainer.max_iter=2 dataloader_train.max_samples_per_batch=4) starts=2 videos=2
elif [[ ${DEMO:-} == long ]]; then
    name=pusht_demo_long episodes=819 train=(trainer.max_iter=20000)
fi
data=examples/data/$name
[[ $seed == 0 ]] || name=${name}_$seed
export DATASET_PATH="$PWD/$data" ROBOT_STATISTICS="$PWD/$data/statistics.json" WORLDSMITH_OUTPUT_ROOT=outputs/train
run=outputs/train/worldsmith/demo/$name

step() {
    printf '\n\033[1m$ %s\033[0m\n' "$*"
    "$@"
}

roll_out() { # POLICY FOLDER …
    [[ -e $2/rollout.json ]] || step worldsmith rollout "$1" -o "$2" --episodes $starts --environment gym_pusht:gym_pusht/PushT-v0 \
        --options.obs_type pixels_agent_pos --options.observation_width 64 --options.observation_height 64 \
        --cameras.image pixels --state.state agent_pos --score coverage --horizon 4 --environments 2 "${@:3}"
}

roll_out_trained() {
    worldsmith serve policy $run/pipeline --steps 5 --port 0 >$run/server.txt 2>&1 &
    local server=$!
    trap "kill $server 2>/dev/null || true" EXIT
    until address=$(grep -om1 'http://[0-9.:]*[0-9]' $run/server.txt); do
        kill -0 $server 2>/dev/null || { cat $run/server.txt; exit 1; }
        sleep 0.2
    done
    roll_out "$address" $run/rollout
    kill $server
}

step python examples/pusht/make_dataset.py $data --episodes $episodes --val-episodes 0 --size 64 --hold 8
[[ -e $ROBOT_STATISTICS ]] || step worldsmith dataset statistics $data --dataset.robot PushTRobot --dataset.split train \
    --dataset.val-fraction 0.04 --out $ROBOT_STATISTICS
step worldsmith check examples/pusht/demo.yaml --sample 4
step worldsmith launch --nproc-per-node 2 train examples/pusht/demo.yaml -- job.name=$name trainer.seed=$seed "${train[@]}"
[[ -e $run/pipeline ]] || step worldsmith export $run --dtype float32 -o $run/pipeline
step worldsmith evaluate $run -o $run/held_out --max-videos $videos --steps 5
roll_out random outputs/pusht_random_$starts
[[ -e $run/rollout/rollout.json ]] || roll_out_trained
step worldsmith report $run
step python examples/pusht/scores.py $run outputs/pusht_random_$starts $data
