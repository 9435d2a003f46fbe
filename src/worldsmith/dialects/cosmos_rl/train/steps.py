"""Batches, epochs and steps of a training spec: batch size, number of steps, schedule, intervals in steps."""

from __future__ import annotations

import os
from dataclasses import dataclass

from worldsmith.config.errors import Problem
from worldsmith.config.tree.paths import parse_path
from worldsmith.dialects.cosmos_rl.train.sources import count_records
from worldsmith.dialects.translation import ReportLine, SpecTranslation, computed

BATCH, MINI = "train.train_batch_per_replica", "train.train_policy.mini_batch"
EPOCH, MOST = "train.epoch", "train.max_num_steps"
LAST = "train.train_policy.dataloader_drop_last"
SHARD, REPLICATE, CONTEXT = (f"policy.parallelism.{name}" for name in ("dp_shard_size", "dp_replicate_size", "cp_size"))
DATA = "dataloader_train.dataset.path"
SHAPES = {"linear": "LambdaLinear", "cosine": "LambdaCosine", "sqrt": "LambdaSqrt"}
WARM_UP, WARM_UP_EPOCHS = "train.optm_warmup_steps", "train.optm_warmup_epochs"
SHAPE, RATIO = "train.optm_decay_type", "train.optm_decay_ratio"
START, END = "train.optm_warmup_start_factor", "train.optm_min_lr_factor"
UNKNOWN = "the steps of an epoch are samples / (train_batch_per_replica x data-parallel ranks), rounded down"


@dataclass(frozen=True, slots=True)
class Steps:
    """Number of steps of a run.

    `total`: steps of the run. `per_epoch`: steps of one epoch; None if the samples cannot be counted.
    """

    total: int
    per_epoch: int | None

    def of_epochs(self, t: SpecTranslation, key: str, epochs: int) -> int | None:
        """Returns the number of steps of `epochs` epochs.

        If the steps of an epoch are not known, adds a problem for the spec key `key` to `t` and returns None.
        """
        if self.per_epoch is None:
            t.refuse(key, "epochs cannot be converted to steps: the samples cannot be counted", "use steps instead")
            return None
        return epochs * self.per_epoch


