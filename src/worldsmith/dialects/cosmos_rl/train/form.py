"""What becomes of every key of a training spec of Cosmos-RL or TAO."""

from __future__ import annotations

from typing import Any

from worldsmith.dialects.cosmos_rl.train.aliases import ALIASES, RL_KEYS, RL_TABLES, SAMPLING_KEYS
from worldsmith.dialects.cosmos_rl.train.data import frames, longest, readers
from worldsmith.dialects.cosmos_rl.train.job import names, resume, run_folder, trackers
from worldsmith.dialects.cosmos_rl.train.model import adapters, learning_rates, model, trained
from worldsmith.dialects.cosmos_rl.train.sources import data_sets
from worldsmith.dialects.cosmos_rl.train.spec import TrainSpec
from worldsmith.dialects.cosmos_rl.train.steps import steps_of_the_run
from worldsmith.dialects.translation import (
    SpecForm,
    SpecTranslation,
    approximated,
    computed,
    dead,
    refused,
    renamed,
    unneeded,
)

FOR_RL = "it belongs to reinforcement learning; with type = sft nothing reads it"


@computed("train.train_policy.type")
def kind(t: SpecTranslation) -> None:
    key = "train.train_policy.type"
    if t.get(key) == "sft":
        t.say(key, "kept", "supervised fine-tuning, which every run here is")
    else:
        text = "it is left out, and means sft here; there, without a table train_policy, it would mean grpo"
        t.say(key, "approximated", text, loud=True)


@computed("policy.parallelism.tp_size")
def tensor_parallelism(t: SpecTranslation) -> None:
    key, size = "policy.parallelism.tp_size", t.get("policy.parallelism.tp_size")
    if size > 1:
        shard = t.get("policy.parallelism.dp_shard_size")
        more = f"policy.parallelism.dp_shard_size={shard * size if shard > 0 else -1}"
        t.refuse(key, f"there is no tensor parallelism here, {size} cannot be had", f"{key}=1 {more}")
    elif t.is_stated(key):
        t.say(key, "kept", "as it is here")
    else:
        t.say(key, "approximated", "it is left out, and is 1 here; there it would be 2", loud=True)


@computed("train.fsdp_offload", "train.activation_offload")
def offload(t: SpecTranslation) -> None:
    """Refuses to offload, with the settings that save GPU memory and that the spec does not have yet."""
    batch, adapters = "train.train_policy.mini_batch", "policy.lora"
    others = [
        ("policy.model_gradient_checkpointing=true", not t.get("policy.model_gradient_checkpointing")),
        (f"{batch}=1", t.get(batch) > 1),
        ("a larger policy.parallelism.dp_shard_size", True),
        (f"{adapters}={{r: 16, target_modules: all-linear}}", t.get(adapters) is None),
        (
            "adapters on a 4-bit base, -- model.config.converters=[{type: FrozenBase}] checkpoint.save_weights=trained",
            True,
        ),
    ]
    way_out = "; ".join(word for word, is_open in others if is_open)
    for key in ("train.fsdp_offload", "train.activation_offload"):
        if t.get(key):
            t.refuse(key, "nothing is offloaded to host RAM", f"{key}=false; what saves GPU memory instead: {way_out}")
        else:
            t.say(key, "kept", "as it is here")


@computed("train.optm_grad_norm_clip")
def clipping(t: SpecTranslation) -> None:
    key, norm = "train.optm_grad_norm_clip", t.get("train.optm_grad_norm_clip")
    most = norm if norm > 0 else 1e30
    t.put("trainer.callbacks.grad_clip.clip_norm", most, source=key)
    never = "" if norm > 0 else ": it is measured, and never so large"
    t.say(key, "renamed", f"trainer.callbacks.grad_clip.clip_norm = {most}{never}")


@computed("train.seed", "train.deterministic")
def seeds(t: SpecTranslation) -> None:
    seed = t.get("train.seed")
    t.put("trainer.seed", 42 if seed is None or seed < 0 else seed, source="train.seed")
    t.say("train.seed", "renamed", f"trainer.seed = {42 if seed is None or seed < 0 else seed}")
    if t.get("train.deterministic"):
        text = "every draw follows from the seed; kernels of a GPU are not restricted"
        t.say("train.deterministic", "approximated", text)
    else:
        t.say("train.deterministic", "kept", "as it is here")


def one_of(**names: str) -> Any:
    """Reads a number format; ValueError for one that there is not."""

    def read(value: str) -> str:
        if value not in names:
            raise ValueError(f"{value} cannot be had here; there are {', '.join(names)}")
        return names[value]

    return read


