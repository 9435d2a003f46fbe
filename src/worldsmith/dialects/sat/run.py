"""What becomes of the sections `data`, `args` and `deepspeed`: data, steps, learning rates, checkpoints, memory."""

from __future__ import annotations

import os
import re

from worldsmith.data.clips.clip_records import ClipRecord, find_file, line_records
from worldsmith.data.stream.errors import DataError
from worldsmith.dialects.sat.keys import ARGS, DATA, DS, NETWORK, TEXT, TWINS, VAE
from worldsmith.dialects.sat.model import CHECKPOINTED, NET
from worldsmith.dialects.sat.targets import FOLDER
from worldsmith.dialects.translation import SpecTranslation, computed

DATASET = "dataloader_train.dataset."
SIZE, FRAMES = f"{DATA}params.video_size", f"{DATA}params.max_num_frames"
RATE, SKIPPED = f"{DATA}params.fps", f"{DATA}params.skip_frms_num"
STEPS, EPOCHS = f"{ARGS}train_iters", f"{ARGS}epochs"
MICRO, ACCUMULATED, WHOLE = (
    f"{DS}{name}" for name in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
)
ZERO = f"{DS}zero_optimization."
HUB = re.compile(r"[\w.-]+/[\w.-]+")
WARM_STEPS = 100
"""Steps that a fine-tuning of SAT begins with at 5 % of its rate."""


@computed(f"{DATA}target", SIZE, f"{DATA}params.image_size", FRAMES, f"{DATA}params.num_frames", RATE, SKIPPED)
def clips(t: SpecTranslation) -> None:
    folder = t.get(f"{DATA}target") == FOLDER
    size, frames = (SIZE, FRAMES) if folder else (f"{DATA}params.image_size", f"{DATA}params.num_frames")
    for mine, other in ((SIZE, f"{DATA}params.image_size"), (FRAMES, f"{DATA}params.num_frames")):
        wrong = other if folder else mine
        if t.is_stated(wrong):
            t.refuse(wrong, f"{t.get(f'{DATA}target')} has no such setting", f"~{wrong}")
        else:
            t.say(wrong, "unneeded", "it is of the other kind of data set")
    t.say(
        f"{DATA}target",
        "renamed",
        "dataloader_train.dataset: clips with captions, listed by `worldsmith dataset import`",
    )
    for key in (size, frames):
        if t.get(key) is None:
            t.refuse(key, "no value is given", f"{key}=VALUE")
            return
    put_size(t, size)
    count = t.get(frames)
    if (count - 1) % t.get(f"{NETWORK}time_compressed_rate"):
        t.refuse(
            frames,
            f"{count} is not 1 more than a multiple of the VAE's {t.get(f'{NETWORK}time_compressed_rate')}",
            f"{frames}=49",
        )
        return
    t.move(frames, f"{DATASET}num_video_frames", "renamed")
    t.put(f"{DATASET}min_frames", count, source=frames)
    put_rate(t, folder)


def put_rate(t: SpecTranslation, folder: bool) -> None:
    """SAT's two data sets have rules of their own for which frames of a clip are used."""
    rate, skipped = t.get(RATE), t.get(SKIPPED)
    t.put(f"{DATASET}target_fps", float(rate), source=RATE)
    t.put(f"{DATASET}temporal_interval_mode", "sat" if folder else "target_fps", source=f"{DATA}target")
    if folder:
        why = "whole distances rounded down, as there, so that a clip may be faster (30 frames a second become 10)"
        t.say(RATE, "renamed", f"{DATASET}target_fps = {rate:g}, temporal_interval_mode = sat: {why}")
    else:
        t.put(f"{DATASET}frame_selection_mode", "random", source=f"{DATA}target")
        t.say(RATE, "renamed", f"{DATASET}target_fps = {rate:g}, temporal_interval_mode = target_fps, from anywhere")
    t.put(f"{DATASET}skip_frames", int(skipped), source=SKIPPED)
    short = "; where SAT would repeat a clip's last frame, fewer are skipped, or it is left out" if folder else ""
    t.say(SKIPPED, "approximated" if short else "renamed", f"{DATASET}skip_frames = {int(skipped)}{short}")


