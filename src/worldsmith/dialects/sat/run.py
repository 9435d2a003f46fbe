"""Reads the SAT stack of a training as the draft of a run config, based on one recipe: the rules of its keys."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from worldsmith.config.errors import ConfigError, Place, Problem
from worldsmith.config.recipes.registry import get_recipe, lineage, recipe_task
from worldsmith.config.tree.config_draft import Draft
from worldsmith.dialects.sat import RECIPE, model
from worldsmith.dialects.sat.data import clips, count_clips, encoders, model_frames, move_path, train_data, valid_data
from worldsmith.dialects.sat.keys import ARGS, DS, LORA, LOSS_SCALE, NETWORK, OPTIMIZER, OVERRIDDEN_ARGS
from worldsmith.dialects.sat.model import CHECKPOINTED
from worldsmith.dialects.sat.stack import SatStack, read_stack
from worldsmith.dialects.translation import (
    KeyRule,
    SpecTranslation,
    computed,
    format_report,
    format_value,
    read_key_rules,
    renamed,
    translate,
)

STEPS, EPOCHS = f"{ARGS}train_iters", f"{ARGS}epochs"
MICRO, ACCUMULATED, GLOBAL_BATCH = (
    f"{DS}{name}" for name in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
)
ZERO = f"{DS}zero_optimization."
WARM_STEPS = 100
"""Number of first steps of a SAT fine-tuning that have 5 % of the learning rate."""
EMA = "sat.ops.FusedEmaAdam"
RATES = {True: (5e-5, 2e-3), False: (1e-6, 5e-5)}
"""Whether adapters are trained -> min and max of usual learning rates."""
SAMPLES = "the files are for generating videos: expected finetune or pretrain, found inference"


@computed(STEPS, EPOCHS, f"{ARGS}lr_decay_style", f"{ARGS}lr_decay_ratio", f"{ARGS}warmup", f"{ARGS}lr_decay_iters")
def steps(t: SpecTranslation) -> None:
    """Sets the number of steps in `t`, which SAT states as iterations or epochs, and the learning rate schedule."""
    if t.get(STEPS) and t.get(EPOCHS):
        t.refuse(EPOCHS, f"{STEPS} and {EPOCHS} both set the length", f"~{EPOCHS}")
        return
    total = steps_of_epochs(t) if t.get(EPOCHS) else t.get(STEPS) or 10000
    if total:
        t.put("trainer.max_iter", total, source=EPOCHS if t.get(EPOCHS) else STEPS)
        t.report(STEPS, "renamed", f"trainer.max_iter = {total}", warn=not t.is_stated(STEPS) and not t.get(EPOCHS))
        put_schedule(t, total)


def steps_of_epochs(t: SpecTranslation) -> int:
    """Returns the number of steps of a run whose length the SAT config states in epochs; reports it in `t`.

    The number is epochs x clips // clips per step. It is 0, after a problem is added, if it is less than 1 or the
    clips cannot be counted.
    """
    micro, accumulated, global_batch = batch_sizes(t)
    clips, size = sum(count_clips(path) for path in t.get(f"{ARGS}train_data")), global_batch or micro * accumulated
    total: int = t.get(EPOCHS) * clips // size
    if not total:
        why = f"the datasets in {ARGS}train_data have {clips} clips, too few for steps of {size} clips"
        t.refuse(EPOCHS, why, f"~{EPOCHS} {STEPS}=EPOCHS x CLIPS / (BATCH x PROCESSES)")
        return 0
    more = "" if global_batch else f", on one process; for more processes write {GLOBAL_BATCH}"
    text = f"trainer.max_iter = {total}: {clips} clips, {size} per step{more}"
    t.report(EPOCHS, "approximated", text, warn=True)
    return total


def put_schedule(t: SpecTranslation, total: int) -> None:
    """Sets SAT's learning rate schedule for `total` steps in `t`.

    Fine-tuning begins with 100 steps at 5 % of the learning rate. Then the learning rate decays; a linear decay ends
    at the fraction `args.warmup` of the learning rate, a cosine decay at `args.lr_decay_ratio`.
    """
    style, warm = t.get(f"{ARGS}lr_decay_style"), t.get(f"{ARGS}warmup") * total
    if style not in ("linear", "cosine", "constant", "exponential"):
        t.refuse(f"{ARGS}lr_decay_style", f"unknown style '{style}'", "write linear, cosine or constant")
        return
    if t.get(f"{ARGS}lr_decay_iters") not in (None, total):
        t.refuse(f"{ARGS}lr_decay_iters", "the learning rate decays until the last step", f"~{ARGS}lr_decay_iters")
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
    text = (
        f"5 % of the learning rate for {first} steps, then {style} to {floor:g}" if first else f"{style} to {floor:g}"
    )
    short = not rest  # then the rate never leaves 5 %
    t.report(f"{ARGS}lr_decay_style", "renamed" if exact else "approximated", f"scheduler: {text}", warn=short)
    t.report(f"{ARGS}warmup", "renamed" if exact else "approximated", f"{warm:g} steps")
    t.report(
        f"{ARGS}lr_decay_ratio",
        "renamed" if style == "cosine" else "unneeded",
        f"the final factor of a cosine decay: {floor:g}",
    )
    t.report(f"{ARGS}lr_decay_iters", "unneeded", "the learning rate decays until the last step")


@computed(f"{ARGS}mode", f"{ARGS}load", f"{ARGS}force_train", f"{ARGS}no_load_rng")
def start(t: SpecTranslation) -> None:
    """Reports the training mode in `t` and sets the path of the weights to load from SAT's `args.load`.

    Adds a problem for the mode "inference", and for "pretrain" with weights. Warns if no weights are named.
    """
    mode, load = t.get(f"{ARGS}mode"), t.get(f"{ARGS}load")
    if mode == "inference":
        t.refuse(f"{ARGS}mode", "samples are generated by `worldsmith generate`", f"{ARGS}mode=finetune")
    elif mode == "pretrain" and load:
        why = "a SAT checkpoint has no optimizer state, so a run cannot resume from it"
        t.refuse(f"{ARGS}mode", why, f"{ARGS}mode=finetune; a run of Worldsmith resumes with the same command")
    else:
        t.report(f"{ARGS}mode", "kept", "weights are loaded and the steps start at 0")
    if not load:
        t.report(
            f"{ARGS}load",
            "approximated",
            "it is omitted: the run starts from the weights that the recipe names",
            warn=True,
        )
    else:
        move_path(t, f"{ARGS}load", "checkpoint.load_path")
    text = "all weights that the transformer needs must exist; SAT ignored missing ones"
    t.report(f"{ARGS}force_train", "approximated" if t.get(f"{ARGS}force_train") else "kept", text)
    t.report(f"{ARGS}no_load_rng", "unneeded", "fine-tuning starts with new random states")


@computed(MICRO, ACCUMULATED, GLOBAL_BATCH)
def batch(t: SpecTranslation) -> None:
    """Sets the micro-batch size, gradient accumulation and, for a global batch size, the number of processes in `t`."""
    micro, accumulated, global_batch = batch_sizes(t)
    t.assign(MICRO, "dataloader_train.max_samples_per_batch", micro, ", on each process")
    t.assign(ACCUMULATED, "trainer.grad_accum_iter", accumulated)
    if global_batch is None:
        t.report(GLOBAL_BATCH, "unneeded", "micro-batch x accumulation x processes")
        return
    if global_batch % (micro * accumulated):
        why = f"{global_batch} is not a multiple of {micro} samples x {accumulated} accumulation steps"
        t.refuse(GLOBAL_BATCH, why, f"{GLOBAL_BATCH}={micro * accumulated}, or a multiple for more processes")
        return
    world = global_batch // (micro * accumulated)
    note = f": {global_batch} / {micro} / {accumulated}"
    t.assign(GLOBAL_BATCH, "model.config.parallelism.data_parallel_shard_degree", world, note)


def batch_sizes(t: SpecTranslation) -> tuple[int, int, int | None]:
    """Returns (samples per micro-batch, micro-batches per step, global batch size or None if it is not stated)."""
    micro, accumulated, global_batch = (
        None if t.get(key) == "auto" else t.get(key) for key in (MICRO, ACCUMULATED, GLOBAL_BATCH)
    )
    return micro or t.get(f"{ARGS}batch_size"), accumulated or 1, global_batch


@computed(f"{ZERO}stage", f"{ZERO}cpu_offload", f"{ZERO}offload_optimizer.device", f"{ZERO}offload_param.device")
def zero_sharding(t: SpecTranslation) -> None:
    """Sets the data-parallel degrees in `t` for ZeRO stage 0; other stages keep the default, sharding over all ranks.

    Adds a problem for offloading to host RAM.
    """
    stage, key = t.get(f"{ZERO}stage"), f"{ZERO}stage"
    degrees = "model.config.parallelism.data_parallel_"
    if stage == 0:
        t.put(f"{degrees}shard_degree", 1, source=key)
        t.put(f"{degrees}replicate_degree", -1, source=key)
        t.report(key, "renamed", f"{degrees}shard_degree = 1, replicate_degree = -1: every process has all weights")
    else:
        why = {
            1: "gradients and weights are also sharded among the processes: less memory, more communication",
            2: "weights are also sharded, and all-gathered for each layer: less memory, more communication",
            3: "weights are all-gathered for each layer and freed after the forward pass",
        }[stage]
        t.report(
            key, "renamed" if stage == 3 else "approximated", f"{degrees}shard_degree over all processes (FSDP2); {why}"
        )
    for key in (f"{ZERO}cpu_offload", f"{ZERO}offload_optimizer.device", f"{ZERO}offload_param.device"):
        if t.get(key) not in (False, None, "none"):
            why = "offloading to host RAM is not translated"
            t.refuse(key, why, f"~{key}; model.config.parallelism.offload=all keeps weights and optimizer state there")
        else:
            t.report(key, "kept", "unchanged")


@computed(f"{ARGS}checkpoint_activations", CHECKPOINTED)
def recomputation(t: SpecTranslation) -> None:
    """Sets gradient checkpointing in `t` from SAT's `checkpoint_activations`."""
    inner, outer = t.get(CHECKPOINTED), t.get(f"{ARGS}checkpoint_activations")
    mode = "full" if inner else "none"
    t.put("model.config.activation_checkpointing.mode", mode, source=CHECKPOINTED)
    t.report(CHECKPOINTED, "renamed", f"model.config.activation_checkpointing.mode = {mode}")
    text = "transformer_args.checkpoint_activations decides, as in SAT"
    t.report(f"{ARGS}checkpoint_activations", "kept" if inner == outer else "approximated", text, warn=inner != outer)


