"""The training spec of Cosmos-RL and TAO: nested tables with their names, types and defaults."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from worldsmith.config.declare.configurable import Config
from worldsmith.config.declare.ranges import Count, DropoutRate, Factor, NotNegative, PositiveFactor, Range
from worldsmith.config.declare.search import Example, Popular, Search
from worldsmith.dialects.cosmos_rl.train.training import DatasetNames, Training

Degree = Annotated[int, Range(ge=1, also=-1)]


class Parallelism(Config):
    n_init_replicas: Count = 1
    """Number of replicas of the complete run."""
    tp_size: Count = 1
    """Degree of tensor parallelism, which is not supported; the default in Cosmos-RL is 2."""
    cp_size: Count = 1
    """Degree of context parallelism."""
    ep_size: Count = 1
    """Degree of expert parallelism."""
    dp_shard_size: Annotated[Degree, Popular()] = 1
    """Sharding (FSDP) degree; -1: all remaining processes."""
    dp_replicate_size: Annotated[Count, Popular()] = 1
    """Number of replicas of the sharded groups."""
    pp_size: Count = 1
    """Degree of pipeline parallelism."""
    pp_dynamic_shape: bool = False
    """Dynamic tensor shapes in pipeline parallelism."""
    pp_micro_batch_size: Count = 1
    """Micro-batch size of pipeline parallelism."""
    pp_schedule: Literal["1F1B", "GPipe", "Interleaved1F1B"] = "Interleaved1F1B"
    """Schedule of pipeline parallelism."""
    pp_layers_per_stage: Count = 2
    """Layers per stage of pipeline parallelism."""


class Lora(Config):
    r: Annotated[Count, Search(low=4, high=256, power_of_two=True, on=True), Popular()] = 8
    """LoRA rank."""
    lora_alpha: Annotated[Factor, Search(choices=(1, 2, 4), ratio_of="policy.lora.r", on=True), Popular()] = 8.0
    """LoRA alpha: adapters are scaled by lora_alpha / r."""
    lora_dropout: Annotated[DropoutRate, Search(low=0.0, high=0.1, on=True)] = 0.0
    """Fraction of the adapters' input elements that dropout sets to zero in training."""
    target_modules: list[str] | str | None = None
    """Layers that get an adapter, or all-linear."""
    modules_to_save: list[str] | None = None
    """Modules that are fully trained."""
    use_rslora: bool = False
    """Scale adapters by lora_alpha / sqrt(r) instead (rsLoRA)."""
    init_lora_weights: bool | str = True
    """Initialization of the adapters."""
    alpha_pattern: dict[str, float] | None = None
    """LoRA alphas that differ from lora_alpha, by module name."""
    r_pattern: dict[str, int] | None = None
    """LoRA ranks that differ from r, by module name."""
    lora_names: list[str] = field(default_factory=lambda: ["default"])
    """Names of the adapters."""
    lora_path: str | None = None
    """Adapters to start from."""
    primary_adapter: str | None = None
    """Adapter that is trained."""


class Policy(Config):
    model_name_or_path: Annotated[str, Example("hf_model://nvidia/Cosmos-Reason2-8B"), Popular()] = (
        "Qwen/Qwen2.5-VL-7B-Instruct"
    )
    """The model: hub name, hf_model://org/name, or folder."""
    model_safetensor_path: str | None = None
    """Weights that replace the model's own."""
    model_revision: str | None = None
    """Revision of the hub repository."""
    model_max_length: Annotated[Count, Example(40960), Popular()] = 4096
    """Max tokens of a sample."""
    model_gradient_checkpointing: bool = True
    """Gradient checkpointing."""
    is_diffusers: bool = False
    """Whether the model is a generator, not a reasoner."""
    parallelism: Parallelism = field(default_factory=Parallelism)
    """Parallelism degrees."""
    lora: Lora | None = None
    """LoRA adapters; without this table all weights are trained."""
    freeze_pattern: list[str] | None = None
    """Regular expressions: matching parameters are frozen."""
    trainable_pattern: list[str] | None = None
    """Regular expressions: parameters that match none are frozen."""
    trainable_map: dict[str, bool] | None = None
    """Whether a module is trained, by module name."""
    enable_liger_kernel: bool = False
    """Use the kernels of Liger Kernel."""
    enable_liger_cross_entropy: bool = False
    """Use the cross entropy of Liger Kernel."""
    enable_liger_fused_cross_entropy: bool = False
    """Use the fused cross entropy of Liger Kernel."""
    aux_loss_coeff: Factor = 0.0
    """Weight of the loss that balances experts."""


class ValidationTable(Config):
    enable: Annotated[bool, Popular()] = False
    """Measure the loss on held-out data."""
    val_before_train: bool = False
    """Also validate before the first step."""
    freq: Count = 20
    """Validation interval in steps."""
    freq_in_epoch: NotNegative = 0
    """Validation interval in epochs; replaces freq if above 0."""
    batch_size: Count | None = None
    """Validation batch size."""
    dataset: DatasetNames = field(default_factory=DatasetNames)
    """The dataset, unless `custom` names files."""
    dataloader_num_workers: NotNegative = 0
    """Number of loader workers."""
    dataloader_prefetch_factor: Count | None = None
    """Samples that each worker prepares in advance."""
    enable_dataset_cache: bool = False
    """Cache processed samples on disk."""