def put_size(t: SpecTranslation, key: str) -> None:
    size = t.get(key)
    if len(size) != 2:
        t.refuse(key, f"expected [height, width], found {size}", f"{key}=[480,720]")
        return
    wanted = [t.get(f"{NETWORK}latent_{side}") * 8 for side in ("height", "width")]
    sliced = isinstance(t.get(f"{NETWORK}patch_size"), list)
    if any(side % 16 for side in size):
        t.refuse(
            key,
            f"height and width must be multiples of 16, found {size}",
            f"{key}={[side // 16 * 16 for side in size]}",
        )
    elif not sliced and size != wanted:
        t.refuse(
            key, f"latents are {wanted[0] // 8} x {wanted[1] // 8}, which is {wanted}, found {size}", f"{key}={wanted}"
        )
    else:
        height, width = size
        t.put(f"{DATASET}resolution", f"{width}x{height}", source=key)
        t.say(key, "renamed", f"{DATASET}resolution = '{width}x{height}'")


@computed(f"{NETWORK}num_frames")
def model_frames(t: SpecTranslation) -> None:
    key, frames = f"{NETWORK}num_frames", t.get(f"{NETWORK}num_frames")
    count = t.get(FRAMES) or t.get(f"{DATA}params.num_frames")
    t.put(f"{NET}sample_frames", frames, source=key)
    differs = count not in (None, frames)
    note = f"; clips have {count} frames and the model was made for {frames}" if differs else ""
    t.say(key, "renamed", f"{NET}sample_frames = {frames}{note}", loud=bool(note))


@computed(f"{ARGS}train_data", f"{ARGS}train_data_weights")
def train_data(t: SpecTranslation) -> None:
    key, folders = f"{ARGS}train_data", t.get(f"{ARGS}train_data")
    if len(folders) != 1:
        t.refuse(key, f"a run reads one data set, found {len(folders)}", "put them into one with `worldsmith dataset`")
        return
    if is_missing(folders[0]):
        t.refuse(key, f"there is no '{folders[0]}'", f"{key}=[PATH]")
        return
    if os.path.isdir(os.path.join(folders[0], "labels")):
        why = f"'{folders[0]}' is a folder for SAT, with videos/ and labels/"
        t.refuse(key, why, f"worldsmith dataset import {folders[0]} -o DIR, and {key}=[DIR]")
        return
    t.put(f"{DATASET}path", folders[0], source=key)
    t.say(key, "renamed", f"{DATASET}path = {folders[0]}")
    weights = t.get(f"{ARGS}train_data_weights")
    if weights not in (None, [1], [1.0]):
        t.refuse(f"{ARGS}train_data_weights", "there is one data set", f"~{ARGS}train_data_weights")
    else:
        t.say(f"{ARGS}train_data_weights", "unneeded", "there is one data set")


@computed(f"{ARGS}valid_data", f"{ARGS}split", f"{ARGS}eval_interval")
def valid_data(t: SpecTranslation) -> None:
    key, every, folders = f"{ARGS}valid_data", f"{ARGS}eval_interval", t.get(f"{ARGS}valid_data")
    t.put("trainer.run_validation", bool(folders and t.get(every)), source=key)
    if folders and len(folders) != 1:
        t.refuse(key, f"a run reads one data set, found {len(folders)}", f"{key}=[PATH]")
    elif folders:
        t.put("dataloader_val.dataset.path", folders[0], source=key)
        t.say(key, "renamed", f"dataloader_val.dataset.path = {folders[0]}")
        t.say(f"{ARGS}split", "unneeded", "valid_data says what is held out")
    else:
        t.say(key, "unneeded", "there is no validation")
        held = [part.strip() for part in re.split("[,/]", t.get(f"{ARGS}split"))][1:]
        if t.is_stated(f"{ARGS}split") and any(part not in ("0", "0.0") for part in held):
            t.refuse(f"{ARGS}split", "nothing is held out of the training data", f"{ARGS}split=1,0,0, and {key}=[PATH]")
        else:
            t.say(f"{ARGS}split", "approximated" if not t.is_stated(f"{ARGS}split") else "kept", "nothing is held out")
    t.move(every, "trainer.validation_iter", "renamed")