@computed(*(f"{ARGS}{name}" for name in OVERRIDDEN_ARGS))
def overridden_args(t: SpecTranslation) -> None:
    """Reports in `t` the keys of SAT's section `args` that a key of its section `deepspeed` overrides."""
    for name, (_, _, other) in OVERRIDDEN_ARGS.items():
        key = f"{ARGS}{name}"
        differs = t.is_stated(key) and t.get(key) != t.get(f"{DS}{other}")
        if t.is_stated(key) and (t.is_stated(f"{DS}{other}") or name != "batch_size"):
            t.report(key, "dead", f"{DS}{other} replaces it, as in SAT", warn=differs)
        else:
            t.report(key, "unneeded", f"{DS}{other} sets it")


@computed(f"{ARGS}wandb")
def tracker(t: SpecTranslation) -> None:
    """Sets the mode of Weights & Biases in `t` from SAT's `wandb`."""
    mode = "online" if t.get(f"{ARGS}wandb") else "disabled"
    t.put("job.wandb_mode", mode, source=f"{ARGS}wandb")
    t.report(f"{ARGS}wandb", "renamed", f"job.wandb_mode = {mode}")


@computed(f"{DS}bf16.enabled", f"{DS}fp16.enabled")
def precision(t: SpecTranslation) -> None:
    """Sets the precision of the model in `t` from DeepSpeed's bf16 and fp16."""
    bf16, fp16 = f"{DS}bf16.enabled", f"{DS}fp16.enabled"
    if t.get(bf16) and t.get(fp16):
        t.refuse(fp16, "bf16 and fp16 are both enabled", f"{fp16}=false")
        return
    key, other = (fp16, bf16) if t.get(fp16) else (bf16, fp16)
    ours = "float32" if not t.get(key) else "float16" if key == fp16 else "bfloat16"
    t.put("model.config.precision", ours, source=key)
    model, usual = ("2B", "float16") if t.get(f"{NETWORK}num_layers") == 30 else ("5B", "bfloat16")
    is_unusual = ours not in (usual, "float32")
    note = f"; CogVideoX-{model} was trained in {usual}" if is_unusual else ""
    t.report(key, "renamed", f"model.config.precision = {ours}{note}", warn=is_unusual)
    t.report(other, "kept", "off")


