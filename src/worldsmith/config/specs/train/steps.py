"""Batches, passes and steps of a training spec: what a step is, how many there are, and what happens after how many."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from worldsmith.config.specs.form import computed
from worldsmith.config.specs.train.counters import count_samples
from worldsmith.config.specs.train.schedule import put_schedule
from worldsmith.config.specs.translation import Translation

BATCH, MINI = "train.train_batch_per_replica", "train.train_policy.mini_batch"
EPOCH, MOST = "train.epoch", "train.max_num_steps"
LAST = "train.train_policy.dataloader_drop_last"
SHARD, REPLICATE, CONTEXT = (f"policy.parallelism.{name}" for name in ("dp_shard_size", "dp_replicate_size", "cp_size"))
UNKNOWN = "steps = epochs x samples / (train_batch_per_replica x data-parallel processes)"


@dataclass(frozen=True, slots=True)
class Steps:
    """`per_pass`: steps of one pass over the data, with a fraction; None where the samples cannot be counted."""

    total: int
    per_pass: float | None

    def after(self, t: Translation, key: str, passes: float) -> int | None:
        """The steps of so many passes; None, with a mistake, where that cannot be known."""
        if self.per_pass is None:
            t.refuse(key, "passes cannot be turned into steps: the samples cannot be counted", "give steps instead")
            return None
        return max(1, round(passes * self.per_pass))


@computed(
    *(BATCH, MINI, EPOCH, MOST, LAST),
    *(f"train.optm_{name}" for name in ("warmup_steps", "warmup_epochs", "warmup_start_factor", "decay_type")),
    *("train.optm_decay_ratio", "train.optm_min_lr_factor"),
    *(f"train.ckpt.{name}" for name in ("enable_checkpoint", "save_freq", "save_freq_in_epoch")),
    *("validation.freq", "validation.freq_in_epoch"),
)
def steps_of_the_run(t: Translation) -> None:
    processes = data_processes(t)
    drop = t.get(LAST)
    t.say(LAST, "kept", f"the number of steps of all passes is rounded {'down' if drop else 'up'}")
    put_batch(t, processes)
    steps = count_steps(t, processes)
    if steps is None:
        return
    put_schedule(t, steps)
    put_saves(t, steps)
    put_validations(t, steps)


def data_processes(t: Translation) -> int:
    """Processes that read data of their own; with -1, those of this start."""
    shard, replicate, context = t.get(SHARD), t.get(REPLICATE), t.get(CONTEXT)
    if shard != -1:
        return int(shard * replicate)
    world = os.environ.get("WORLD_SIZE", "")
    return max(int(replicate), int(world) // int(context) if world.isdigit() else 1)


def put_batch(t: Translation, processes: int) -> None:
    batch, mini = t.get(BATCH), t.get(MINI)
    if batch % mini:
        fitting = max(n for n in range(1, min(batch, mini) + 1) if batch % n == 0)
        larger = -(-batch // mini) * mini
        way_out = f"{MINI}={fitting} (the same step, {fitting} at once), or {BATCH}={larger}"
        why = f"a step of {batch} samples cannot be made of mini-batches of {mini}"
        t.refuse(MINI if t.is_stated(MINI) and not t.is_stated(BATCH) else BATCH, why, way_out)
        return
    packs = batch // mini
    t.put("trainer.grad_accum_iter", packs, source=BATCH)
    t.put("dataloader_train.max_samples_per_batch", mini, source=MINI)
    t.say(MINI, "renamed", f"dataloader_train.max_samples_per_batch = {mini}")
    each = f"{batch} samples a step on each of {processes} processes: {batch * processes} together"
    t.say(BATCH, "renamed", f"trainer.grad_accum_iter = {packs} packs of {mini}; {each}, whatever its name says")


def count_steps(t: Translation, processes: int) -> Steps | None:
    """Puts the number of steps. None, with a mistake, where it cannot be known or is 0."""
    epochs, most, step = t.get(EPOCH), t.get(MOST), t.get(BATCH) * processes
    if not t.data.get("dataloader_train", {}).get("dataset", {}).get("path"):
        return Steps(most, None) if most else None  # what is missing has been said
    try:
        samples = count_samples(t.data["dataloader_train"]["dataset"])
    except (ValueError, OSError) as error:
        if most is None:
            t.refuse(EPOCH, f"the samples of a pass cannot be counted: {error}", f"{MOST}=N; {UNKNOWN}")
            return None
        t.say(EPOCH, "approximated", f"not compared with {MOST}, since the samples cannot be counted: {error}")
        put_total(t, most, MOST)
        return Steps(most, None)
    exact = epochs * samples / step
    total = math.floor(exact) if t.get(LAST) else math.ceil(exact)
    if total == 0:
        mini, share = t.get(MINI), samples * epochs // processes
        fits = share // mini * mini or share
        why = f"{samples} samples are fewer than a step of {step} ({t.get(BATCH)} on each of {processes} processes)"
        way_out = f"{BATCH}={fits}" if fits else "use fewer processes"
        t.refuse(BATCH, why, f"{way_out}{f' with {MINI}={fits}' if 0 < fits < mini else ''}")
        return None
    passes = f"{epochs} {'pass' if epochs == 1 else 'passes'} over {samples} samples, {step} a step"
    if most is not None and most < total:
        t.say(EPOCH, "approximated", f"{passes} would be {total} steps; {MOST} ends the run before")
        put_total(t, most, MOST)
        total = most
    else:
        if most is not None:
            t.say(MOST, "unneeded", f"the passes end after {total} steps")
        put_total(t, total, EPOCH, f"; {passes}; a sample that is left out makes the passes shorter")
    return Steps(total, samples / step)


def put_total(t: Translation, total: int, key: str, more: str = "") -> None:
    t.put("trainer.max_iter", total, source=key)
    t.say(key, "renamed", f"trainer.max_iter = {total}{more}")


def put_saves(t: Translation, steps: Steps) -> None:
    key, in_passes = "train.ckpt.save_freq", "train.ckpt.save_freq_in_epoch"
    if not t.get("train.ckpt.enable_checkpoint"):
        t.put("checkpoint.save_iter", steps.total, source="train.ckpt.enable_checkpoint")
        text = f"checkpoint.save_iter = {steps.total}: the end of a run is always saved"
        t.say("train.ckpt.enable_checkpoint", "approximated", text)
        say_unused(t, "train.ckpt.enable_checkpoint is false", key, in_passes)
        return
    t.say("train.ckpt.enable_checkpoint", "kept", "a run here always saves")
    put_cadence(t, steps, key, in_passes, "checkpoint.save_iter")


def put_validations(t: Translation, steps: Steps) -> None:
    if t.get("validation.enable"):
        put_cadence(t, steps, "validation.freq", "validation.freq_in_epoch", "trainer.validation_iter")
    else:
        say_unused(t, "validation.enable is false", "validation.freq", "validation.freq_in_epoch")


def put_cadence(t: Translation, steps: Steps, key: str, in_passes: str, to: str) -> None:
    """Something after every so many steps, or passes, which go first."""
    passes, every = t.get(in_passes), t.get(key)
    if passes:
        found = steps.after(t, in_passes, passes)
        if found is not None:
            t.put(to, found, source=in_passes)
            t.say(in_passes, "renamed", f"{to} = {found}, the steps of {passes} passes")
        if t.is_stated(key):
            t.say(key, "dead", f"{in_passes} takes its place")
    elif every == 0:
        t.refuse(key, f"after every 0 steps, and {in_passes} is 0 too", f"{key}=20, or {in_passes}=1")
    else:
        t.put(to, every, source=key)
        t.say(key, "renamed", f"{to} = {every}")
        say_unused(t, f"{key} says it in steps", in_passes)


def say_unused(t: Translation, why: str, *keys: str) -> None:
    """For keys that are stated although others make them say nothing."""
    for key in keys:
        if t.is_stated(key):
            t.say(key, "unneeded", why)