@computed(STEPS, EPOCHS, f"{ARGS}lr_decay_style", f"{ARGS}lr_decay_ratio", f"{ARGS}warmup", f"{ARGS}lr_decay_iters")
def steps(t: SpecTranslation) -> None:
    if t.get(STEPS) and t.get(EPOCHS):
        t.refuse(EPOCHS, f"{STEPS} and {EPOCHS} both say how long it is", f"~{EPOCHS}")
        return
    total = steps_of_passes(t) if t.get(EPOCHS) else t.get(STEPS) or 10000
    if total:
        t.put("trainer.max_iter", total, source=EPOCHS if t.get(EPOCHS) else STEPS)
        t.say(STEPS, "renamed", f"trainer.max_iter = {total}", loud=not t.is_stated(STEPS) and not t.get(EPOCHS))
        put_schedule(t, total)


def steps_of_passes(t: SpecTranslation) -> int:
    """Passes x clips / those of a step; 0, and a mistake, where they cannot be counted."""
    micro, accumulated, whole = batch_of(t)
    clips, size = sum(count_clips(path) for path in t.get(f"{ARGS}train_data")), whole or micro * accumulated
    total: int = t.get(EPOCHS) * clips // size
    if not total:
        why = f"there are {clips} clips in the lists of {ARGS}train_data, and {size} in a step"
        t.refuse(EPOCHS, why, f"~{EPOCHS} {STEPS}=PASSES x CLIPS / (BATCH x PROCESSES)")
        return 0
    more = "" if whole else f", on one process; for more of them write {WHOLE}"
    text = f"trainer.max_iter = {total}: {clips} clips, {size} in a step{more}"
    t.say(EPOCHS, "approximated", text, loud=True)
    return total


def count_clips(path: str) -> int:
    """Windows of the usable records of a data set; 0 if its list is not found or cannot be read."""
    try:
        records = line_records(find_file(path))
        return sum(len(record.facts["t2w_windows"]) for record in records if isinstance(record, ClipRecord))
    except DataError:
        return 0


def put_schedule(t: SpecTranslation, total: int) -> None:
    """SAT's factors: 5 % for 100 steps of a fine-tuning, then down a line, w = warmup x steps, to w / steps."""
    style, warm = t.get(f"{ARGS}lr_decay_style"), t.get(f"{ARGS}warmup") * total
    if style not in ("linear", "cosine", "constant", "exponential"):
        t.refuse(f"{ARGS}lr_decay_style", f"there is no '{style}'", "write linear, cosine or constant")
        return
    if t.get(f"{ARGS}lr_decay_iters") not in (None, total):
        t.refuse(f"{ARGS}lr_decay_iters", "the rate falls until the last step", f"~{ARGS}lr_decay_iters")
        return
    first = min(total, WARM_STEPS) if t.get(f"{ARGS}mode") == "finetune" else 0
    rest, ramp = total - first, max(0, round(warm) - first)
    floor = {"linear": warm / total, "cosine": t.get(f"{ARGS}lr_decay_ratio")}.get(style, 1.0)
    top = 1.0 if ramp or style != "linear" else min(1.0, (rest + warm) / total)
    end = max(0.0, floor - 1 / total) if style == "linear" and first else floor  # one step after the last
    cycles = [(rest + bool(first), ramp, first / warm if ramp else top, top, end)] if rest else []
    if first:  # a cycle has the step on which it ends
        cycles = [(first - bool(rest), 0, 0.05, 0.05, 0.05), *cycles]
    t.put("scheduler.type", "LambdaCosine" if style == "cosine" else "LambdaLinear", source=f"{ARGS}lr_decay_style")
    for name, values in zip(("cycle_lengths", "warm_up_steps", "f_start", "f_max", "f_min"), zip(*cycles)):
        t.put(f"scheduler.{name}", list(values), source=f"{ARGS}lr_decay_style")
    exact = style == "linear" and first and total <= 2000
    text = f"5 % of the rate for {first} steps, then {style} to {floor:g}" if first else f"{style} to {floor:g}"
    short = not rest  # then the rate never leaves 5 %
    t.say(f"{ARGS}lr_decay_style", "renamed" if exact else "approximated", f"scheduler: {text}", loud=short)
    t.say(f"{ARGS}warmup", "renamed" if exact else "approximated", f"{warm:g} steps")
    t.say(f"{ARGS}lr_decay_ratio", "renamed" if style == "cosine" else "unneeded", f"the end of a cosine: {floor:g}")
    t.say(f"{ARGS}lr_decay_iters", "unneeded", "the rate falls until the last step")


