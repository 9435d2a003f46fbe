"""The rows of the sections `data`, `args` and `deepspeed`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worldsmith.dialects.sat.descent import clipping, loss_scale, optimizer, precision
from worldsmith.dialects.sat.keys import ARGS, DATA, DS, INFERENCE, LOSS_SCALE, OPTIMIZER, PLUMBING, ZERO_TRAFFIC
from worldsmith.dialects.sat.run import (
    ZERO,
    batch,
    clips,
    encoders,
    model_frames,
    recomputation,
    sharding,
    start,
    steps,
    tracker,
    train_data,
    twins,
    valid_data,
)
from worldsmith.dialects.translation import Row, approximated, dead, refused, renamed, unneeded


def _refused(prefix: str, why: str, **names: Any) -> Sequence[Row]:
    """Settings that only have the value that asks for nothing."""
    return [refused(f"{prefix}{name}", why=why, way_out=f"~{prefix}{name}", but=(but,)) for name, but in names.items()]


ROWS: tuple[Row, ...] = (
    *(
        model_frames,
        clips,
        train_data,
        valid_data,
        steps,
        start,
        encoders,
        batch,
        sharding,
        precision,
        loss_scale,
        optimizer,
    ),
    *(recomputation, twins, tracker, clipping),
    renamed(f"{ARGS}experiment_name", "job.name"),
    renamed(f"{ARGS}wandb_project_name", "job.project"),
    renamed(f"{ARGS}seed", "trainer.seed"),
    renamed(f"{ARGS}save_interval", "checkpoint.save_iter"),
    renamed(f"{ARGS}log_interval", "trainer.logging_iter"),
    renamed(f"{ARGS}num_workers", "dataloader_train.num_workers"),
    renamed(f"{ARGS}prefetch_factor", "dataloader_train.prefetch_factor"),
    renamed(f"{OPTIMIZER}eps", "optimizer.eps"),
    approximated(f"{ARGS}save", "", "a run lies below WORLDSMITH_OUTPUT_ROOT", but=(None,)),
    approximated(
        f"{ARGS}eval_iters", "trainer.max_val_iter", "no videos are drawn with it", lambda count: count or None
    ),
    approximated(f"{ARGS}only_log_video_latents", "", "no videos are drawn while it validates", but=(False,)),
    refused(
        f"{ARGS}model_parallel_size",
        why="one process holds whole layers; above 1 it failed there too",
        way_out="write 1, and more processes",
        but=(1,),
    ),
    *_refused(
        ARGS,
        "it cannot be had",
        iterable_dataset=False,
        iterable_dataset_eval=False,
        batch_from_same_dataset=False,
        test_data=None,
    ),
    approximated(f"{ARGS}eval_batch_size", "", "validation has the batch of the training", but=(None,)),
    approximated(f"{ARGS}strict_eval", "", "trainer.max_val_iter says how much of the data is read", but=(False,)),
    approximated(f"{ARGS}exit_interval", "", "trainer.max_iter says when it ends", but=(None,)),
    unneeded(
        f"{ARGS}resume_dataloader",
        f"{ARGS}force_pretrain",
        f"{ARGS}no_save_rng",
        why="a run goes on exactly where it stopped",
    ),
    unneeded(f"{ARGS}summary_dir", why="a run's folder has its own"),
    unneeded(*(f"{ARGS}{name}" for name in PLUMBING), why="it is about SAT's own start"),
    unneeded(*(f"{ARGS}{name}" for name in INFERENCE), why="only sampling reads it"),
    *_refused(f"{DATA}params.", "clips are listed, not gathered by rules", meta_names=None, include_dirs=None),
    refused(
        f"{DATA}params.txt_key", why="the caption's key is caption_keys", way_out="write caption", but=("caption",)
    ),
    unneeded(
        f"{DATA}params.nshards",
        f"{DATA}params.shuffle_buffer",
        f"{DATA}params.seed",
        why="the order of a pass follows from the seed alone",
    ),
    unneeded(*(f"{ZERO}{name}" for name in ZERO_TRAFFIC), why="FSDP2 decides when and how much is sent"),
    unneeded(f"{ZERO}offload_optimizer.pin_memory", f"{ZERO}offload_param.pin_memory", why="nothing is offloaded"),
    approximated(
        f"{ZERO}stage3_gather_16bit_weights_on_model_save",
        "",
        "`worldsmith export RUN` writes whole weights",
        but=(False,),
    ),
    unneeded(
        f"{DS}steps_per_print",
        f"{DS}wall_clock_breakdown",
        f"{DS}zero_allow_untested_optimizer",
        why="trainer.logging_iter and the run's page tell the pace",
    ),
    unneeded(
        *(
            f"{DS}activation_checkpointing.{name}"
            for name in ("partition_activations", "contiguous_memory_optimization", "cpu_checkpointing")
        ),
        why="recomputed activations stay where they are",
    ),
    refused(
        f"{DS}scheduler", why="args has the schedule", way_out=f"~{DS}scheduler, and {ARGS}lr_decay_style", but=(None,)
    ),
    unneeded(
        *(f"{where}{name}" for where in (f"{DS}optimizer.", OPTIMIZER) for name in ("torch_adam", "adam_w_mode")),
        why="AdamW is torch's, with decoupled decay",
    ),
    *(dead(f"{DS}{name}", "DeepSpeed looks for it below fp16 only") for name in LOSS_SCALE),
)
