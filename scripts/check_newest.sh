#!/usr/bin/env bash
# Installs the wheel in a new virtual environment, without constraints.txt, and runs a small set of commands there, outside
# the clone.
#
#     scripts/check_newest.sh [newest|oldest|readme] [PYTHON]
#
# newest  the newest releases of all dependencies, with all extras (the default)
# oldest  the lower bounds in pyproject.toml, with all extras
# readme  the commands of the README, from its section "Install" to a generated video
# PYTHON  the interpreter (default: python3.11, or the variable PYTHON)
#
# TORCH=2.13.0 installs this release of torch. KEEP=1 keeps the folder with the environment and the log.
set -euo pipefail
clone="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
mode=${1:-newest} python=${2:-${PYTHON:-python3.11}}
extras=datasets,docs,evaluate,float8,gaps,gcs,lerobot,quantize,ray,s3,scenes,serve,sim,tune,wandb

fail() {
    echo "check_newest.sh: $*" >&2
    exit 2
}

[[ $mode =~ ^(newest|oldest|readme)$ ]] || fail "unknown mode '$mode': expected newest, oldest or readme"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || fail "$python is not Python 3.11 or newer"
python=$(command -v "$python")

work=$(mktemp -d "${TMPDIR:-/tmp}/worldsmith_$mode.XXXXXX")
log=$work/log.txt
finish() {
    code=$?
    if ((code)) && [[ -s $log ]]; then
        tail -n 60 "$log" >&2
        echo "FAILED: $mode on $("$python" -V): ${last:-setting up} (exit code $code)" >&2
    fi
    if [[ ${KEEP:-} ]]; then echo "kept: $work"; else rm -rf "$work"; fi
}
trap finish EXIT

step() { # Runs a command; its output goes to the log.
    last="$*"
    local start=$SECONDS
    printf '$ %s' "${last//$work\//}"
    "$@" >>"$log" 2>&1
    printf '   [%d s]\n' $((SECONDS - start))
}

pass() {
    echo "PASSED: $mode on $("$python" -V), $SECONDS s"
    exit 0
}

# The commands see nothing of the caller's environment but pip's settings, so that they find no other package.
mkdir "$work/home" "$work/smoke"
for name in $(compgen -e); do
    [[ $name =~ ^(PIP_.*|PATH|TMPDIR|LANG|SSL_CERT_FILE|.*_proxy|OMP_NUM_THREADS|OPENBLAS_.*|TORCH|KEEP)$ ]] || unset "$name"
done
PIP_CACHE_DIR=${PIP_CACHE_DIR:-$("$python" -m pip cache dir 2>/dev/null || true)}
export HOME=$work/home PIP_CACHE_DIR PIP_DISABLE_PIP_VERSION_CHECK=1 HF_HUB_OFFLINE=1
touch "$work/chosen.txt"
[[ ! ${TORCH:-} ]] || echo "torch==$TORCH" >"$work/chosen.txt"

print_versions() {
    "$1" -c '
import importlib.metadata as m, platform, re
names = [re.match(r"[\w.-]+", r)[0] for r in m.requires("worldsmith") if "dev" not in r.partition(";")[2]]
found = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in m.distributions()}
print(", ".join([f"Python {platform.python_version()}", *(f"{n} {found[n]}" for n in dict.fromkeys(names) if n in found)]))'
}