TWO = one_of(float32="float32", bfloat16="bfloat16")
TRAIN, POLICY, SFT, CKPT = "train.", "policy.", "train.train_policy.", "train.ckpt."
DEGREES = "policy.parallelism."
OPTIMIZER = (
    learning_rates,
    refused(f"{TRAIN}optm_name", why="AdamW is the optimizer here", way_out=f"{TRAIN}optm_name=AdamW", but=("AdamW",)),
    renamed(f"{TRAIN}optm_impl", "optimizer.fused", lambda name: "fused" in name),
    renamed(f"{TRAIN}optm_weight_decay", "optimizer.weight_decay"),
    renamed(f"{TRAIN}optm_betas", "optimizer.betas"),
    renamed(f"{TRAIN}epsilon", "optimizer.eps"),
    clipping,
)
PRECISION = (
    renamed(f"{TRAIN}param_dtype", "model.config.precision", TWO),
    renamed(f"{TRAIN}master_dtype", "model.config.parallelism.fsdp_master_dtype", TWO),
    refused(
        f"{TRAIN}fsdp_reduce_dtype",
        why="gradients are added up in float32 here",
        way_out=f"{TRAIN}fsdp_reduce_dtype=float32",
        but=("float32",),
    ),
    refused(f"{TRAIN}fp8.enable_fp8", why="training in 8 bits cannot be had", way_out="turn it off", but=(False,)),
    refused(f"{TRAIN}fp4.enable_fp4", why="training in 4 bits cannot be had", way_out="turn it off", but=(False,)),
    unneeded(*(f"{TRAIN}fp8.{name}" for name in ("fp8_recipe", "quant_recipe")), why="it is off"),
    unneeded(*(f"{TRAIN}fp4.{name}" for name in ("fp4_recipe", "quant_recipe")), why="it is off"),
)
MEMORY = (
    renamed(f"{TRAIN}compile", "model.config.compile.enabled"),
    renamed(
        f"{POLICY}model_gradient_checkpointing",
        "model.config.activation_checkpointing.mode",
        lambda on: "full" if on else "none",
    ),
    renamed(f"{TRAIN}sequence_packing", "model.config.policy.sequence_packing"),
    renamed(
        f"{TRAIN}fa_version",
        "model.config.policy.attn_implementation",
        lambda version: one_of(**{"2": "flash_attention_2"})(str(version)),
    ),
    offload,
    approximated(
        f"{TRAIN}fsdp_reshard_after_forward",
        "",
        "weights always go after the forward pass",
        but=("default", "always", "true", True),
    ),
    refused(f"{TRAIN}async_tp_enabled", why="there is no tensor parallelism here", way_out="turn it off", but=(False,)),
    *(
        refused(f"{TRAIN}{name}", why=why, way_out=f"~{TRAIN}{name}", but=(False,))
        for name, why in {
            "ema_enable": "the average here has a width, not a decay; -- model.config.ema.enabled=true turns it on",
            "non_text": "a reasoner's data has text",
        }.items()
    ),
    unneeded(f"{TRAIN}ema_decay", f"{TRAIN}ema_update_step_interval", why="it is off"),
    unneeded(
        *(f"{POLICY}enable_liger_{name}" for name in ("kernel", "cross_entropy", "fused_cross_entropy")),
        why="speed and memory only; the loss is made in chunks here",
    ),
)
SAVING = (
    renamed(f"{CKPT}save_mode", "checkpoint.async_save", lambda mode: mode == "async"),
    renamed(f"{CKPT}max_keep", "checkpoint.keep_latest_k", lambda count: None if count == -1 else count),
    approximated(
        f"{CKPT}export_safetensors", "", "`worldsmith export RUN` writes the Hugging Face folder", but=(False,)
    ),
    refused(
        *(f"{CKPT}{name}" for name in ("upload_hf", "upload_s3")),
        why="a run sends nothing anywhere",
        way_out="turn it off, and send what `worldsmith export` writes",
        but=(False,),
    ),
    unneeded(*(f"{CKPT}{name}" for name in ("hf_repo_name", "s3_bucket", "s3_prefix")), why="nothing is sent"),
    approximated(f"{TRAIN}save_ckpt_at_exit", "", "a run that is asked to stop always saves", but=(True,)),
    approximated(
        f"{TRAIN}signal_to_handle",
        "",
        "SIGTERM, SIGINT, SIGHUP and SIGUSR1 make a run save and stop",
        but=(["SIGUSR1"],),
    ),
)
LOADING = (
    readers,
    renamed(f"{SFT}dataloader_shuffle", "dataloader_train.shuffle"),
    renamed(f"{SFT}dataloader_seed", "dataloader_train.seed"),
    approximated(
        f"{SFT}balance_dp_token", "", "the loss is the mean over all supervised tokens of a step", but=(True,)
    ),
    approximated(f"{SFT}enable_dataset_cache", "", "nothing is cached, so nothing gets stale", but=(False,)),
    approximated("validation.enable_dataset_cache", "", "nothing is cached, so nothing gets stale", but=(False,)),
    unneeded(
        *(
            f"{SFT}{name}"
            for name in ("dataloader_batch_size", "data_dispatch_as_rank_in_mesh", "dataloader_broadcast")
        ),
        why="each process reads its own samples",
    ),
    refused(
        f"{SFT}enable_dp_load_balancing",
        why="batches of like lengths are made another way here",
        way_out=f"{SFT}enable_dp_load_balancing=false, and -- dataloader_train.packer=padded",
        but=(False,),
    ),
    unneeded(
        *(f"{SFT}load_balanced_{name}" for name in ("pool_size", "max_tokens_for_batch", "batching_strategy")),
        f"{SFT}load_balanced_batches_per_optimizer_step",
        why="load balancing is off",
    ),
    unneeded(f"{SFT}trainer_type", why="sft, as every run here"),
    unneeded(f"{TRAIN}local_dataset", f"{TRAIN}force_use_hf", why="as it is here"),
)
PARALLELISM = (
    tensor_parallelism,
    renamed(f"{DEGREES}dp_shard_size", "model.config.parallelism.data_parallel_shard_degree"),
    renamed(f"{DEGREES}dp_replicate_size", "model.config.parallelism.data_parallel_replicate_degree"),
    refused(
        *(f"{DEGREES}{name}" for name in ("cp_size", "pp_size", "ep_size", "n_init_replicas")),
        why="the processes of a reasoner share weights and data only",
        way_out="write 1, and a larger policy.parallelism.dp_shard_size",
        but=(1,),
    ),
    unneeded(
        *(f"{DEGREES}pp_{name}" for name in ("dynamic_shape", "micro_batch_size", "schedule", "layers_per_stage")),
        why="there is no pipeline",
    ),
)
LOGGING = (
    trackers,
    renamed("logging.log_interval", "trainer.logging_iter"),
    unneeded("logging.level", "logging.multi_modal_log_interval", "logging.report_mfu", why="a run's page shows it"),
    unneeded(*(f"logging.wandb_{name}" for name in ("run_id", "run_name", "resume")), why="the run's name decides"),
    refused(
        *(f"profiler.enable_{name}" for name in ("profiler", "nsys")),
        why="a profile is taken by a callback here",
        way_out="turn it off, and write -- +trainer.callbacks.profiler={type: Profiler}",
        but=(False,),
    ),
    unneeded("profiler.sub_profiler_config", why="no profile is taken"),
)
ELSEWHERE = (
    refused(
        "parent_job_id",
        why="the weights of a parent are found when the run starts",
        way_out="start it with worldsmith train, or leave it out and give --parent NAME with the start",
        outside=True,
    ),
    unneeded(
        *(
            f"{TRAIN}{name}"
            for name in ("logprob_dtype", "transfer_dtype", "sync_weight_interval", "prefetch_payloads")
        ),
        *(f"{TRAIN}{name}" for name in ("p2p_sync_pack_tensors", "p2r_sync_groups_per_round", "coalesce_weight_sync")),
        *("redis", "eth_ips", "mode", "controller_execution_id"),
        why="a fine-tuning has no controller and no rollouts",
    ),
    refused("custom_script", why="code of others is not run", way_out="write the data as annotations", but=("",)),
    renamed(f"{POLICY}model_safetensor_path", "model.config.policy.backbone.safetensors_path"),
    unneeded(f"{POLICY}is_diffusers", why="the model is no generator"),
    refused(f"{POLICY}aux_loss_coeff", why="there is no loss that balances experts", way_out="write 0", but=(0.0,)),
)
OUTSIDE = (
    dead(f"{TRAIN}enable_validation", "nothing ever read it; validation.enable turns the validation on"),
    dead(f"{TRAIN}validation_step", "nothing ever read it; validation.freq says after how many steps"),
    dead(f"{TRAIN}validation_freq", "nothing ever read it; validation.freq says after how many steps"),
    dead(f"{TRAIN}validation_batch_per_replica", "nothing ever read it; validation.batch_size is meant"),
    dead(f"{DEGREES}cp_rotate_method", "nothing ever read it"),
    *(dead(f"validation.{name}", FOR_RL) for name in SAMPLING_KEYS),
    unneeded(f"{POLICY}diffusers", why="the model is no generator", outside=True),
    *(dead(f"{SFT}{name}", FOR_RL) for name in RL_KEYS),
    *(dead(name, FOR_RL) for name in RL_TABLES),
)

FORM = SpecForm(
    "train",
    TrainSpec,
    (
        *(kind, model, data_sets, frames, longest, steps_of_the_run),
        *(adapters, trained, run_folder, names, resume, seeds),
        *OPTIMIZER,
        *PRECISION,
        *MEMORY,
        *SAVING,
        *LOADING,
        *PARALLELISM,
        *LOGGING,
        *ELSEWHERE,
        *OUTSIDE,
    ),
    aliases=ALIASES,
    free=("custom",),
)