@computed(f"{ARGS}mode", f"{ARGS}load", f"{ARGS}force_train", f"{ARGS}no_load_rng")
def start(t: SpecTranslation) -> None:
    mode, load = t.get(f"{ARGS}mode"), t.get(f"{ARGS}load")
    if mode == "inference":
        t.refuse(f"{ARGS}mode", "samples are drawn by `worldsmith generate`", f"{ARGS}mode=finetune")
    elif mode == "pretrain" and load:
        why = "a checkpoint of SAT has no optimizer, so a run cannot go on from it"
        t.refuse(f"{ARGS}mode", why, f"{ARGS}mode=finetune; a run of this program goes on by the same command")
    else:
        t.say(f"{ARGS}mode", "kept", "weights are loaded and the steps begin at 0")
    if not load:
        t.say(
            f"{ARGS}load",
            "approximated",
            "it is left out: a run starts from the weights that the recipe names",
            loud=True,
        )
    elif is_missing(load):
        t.refuse(f"{ARGS}load", f"there is no '{load}'", f"{ARGS}load=PATH")
    else:
        t.move(f"{ARGS}load", "checkpoint.load_path", "renamed")
    text = "weights that the transformer needs must all be there; there, missing ones were let pass"
    t.say(f"{ARGS}force_train", "approximated" if t.get(f"{ARGS}force_train") else "kept", text)
    t.say(f"{ARGS}no_load_rng", "unneeded", "a fine-tuning starts with draws of its own")


@computed(f"{VAE}params.ckpt_path", f"{TEXT}params.model_dir")
def encoders(t: SpecTranslation) -> None:
    key, path = f"{VAE}params.ckpt_path", t.get(f"{VAE}params.ckpt_path")
    if not path:
        t.refuse(key, "no value is given", f"{key}=PATH")
    elif is_missing(path):
        t.refuse(key, f"there is no '{path}'", f"{key}=zai-org/CogVideoX-2b, or a diffusers folder with vae/")
    else:
        t.move(key, "model.config.tokenizer.vae_path", "renamed")
    key, path = f"{TEXT}params.model_dir", t.get(f"{TEXT}params.model_dir")
    if is_missing(path):
        t.refuse(key, f"there is no '{path}'", f"{key}=google/t5-v1_1-xxl, or a folder with the encoder")
    else:
        t.move(key, "model.config.text_encoder.path", "renamed")


def is_missing(place: str) -> bool:
    """A path that is not there; a name of the hub is none."""
    return not os.path.exists(place) and not (HUB.fullmatch(place) and not place.startswith("."))


@computed(MICRO, ACCUMULATED, WHOLE)
def batch(t: SpecTranslation) -> None:
    micro, accumulated, whole = batch_of(t)
    t.put("dataloader_train.max_samples_per_batch", micro, source=MICRO)
    t.say(MICRO, "renamed", f"dataloader_train.max_samples_per_batch = {micro}, on each process")
    t.put("trainer.grad_accum_iter", accumulated, source=ACCUMULATED)
    t.say(ACCUMULATED, "renamed", f"trainer.grad_accum_iter = {accumulated}")
    if whole is None:
        t.say(WHOLE, "unneeded", "micro-batch x accumulation x processes")
        return
    if whole % (micro * accumulated):
        why = f"{whole} is no multiple of {micro} samples x {accumulated} passes"
        t.refuse(WHOLE, why, f"{WHOLE}={micro * accumulated}, or a multiple for more processes")
        return
    world = whole // (micro * accumulated)
    t.put("model.config.parallelism.data_parallel_shard_degree", world, source=WHOLE)
    t.say(
        WHOLE,
        "renamed",
        f"model.config.parallelism.data_parallel_shard_degree = {world}: {whole} / {micro} / {accumulated}",
    )


