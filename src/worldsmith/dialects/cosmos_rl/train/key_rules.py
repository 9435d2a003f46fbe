"""Format of a training spec of Cosmos-RL or TAO: the rules of its keys, except those of model, data and steps."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

from worldsmith.dialects.cosmos_rl.rules import BOUNDS, PIXELS, RESIZED, drop_overridden, refuse_remote_output
from worldsmith.dialects.cosmos_rl.train.model import adapters, learning_rates, trained_model, trained_weights
from worldsmith.dialects.cosmos_rl.train.sources import TRAIN, data_sets, put_token_limits
from worldsmith.dialects.cosmos_rl.train.spec import TrainSpec
from worldsmith.dialects.cosmos_rl.train.steps import steps_of_the_run
from worldsmith.dialects.translation import SpecForm, SpecTranslation, computed, format_value, read_key_rules, renamed

OUTPUT, RESULTS, TIMESTAMP, RESUME = "train.output_dir", "results_dir", "train.timestamp", "train.resume"
PROJECT, GROUP, EXPERIMENT = (f"logging.{name}_name" for name in ("project", "group", "experiment"))
VISION = "custom.vision"
FALLBACK = {"fps": 1.0, "max_pixels": 81_920}
"""Default video settings of the data script of TAO and Cosmos-Reason1: name -> value."""
LOADERS = ("dataloader_train", "dataloader_val")
FRAMES = ("fps", "nframes", *BOUNDS, *PIXELS, *RESIZED)


@computed("train.train_policy.type")
def training_type(t: SpecTranslation) -> None:
    """Reports in `t` that the training type is supervised fine-tuning; warns if the spec omits the type."""
    key = "train.train_policy.type"
    if t.get(key) == "sft":
        t.report(key, "kept", "supervised fine-tuning, as in every run here")
    else:
        text = "it is omitted: sft is used; Cosmos-RL would use grpo if the table train_policy is missing"
        t.report(key, "approximated", text, warn=True)


@computed("policy.parallelism.tp_size")
def tensor_parallelism(t: SpecTranslation) -> None:
    """Adds a problem to `t` if the spec's tensor parallelism degree `tp_size` is greater than 1.

    If the spec omits the degree, 1 is used, and `t` gets a warning, since the default of Cosmos-RL is 2.
    """
    key, size = "policy.parallelism.tp_size", t.get("policy.parallelism.tp_size")
    if size > 1:
        shard = t.get("policy.parallelism.dp_shard_size")
        more = f"policy.parallelism.dp_shard_size={shard * size if shard > 0 else -1}"
        t.refuse(key, f"tensor parallelism is not supported, found {size}", f"{key}=1 {more}")
    elif t.is_stated(key):
        t.report(key, "kept", "unchanged")
    else:
        t.report(key, "approximated", "it is omitted: 1 is used; the default of Cosmos-RL is 2", warn=True)


@computed("train.fsdp_offload", "train.activation_offload")
def offload(t: SpecTranslation) -> None:
    """Adds a problem to `t` if the spec enables offloading of weights or activations to host RAM.

    The suggestion of the problem lists other settings that save GPU memory and that the spec does not use yet.
    """
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
    fix = "; ".join(word for word, is_open in others if is_open)
    for key, ours in (
        ("train.fsdp_offload", "parallelism.offload=all"),
        ("train.activation_offload", "activation_checkpointing.offload=true"),
    ):
        if t.get(key):
            why = "offloading to host RAM is not translated"
            t.refuse(key, why, f"{key}=false, with -- model.config.{ours} or, to save GPU memory without it: {fix}")
        else:
            t.report(key, "kept", "unchanged")


@computed("train.optm_grad_norm_clip")
def training_clipping(t: SpecTranslation) -> None:
    """Sets the max gradient norm in `t`; 0 or less in the spec disables clipping."""
    key, norm = "train.optm_grad_norm_clip", t.get("train.optm_grad_norm_clip")
    max_norm = norm if norm > 0 else 1e30
    never = "" if norm > 0 else ": it is measured, but has no limit"
    t.assign(key, "trainer.callbacks.grad_clip.clip_norm", max_norm, never)


@computed("train.seed", "train.deterministic")
def seeds(t: SpecTranslation) -> None:
    """Sets the seed in `t`, to 42 if the spec's seed is None or negative.

    If the spec sets `train.deterministic`, reports that GPU kernels are not made deterministic.
    """
    seed = t.get("train.seed")
    t.assign("train.seed", "trainer.seed", 42 if seed is None or seed < 0 else seed)
    if t.get("train.deterministic"):
        text = "all random numbers depend on the seed; GPU kernels are not made deterministic"
        t.report("train.deterministic", "approximated", text)
    else:
        t.report("train.deterministic", "kept", "unchanged")


@computed(OUTPUT, RESULTS, TIMESTAMP)
def run_folder(t: SpecTranslation) -> None:
    """Sets the folder of the runs in `t`.

    As in Cosmos-RL, each start creates a new run folder named after the start time.
    """
    output, results, name = (t.get(key).removeprefix("file://") for key in (OUTPUT, RESULTS, TIMESTAMP))
    output = output if t.is_stated(OUTPUT) else ""
    if refuse_remote_output(t, *([OUTPUT] if output else []), RESULTS):
        return
    folder = str(PurePath(results) / output) if output != results else output
    folder = "" if folder == "." else folder
    below = f"{folder or 'the output root/job.project/job.group'}/<time of the start>"
    if name:  # in Cosmos-RL, a timestamp means that output_dir already ends in it
        path = PurePath(folder) if folder else PurePath(name)
        folder, name = "" if str(path.parent) == "." else str(path.parent), path.name
        below = f"{folder or '.'}/{name}"
        t.assign(TIMESTAMP, "job.name", name, f": {OUTPUT} is the run folder itself")
    else:
        t.report_stated("kept", "the start time", TIMESTAMP)
    if folder:
        t.put("job.folder", folder, source=OUTPUT if output else RESULTS)
    where = f"job.folder = {format_value(folder)}; " if folder else ""
    t.report(OUTPUT, "renamed", f"{where}the run folder is in {below}")
    t.report_stated("renamed" if results else "unneeded", f"the run folder is in {below}", RESULTS)


@computed(RESUME)
def resume(t: SpecTranslation) -> None:
    """Translates `train.resume` in `t`.

    A path starts a new run from the training state at this path, true resumes the run that was saved last, and false
    starts a new run.
    """
    value = t.get(RESUME)
    if isinstance(value, str):
        t.put("checkpoint.load_path", value, source=RESUME)
        t.put("checkpoint.load_training_state", True, source=RESUME)
        text = (
            f"a new run that continues from checkpoint.load_path = {format_value(value)}, a run or checkpoint of "
            "Worldsmith; set the weights of a Cosmos-RL run as policy.model_safetensor_path"
        )
        t.report(RESUME, "approximated", text)
    elif value:
        t.assign(
            RESUME, "job.resume_newest", True, f": continues the run in {OUTPUT} that was saved last, in its folder"
        )
    else:
        t.report(RESUME, "kept", f"each start is a new run in a new folder; {RESUME}=true resumes the one saved last")


@computed(PROJECT, GROUP, EXPERIMENT)
def names(t: SpecTranslation) -> None:
    """Sets the run's project and group in `t` from the spec's names of project, group and experiment."""
    t.move(PROJECT, "job.project", "renamed")
    given = {key: t.get(key) for key in (GROUP, EXPERIMENT) if t.get(key) not in (None, "", "None")}
    if given:
        t.put("job.group", "/".join(given.values()), source=next(iter(given)))
    for key in (GROUP, EXPERIMENT):
        if key in given:
            t.report(
                key,
                "renamed",
                f"job.group = {format_value('/'.join(given.values()))}; it does not change the run name (job.name)",
            )
        elif t.is_stated(key):
            t.report(key, "unneeded", "the name is missing")


@computed("logging.logger")
def trackers(t: SpecTranslation) -> None:
    """Sets the mode of Weights & Biases in `t` from the spec's list of metric loggers."""
    logger = t.get("logging.logger")
    mode = "online" if "wandb" in logger else "disabled"
    rest = [name for name in logger if name != "wandb"]
    own = f"; {', '.join(rest)}: every run writes console output, metrics and a report" if rest else ""
    t.assign("logging.logger", "job.wandb_mode", mode, own)