def steps_per_epoch(samples: int, ranks: int, batch: int, *, drop_last: bool) -> int:
    """Returns the number of steps of one epoch as Cosmos-RL counts them.

    Every rank gets the same number of samples: samples of the same epoch are repeated as padding.

    Args:
        samples: Number of samples of the dataset.
        ranks: Number of data-parallel ranks.
        batch: Samples per step on each rank.
        drop_last: Drop the last incomplete step instead of running it.
    """
    each = -(-samples // ranks)
    return each // batch if drop_last else -(-each // batch)


@computed(
    *(BATCH, MINI, EPOCH, MOST, LAST),
    *(f"train.optm_{name}" for name in ("warmup_steps", "warmup_epochs", "warmup_start_factor", "decay_type")),
    *("train.optm_decay_ratio", "train.optm_min_lr_factor"),
    *(f"train.ckpt.{name}" for name in ("enable_checkpoint", "save_freq", "save_freq_in_epoch")),
    *("validation.freq", "validation.freq_in_epoch"),
)
def steps_of_the_run(t: SpecTranslation) -> None:
    """Sets batch size, number of steps, schedule, and the intervals of checkpoints and validation in `t`."""
    processes = data_processes(t)
    t.report(LAST, "kept", f"the number of steps of an epoch is rounded {'down' if t.get(LAST) else 'up'}")
    put_batch(t, processes)
    steps = count_steps(t, processes)
    if steps is None:
        return
    put_schedule(t, steps)
    put_saves(t, steps)
    put_validations(t, steps)


def data_processes(t: SpecTranslation) -> int:
    """Returns the number of data-parallel ranks that the spec in `t` requests.

    With a shard degree of -1 it is WORLD_SIZE (environment variable) divided by the context-parallel degree, and at
    least the replicate degree.
    """
    shard, replicate, context = t.get(SHARD), t.get(REPLICATE), t.get(CONTEXT)
    if shard != -1:
        return int(shard * replicate)
    world = os.environ.get("WORLD_SIZE", "")
    return max(int(replicate), int(world) // int(context) if world.isdigit() else 1)


def put_batch(t: SpecTranslation, processes: int) -> None:
    """Sets samples per pack and gradient accumulation in `t` from the spec's batch size and mini-batch size.

    Args:
        t: The translation, modified in place.
        processes: Number of data-parallel ranks, for the report.
    """
    batch, mini = t.get(BATCH), t.get(MINI)
    if batch % mini:
        fitting = max(n for n in range(1, min(batch, mini) + 1) if batch % n == 0)
        larger = -(-batch // mini) * mini
        fix = f"{MINI}={fitting} (the same step in parts of {fitting} samples), or {BATCH}={larger}"
        why = f"a step of {batch} samples cannot be divided into mini-batches of {mini}"
        t.refuse(MINI if t.is_stated(MINI) and not t.is_stated(BATCH) else BATCH, why, fix)
        return
    packs = batch // mini
    t.assign(MINI, "dataloader_train.max_samples_per_batch", mini)
    each = f"{batch} samples per step on each of {processes} processes, {batch * processes} in total"
    t.assign(
        BATCH, "trainer.grad_accum_iter", packs, f" packs of {mini}; {each}, although the key is named per replica"
    )


def count_steps(t: SpecTranslation, ranks: int) -> Steps | None:
    """Sets the number of steps of the run and returns it.

    Args:
        t: The translation, modified in place.
        ranks: Number of data-parallel ranks.

    Returns:
        Steps of the run and of an epoch; None, with a problem, if the run's steps are unknown or an epoch has none.
    """
    epochs, most = t.get(EPOCH), t.get(MOST)
    if not t.data.get("dataloader_train", {}).get("dataset", {}).get("path"):
        return Steps(most, None) if most else None  # the missing data has been reported
    try:
        _, samples = count_records(t.data["dataloader_train"]["dataset"])
    except (ValueError, OSError) as error:
        if most is None:
            refuse_uncounted(t, str(error))
            return None
        t.report(EPOCH, "approximated", f"not compared with {MOST}, since the samples cannot be counted: {error}")
        t.assign(MOST, "trainer.max_iter", most)
        return Steps(most, None)
    batch, drop_last = t.get(BATCH), t.get(LAST)
    per_epoch = steps_per_epoch(samples, ranks, batch, drop_last=drop_last)
    if not per_epoch:
        refuse_empty_epoch(t, samples, ranks)
        return None
    total, whole = epochs * per_epoch, samples == per_epoch * batch * ranks
    rest = "" if whole else f", rounded {'down' if drop_last else 'up'} in each epoch"
    text = f"{epochs} epochs of {per_epoch} steps: {samples} samples, {batch} per step on each of {ranks} ranks{rest}"
    if most is not None and most < total:
        t.report(EPOCH, "approximated", f"{text}, which would be {total} steps; {MOST} ends the run earlier")
        t.assign(MOST, "trainer.max_iter", most)
        return Steps(most, per_epoch)
    if most is not None:
        t.report(MOST, "unneeded", f"the epochs end after {total} steps")
    note = "" if whole else "; the data continues where the last step ended, so no sample is skipped"
    t.assign(EPOCH, "trainer.max_iter", total, f"; {text}{note}")
    return Steps(total, per_epoch)


def refuse_uncounted(t: SpecTranslation, error: str) -> None:
    """Adds a problem to `t`: the samples cannot be counted because of `error`, so epochs have no number of steps."""
    key, text = t.sources[parse_path(DATA)], f"the samples of an epoch cannot be counted: {error}"
    t.lines.append(ReportLine(EPOCH, "refused", text, t.is_stated(EPOCH)))
    fix = f"{key}=PATH with existing data, or {MOST}=N; {UNKNOWN}"
    t.problems.append(Problem(key, text, hint=fix, place=t.spec.place(key)))


def refuse_empty_epoch(t: SpecTranslation, samples: int, ranks: int) -> None:
    """Adds a problem to `t`: a rank has fewer of the `samples` than one step requires.

    Cosmos-RL would fail when it saves its first checkpoint.
    """
    mini, each = t.get(MINI), -(-samples // ranks)
    fits = each // mini * mini or each
    why = f"{samples} samples on {ranks} ranks are {each} per rank, fewer than the {t.get(BATCH)} of one step"
    t.refuse(BATCH, why, f"{BATCH}={fits}{f' {MINI}={fits}' if fits < mini else ''}")


def put_schedule(t: SpecTranslation, steps: Steps) -> None:
    """Sets the learning rate schedule in `t`: warm-up, constant phase, decay to the last step of the run.

    The warm-up reaches factor 1 in its last step. The constant phase is a separate cycle of the multi-cycle
    scheduler; it ends with factor 1.
    """
    total, shape = steps.total, t.get(SHAPE)
    warm_up = warm_up_steps(t, total)
    decay = total - warm_up
    if t.get(RATIO) is not None:
        decay = min(decay, round(total * t.get(RATIO)))
    if shape in (None, "none"):
        decay = 0
    start, end = float(t.get(START)), float(t.get(END))
    ramp = max(0, warm_up - 1)
    cycles = [(total - decay, ramp, start, 1.0, 1.0), (decay, 0, 1.0, 1.0, end)]
    found = [cycle for cycle in cycles if cycle[0]]
    names = ("cycle_lengths", "warm_up_steps", "f_start", "f_max", "f_min")
    t.put("scheduler.type", SHAPES.get(shape, "LambdaLinear"), source=SHAPE)
    sources = (SHAPE, WARM_UP_EPOCHS if t.get(WARM_UP_EPOCHS) is not None else WARM_UP, START, SHAPE, END)
    for name, values, source in zip(names, zip(*found), sources):
        t.put(f"scheduler.{name}", list(values), source=source)
    t.report(SHAPE, "renamed", f"{SHAPES.get(shape, 'no decay')} over {decay} of {total} steps")
    t.report(START, "renamed", f"scheduler.f_start = {start}")
    t.report(END, "renamed", f"scheduler.f_min = {end}" if decay else "no decay, so it has no effect")
    if t.get(RATIO) is not None:
        t.report(RATIO, "renamed", f"scheduler.cycle_lengths: the last {decay} steps")


def warm_up_steps(t: SpecTranslation, total: int) -> int:
    """Returns the number of warm-up steps that the spec requests, at most `total`, and reports it in `t`.

    Warm-up epochs have total // epochs steps each, as in TAO's fork. A float up to 1.0 is a fraction of the run.
    """
    key, requested = (
        (WARM_UP, t.get(WARM_UP)) if t.get(WARM_UP_EPOCHS) is None else (WARM_UP_EPOCHS, t.get(WARM_UP_EPOCHS))
    )
    each, whole = 1, total
    if key == WARM_UP_EPOCHS:
        each = total // t.get("train.epoch")
        whole = each * t.get("train.epoch")
        t.report_stated("dead", f"{WARM_UP_EPOCHS} replaces it", WARM_UP)
    is_fraction = isinstance(requested, float) and requested <= 1
    found = int(requested * (whole if is_fraction else each))
    t.report(
        key, "renamed", f"a warm-up of {min(found, total)} steps{f'; {found} would exceed the run' * (found > total)}"
    )
    return min(found, total)


def put_saves(t: SpecTranslation, steps: Steps) -> None:
    """Sets the checkpoint interval in `t`, in steps; `steps` converts an interval in epochs."""
    enable, key, in_epochs = (f"train.ckpt.{name}" for name in ("enable_checkpoint", "save_freq", "save_freq_in_epoch"))
    if not t.get(enable):
        note = ": the end of a run is always saved"
        t.assign(enable, "checkpoint.save_iter", steps.total, note, outcome="approximated")
        t.report_stated("unneeded", f"{enable} is false", key, in_epochs)
        return
    t.report(enable, "kept", "runs always save here")
    put_interval(t, steps, key, in_epochs, "checkpoint.save_iter")


def put_validations(t: SpecTranslation, steps: Steps) -> None:
    """Sets the validation interval in `t`, in steps; `steps` converts an interval in epochs."""
    if t.get("validation.enable"):
        put_interval(t, steps, "validation.freq", "validation.freq_in_epoch", "trainer.validation_iter")
    else:
        t.report_stated("unneeded", "validation.enable is false", "validation.freq", "validation.freq_in_epoch")


def put_interval(t: SpecTranslation, steps: Steps, key: str, in_epochs: str, to: str) -> None:
    """Sets an interval in steps from a spec key in epochs if it is above 0, else from a key in steps.

    Args:
        t: The translation, modified in place.
        steps: Number of steps of the run and of an epoch.
        key: Spec key of the interval in steps.
        in_epochs: Spec key of the interval in epochs.
        to: Dotted path of the setting.
    """
    epochs, every = t.get(in_epochs), t.get(key)
    if epochs:
        found = steps.of_epochs(t, in_epochs, epochs)
        if found is not None:
            t.assign(in_epochs, to, found, f", the steps of {epochs} epochs")
        t.report_stated("dead", f"{in_epochs} replaces it", key)
    elif every == 0:
        t.refuse(key, f"the interval is 0 steps, and {in_epochs} is also 0", f"{key}=20, or {in_epochs}=1")
    else:
        t.assign(key, to, every)
        t.report_stated("unneeded", f"{key} sets it in steps", in_epochs)