@computed(*(f"{DS}fp16.{name}" for name in LOSS_SCALE))
def loss_scale(t: SpecTranslation) -> None:
    """Sets the loss scale for float16 in `t` from DeepSpeed's settings, including their defaults."""
    power, static, window, hysteresis, min_scale = (f"{DS}fp16.{name}" for name in LOSS_SCALE)
    if not t.get(f"{DS}fp16.enabled"):
        for key in (power, static, window, hysteresis, min_scale):
            t.report(key, "unneeded", "only float16 uses a loss scale")
        return
    fixed = t.get(static)
    first, after = fixed or 2.0 ** t.get(power), None if fixed else t.get(window)
    t.put("trainer.loss_scale.init_scale", first, source=static if fixed else power)
    t.put("trainer.loss_scale.growth_interval", after, source=static if fixed else window)
    text = f"trainer.loss_scale.init_scale = {first:g}, growth_interval = {format_value(after)}"
    t.report(static, "renamed", text if fixed else "0: the scale adapts to overflows")
    t.report(power, "unneeded" if fixed else "renamed", "loss_scale sets it" if fixed else text)
    t.report(window, "unneeded" if fixed else "renamed", "the scale is constant" if fixed else text)
    for key, why in ((hysteresis, "every overflow halves the scale"), (min_scale, "the scale has no lower limit")):
        t.report(key, "unneeded" if fixed else "approximated", "the scale is constant" if fixed else why)


