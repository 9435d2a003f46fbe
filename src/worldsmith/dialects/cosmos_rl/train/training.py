"""Table `train` of a training spec: optimizer, schedule, precision, checkpoints, data loading."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from worldsmith.config.declare.configurable import Config
from worldsmith.config.declare.ranges import Count, DecayRate, Factor, Length, NotNegative, Range, Share
from worldsmith.config.declare.search import Example, Popular, Search

Dtype = Literal["float32", "bfloat16", "float16"]
Rates = float | list[float] | dict[str, float]


class Fp8(Config):
    enable_fp8: bool = False
    """Compute in float8."""
    fp8_recipe: Literal["dynamic_scaling", "delayed_scaling"] = "dynamic_scaling"
    """Scaling recipe of float8."""
    quant_recipe: Literal["rowwise", "tensorwise"] = "rowwise"
    """Granularity of float8 scales."""


class Fp4(Config):
    enable_fp4: bool = False
    """Compute in FP4."""
    fp4_recipe: Literal["dynamic_scaling", "delayed_scaling"] = "dynamic_scaling"
    """Scaling recipe of FP4."""
    quant_recipe: Literal["rowwise", "tensorwise"] = "rowwise"
    """Granularity of FP4 scales."""


class Ckpt(Config):
    enable_checkpoint: Annotated[bool, Popular()] = False
    """Save checkpoints during training."""
    save_freq: NotNegative = 20
    """Checkpoint interval in steps."""
    save_freq_in_epoch: Annotated[NotNegative, Popular()] = 0
    """Checkpoint interval in epochs; above 0, it replaces save_freq."""
    save_mode: Literal["async", "sync"] = "async"
    """async: write checkpoints in the background; sync: block the training."""
    max_keep: Annotated[int, Range(ge=1, also=-1)] = 5
    """Number of checkpoints to keep; -1: all."""
    export_safetensors: bool = True
    """Write a Hugging Face folder with each save."""
    upload_hf: bool = False
    """Upload the result to the hub."""
    hf_repo_name: str = "Comos-Reason1"
    """Repository for upload_hf."""
    upload_s3: bool | Literal["final", "all"] = False
    """Upload checkpoints to an object store."""
    s3_bucket: str | None = None
    """Bucket for upload_s3."""
    s3_prefix: str = "outputs"
    """Folder in the bucket."""


class DatasetNames(Config):
    """Table of a training spec that names a dataset: a hub repository or a folder.

    If the spec's table `custom` names data files, these are read instead, and `name` is only the name of a cache.
    """

    name: str = ""
    """Hub repository, folder, or name of a cache."""
    subset: str | None = ""
    """Subset of the repository."""
    revision: str | None = ""
    """Revision of the repository."""
    split: str | list[str] = ""
    """Split of the dataset, or a list of splits."""
    test_size: float | int | None = None
    """Fraction or number of held-out records; 0: none."""
    local_dir: str = ""
    """Folder of the dataset."""


class TrainPolicy(Config):
    type_: Annotated[Literal["", "sft", "grpo"], Example("sft", required=True)] = ""
    """sft: supervised fine-tuning, the only supported type."""
    trainer_type: str = "sft"
    """Trainer for the training type."""
    dataset: DatasetNames = field(default_factory=DatasetNames)
    """The dataset, unless `custom` names files."""
    mini_batch: Annotated[Count, Popular()] = 2
    """Mini-batch size on each process."""
    dataloader_shuffle: bool = True
    """New random order in every epoch."""
    dataloader_seed: int = 0
    """Seed of the sample order."""
    dataloader_batch_size: Count | None = 1
    """Samples per loader batch."""
    enable_dataset_cache: bool = False
    """Cache processed samples on disk."""
    dataloader_num_workers: NotNegative = 0
    """Number of loader workers."""
    dataloader_prefetch_factor: Count | None = None
    """Samples that each worker prepares in advance."""
    dataloader_drop_last: bool = True
    """Drop the last incomplete step of an epoch."""
    data_dispatch_as_rank_in_mesh: bool = False
    """Distribute samples by the rank in the mesh."""
    conversation_column_name: str = "conversations"
    """Record key of the conversation."""
    system_prompt: str = ""
    """System prompt of every conversation."""
    balance_dp_token: bool = True
    """Weight each process's loss by its tokens."""
    enable_dp_load_balancing: bool = False
    """Build batches of samples with similar lengths."""
    load_balanced_pool_size: Count = 32
    """Number of samples from which balanced batches are selected."""
    load_balanced_max_tokens_for_batch: Count | None = None
    """Max tokens of a balanced batch."""
    load_balanced_batching_strategy: Literal["prefer_closest", "prefer_first"] = "prefer_closest"
    """Selection strategy of balanced batches."""
    load_balanced_batches_per_optimizer_step: Count = 1
    """Balanced batches per optimizer step."""
    dataloader_broadcast: bool = False
    """Load data on one process of a mesh and broadcast it to the others."""