@computed("policy.model_max_length")
def longest(t: SpecTranslation) -> None:
    """Sets the max tokens of a training sample in `t`, and of a packed batch (all samples of a mini-batch)."""
    source, mini = "policy.model_max_length", t.get("train.train_policy.mini_batch")
    longest = t.get(source)
    put_token_limits(t, "dataloader_train", mini, source)
    text = f"dataloader_train.max_sample_tokens = {longest}; longer samples are skipped, never truncated"
    if mini > 1:
        text += f"; a pack of {mini} samples may have {mini * longest} tokens, as in Cosmos-RL"
    t.report(source, "renamed", text)


@computed(VISION)
def video_settings(t: SpecTranslation) -> None:
    """Sets the frame sampling and pixel limits of videos in `t`, with the defaults of Cosmos-RL's data script."""
    given = {name: t.get(f"{VISION}.{name}") for name in FRAMES if t.get(f"{VISION}.{name}") is not None}
    for name in ("video_start", "video_end"):
        if t.get(f"{VISION}.{name}") is not None:
            why = "every video is used from its first frame to its last"
            t.refuse(f"{VISION}.{name}", why, "cut the clips beforehand")
    drop_overridden(t, f"{VISION}.", given, by_fps="nframes" not in given)
    if "fps" in given and "nframes" in given:
        why = "fps and nframes both set the number of frames"
        t.refuse(f"{VISION}.nframes", why, f"~{VISION}.nframes or ~{VISION}.fps")
        return
    put_frames(t, {"video_limits": "qwen_vl_utils"})
    script, default = default_frames(t)
    if not t.is_stated(VISION):
        put_frames(t, default)
        text = f"omitted: {format_value(default)}, as in the data script of {script}"
        t.report(VISION, "approximated", text, warn=True)
    elif "total_pixels" in default and not given.keys() & {"total_pixels", "resized_height"}:
        put_frames(t, {"total_pixels": default["total_pixels"]})
        text = f"omitted: dataloader_train.processor.media.total_pixels = {default['total_pixels']}, as in {script}"
        t.report(f"{VISION}.total_pixels", "approximated", text)
    elif "total_pixels" in default and "total_pixels" in given:
        text = f"kept, although {script} replaces it by {default['total_pixels'] // 2} (0.9 x model_max_length x 1024)"
        t.report(VISION, "approximated", text, warn=True)
    if "total_pixels" in given:
        given["total_pixels"] *= 2
    put_frames(t, given)
    for name, value in given.items():
        text = "; Cosmos-RL counts two frames as one, here every frame counts" if name == "total_pixels" else ""
        t.report(
            f"{VISION}.{name}", "renamed", f"dataloader_train.processor.media.{name} = {format_value(value)}{text}"
        )