if [[ $mode == readme ]]; then
    # A copy of the clone without its environment, and a shell that has python3.11 and no worldsmith.
    mkdir "$work/clone" "$work/programs"
    cp -r "$clone"/{pyproject.toml,README.md,LICENSE,src} "$work/clone"
    printf '#!/bin/sh\nexec "%s" "$@"\n' "$python" >"$work/programs/python3.11"
    chmod +x "$work/programs/python3.11"
    export PATH=$work/programs:/usr/bin:/bin
    [[ ! ${TORCH:-} ]] || export PIP_CONSTRAINT=$work/chosen.txt
    cd "$work/clone"
    mapfile -t commands < <(sed -n '/^```shell$/,/^```$/{/^```/!p}' README.md)
    ((${#commands[@]} > 6)) || fail "README.md: expected one block marked 'shell', found ${#commands[@]} commands"
    for command in "${commands[@]}"; do step bash -euo pipefail -c "$command"; done
    print_versions ~/worldsmith/bin/python
    last="looking for my_videos/*/vision.mp4"
    ls -l my_videos/*/vision.mp4
    pass
fi

"$python" -m venv "$work/venv"
export PATH=$work/venv/bin:$PATH
step pip wheel --no-deps -w "$work/dist" "$clone"
wheel=$(echo "$work"/dist/worldsmith-*.whl)
if [[ $mode == oldest ]]; then
    python - "$clone/pyproject.toml" >>"$work/chosen.txt" <<'LOWER'
import re, sys, tomllib
with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)["project"]
extras = {name: needed for name, needed in project["optional-dependencies"].items() if name != "dev"}
for requirement in dict.fromkeys([*project["dependencies"], *sum(extras.values(), [])]):
    print(re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)(,.*)?", requirement).expand(r"\1==\2"))
LOWER
fi
step pip install -c "$work/chosen.txt" "$wheel[$extras]"
cd "$work/smoke"
print_versions python

export DATASET_PATH=$PWD/my_shapes VAL_DATASET_PATH=$PWD/my_shapes/val
export WORLDSMITH_OUTPUT_ROOT=$PWD/runs WORLDSMITH_LATENT_CACHE=$PWD/latents
small=(dataloader_train.max_samples_per_batch=2)
prompt=(--prompt "A red circle moves to the left." --steps 2)
demo=$PWD/runs/worldsmith/demo

step worldsmith dataset moving-shapes my_shapes --clips 8 --val-clips 2
head -n 2 my_shapes/prompts.jsonl >prompts.jsonl
step worldsmith train moving_shapes -- trainer.max_iter=1 "${small[@]}"
step worldsmith train moving_shapes --resume-changed -- trainer.max_iter=2 "${small[@]}"
step worldsmith train cogvideox_demo -- trainer.max_iter=1 "${small[@]}"
step worldsmith train wan_demo -- trainer.max_iter=1 "${small[@]}"
for recipe in moving_shapes cogvideox_demo wan_demo; do
    step worldsmith export "$demo/$recipe" --dtype float32 -o $recipe
    step worldsmith generate $recipe "${prompt[@]}" -o ${recipe}_videos
done
step worldsmith train flux_tiny -- trainer.max_iter=1
step worldsmith export runs/worldsmith/sft/flux_tiny --dtype float32 -o flux_tiny
step worldsmith generate flux_tiny "${prompt[@]}" -o flux_images
step worldsmith evaluate moving_shapes --untrained "$demo/moving_shapes" --prompts prompts.jsonl --steps 2 -o evaluation
step worldsmith report "$demo/moving_shapes"
step python -c 'from diffusers import Cosmos3OmniPipeline as P; P.from_pretrained("moving_shapes", enable_safety_checker=False)'

step worldsmith train moving_shapes -- job.name=lora job.wandb_mode=offline trainer.max_iter=2 model.config.lora_enabled=true "${small[@]}"
step worldsmith export "$demo/lora" --dtype float32 --format adapter -o adapter
step worldsmith generate adapter --base moving_shapes "${prompt[@]}" -o lora_videos

step worldsmith dataset falling-objects my_objects --clips 60 --val-clips 4
export DATASET_PATH=$PWD/my_objects
reasoner=(trainer.max_iter=2 "scheduler.warm_up_steps=[1]")
questions=my_objects/videophy2_val
step worldsmith train falling_objects -- "${reasoner[@]}"
step worldsmith export "$demo/falling_objects" --dtype float32 -o reasoner
step worldsmith infer reasoner --video $questions/media/video_0001.mp4 --prompt "Does it fall?" --max-new-tokens 4
step worldsmith evaluate reasoner --dataset LlavaDataset --dataset.path $questions --task text --max-new-tokens 4 -o answers
step worldsmith gaps --results-dir answers --gaps-parquet gaps.parquet
step worldsmith quantize reasoner --scheme W4A16 -o quantized --questions LlavaDataset --questions.path $questions --tolerance 1
step worldsmith tune falling_objects "${reasoner[@]}" trainer.validation_iter=1 --search optimizer.lr=log:1e-5..1e-3 --trials 2 -o tune

step python - "$clone/tests/support" $questions <<'SOURCES'
import json, sys
from pathlib import Path
import datasets
sys.path.append(sys.argv[1])
from import_sources import lerobot_v3
lerobot_v3(Path("robot"))
folder = Path(sys.argv[2]).absolute()
records = json.loads((folder / "annotations.json").read_text())[:4]
rows = [{"conversations": r["conversations"], "video": str(folder / r["video"])} for r in records]
datasets.Dataset.from_list(rows).save_to_disk("saved")
SOURCES
step worldsmith evaluate reasoner --dataset SavedDataset --dataset.path saved --max-new-tokens 4 -o saved_answers
step worldsmith dataset import robot -o my_robot
step worldsmith dataset import my_shapes/train/videos --cut scenes --caption "A shape moves." -o my_scenes
step python -c 'import torchao.float8'
pass