@computed(
    f"{DS}optimizer.type", f"{OPTIMIZER}ema_decay", f"{OPTIMIZER}lr", f"{OPTIMIZER}weight_decay", f"{OPTIMIZER}betas"
)
def optimizer(t: SpecTranslation) -> None:
    """Sets the optimizer in `t` with its EMA, learning rate, betas and weight decay."""
    kind, key = t.get(f"{DS}optimizer.type") or "", f"{DS}optimizer.type"
    if kind not in (EMA, "Adam", "AdamW"):
        t.refuse(key, f"'{kind}' is not available" if kind else "the value is missing", f"{key}={EMA}, Adam or AdamW")
        return
    t.put("model.config.ema.enabled", kind == EMA, source=key)
    t.report(
        key, "renamed", f"AdamW, with decoupled weight decay; model.config.ema.enabled = {str(kind == EMA).lower()}"
    )
    if kind == EMA:
        t.move(f"{OPTIMIZER}ema_decay", "model.config.ema.max_decay", "renamed")
    else:
        t.report(f"{OPTIMIZER}ema_decay", "unneeded", "there are no EMA weights")
    adapted, rate = bool(t.get(LORA.rstrip("."))), t.get(f"{OPTIMIZER}lr")
    low, high = RATES[adapted]
    is_unusual = not low <= rate <= high
    t.put("optimizer.lr", rate, source=f"{OPTIMIZER}lr")
    note = f"; usual values are {low:g} to {high:g} {'with' if adapted else 'without'} adapters" if is_unusual else ""
    t.report(f"{OPTIMIZER}lr", "renamed", f"optimizer.lr = {rate:g}{note}", warn=is_unusual)
    t.move(f"{OPTIMIZER}betas", "optimizer.betas", "renamed")
    decay = t.get(f"{OPTIMIZER}weight_decay")
    t.put("optimizer.weight_decay", decay, source=f"{OPTIMIZER}weight_decay")
    t.put("optimizer.decay_vectors", False, source=f"{OPTIMIZER}weight_decay")
    text = f"optimizer.weight_decay = {decay:g}, decay_vectors = false: no weight decay for biases and norm weights"
    t.report(f"{OPTIMIZER}weight_decay", "renamed", text)


@computed(f"{DS}gradient_clipping")
def clipping(t: SpecTranslation) -> None:
    """Sets the max gradient norm in `t`; 0 in the SAT config disables clipping."""
    key, norm = f"{DS}gradient_clipping", t.get(f"{DS}gradient_clipping")
    max_norm = norm if isinstance(norm, float | int) and norm > 0 else 1e30
    t.put("trainer.callbacks.grad_clip.clip_norm", max_norm, source=key)
    t.report(
        key,
        "renamed",
        f"trainer.callbacks.grad_clip.clip_norm = {max_norm:g}{'' if max_norm < 1e30 else ': never reached'}",
    )


