"""Starts a new run from weights on disk, in any format of `open_weights`, with a report on every tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as default
from typing import TYPE_CHECKING

from worldsmith.checkpoint.formats.stored_adapter import AdaptedWeights, StoredAdapter, require_new_adapter
from worldsmith.checkpoint.formats.weight_formats import NetworkDifference, weight_formats
from worldsmith.checkpoint.sources.checkpoint_weights import AVERAGE, LIVE, CheckpointWeights
from worldsmith.checkpoint.sources.first_weights import LOAD_PATH
from worldsmith.checkpoint.sources.open_weights import open_weights
from worldsmith.checkpoint.sources.remote_model import fetched
from worldsmith.checkpoint.sources.weight_source import WeightSource
from worldsmith.config.declare.class_tags import tag_of
from worldsmith.config.errors import UserError
from worldsmith.distributed.world import World
from worldsmith.models.lora import is_adapter
from worldsmith.models.model_files import local_folder
from worldsmith.models.weights.check_finite import non_finite, require_finite

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.models.converters.quantized_layer import QuantizedLayer
    from worldsmith.models.spec import ModelSpec

ADAPTER_FILES = ("*.safetensors", "*.json")
"""Files of an adapter folder, as shell patterns."""


@dataclass(slots=True)
class LoadReport:
    """Report on the loading of initial weights. Tensor names have the prefix `net.` (raw) or `net_ema.` (EMA)."""

    source: str
    """Description of the weights on disk, for messages."""
    folder: str
    """Folder with the weights on disk."""
    loaded: list[str] = default(default_factory=list)
    """Tensors that are read from the source, including copies."""
    copied: dict[str, str] = default(default_factory=dict)
    """Loaded tensors that the source does not store, because they equal another tensor: name -> name of that tensor."""
    skipped: list[str] = default(default_factory=list)
    """Tensors that are not loaded because of keys_to_skip_loading."""
    initialised: list[str] = default(default_factory=list)
    """Tensors that the source does not contain and need not contain, such as LoRA adapters; they keep their initial
    values."""
    started_live: list[str] = default(default_factory=list)
    """EMA weights that start from the raw weights: skipped ones, those that the source lacks, and all if no EMA weights
    are read from the source."""
    missing: list[str] = default(default_factory=list)
    """Tensors that are missing in the source, which is an error."""
    mismatched: list[str] = default(default_factory=list)
    """Tensors that have another shape in the source, which is an error; each string contains both shapes."""
    unexpected: list[str] = default(default_factory=list)
    """Tensors in the source that the network does not have."""
    rules_without_effect: list[str] = default(default_factory=list)
    """Entries of keys_to_skip_loading that no tensor name contains."""
    notes: list[str] = default(default_factory=list)
    """Messages about allowed differences, such as network settings that differ from those of the source."""

    @property
    def left(self) -> list[str]:
        """Names of raw weights that are not loaded, so that they must be initialized."""
        return [name for name in (*self.skipped, *self.initialised) if name.startswith(LIVE)]

    def lines(self) -> list[str]:
        """Returns the report as output lines, with a summary first."""
        text = [f"weights from {self.source}: {len(self.loaded)} tensors loaded"]
        if self.copied:
            pairs = [f"{name} from {source}" for name, source in self.copied.items()]
            text.append(f"  of these, copied from other tensors of the source: {shorten_names(pairs, 1)}")
        if self.initialised:
            text.append(f"  not in the source, initialized: {shorten_names(self.initialised)}")
        if self.skipped:
            text.append(f"  skipped by keys_to_skip_loading: {shorten_names(self.skipped)}")
        if self.started_live:
            text.append(f"  EMA weights that start from the raw weights: {len(self.started_live)}")
        averages = [name for name in self.unexpected if name.startswith(AVERAGE)]
        others = [name for name in self.unexpected if name not in set(averages)]
        if averages:
            text.append(f"  EMA weights of the checkpoint, which are not loaded: {shorten_names(averages, 1)}")
        if others:
            text.append(f"  in the checkpoint but not in this network: {shorten_names(others)}")
        for rule in self.rules_without_effect:
            text.append(f'  keys_to_skip_loading: no tensor name contains "{rule}", so it has no effect')
        text += [f"  note: {note}" for note in self.notes]
        return text


def load_weights(
    path: str,
    model: Mapping[str, Tensor],
    *,
    keys_to_skip: Sequence[str] = (),
    spec: ModelSpec | None = None,
    average_as_live: bool = False,
    prepare: Callable[[LoadReport], None] | None = None,
    field: str = LOAD_PATH,
    quantized: Mapping[str, QuantizedLayer] | None = None,
    adapter: str | None = None,
    world: World | None = None,
) -> LoadReport:
    """Reads initial weights from disk into the tensors of a model, in place. Collective.

    Args:
        path: Path, Hub name or short name of a released model, see `open_weights`.
        model: Tensor name with the prefix `net.` (raw) or `net_ema.` (EMA) -> tensor to fill, sharded or not.
        keys_to_skip: Substrings of the names of tensors that are not loaded; skipped EMA weights start from the raw
            weights.
        spec: Name and config of the model, whose network is compared with that of the source; None: no comparison.
        average_as_live: Whether the EMA weights of the source are loaded as raw weights; the EMA of the new run starts
            from them, too.
        prepare: Called with the report before tensors are read, to initialize the tensors in `LoadReport.left`; it may
            raise.
        field: Config field that contains the path, for messages.
        quantized: Internal parameter name -> layer with a quantized weight; its method `quantize` is called
            with the weight instead of filling the tensor in `model`.
        adapter: Path or Hub name of LoRA adapters that are loaded in addition to the weights; None: no adapters.
        world: Ranks that call this function together, each with its shards of the model; they divide the verification
            of the files. None: this process only.

    Returns:
        Report on which tensors were loaded, skipped or initialized.

    Raises:
        FileNotFoundError: If the path contains no weights.
        UserError: Before a tensor is read, if files are damaged, a tensor is missing or has another shape, or the
            network of the source differs; on all ranks, if a tensor is not finite.
    """
    world = world or World()
    source = open_with_adapter(path, model, field=field, spec=spec, adapter=adapter, world=world)
    shapes = {name: list(tensor.shape) for name, tensor in model.items()}
    report = compare_weights(source, shapes, keys_to_skip, spec=spec, average_as_live=average_as_live)
    if prepare is not None:
        prepare(report)
    quantized, bad = quantized or {}, list[str]()
    for prefix in (LIVE, AVERAGE):
        tensors = {name.removeprefix(prefix): model[name] for name in report.loaded if name.startswith(prefix)}
        average = prefix == AVERAGE or average_as_live
        taken = quantized.keys() & tensors if prefix == LIVE else set()
        if whole := {name: tensor for name, tensor in tensors.items() if name not in taken}:
            source.read_into(whole, average=average, no_dist=world.size == 1)
            bad += [prefix + name for name in non_finite(whole)]
        for name in sorted(taken):
            weight = source.read(name, average=average)
            bad += [prefix + name for name in non_finite({name: weight})]
            quantized[name].store(weight)
    require_finite(source.describe, list(dict.fromkeys(name for found in world.gather(bad) for name in found)))
    base = source.source if isinstance(source, AdaptedWeights) else source
    if isinstance(base, CheckpointWeights):
        live = {name.removeprefix(LIVE): model[name] for name in report.loaded if name.startswith(LIVE)}
        base.check_frozen(None if average_as_live or quantized else live)
    for name in report.started_live:
        model[name].copy_(model[live_name(name)])
    return report


def open_with_adapter(
    path: str,
    wanted: Iterable[str],
    *,
    field: str,
    spec: ModelSpec | None,
    adapter: str | None,
    world: World | None = None,
) -> WeightSource:
    """Opens the initial weights of a run, with its initial LoRA adapters if `adapter` is given.

    Args:
        path: Path, Hub name or short name of a released model, see `open_weights`.
        wanted: Names of the tensors of the model, with the prefix `net.` or `net_ema.`.
        field: Config field that contains `path`, for messages.
        spec: Name and config of the model; required for adapters.
        adapter: Path or Hub name of LoRA adapters; None: no adapters.
        world: Ranks that call this function together; None: this process only.

    Raises:
        FileNotFoundError: If `path` contains no weights.
        UserError: If a file is damaged; on all ranks, if the adapters do not exist or do not fit the run.
    """
    source = open_weights(path, field=field, family="" if spec is None else spec.name, world=world)
    if adapter is None:
        return source
    assert spec is not None
    problem = ""
    try:
        stored = read_initial_adapter(adapter, spec)
        require_new_adapter(stored, source, (name.removeprefix(LIVE) for name in wanted))
    except (UserError, OSError, ValueError) as error:
        problem = str(error)
    if found := [text for text in (world or World()).gather(problem) if text]:
        raise UserError(found[0])
    return AdaptedWeights(source, stored)


def read_initial_adapter(adapter: str, spec: ModelSpec, *, field: str = "checkpoint.load_adapter") -> StoredAdapter:
    """Reads the initial LoRA adapters of a run, whose rank and alpha must be those of the model config.

    Args:
        adapter: Path or Hub name of an adapter folder in PEFT's format, or of a LoRA file.
        spec: Name and config of the model.
        field: Config field that contains `adapter`, for messages.

    Raises:
        FileNotFoundError: If there are no adapters.
        UserError: If a file is damaged, or rank or alpha differ.
        ValueError: If the adapters are not plain LoRA of this network.
    """
    place = local_folder(fetched(adapter, field=field), file_patterns=ADAPTER_FILES, field=field)
    stored, config = weight_formats(spec.name).read_adapter(place), spec.config
    if (stored.rank, stored.alpha) != (config.lora_rank, config.lora_alpha):
        raise UserError(
            f"{field} {adapter} has rank {stored.rank} and alpha {stored.alpha}, expected {config.lora_rank} and "
            f"{config.lora_alpha}. Set model.config.lora_rank={stored.rank} model.config.lora_alpha={stored.alpha}"
        )
    return stored


def compare_weights(
    source: WeightSource,
    wanted: Mapping[str, list[int]],
    keys_to_skip: Sequence[str] = (),
    *,
    spec: ModelSpec | None = None,
    allow_initialised: Sequence[str] = (),
    average_as_live: bool = False,
) -> LoadReport:
    """Returns a report on which tensors of a model can be loaded from `source`, without reading a tensor.

    Args:
        source: Weights on disk.
        wanted: Tensor name of the model with the prefix `net.` or `net_ema.` -> shape.
        keys_to_skip: Substrings of the names of tensors that are not loaded.
        spec: Name and config of the model, to be compared with the source; None: no comparison.
        allow_initialised: Substrings of the names of tensors that may be missing in the source.
        average_as_live: Whether the EMA weights of the source are to be loaded as raw weights.

    Raises:
        UserError: If the weights cannot be loaded into this model.
    """
    report = LoadReport(source=source.describe, folder=str(source.path))
    if average_as_live and not source.average_shapes:
        raise UserError(f"checkpoint.load_ema_to_reg: {source.describe} has no EMA weights; set it to false")
    for name, shape in wanted.items():
        average = name.startswith(AVERAGE)
        bare = name.removeprefix(AVERAGE if average else LIVE)
        stored = source.shape(bare, average=average)
        if any(key in name for key in keys_to_skip):
            report.skipped.append(name)
            if average and live_name(name) in wanted:
                report.started_live.append(name)
        elif average and (average_as_live or not source.average_shapes or stored is None) and live_name(name) in wanted:
            report.started_live.append(name)
        elif stored is None and (source.is_optional(bare) or any(key in name for key in allow_initialised)):
            report.initialised.append(name)
        elif stored is None:
            report.missing.append(name)
        elif stored != shape:
            report.mismatched.append(f"{name} (here {shape}, stored {stored})")
        else:
            report.loaded.append(name)
            if bare in source.copies:
                report.copied[name] = LIVE + source.copies[bare]
    in_source = [LIVE + n for n in source.shapes if n not in source.copies] + [
        AVERAGE + n for n in source.average_shapes
    ]
    report.unexpected = [*(name for name in in_source if name not in wanted), *source.unknown]
    names = [*wanted, *in_source]
    report.rules_without_effect = [key for key in keys_to_skip if not any(key in name for name in names)]
    if spec is not None:
        report.notes = list(require_same_network(report, source, spec, keys_to_skip).choices)
        before, now = list(source.converters), [tag_of(type(found)) for found in spec.config.as_used().converters]
        if before != now:
            report.notes.append(f"converters that the weights were trained with: {before}; now: {now}")
    else:
        require_loadable(report, NetworkDifference(), keys_to_skip)
    if average_as_live:
        report.notes.append("the raw weights are the EMA weights of the source (load_ema_to_reg)")
    return report


def require_same_network(
    report: LoadReport, source: WeightSource, spec: ModelSpec, keys_to_skip: Sequence[str]
) -> NetworkDifference:
    """Compares the network of weights on disk with that of a model for which they are to be loaded.

    Args:
        report: Result of comparing names and shapes of the weights with those of the model.
        source: Weights on disk.
        spec: Name and config of the model.
        keys_to_skip: Substrings of the names of tensors that are not loaded.

    Returns:
        Differences of the network settings.

    Raises:
        UserError: If the model family differs, `require_loadable` raises the error, or the network of the model lacks
            weights that must not be skipped.
    """
    if source.family not in ("", spec.name):
        raise UserError(f"{source.describe} contains a model of the family '{source.family}', expected '{spec.name}'")
    formats = weight_formats(spec.name)
    difference = formats.difference(source.settings, spec.config)
    require_loadable(report, difference, keys_to_skip, advice=formats.advice)
    surplus = [name.removeprefix(LIVE) for name in report.unexpected if not name.startswith(AVERAGE)]
    surplus = [n for n in surplus if n in source.shapes and not any(key in LIVE + n for key in keys_to_skip)]
    refused = [name for name in surplus if difference.is_required(name)]
    if refused:
        raise UserError(
            f"[E116] {report.source} contains weights that this network does not have: {shorten_names(refused)}. "
            "Correct the model config, or list the names to skip in checkpoint.keys_to_skip_loading."
        )
    return difference


def require_loadable(
    report: LoadReport, difference: NetworkDifference, keys_to_skip: Sequence[str], *, advice: str = ""
) -> None:
    """Raises UserError if weights must not be loaded into a model.

    The reasons are missing tensors, shapes or network settings that differ from the model's, and LoRA adapters in the
    weights that the model would not use.

    Args:
        report: Result of comparing names and shapes of the weights with those of the model.
        difference: Differences of the network settings.
        keys_to_skip: Substrings of the names of tensors that are not loaded.
        advice: Sentence with the fix for network settings that differ.
    """
    if report.missing or report.mismatched or difference.meanings:
        raise UserError(_complaint(report, difference, advice))
    adapters = [name for name in report.unexpected if is_adapter(name) and not any(k in name for k in keys_to_skip)]
    if adapters and not any(is_adapter(name) for name in report.loaded):
        raise UserError(
            f"[E117] {report.source} contains adapters (LoRA) that this network does not have: "
            f"{shorten_names(adapters)}. Set model.config.lora_enabled, or start from the merged weights "
            '(`worldsmith export RUN -o DIR --format native`), or skip them with "lora_" in '
            "checkpoint.keys_to_skip_loading."
        )


def live_name(name: str) -> str:
    """Returns the name of the raw weight for the name of an EMA weight: `net_ema.x` → `net.x`."""
    return LIVE + name.removeprefix(AVERAGE)


def shorten_names(names: Sequence[str], limit: int = 3) -> str:
    """Returns the number of `names` and the first `limit` of them, such as "5 (a, b, c, …)"."""
    shown = ", ".join(names[:limit])
    return f"{len(names)} ({shown}{', …' if len(names) > limit else ''})"


def _complaint(report: LoadReport, difference: NetworkDifference, advice: str) -> str:
    differing = (*difference.meanings, *difference.sizes)
    parts = [f"the weights in {report.source} do not fit this network."]
    if differing:
        parts.append(f"The network configs differ: {'; '.join(differing)}.")
    if report.missing and report.unexpected and not report.loaded:
        text = f"No tensor name matches: found {shorten_names(report.unexpected)}, expected"
        return " ".join([*parts, f"{text} {shorten_names(report.missing)}."])
    if report.missing:
        parts.append(f"Not in the checkpoint: {shorten_names(report.missing)}.")
    if report.mismatched:
        parts.append(f"Other shapes: {shorten_names(report.mismatched)}.")
    if differing:
        parts.append(advice)
    else:
        parts.append(
            "Correct the model config, or list the names that may keep their initial values in "
            "checkpoint.keys_to_skip_loading."
        )
    return " ".join(parts)