def batch_of(t: SpecTranslation) -> tuple[int, int, int | None]:
    """Samples of a micro-batch, micro-batches of a step, and samples of a step on all processes if they are said."""
    micro, accumulated, whole = (None if t.get(key) == "auto" else t.get(key) for key in (MICRO, ACCUMULATED, WHOLE))
    return micro or t.get(f"{ARGS}batch_size"), accumulated or 1, whole


@computed(f"{ZERO}stage", f"{ZERO}cpu_offload", f"{ZERO}offload_optimizer.device", f"{ZERO}offload_param.device")
def sharding(t: SpecTranslation) -> None:
    stage, key = t.get(f"{ZERO}stage"), f"{ZERO}stage"
    degrees = "model.config.parallelism.data_parallel_"
    if stage == 0:
        t.put(f"{degrees}shard_degree", 1, source=key)
        t.put(f"{degrees}replicate_degree", -1, source=key)
        t.say(key, "renamed", f"{degrees}shard_degree = 1, replicate_degree = -1: every process has all weights")
    else:
        why = {
            1: "gradients and weights are cut among the processes too: less memory, more traffic",
            2: "weights are cut too, and gathered for each layer: less memory, more traffic",
            3: "weights are gathered for each layer and let go after the forward pass",
        }[stage]
        t.say(
            key, "renamed" if stage == 3 else "approximated", f"{degrees}shard_degree over all processes (FSDP2); {why}"
        )
    asked = [f"{ZERO}cpu_offload"] if t.get(f"{ZERO}cpu_offload") else []
    asked += [
        k for k in (f"{ZERO}offload_optimizer.device", f"{ZERO}offload_param.device") if t.get(k) not in (None, "none")
    ]
    for key in (f"{ZERO}cpu_offload", f"{ZERO}offload_optimizer.device", f"{ZERO}offload_param.device"):
        if key in asked:
            t.refuse(
                key, "nothing is kept in main memory between its uses here", f"~{key}; more processes take less each"
            )
        else:
            t.say(key, "kept", "as it is here")


@computed(f"{ARGS}checkpoint_activations", CHECKPOINTED)
def recomputation(t: SpecTranslation) -> None:
    inner, outer = t.get(CHECKPOINTED), t.get(f"{ARGS}checkpoint_activations")
    mode = "full" if inner else "none"
    t.put("model.config.activation_checkpointing.mode", mode, source=CHECKPOINTED)
    t.say(CHECKPOINTED, "renamed", f"model.config.activation_checkpointing.mode = {mode}")
    text = "transformer_args.checkpoint_activations decides, as there"
    t.say(f"{ARGS}checkpoint_activations", "kept" if inner == outer else "approximated", text, loud=inner != outer)


@computed(*(f"{ARGS}{name}" for name in TWINS))
def twins(t: SpecTranslation) -> None:
    for name, (_, _, other) in TWINS.items():
        key = f"{ARGS}{name}"
        differs = t.is_stated(key) and t.get(key) != t.get(f"{DS}{other}")
        if t.is_stated(key) and (t.is_stated(f"{DS}{other}") or name != "batch_size"):
            t.say(key, "dead", f"{DS}{other} takes its place, there as here", loud=differs)
        else:
            t.say(key, "unneeded", f"{DS}{other} says it")


@computed(f"{ARGS}wandb")
def tracker(t: SpecTranslation) -> None:
    mode = "online" if t.get(f"{ARGS}wandb") else "disabled"
    t.put("job.wandb_mode", mode, source=f"{ARGS}wandb")
    t.say(f"{ARGS}wandb", "renamed", f"job.wandb_mode = {mode}")
