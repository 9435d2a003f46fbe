"""Comparisons at the start of a run, before a tensor is read: between ranks, and between the run and its saved state.

A dry run makes the same comparisons.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.assets import asset_name
from worldsmith.checkpoint.dcp.dcp_folder import METADATA
from worldsmith.checkpoint.run.frozen_weights import is_partial
from worldsmith.checkpoint.sources.checkpoint_weights import AVERAGE, LIVE
from worldsmith.checkpoint.sources.stored_config import explain_config_errors, with_classes_of
from worldsmith.checkpoint.sources.warm_start import LoadReport, shorten_names
from worldsmith.config.errors import ConfigError, UserError
from worldsmith.config.text_file import read_config_text
from worldsmith.config.tree.plain import flatten, to_dict
from worldsmith.config.tree.read_config import from_dict, from_yaml
from worldsmith.config.yaml.yaml_text import read_yaml
from worldsmith.data.shards.addresses import absolute_path
from worldsmith.data.stream import dataset_record
from worldsmith.distributed.world import World
from worldsmith.models.parameter_names import native_parameters

if TYPE_CHECKING:
    from torch import nn

    from worldsmith.data.stream.loader import PackingDataLoader
    from worldsmith.data.stream.sample_maker import StreamDataset
    from worldsmith.models.ema import PowerEMA
    from worldsmith.training.run_config import RunConfig

logger = logging.getLogger(__name__)

SHOWN = 5
"""Max number of differences in a message."""
FREE_TO_CHANGE = (
    "job.folder",
    "job.resume_newest",
    "trainer.max_iter",
    "trainer.logging_iter",
    "trainer.run_validation",
    "trainer.validation_iter",
    "trainer.max_val_iter",
    "trainer.run_validation_on_start",
    "trainer.early_stop_patience",
    "trainer.max_consecutive_skipped",
    "trainer.encode_first",
    *(
        f"trainer.callbacks.{name}"
        for name in (
            *("iter_speed", "heart_beat", "first_step_watchdog", "param_count", "DeviceMonitor", "norm_monitor"),
            *("bad_batches", "manual_gc", "profiler", "metrics", "plan", "run_page", "EveryNDrawSample"),
        )
    ),
    "checkpoint",
    "job.wandb_mode",
    "dataloader_val",
    "dataloader_train.num_workers",
    "dataloader_train.prefetch_factor",
    "dataloader_train.latent_cache",
)
"""Settings that may change on resume without a flag: they do not affect the training results."""
STEPS = "trainer.max_iter"
NEW_NAME = "To start a new run, set another name (-- job.name=NAME)."
ABSENT = "(absent)"
ADAPTERS = "model.config.lora_enabled"


def require_same_config(world: World, config: RunConfig) -> None:
    """Raises UserError on all ranks if their configs differ. Collective."""
    first, *others = world.gather(flatten(to_dict(config)))
    lines = [
        f"  {path}: {first.get(path, ABSENT)!r} for process 0, {other.get(path, ABSENT)!r} for process {rank}"
        for rank, other in enumerate(others, start=1)
        for path in [*first, *(path for path in other if path not in first)]
        if first.get(path, ABSENT) != other.get(path, ABSENT)
    ]
    if lines:
        raise UserError("\n".join(["[E122] the processes of this run have different settings:", *shorten_lines(lines)]))


def require_same_dataset(world: World, dataset: StreamDataset) -> None:
    """Raises UserError on all ranks if their datasets differ. Collective."""
    found = world.gather((dataset.fingerprint, f"{len(dataset)} samples in {absolute_path(dataset.name)}"))
    lines = [
        f"  process {rank}: {text}" for rank, (fingerprint, text) in enumerate(found) if fingerprint != found[0][0]
    ]
    if lines:
        lines = [f"  process 0: {found[0][1]}", *lines]
        raise UserError("\n".join(["[E122] the processes of this run see different data:", *shorten_lines(lines)]))


def require_same_shapes(
    checkpoint: Path, network: nn.Module, ema: PowerEMA.Config, *, changes: Sequence[str] = ()
) -> None:
    """Compares names and shapes of a checkpoint with those of the network that resumes from it.

    EMA weights in the checkpoint that the run no longer keeps are ignored with a warning.

    Args:
        checkpoint: Checkpoint folder.
        network: Network of the run.
        ema: EMA settings of the run.
        changes: Settings that have changed since, for messages.

    Raises:
        UserError: If a weight is missing in the checkpoint or has another shape there, or if the network lacks a raw
            weight of the checkpoint.
    """
    from worldsmith.checkpoint.dcp.tensor_reader import stored_shapes

    wanted, stored = state_shapes(network, ema), stored_shapes(checkpoint / "model")
    if is_partial(checkpoint):
        trained = {name for name, parameter in native_parameters(network).items() if parameter.requires_grad}
        wanted = {name: shape for name, shape in wanted.items() if strip_weight_prefix(name) in trained}
    missing = [name for name in wanted if name not in stored]
    other = [f"{n}: stored {stored[n]}, expected {wanted[n]}" for n in wanted if n in stored and stored[n] != wanted[n]]
    unused = [name for name in stored if name not in wanted]
    if missing or other or any(name.startswith(LIVE) for name in unused):
        lines = [*shorten_lines([f"  with another shape: {line}" for line in other])]
        lines += [f"  missing in the checkpoint: {shorten_names(missing)}"] if missing else []
        lines += [f"  only in the checkpoint: {shorten_names(unused)}"] if unused else []
        lines += [f"  changed since the run was started: {line}" for line in changes]
        raise UserError(
            "\n".join([f"[E116] the network does not match {checkpoint}:", *lines])
            + "\nRestore the settings, or set another job.name; a new run can load the matching weights with this "
            "checkpoint as checkpoint.load_path."
        )
    if unused:
        logger.warning(
            "EMA weights that the run no longer keeps are ignored in %s: %s", checkpoint.name, shorten_names(unused)
        )


def require_same_data(
    loader: PackingDataLoader,
    checkpoint: Path,
    positions: Sequence[Mapping[str, Any]],
    record: Path,
    *,
    may_change: bool,
) -> str:
    """Returns the differences between the dataset and that of a checkpoint, one per line; "" if there are none.

    Args:
        loader: Data loader of the run.
        checkpoint: Checkpoint from which the run resumes.
        positions: Data loader states of all ranks in the checkpoint.
        record: The dataset_windows.txt of the run that saved the checkpoint.
        may_change: Whether other data is allowed.

    Raises:
        UserError: If the data differs and `may_change` is False.
    """
    if not positions:
        raise UserError(f"{checkpoint} has no data loader state")
    changes = loader.changes_since(positions[0])
    if not changes:
        return ""
    lines = "\n".join(f"  {line}" for line in [*changes, *dataset_record.changed_samples(record, loader.dataset)])
    if not may_change:
        raise UserError(
            f"[E109] the data has changed since {checkpoint} was saved:\n{lines}\nRestore it, set another job.name, "
            "or use the new data from the start of the next epoch with --resume-changed."
        )
    return lines


def require_training_state(report: LoadReport, config: RunConfig) -> Path:
    """Returns the checkpoint whose training state a new run takes over (`checkpoint.load_training_state`).

    Args:
        report: Report on the weights of that checkpoint.
        config: Config of the run.

    Raises:
        UserError: If the weights do not come from a checkpoint with a training state, or if that checkpoint has
            completed all steps of the run.
    """
    checkpoint = Path(report.folder).parent
    if not (checkpoint / "optim" / METADATA).exists():
        raise UserError(
            f"checkpoint.load_training_state: {report.source} contains only weights; use a checkpoint of a training run"
        )
    done, max_iter = steps_done(checkpoint), config.trainer.max_iter
    if done >= max_iter:
        raise UserError(
            f"checkpoint.load_training_state: {checkpoint} has completed {done} steps, but trainer.max_iter is "
            f"{max_iter}, which includes them; increase it, or load only the weights"
        )
    return checkpoint


def steps_done(checkpoint: Path) -> int:
    """Returns the number of completed steps in a checkpoint, independent of the folder name."""
    import torch

    from worldsmith.checkpoint.dcp.tensor_reader import load_part

    state = {"iteration": torch.tensor(0)}
    load_part(checkpoint / "trainer", state, no_dist=True)
    return int(state["iteration"])


def optimizer_state_names(checkpoint: Path, skipped: Sequence[str] = ()) -> list[str]:
    """Returns the names of the optimizer state to load from a checkpoint.

    Args:
        checkpoint: Checkpoint folder.
        skipped: Weights (`net.<name>`) without optimizer state in the new run, since they were not loaded.
    """
    from worldsmith.checkpoint.dcp.tensor_reader import stored_shapes

    fresh = tuple(f"state.{name.removeprefix(LIVE)}." for name in skipped if name.startswith(LIVE))
    return [key for key in stored_shapes(checkpoint / "optim") if not (fresh and key.startswith(fresh))]


def state_shapes(network: nn.Module, ema: PowerEMA.Config) -> dict[str, list[int]]:
    """Returns the shapes of a complete checkpoint's weights by name: `net.*` and, with EMA weights, `net_ema.*`.

    Args:
        network: Network, may be on the meta device.
        ema: EMA settings of the run.
    """
    parameters = native_parameters(network)
    shapes = {LIVE + name: list(parameter.shape) for name, parameter in parameters.items()}
    if ema.enabled:
        shapes |= {
            AVERAGE + name: list(parameter.shape)
            for name, parameter in parameters.items()
            if parameter.requires_grad or not ema.trainable_only
        }
    return shapes


def require_same_run(folder: Path, config: RunConfig, *, resume_changed: bool) -> list[str]:
    """Compares the config of a resumed run with the saved one.

    Args:
        folder: Run folder.
        config: Config of the run.
        resume_changed: Whether differences are allowed.

    Returns:
        One line for each difference that can change training results.

    Raises:
        UserError: If there are such differences and they are not allowed.
    """
    changes = changed_settings(folder, config)
    if changes and not resume_changed:
        raise UserError(
            f"[E108] the run in {folder} was started with other settings:\n{indented(changes)}\nTo resume it with "
            f"the new settings, add --resume-changed before `--`. {NEW_NAME} Otherwise restore the settings."
        )
    return changes


def completion(folder: Path, config: RunConfig) -> str | None:
    """Checks whether all steps of a run are complete, without building the model or the data loader.

    Args:
        folder: Run folder.
        config: Config of the run; a job without a name gets the name of the folder, in place.

    Returns:
        A message if all steps are complete; None if steps are left, or the last checkpoint was not uploaded.

    Raises:
        UserError: If config or dataset differ from those of the run, since no step is left to which they could apply.
    """
    from worldsmith.checkpoint.run.checkpoint_store import is_uploaded, store_address
    from worldsmith.checkpoint.run.find_checkpoint import folder_iteration, read_pointer
    from worldsmith.files.checksum_manifest import find_damage

    pointer = read_pointer(folder / "checkpoints")
    newest = pointer.checkpoint
    if newest is None or pointer.problem:
        return None
    done = folder_iteration(newest)
    if done < config.trainer.max_iter or find_damage(newest):
        return None
    address = store_address(config.checkpoint, config.job, folder)
    if address is not None and not is_uploaded(newest, address):
        return None
    config.job.name = config.job.name or folder.name
    changes = changed_settings(folder, config) or changed_data(folder, config)
    if changes:
        raise UserError(
            f"[E108] the run in {folder} is complete ({done} steps) and was trained with other settings or "
            f"data:\n{indented(changes)}\nTo train it further with the new ones, increase trainer.max_iter and add "
            f"--resume-changed before `--`. {NEW_NAME} Otherwise restore them."
        )
    return f"the run in {folder} is complete: {done} of {config.trainer.max_iter} steps are done"


def changed_settings(folder: Path, config: RunConfig) -> list[str]:
    """Returns one line for each difference from the saved config of a run that can change training results.

    Raises UserError if the saved config does not exist or cannot be read.
    """
    path = folder / "config.yaml"
    if not path.exists():
        raise UserError(f"{folder} has checkpoints but no config.yaml, so the run cannot be continued safely")
    text, after = read_config_text(path), to_dict(config)
    try:
        before = from_yaml(text, type(config), file=str(path))
    except ConfigError:  # another version's: its classes may have moved, or were not written where there was one only
        with explain_config_errors(path):
            before = from_dict(with_classes_of(read_yaml(text, str(path)).data, after), type(config))
    old, new = flatten(to_dict(before)), flatten(after)
    changes = changed_values(old, new)
    if changes and old.get(STEPS) != new.get(STEPS):  # explains a schedule that follows it
        changes.append(f"{STEPS}: {old.get(STEPS)} -> {new.get(STEPS)} (allowed; other settings may depend on it)")
    return changes


def changed_data(folder: Path, config: RunConfig) -> list[str]:
    """Returns one line for each change of the dataset since the run was trained; a read error is only logged."""
    from worldsmith.data.stream.errors import DataError

    data: Any = config.dataloader_train
    try:
        dataset = data.dataset.build()
    except (DataError, OSError) as error:
        logger.warning("cannot compare the dataset with that of the run: %s", error)
        return []
    return dataset_record.changed_samples(folder / dataset_record.FILE, dataset)


def indented(lines: Sequence[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)


def changed_values(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Returns one line `path: old -> new` for each setting that differs and can change training results.

    Settings in `FREE_TO_CHANGE` are skipped. So are LoRA settings if neither config enables LoRA.

    Args:
        before: Saved config, flattened to values by path.
        after: Current config, flattened to values by path.
    """
    paths = [path for path in [*before, *(p for p in after if p not in before)] if not is_free(path)]
    if not before.get(ADAPTERS) and not after.get(ADAPTERS):  # their settings have no effect
        paths = [path for path in paths if not path.startswith(ADAPTERS.removesuffix("enabled"))]
    return [
        f"{path}: {before.get(path, ABSENT)!r} -> {after.get(path, ABSENT)!r}"
        for path in paths
        if not is_same_setting(before.get(path, ABSENT), after.get(path, ABSENT))
    ]


def is_same_setting(before: object, after: object) -> bool:
    """Returns whether two values are equal, or paths of the same asset of the package in two installations."""
    if isinstance(before, str) and isinstance(after, str) and (name := asset_name(before)):
        return name == asset_name(after)
    return before == after


def is_free(path: str) -> bool:
    return any(path == free or path.startswith(f"{free}.") for free in FREE_TO_CHANGE)


def strip_weight_prefix(name: str) -> str:
    return name.removeprefix(LIVE).removeprefix(AVERAGE)


def shorten_lines(lines: Sequence[str]) -> list[str]:
    return [*lines[:SHOWN], *([f"  … and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else [])]