RULES: tuple[KeyRule, ...] = (
    *model.RULES,
    *(model_frames, clips, train_data, valid_data, steps, start, encoders, batch, zero_sharding, precision, loss_scale),
    *(optimizer, recomputation, overridden_args, tracker, clipping),
    renamed(
        f"{ARGS}eval_iters", "trainer.max_val_iter", lambda count: count or None, why="no videos are generated with it"
    ),
    *read_key_rules("sat", "training"),
)
"""Rules of the SAT config of a training run."""


def read_sat_draft(files: Sequence[str], words: Sequence[str] = ()) -> Draft:
    """Translates the config files of a SAT training run to a run config.

    Args:
        files: YAML files; later ones override earlier ones.
        words: Overrides of SAT's keys.

    Returns:
        The config before references are resolved, with source positions, warnings and the translation report. If
        the files have mistakes, they are in `problems` and `tree` is None.

    Raises:
        ConfigError: If a file cannot be read, or the files are for sampling only.
    """
    translation = translate_sat(files, words)
    spec = translation.spec
    draft = Draft(spec.source, recipes=lambda: lineage(RECIPE), place=Place(spec.source))
    tree = translation.apply_to(_add_validation(get_recipe(RECIPE), translation.data), draft.places)
    draft.report = format_report(translation)
    draft.problems = translation.problems
    if not draft.problems:
        draft.tree, draft.task = tree, recipe_task(tree)
    overridden = _list_overridden(spec) if isinstance(spec, SatStack) else []
    draft.warnings = [*overridden, *translation.get_warnings(), _describe_memory(tree)]
    return draft


def translate_sat(files: Sequence[str], words: Sequence[str] = ()) -> SpecTranslation:
    """Translates the config files of a SAT training run; mistakes are in `problems` of the result.

    Args:
        files: YAML files; later ones override earlier ones.
        words: Overrides of SAT's keys.

    Raises:
        ConfigError: If a file cannot be read, or the files are for sampling only.
    """
    spec = read_stack(files, words, RULES)
    if spec.get("args.mode") == "inference":
        fix = f"worldsmith generate --spec {' '.join(files)}"
        raise ConfigError([Problem("args.mode", SAMPLES, hint=fix, place=spec.place("args.mode"))])
    return translate(spec)


def _add_validation(below: Any, data: dict[str, Any]) -> Any:
    """Returns the recipe config `below`, to which validation settings are added if `data` has validation data.

    Validation data has the settings of the training data, unless `data` sets them.

    Args:
        below: Config of the recipe, which is returned; gets a validation data loader if `data` has validation data.
        data: Translated settings; their validation data is completed in place.
    """
    if "dataloader_val" in data:
        below.dataloader_val = copy.deepcopy(below.dataloader_train)
        below.dataloader_val.shuffle = False
        training = data.get("dataloader_train", {})
        own = data["dataloader_val"]["dataset"]
        dataset = {**training.get("dataset", {}), "cfg_dropout_rate": 0.0, **own}
        data["dataloader_val"] = {**training, "dataset": dataset}
    return below


def _describe_memory(tree: Any) -> str:
    """Returns a sentence with the GiB that weights, gradients, optimizer state and EMA of a run config need."""
    model = tree.model.config
    count = model.count_parameters()
    each = 4 if model.lora_enabled else 20 if model.ema.enabled else 16
    what = (
        "frozen weights"
        if each == 4
        else f"weights, gradients{', optimizer state and EMA' if each == 20 else ' and optimizer state'}"
    )
    return (
        f"the transformer has {count} parameters: {what} need {count * each / 2**30:.1f} GiB, sharded over all "
        "processes"
    )


def _list_overridden(spec: SatStack) -> list[str]:
    """Returns warnings for values of files that the command line overrides; in SAT, files have priority."""
    note = "the command line has precedence here; SAT would have used the file's value"
    return [
        f"{key} = {format_value(spec.values.get(key))}, not {format_value(old)}: {note}"
        for key, old in spec.overridden.items()
    ]
