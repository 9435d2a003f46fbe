"""Settings of a run that may be changed so that it fits or is faster, as overrides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from worldsmith.config import WrongValueError
from worldsmith.data.clips.resolution import TIERS, exact_size
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.distributed.degrees import NAMES, PARALLELISM, Degrees, divisors, fit_degrees, plan_degrees
from worldsmith.tools.plan.packs import FACTORS, Packing, PackLimits, packings
from worldsmith.training.run_config import why_not_encodable

if TYPE_CHECKING:
    from worldsmith.training.trainer import Trainer

MODEL = "model.config"
RECOMPUTE = f"{MODEL}.activation_checkpointing"
RECOMPUTE_FIELDS = ("mode", "other_layers", "save_every_second_matmul", "layer_fraction", "offload")
PARTS = {"1/8": "0.125", "1/4": "0.25", "1/2": "0.5", "3/4": "0.75", "all": "1.0"}
"""Values of `layer_fraction` by description; only "all" for networks with few layers."""
MODES = (
    ("selective with matmuls", "selective", "none", "true"),
    ("full, else selective with matmuls", "full", "selective", "true"),
    ("full, else selective", "full", "selective", "false"),
)
"""Modes of gradient checkpointing in a part of the layers, from fast with high memory to slow with low memory: name,
`mode`, `other_layers`, `save_every_second_matmul`."""
UNRANKED = (-1, len(PARTS) + 1)
"""Rank of another way to recompute, which is compared with no other rank."""
OFFLOADS = {"none": "none", "frozen": "frozen weights in host RAM"}
"""Values of `parallelism.offload` that may be tried, by memory on the GPU, largest first, with their descriptions."""
MANY_LAYERS = 16
"""Number of repeated layers from which on recomputing only some of them is tried."""
MOST_CONTEXT = 8
ENCODE_FIRST = "trainer.encode_first"
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
"""Names of the layers that get adapters if the config of a run names no layers."""


@dataclass(frozen=True, slots=True)
class Learned:
    """Change of the training result by settings: its level, its description (`says`) and its overrides (`words`).

    Level 0 is no change; larger levels are larger changes.
    """

    level: int
    says: str
    words: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """Setting of a run: one choice for each option, such as the mode of gradient checkpointing.

    `words` are the overrides that apply the setting to the run, `replicas` is the number of replicas of the weights.
    """

    learned: Learned
    words: tuple[str, ...]
    options: Mapping[str, str]
    """Option name -> description of its value."""
    slower: tuple[int, ...]
    """Memory-saving options, larger values for less memory and more time: gradient checkpointing (two values), context
    parallelism, smaller packs, encoding before the training, offload of weights, gradient reduction after each pack."""
    replicas: int
    packs: Packing
    offloads: bool = False
    """Whether weights or activations are offloaded to host RAM."""

    @property
    def keeps_sums(self) -> bool:
        """Whether unsharded gradients are kept in memory between the packed batches of a step."""
        return not self.slower[-1] and len(self.packs.batches) > 1

    def as_fast_as(self, other: Setting) -> bool:
        """Returns whether this setting is at least as fast as `other`: it has no additional memory-saving options.

        False if the settings have different replicas or change the training result differently.
        """
        same = self.learned == other.learned and self.replicas == other.replicas
        return same and all(mine <= its for mine, its in zip(self.slower, other.slower))

    def as_large_as(self, other: Setting) -> bool:
        """Returns whether this setting needs at least as much memory as `other`: it stores all tensors of `other`.

        False if the settings change the training result differently.
        """
        kept = all(mine <= its for mine, its in zip(self.slower[:-1], other.slower[:-1]))
        same = self.learned == other.learned and self.replicas >= other.replicas
        return same and kept and self.keeps_sums >= other.keeps_sums


def settings(
    config: Trainer.Config,
    *,
    ranks: int,
    batches: Sequence[Sequence[Any]],
    limits: PackLimits,
    additive: bool = True,
    per_machine: int = 8,
    depth: int = 0,
) -> list[Setting]:
    """Returns all combinations of options of a run that may reduce its memory or time.

    Args:
        config: Config of the run.
        ranks: Number of GPUs.
        batches: Packed batches of a rank in a step; each setting has the same samples in a step.
        limits: Limits of a packed batch.
        additive: Whether the loss weight of a sample does not depend on its packed batch; else, packs are kept.
        per_machine: Number of GPUs per machine.
        depth: Number of repeated layers of the network; 0: unknown.
    """
    found: list[Setting] = []
    for learned in changes(config):
        for replicas in replica_counts(ranks, per_machine):
            shared = [c for c in divisors(ranks // replicas) if c <= MOST_CONTEXT and supports_context(config, c)]
            for context in shared:
                found += settings_for_degrees(
                    config, learned, ranks, replicas, context, batches, limits, additive=additive, depth=depth
                )
    return found


def recomputations(depth: int) -> Iterator[tuple[tuple[int, int], str, dict[str, str]]]:
    """Yields the ways to recompute activations, each with its rank, description and settings (field -> value).

    The rank is (mode, number of layers with this mode). If both are at most those of another way, it is at least as
    fast and needs at least as much memory.

    Args:
        depth: Number of repeated layers of the network; 0: unknown.
    """

    def values(mode: str, others: str, matmuls: str, fraction: str = "1.0", offload: str = "false") -> dict[str, str]:
        return dict(zip(RECOMPUTE_FIELDS, (mode, others, matmuls, fraction, offload), strict=True))

    last = len(PARTS)
    yield (0, 0), "none", values("none", "none", "false")
    yield (0, last), "selective with matmuls", values("selective", "none", "true")
    yield (2, 0), "selective", values("selective", "none", "false")
    yield (2, last), "full", values("full", "none", "false")
    to_host = values("full", "none", "false", offload="true")
    yield (len(MODES), last), "full, inputs of layers in host RAM", to_host
    for rank, (name, mode, others, matmuls) in enumerate(MODES if depth >= MANY_LAYERS else ()):
        for number, (part, fraction) in enumerate(PARTS.items(), start=1):
            if part != "all":
                text = name.replace(",", f" in {part} of the layers,") if "," in name else f"{name} in {part}"
                yield (rank, number), text, values(mode, others, matmuls, fraction)


def baseline_setting(
    config: Trainer.Config, *, ranks: int, batches: Sequence[Sequence[Any]], limits: PackLimits
) -> Setting | None:
    """Returns the setting without overrides (the baseline).

    Args:
        config: Config of the run.
        ranks: Number of GPUs.
        batches: Packed batches of a rank in a step.
        limits: Limits of a packed batch.

    Returns:
        The setting; None if the parallelism degrees of the run do not fit `ranks`.
    """
    now = degrees_now(config, ranks)
    plain = Learned(0, "nothing")
    found = settings_for_degrees(config, plain, ranks, now.replicate, now.context, batches, limits, additive=False)
    same = [s for s in found if all(word.startswith(RECOMPUTE) for word in s.words)]
    if not same or not all(setting.words for setting in same):
        return next((setting for setting in same if not setting.words), None)
    options = {**same[0].options, "recomputation": "as configured"}
    return replace(same[0], words=(), options=options, slower=(*UNRANKED, *same[0].slower[2:]))


def degrees_now(config: Trainer.Config, ranks: int) -> Degrees:
    """Returns the parallelism degrees of a run; if they do not fit `ranks`, degrees that shard over all ranks."""
    try:
        return plan_degrees(config.model.config.parallelism, ranks)
    except WrongValueError:
        asked = config.model.config.parallelism.context_parallel_shard_degree
        context = asked if ranks % asked == 0 else 1
        return Degrees(1, ranks // context, context)


def replica_counts(ranks: int, per_machine: int) -> list[int]:
    """Returns the numbers of replicas of the weights to evaluate, in ascending order.

    The weights are sharded over all ranks (1 replica), over each machine, or not at all. `per_machine` is the number of
    GPUs per machine.
    """
    machines = ranks // per_machine if ranks % per_machine == 0 else 1
    return sorted({1, machines, ranks})


def settings_for_degrees(
    config: Trainer.Config,
    learned: Learned,
    ranks: int,
    replicas: int,
    context: int,
    batches: Sequence[Sequence[Any]],
    limits: PackLimits,
    *,
    additive: bool,
    depth: int = 0,
) -> Iterator[Setting]:
    """Yields all settings with given parallelism degrees and one change of the training result.

    Yields nothing if the samples of a step cannot be divided by these degrees.

    Args:
        config: Config of the run.
        learned: Change of the training result.
        ranks: Number of GPUs.
        replicas: Number of replicas of the weights.
        context: Number of ranks over which the tokens of a packed batch are sharded.
        batches: Packed batches of a rank in a step of the run.
        limits: Limits of a packed batch.
        additive: Whether samples can be repacked.
        depth: Number of repeated layers of the network; 0: unknown.
    """
    model, now, offloads = config.model.config, degrees_now(config, ranks), offload_values(config, learned)
    if len(batches) * context % now.context:
        return
    theirs = [batches[number % len(batches)] for number in range(len(batches) * context // now.context)]
    degrees = degree_overrides(config, ranks, replicas, context)
    encodable, early = not why_not_encodable(config), config.trainer.encode_first
    packs = packings(theirs, limits, larger=ranks > 1) if additive else [Packing(theirs)]
    for smaller, packing in enumerate(packs):
        if context > now.context and packing is not packs[-1]:
            continue  # smaller packs cost less time than sharding a pack over more ranks
        count = len(packing.batches)
        words = {**learned.words, **degrees, **packing.words}
        words["trainer.grad_accum_iter"] = str(count)
        for every in (False, True) if ranks > 1 and count > 1 else (model.parallelism.reduce_every_pack,):
            words[f"{PARALLELISM}.reduce_every_pack"] = str(every).lower()
            for again, mode, values in recomputations(depth):
                words |= {f"{RECOMPUTE}.{name}": value for name, value in values.items()}
                compiled = model.compile.enabled and values["offload"] == "false"
                words[f"{MODEL}.compile.enabled"] = str(compiled).lower()  # compiled layers cannot offload their inputs
                choices = product((False, True) if encodable else (False,), enumerate(offloads))
                for encoded, (saved, offload) in choices:
                    words[f"{PARALLELISM}.offload"] = offload
                    options = {
                        "recomputation": mode,
                        "packs": f"{count} x {packing.size}",
                        "context": str(context),
                        "replicas": str(replicas),
                        "gradients": f"gradients reduced {'after each pack' if every else 'once per step'}",
                    }
                    if encodable:
                        words[ENCODE_FIRST] = "always" if encoded else "never" if early == "always" else early
                        options["encode first"] = words[ENCODE_FIRST]
                    if len(offloads) > 1:
                        options["offload"] = OFFLOADS.get(offload, offload)
                    division = smaller if context <= now.context else len(FACTORS) * 2
                    slower = (*again, context, division, encoded, saved, every and count > 1)
                    overrides, away = changed(config, words), offload != "none" or values["offload"] == "true"
                    yield Setting(learned, overrides, options, slower, replicas, packing, away)


def offload_values(config: Trainer.Config, learned: Learned) -> list[str]:
    """Returns the values of `parallelism.offload` that are possible with a change of the training result."""
    model = config.model.config
    adapted = model.lora_enabled or f"{MODEL}.lora_enabled" in learned.words
    frozen = adapted or (not config.optimizer.keys_to_select and bool(model.frozen(list(model.shapes() or ()))))
    return [*dict.fromkeys([*(OFFLOADS if frozen else ("none",)), model.parallelism.offload])]


def changes(config: Trainer.Config) -> Iterator[Learned]:
    """Yields changes of the training result that save memory, such as bfloat16 or adapters, the smallest change first.

    The first item has level 0: it has only the overrides of `harmless_overrides` and leaves the training result
    unchanged.
    """
    model, free = config.model.config, harmless_overrides(config)
    yield Learned(0, "nothing", free)
    level = 0
    rounded: dict[str, str] = {}
    if model.precision == "float32":
        rounded, level = {f"{MODEL}.precision": "bfloat16"}, 1
        yield Learned(level, "the network computes in bfloat16", {**free, **rounded})
    masters = {f"{PARALLELISM}.fsdp_master_dtype": "bfloat16"}
    smaller: dict[str, dict[str, str]] = {}
    if not model.lora_enabled:
        eight_bits = {"optimizer.name": "AdamW8bit"} if config.optimizer.name == "AdamW" else {}
        short = model.parallelism.fsdp_master_dtype == "float32"
        smaller = {"optimizer state in 8 bits": eight_bits} if eight_bits else {}
        if short:
            smaller["weight updates are rounded to bfloat16"] = masters
        if short and eight_bits:
            smaller["updates rounded to bfloat16, optimizer state in 8 bits"] = {**masters, **eight_bits}
    for says, words in smaller.items():
        level += 1
        yield Learned(level, says, {**free, **rounded, **words})
    if model.ema.enabled:
        without = {**rounded, **disable_ema_overrides(config)}
        for says, words in [("", {}), *[*smaller.items()][-1:]]:
            level += 1
            yield Learned(level, ", ".join(filter(None, ("no EMA weights", says))), {**without, **words})
    if model.converters and not model.lora_enabled:
        return
    adapters = {**rounded, **masters}
    if not model.lora_enabled:
        targets = model.lora_target_modules or usual_targets(config)
        if targets is None:
            return
        adapters |= {f"{MODEL}.lora_enabled": "true", "optimizer.keys_to_select": '["lora_"]'}
        adapters |= {f"{MODEL}.lora_target_modules": targets, "optimizer.lr_multipliers": "{}"}
        if config.optimizer.keys_without_decay:
            adapters["optimizer.keys_without_decay"] = "[]"
    if model.ema.enabled:
        adapters[f"{MODEL}.ema.trainable_only"] = "true"
    says = "" if model.lora_enabled else "only adapters (they need a higher optimizer.lr); "
    if says:
        yield Learned(10, says[:-2], adapters)
    adapters["checkpoint.save_weights"] = "trained"
    for step, bits in enumerate((8, 4)) if not model.converters else ():
        held = {f"{MODEL}.converters": f'[{{"type": "FrozenBase", "bits": {bits}}}]'}
        yield Learned(11 + step, f"{says}frozen weights rounded to {bits} bits", {**adapters, **held})


def harmless_overrides(config: Trainer.Config) -> dict[str, str]:
    """Returns the overrides (config path -> value) that save memory without changing the training result."""
    model, words = config.model.config, {}
    frozen = model.lora_enabled or bool(config.optimizer.keys_to_select)
    if frozen and model.ema.enabled and not model.ema.trainable_only:
        words[f"{MODEL}.ema.trainable_only"] = "true"
    if (model.lora_enabled, model.precision, model.parallelism.fsdp_master_dtype) == (True, "bfloat16", "float32"):
        words[f"{PARALLELISM}.fsdp_master_dtype"] = "bfloat16"  # only of frozen weights; adapters stay float32
    return words


def disable_ema_overrides(config: Trainer.Config) -> dict[str, str]:
    """Returns the overrides (config path -> value) that disable the EMA weights, also in callbacks that use them."""
    words = {f"{MODEL}.ema.enabled": "false"}
    for name, callback in config.trainer.callbacks.items():
        weights = getattr(callback, "weights", None)
        if isinstance(weights, list) and "ema" in weights:
            words[f"trainer.callbacks.{name}.weights"] = '["live"]'
    if (config.checkpoint.keep_best or "").startswith("val_ema/"):
        words["checkpoint.keep_best"] = "val/loss"
    return words


def usual_targets(config: Trainer.Config) -> str | None:
    """Returns the names of the attention layers, comma-separated, as targets of adapters.

    None if the network has no such layers or they are frozen.
    """
    model = config.model.config
    layers, shapes = model.adaptable_layers(), model.shapes()
    if layers is None:  # the family checks targets when the network is built
        layers = () if shapes is None else model.linear_layers(shapes)
    frozen = model.frozen(list(shapes or ()))
    leaves = {layer.rpartition(".")[2] for layer in layers if f"{layer}.weight" not in frozen}
    return ",".join(ATTENTION) if leaves.issuperset(ATTENTION) else None


def smaller_clips(config: Trainer.Config) -> Iterator[Learned]:
    """Yields the changes to smaller clips: fewer frames, then a lower resolution, then both.

    Yields nothing if the training dataset has no settings of resolution and length.
    """
    dataset = getattr(config.dataloader_train, "dataset", None)
    if not isinstance(dataset, VideoDataset.Config):  # windows of robot episodes have a fixed length
        return
    resolution, frames = dataset.resolution, dataset.num_video_frames
    path = "dataloader_train.dataset"
    shorter = [(frames - 1) // times // 8 * 8 + 1 for times in (2, 4)] if frames > 1 else []
    for tier in (resolution, smaller_resolution(resolution)):
        for count in (frames, *shorter):
            if not tier or (tier, count) == (resolution, frames) or count == 1 != frames:
                continue
            words = {f"{path}.resolution": tier}
            if count != frames:
                words[f"{path}.num_video_frames"] = str(count)
                words[f"{path}.min_frames"] = str(min(count, dataset.min_frames))
            says = [f"clips of {count} frames instead of {frames}"] * (count != frames)
            says += [f"a resolution of {tier} instead of {resolution}"] * (tier != resolution)
            yield Learned(100, " and ".join(says), dict(word.split("=", 1) for word in changed(config, words)))


def smaller_resolution(resolution: str) -> str:
    """Returns the next smaller resolution bucket, or about half of an exact size WxH; "" if there is no smaller one."""
    exact = exact_size(resolution)
    if exact is not None:
        height, width = (side // 2 // 32 * 32 for side in exact)
        return f"{width}x{height}" if min(height, width) >= 64 else ""
    smaller = TIERS[: TIERS.index(resolution)] if resolution in TIERS else []
    return smaller[-1] if smaller else ""


def with_clips(setting: Setting, clips: Learned) -> Setting:
    """Returns a copy of the setting that also applies the clip sizes in `clips`.

    The overrides, the description and the level of `clips` are added to those of the setting.
    """
    learned = setting.learned
    says = clips.says if not learned.level else f"{clips.says}; {learned.says}"
    learned = Learned(clips.level + learned.level, says, {**clips.words, **learned.words})
    return replace(setting, learned=learned, words=(*format_overrides(clips.words), *setting.words))


def format_overrides(words: Mapping[str, str]) -> tuple[str, ...]:
    """Formats config values (config path -> value) as command-line overrides `path=value`."""
    return tuple(f"{path}={value}" for path, value in words.items())


def degree_overrides(config: Trainer.Config, ranks: int, replicas: int, context: int) -> dict[str, str]:
    """Returns the overrides (config path -> value) that set the parallelism degrees.

    The weights of each of `replicas` replicas are sharded over `ranks / replicas` ranks, the tokens of a packed batch
    over `context` ranks.
    """
    asked = config.model.config.parallelism
    shard = ranks // replicas // context
    wanted = (shard, replicas, context)
    for words in (
        (asked.data_parallel_shard_degree, asked.data_parallel_replicate_degree, context),
        (-1, replicas, context),
    ):
        with suppress(WrongValueError):
            found = fit_degrees(words[0], words[1], ranks, context=context)
            if (found.shard, found.replicate, found.context) == wanted:
                break
    return {f"{PARALLELISM}.{name}": str(degree) for name, degree in zip(NAMES, words, strict=True)}


def supports_context(config: Trainer.Config, context: int) -> bool:
    """Returns whether the model of a run supports context parallelism over `context` ranks."""
    with suppress(ValueError):
        config.model.config.check_context(context)
        return True
    return False


def changed(config: Trainer.Config, words: Mapping[str, str]) -> tuple[str, ...]:
    """Returns overrides `path=value` for the entries of `words` (config path -> value) that differ from the config."""
    return format_overrides({path: value for path, value in words.items() if value != shown_value(config, path)})


def shown_value(config: Any, path: str) -> str | None:
    """Returns the current value at a config path as text of an override; None for a dictionary that is not empty."""
    value = config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    return str(value) if not isinstance(value, Mapping) or not value else None