def default_frames(t: SpecTranslation) -> tuple[str, dict[str, Any]]:
    """Returns the name of Cosmos-RL's data script for the spec's model, and its default video settings by name.

    The script of Cosmos-Reason2 also reads `custom.dataset`. It limits the pixels of a video instead of those of a
    frame: 0.9 x model_max_length tokens of 32 x 32 pixels in two frames.
    """
    name = t.get("policy.model_name_or_path") or ""
    if t.get(TRAIN) is None and is_reason2(name):
        return "Cosmos-Reason2", {"fps": 1.0, "total_pixels": 2 * int(t.get("policy.model_max_length") * 1024 * 0.9)}
    return "TAO and Cosmos-Reason1", FALLBACK


def is_reason2(name: str) -> bool:
    """Returns whether a model is Cosmos-Reason2 or Qwen3-VL.

    The model's config.json decides if `name` is a folder that contains one, else the name itself.
    """
    with suppress(OSError, ValueError, AttributeError):
        config = json.loads((Path(name) / "config.json").read_text(encoding="utf-8"))
        return str(config.get("model_type")).startswith("qwen3_vl")
    return re.search(r"reason-?2|qwen3-vl", name.rstrip("/").rpartition("/")[2].lower()) is not None


def put_frames(t: SpecTranslation, values: dict[str, Any]) -> None:
    """Sets video settings (name -> value) in `t` for the training data loader and, if enabled, for validation."""
    for loader in LOADERS if t.get("validation.enable") else LOADERS[:1]:
        for name, value in values.items():
            t.put(f"{loader}.processor.media.{name}", value, source=f"{VISION}.{name}")


