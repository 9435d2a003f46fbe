# Shared by the launchers, which source it: starts `worldsmith train` on TOML_FILE with the requested number of processes.
# Words after the launcher's name are handed on: bash examples/launch_sft_vision_nano.sh --trainer.max_iter 10

: "${NPROC_PER_NODE:=8}" "${NNODES:=1}" "${NODE_RANK:=0}"
export DATASET_PATH BASE_CHECKPOINT_PATH WAN_VAE_PATH VIDEOPHYSICS_ROOT VLM_SAFETENSORS_PATH COGVIDEOX_PATH WAN_PATH FLUX_PATH \
    LIBERO_ROOT DROID_ROOT ROBOT_STATISTICS
source "$examples/_environment.sh"
words=(train "--sft-toml=$TOML_FILE" "$@")

if ((NPROC_PER_NODE * NNODES == 1)); then
    exec worldsmith "${words[@]}"
fi
machines=(--nnodes "$NNODES")
if ((NNODES > 1)); then
    machines+=(--node-rank "$NODE_RANK" --master-port "${MASTER_PORT:-29500}"
        --master-addr "${MASTER_ADDR:?several nodes need MASTER_ADDR, the address of node 0}")
fi
exec worldsmith launch "${machines[@]}" --nproc-per-node "$NPROC_PER_NODE" "${words[@]}"