class Training(Config):
    train_policy: TrainPolicy = field(default_factory=TrainPolicy)
    """Training type and data loading."""
    output_dir: str = "./outputs"
    """Folder of the results."""
    timestamp: str = ""
    """Subfolder of output_dir for this run."""
    epoch: Annotated[Count, Search(low=1, high=20, on=True), Popular()] = 1
    """Number of epochs."""
    max_num_steps: Annotated[Count | None, Example(1000)] = None
    """Max number of steps."""
    resume: bool | str = False
    """true: resume from the newest checkpoint; a path: resume from this checkpoint."""
    train_batch_per_replica: Annotated[Count, Search(choices=(8, 16, 32)), Popular()] = 8
    """Samples per step on EACH data-parallel process."""
    optm_name: Literal["AdamW", "Adam"] = "AdamW"
    """Optimizer."""
    optm_lr: Annotated[
        Rates,
        Search(low=5e-7, high=2e-5, log=True, when="policy.lora=null", on=True),
        Search(low=1e-5, high=5e-4, log=True, on=True),
        Popular(),
    ] = 1e-6
    """Learning rate; or a table of learning rates by module, with `global` for all others."""
    optm_impl: Literal["fused", "foreach", "for-loop"] | list[str] = "fused"
    """Optimizer implementation."""
    optm_weight_decay: Annotated[Factor, Search(low=0.0, high=0.1)] = 0.01
    """Decoupled weight decay."""
    optm_betas: Annotated[list[DecayRate], Length(2, 2)] = field(default_factory=lambda: [0.9, 0.999])
    """AdamW betas."""
    epsilon: Factor = 1e-6
    """AdamW's epsilon."""
    optm_warmup_steps: Annotated[int | float, Range(ge=0, finite=True)] = 20
    """Number of warm-up steps; a float up to 1.0 is a fraction of all steps."""
    optm_warmup_epochs: (
        Annotated[int | float, Range(ge=0, finite=True), Search(choices=(0, 0.05, 0.1), ratio_of="epoch")] | None
    ) = None
    """Number of warm-up epochs, instead of steps; a float up to 1.0 is a fraction of all steps."""
    optm_warmup_start_factor: Share = 0.0
    """Factor of the learning rate in the first warm-up step."""
    optm_decay_type: Annotated[
        Literal["sqrt", "cosine", "linear", "none"] | None,
        Search(choices=("linear", "sqrt", "cosine", "none"), weights=(0.1, 0.1, 0.4, 0.4), on=True),
    ] = None
    """Learning rate decay after the warm-up."""
    optm_decay_ratio: Share | None = None
    """Fraction of all steps with decay; before that the learning rate is constant."""
    optm_min_lr_factor: Factor = 0.0
    """Factor of the learning rate at the end of the decay."""
    optm_grad_norm_clip: float = 1.0
    """Max gradient norm; with 0 or less, the norm is only measured."""
    ema_enable: bool = False
    """Maintain EMA weights."""
    ema_decay: Share = 0.9999
    """EMA decay."""
    ema_update_step_interval: NotNegative = 0
    """Steps between EMA updates."""
    master_dtype: Dtype = "float32"
    """Number format of the weights between steps."""
    param_dtype: Dtype = "bfloat16"
    """Number format of the computation."""
    fsdp_reduce_dtype: Dtype = "float32"
    """Number format of gradient accumulation."""
    logprob_dtype: Dtype = "float32"
    """Reinforcement learning only."""
    transfer_dtype: Dtype | None = None
    """Reinforcement learning only."""
    fsdp_offload: bool = False
    """Keep weights in host RAM."""
    fsdp_reshard_after_forward: Literal["default", "always", "never", "true", "false"] | bool = "default"
    """Free all-gathered weights after the forward pass."""
    compile: Annotated[bool, Popular()] = True
    """torch.compile of the model."""
    async_tp_enabled: bool = False
    """Overlap the communication of tensor parallelism."""
    activation_offload: bool = False
    """Keep activations in host RAM."""
    fa_version: Literal[2, 3] | None = None
    """Version of flash attention."""
    deterministic: bool = False
    """Only deterministic kernels."""
    seed: int | None = None
    """Seed of all random numbers."""
    sequence_packing: bool = False
    """Pack all samples of a mini-batch into one sequence."""
    fp8: Fp8 = field(default_factory=Fp8)
    """8-bit computation."""
    fp4: Fp4 = field(default_factory=Fp4)
    """4-bit computation."""
    ckpt: Ckpt = field(default_factory=Ckpt)
    """Checkpoints."""
    local_dataset: bool | None = True
    """Each process reads the dataset itself."""
    force_use_hf: bool | None = False
    """Use the model class of transformers."""
    non_text: bool = False
    """The data contains no text."""
    save_ckpt_at_exit: bool = True
    """Save when a signal requests a stop."""
    signal_to_handle: list[str] = field(default_factory=lambda: ["SIGUSR1"])
    """Signals that request a stop."""
    sync_weight_interval: Count = 1
    """Reinforcement learning only."""
    prefetch_payloads: bool = False
    """Reinforcement learning only."""
    p2p_sync_pack_tensors: bool = False
    """Reinforcement learning only."""
    p2r_sync_groups_per_round: NotNegative = 0
    """Reinforcement learning only."""
    coalesce_weight_sync: bool = False
    """Reinforcement learning only."""