@computed(
    *(f"train.train_policy.dataloader_{name}" for name in ("num_workers", "prefetch_factor")),
    *(f"validation.dataloader_{name}" for name in ("num_workers", "prefetch_factor")),
)
def loader_workers(t: SpecTranslation) -> None:
    """Sets the number of data loader workers and their prefetch factor in `t`, for training and validation."""
    for loader, above in zip(LOADERS, ("train.train_policy.", "validation.")):
        workers, ready = f"{above}dataloader_num_workers", f"{above}dataloader_prefetch_factor"
        t.move(workers, f"{loader}.num_workers", "renamed")
        if t.get(workers):
            t.move(ready, f"{loader}.prefetch_factor", "renamed")
        else:
            t.report_stated("dead", f"{workers} is 0: there are no loader workers", ready)


def choice_converter(**names: str) -> Any:
    """Returns a function that converts a spec value to a setting; `names` has the setting for each spec value.

    The function raises ValueError for a value that is not in `names`.
    """

    def read(value: str) -> str:
        if value not in names:
            raise ValueError(f"expected one of {', '.join(names)}, found {value}")
        return names[value]

    return read


to_dtype = choice_converter(float32="float32", bfloat16="bfloat16")
ALIASES = {
    "dp_shard_size": "policy.parallelism.dp_shard_size",
    "dp_replicate_size": "policy.parallelism.dp_replicate_size",
    "num_gpus": "policy.parallelism.dp_shard_size",  # gpu_spec_key
    "num_nodes": "policy.parallelism.dp_replicate_size",  # node_spec_key
    "num_epochs": "train.epoch",
    "batch_size": "train.train_batch_per_replica",
    "learning_rate": "train.optm_lr",
    "mini_batch": "train.train_policy.mini_batch",
}
"""Alias of a spec key -> dotted spec key."""
RL_RULES = read_key_rules("cosmos_rl", "reinforcement_learning")
FORM = SpecForm(
    "train",
    TrainSpec,
    (
        *(training_type, trained_model, data_sets, video_settings, longest, steps_of_the_run),
        *(adapters, trained_weights, run_folder, names, resume, seeds, learning_rates, training_clipping),
        *(offload, loader_workers, tensor_parallelism, trackers),
        renamed("train.optm_impl", "optimizer.fused", lambda name: "fused" in name),
        renamed("train.param_dtype", "model.config.precision", to_dtype),
        renamed("train.master_dtype", "model.config.parallelism.fsdp_master_dtype", to_dtype),
        renamed(
            "policy.model_gradient_checkpointing",
            "model.config.activation_checkpointing.mode",
            lambda on: "full" if on else "none",
        ),
        renamed(
            "train.fa_version",
            "model.config.policy.attn_implementation",
            lambda version: choice_converter(**{"2": "flash_attention_2"})(str(version)),
        ),
        renamed("train.ckpt.save_mode", "checkpoint.async_save", lambda mode: mode == "async"),
        renamed("train.ckpt.max_keep", "checkpoint.keep_latest_k", lambda count: None if count == -1 else count),
        *read_key_rules("cosmos_rl", "train"),
        *RL_RULES,
    ),
    aliases=ALIASES,
    free=("custom",),
)