class Logging(Config):
    logger: list[str] = field(default_factory=list)
    """Metric loggers: console, wandb, tao."""
    level: str | None = None
    """Log level."""
    log_interval: Count = 100
    """Steps between log lines."""
    multi_modal_log_interval: Count | None = None
    """Steps between logged samples."""
    project_name: str = "cosmos_rl"
    """First level of the run name."""
    group_name: str | None = None
    """Second level of the run name."""
    experiment_name: str | None = None
    """Last level of the run name."""
    report_mfu: bool = False
    """Log GPU utilization."""
    wandb_run_id: str | None = None
    """Tracker run to resume."""
    wandb_run_name: str | None = None
    """Name of the run in Weights & Biases."""
    wandb_resume: Literal["allow", "must", "never", "auto"] | None = "allow"
    """Whether wandb_run_id may or must exist."""


class SubProfiler(Config):
    do_profile: bool = False
    """Enable profiling."""
    active_steps: NotNegative = 1
    """Number of recorded steps."""
    warmup_steps: NotNegative = 1
    """Warm-up steps before recording."""
    wait_steps: NotNegative = 1
    """Skipped steps before the warm-up."""
    rank_filter: list[int] = field(default_factory=list)
    """Processes that record."""
    record_shape: bool = False
    """Record tensor shapes."""
    profile_memory: bool = False
    """Record memory use."""
    with_stack: bool = False
    """Record source lines."""
    with_modules: bool = False
    """Record modules."""


class ProfilerTable(Config):
    enable_profiler: bool = False
    """Record durations of operations."""
    enable_nsys: bool = False
    """Profile with Nsight."""
    sub_profiler_config: SubProfiler = field(default_factory=SubProfiler)
    """Settings of the profiler."""


class DataFiles(Config):
    annotation_path: Annotated[str, Popular()] = ""
    """A list of records with conversations, or the folder of annotations.json."""
    media_path: Annotated[str, Popular()] = ""
    """Folder that images and videos are relative to, or its archive; "": the folder of the annotations."""
    media_root: str = ""
    """Media folder; newer name of media_path."""
    path: str = ""
    """Instead of annotations: a folder written by `save_to_disk` of the datasets library."""
    dataset_root: str = ""
    """Instead of annotations: a folder with a manifest."""
    meta_file: str = "meta.json"
    """File name of the manifest in dataset_root."""
    system_prompt: str | None = None
    """System prompt of every conversation."""
    response_mode: Literal["", "answer"] = ""
    """Part of a record on which the loss is computed."""


class Vision(Config):
    fps: Annotated[PositiveFactor, Search(choices=(1, 2, 3), when="nframes=null", on=True), Popular()] | None = None
    """Sampled frames per second of video. Cannot be combined with nframes."""
    nframes: Annotated[Count, Search(choices=(4, 8, 16), when="fps=null"), Popular()] | None = None
    """Number of frames sampled from every video."""
    min_frames: Count | None = None
    """Min sampled frames with fps."""
    max_frames: Count | None = None
    """Max sampled frames with fps."""
    video_start: float | None = None
    """Start time of a clip, in seconds."""
    video_end: float | None = None
    """End time of a clip, in seconds."""
    min_pixels: Count | None = None
    """Min pixels of a frame."""
    max_pixels: Count | None = None
    """Max pixels of a frame."""
    total_pixels: Annotated[Count, Popular()] | None = None
    """Max pixels of a video."""
    resized_height: Count | None = None
    """Height of every frame."""
    resized_width: Count | None = None
    """Width of every frame."""


class Custom(Config):
    train_dataset: Annotated[
        DataFiles | None, Example({"annotation_path": "data/train/annotations.json"}, required=True)
    ] = None
    """The training data."""
    val_dataset: DataFiles | None = None
    """The validation data."""
    dataset: DataFiles | None = None
    """The training data under its older name."""
    system_prompt: Annotated[str | None, Popular()] = None
    """System prompt of every training and validation conversation."""
    vision: Vision = field(default_factory=Vision)
    """Frame sampling and sizes of images and videos."""


class TrainSpec(Config):
    """Training spec of Cosmos-RL and TAO; an omitted key has the default of Cosmos-RL."""

    train: Training = field(default_factory=Training)
    """Optimizer, schedule, precision, checkpoints."""
    policy: Policy = field(default_factory=Policy)
    """The model and how it is trained."""
    validation: ValidationTable = field(default_factory=ValidationTable)
    """Validation on held-out data."""
    logging: Logging = field(default_factory=Logging)
    """Names of the run, and metric loggers."""
    custom_: Custom = field(default_factory=Custom)
    """Data files, and frame sampling of videos."""
    profiler: ProfilerTable = field(default_factory=ProfilerTable)
    """Profiling."""
    results_dir: str = ""
    """Folder of the results."""
    custom_script: str = ""
    """Code that builds the dataset."""
    redis: str = ""
    """Port of the controller's store."""
    eth_ips: str = ""
    """Addresses of the machines."""
    mode: Literal["disaggregated", "colocated", "colocated_separated"] = "disaggregated"
    """Reinforcement learning only."""
    controller_execution_id: str | None = None
    """Number of the attempt."""
