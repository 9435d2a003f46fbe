"""`find_parent`: finds the model that a run or a result refers to, by lineage record and fingerprint, never by age."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from worldsmith.checkpoint.run.find_checkpoint import (
    BEST,
    NAME,
    best_of,
    checkpoint_folders,
    folder_iteration,
    folder_name,
    read_best,
    read_pointer,
)
from worldsmith.checkpoint.run.frozen_weights import is_partial
from worldsmith.checkpoint.sources.checkpoint_weights import ABOUT, RUN_CONFIG
from worldsmith.config.errors import UserError
from worldsmith.config.text_file import read_config_text
from worldsmith.config.tree.plain import flatten
from worldsmith.config.tree.suggest import did_you_mean_folder
from worldsmith.config.yaml.yaml_text import read_yaml
from worldsmith.files.checksum_manifest import MANIFEST
from worldsmith.files.fingerprint import LINEAGE, fingerprint, is_record
from worldsmith.files.json_file import read_json_object
from worldsmith.files.untrusted_folder import ADAPTER_CONFIG, base_of_adapter, is_adapter_folder
from worldsmith.monitor.lineage import Lineage, read_lineage, record_of
from worldsmith.training.run_folder import output_root

PARENT = "--parent"
CHOICE = re.compile(r"(?P<place>.+):(?P<choice>best|last|iter=\d+)")
MODEL_FILES = (ABOUT, ADAPTER_CONFIG, "config.json", "model_index.json")
UNSEARCHED = ("checkpoints", "wandb", "metrics", "logs")
"""Folders of a run that contain no result."""
SHORTEST_ID = 6
RESULT_DEPTH = 4
"""Maximum depth of the search for runs below a given folder."""


@dataclass(frozen=True, slots=True)
class Parent:
    """A model that a command starts from (`--parent`), with its base weights and preprocessing."""

    model: Path
    """Folder of a run's checkpoint, of a complete model, or of an adapter."""
    base: str | None = None
    """Path or Hub name of the base weights of an adapter or of a checkpoint with trained weights only; None: of a
    complete model, or as the checkpoint's config states."""
    is_adapter: bool = False
    """Whether `model` is an adapter folder."""
    processor: Mapping[str, Any] | None = None
    """Preprocessing of images and videos in the run that trained the model, as plain data; None if the run or its
    preprocessing is unknown."""


def find_parent(name: str) -> Parent:
    """Finds the model that `name`, the value of `--parent`, refers to.

    Args:
        name: A path, the name of a run below the output root, or the id of a lineage record there (at least 6 hex
            digits). The suffix `:best`, `:last` or `:iter=N` selects a checkpoint of a run. Without a suffix, the last
            checkpoint is used; the run must be finished and must not have another checkpoint as its best. A result that
            contains a model refers to that model; any other result refers to the model that it was computed with. The
            fingerprints in the record are compared with the files.

    Raises:
        UserError: If no model is found, if its files changed, or if several models match (the message lists them).
    """
    match = CHOICE.fullmatch(name)
    place, choice = (match["place"], match["choice"]) if match and not Path(name).exists() else (name, "")
    parent = resolve(find_result_path(place), choice, name)
    return replace(parent, processor=processor_of(parent.model))


def start_of(name: str) -> tuple[str, str]:
    """Returns the paths that a new training needs to start from the model of `--parent`.

    Args:
        name: Value of `--parent`, see `find_parent`.

    Returns:
        (path of the model, model name for a training spec). For a run that trained a vision-language model, the model
        name is that of the backbone in its config; for other models it is the path.

    Raises:
        UserError: If the model is only an adapter; other errors as `find_parent`.
    """
    parent = find_parent(name)
    if parent.is_adapter:
        raise UserError(
            f"{PARENT} {name}: {parent.model} only contains adapters, from which no run can start; use the run that "
            "trained them, or a folder in which they are merged"
        )
    start = str(parent.model)
    return start, backbone_of(parent.model.parent.parent) or start


def backbone_of(run: Path) -> str | None:
    """Returns the backbone name in the config of a run that trained a vision-language model; None for other folders."""
    found: Any = read_tree(run / RUN_CONFIG) if (run / RUN_CONFIG).is_file() else {}
    for name in ("model", "config", "policy", "backbone", "model_name"):
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None


def find_result_path(name: str, label: str = PARENT) -> Path:
    """Finds the run, model or result that `name` refers to; returns its folder, or the file if the result is a file.

    Args:
        name: A path, the name of a run below the output root, or the beginning of the id of a lineage record there;
            without a checkpoint suffix such as `:best`.
        label: Option that `name` is the value of, for messages.

    Raises:
        UserError: If no file or folder matches, or if several match.
    """
    path = Path(os.path.expanduser(name))
    if path.is_dir() or (path.name == BEST and path.parent.name == "checkpoints"):
        return Path(best_of(str(path)))
    if path.exists():
        if record_of(path) is None:
            raise UserError(f"{label} {name}: this is a file; use the run's or the result's folder")
        return path
    root = output_root()
    runs = [] if path.is_absolute() else [root / name, *root.glob(f"*/*/{glob.escape(name)}")]
    found = [place for place in sorted(set(runs)) if place.is_dir()]
    found = found or [folder for folder in folders_below(root) if folder.name == name and is_run(folder)]
    if not found and re.fullmatch(rf"[0-9a-f]{{{SHORTEST_ID},}}", name):
        records = [record for record in map(read_lineage, records_below(root)) if record.id.startswith(name)]
        found = [record.folder if record.file.name == LINEAGE else record.file for record in records]
    if not found:
        raise UserError(
            f"{label} {name}: no such folder, no run of this name below {root}, and no lineage record with this "
            f"id there; use a path{did_you_mean_folder(path)}"
        )
    return require_single(found, f"{label} {name}", "use its path")


def folders_below(root: Path, depth: int | None = None) -> Iterator[Path]:
    """Yields the folders in `root`, down to `depth` levels (None: all); skips hidden ones and those in `UNSEARCHED`."""
    for folder, folders, _ in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in UNSEARCHED and not name.startswith("."))
        yield from (Path(folder, name) for name in folders)
        if depth is not None and len(Path(folder).relative_to(root).parts) + 1 >= depth:
            folders.clear()


def records_below(root: Path) -> Iterator[Path]:
    """Yields the lineage record files of runs and results in `root` and its subfolders."""
    for folder in [root, *folders_below(root)] if root.is_dir() else []:
        yield from (file for file in sorted(folder.iterdir()) if is_record(file.name) and file.is_file())


def require_single(found: list[Path], what: str, advice: str) -> Path:
    """Returns the only path of the non-empty list `found`; raises UserError if it has several.

    The message is `what` (option and value), the number of paths, `advice` on how to choose one, and the paths.
    """
    if len(found) > 1:
        listing = "".join(f"\n  {path}" for path in found)
        raise UserError(f"{what} could mean {len(found)} models; {advice}:{listing}")
    return found[0]


def resolve(folder: Path, choice: str, name: str, seen: tuple[Path, ...] = ()) -> Parent:
    """Returns the model that `folder`, a folder or the file of a result, refers to; follows lineage records.

    Args:
        folder: Folder or file.
        choice: Checkpoint to select in a run, see `choose_checkpoint`.
        name: Value of `--parent`, for messages.
        seen: Paths that were followed before, to detect cycles.
    """
    if folder.resolve() in seen:
        raise UserError(f"{PARENT} {name}: the lineage records of {folder} form a cycle; use the model's own folder")
    seen = (*seen, folder.resolve())
    if folder.is_file():
        record = folder if is_record(folder.name) else record_of(folder)
        return resolve_result(read_lineage(record or folder), choice, name, seen)
    if is_run(folder):
        return resolve_checkpoint(choose_checkpoint(folder, choice, name))
    if choice and (is_model(folder) or (folder / "model").is_dir()):
        raise UserError(f"{PARENT} {name}: only a run has several checkpoints to choose from; {folder} is not one")
    if NAME.fullmatch(folder.resolve().name) and (folder / "model").is_dir():
        return resolve_checkpoint(folder)
    if (folder / LINEAGE).is_file():
        return resolve_result(read_lineage(folder), choice, name, seen)
    if is_adapter_folder(folder):
        return resolve_adapter(folder, None)
    if is_model(folder):
        return Parent(folder)
    candidates = [child for child in sorted(folder.iterdir()) if child.is_dir() and (is_model(child) or is_run(child))]
    # A spec's results folder has its runs in results_dir/output_dir/TIME.
    candidates = candidates or [child for child in folders_below(folder, RESULT_DEPTH) if is_run(child)]
    if not candidates:
        raise UserError(f"{PARENT} {name}: {folder} contains no run, no checkpoint, no model and no {LINEAGE}")
    return resolve(require_single(candidates, f"{PARENT} {name}", "name one"), choice, name, seen)


def is_run(folder: Path) -> bool:
    """Returns whether `folder` is the folder of a run: it has a config and a folder of checkpoints."""
    return (folder / RUN_CONFIG).is_file() and (folder / "checkpoints").is_dir()


def is_model(folder: Path) -> bool:
    return any((folder / name).is_file() for name in MODEL_FILES)


def choose_checkpoint(run: Path, choice: str, name: str) -> Path:
    """Returns the folder of the checkpoint that `choice` selects; UserError if there is no such complete checkpoint.

    Args:
        run: Run folder.
        choice: "best", "last" or "iter=N"; "": the last one, if the run is finished and no other one is its best.
        name: Value of `--parent`, for messages.
    """
    parent = run / "checkpoints"
    found = [folder for folder in checkpoint_folders(parent) if (folder / MANIFEST).is_file()]
    if not found:
        raise UserError(f"{PARENT} {name}: {run} has no complete checkpoint")
    best, named = read_best(parent), read_pointer(parent).checkpoint
    last = named if named in found else found[0]

    def refusal(reason: str) -> UserError:
        steps = "".join(
            f"\n  {run}:iter={folder_iteration(f)}{label_checkpoint(f, best, last)}" for f in reversed(found)
        )
        return UserError(f"{PARENT} {name}: {reason}; its checkpoints:{steps}")

    if choice == "best":
        if best is None:
            raise refusal("the run has recorded no best checkpoint (checkpoint.keep_best)")
        return best
    if choice == "last":
        return last
    if choice:
        wanted = parent / folder_name(int(choice.removeprefix("iter=")))
        if wanted not in found:
            raise refusal("the run has no complete checkpoint of that step")
        return wanted
    if best is not None and best != last:
        raise refusal("the run's best checkpoint is not its last; add :best or :last, or name a step")
    if not is_finished(run, last):
        raise refusal("the run is not finished; name the checkpoint to use")
    return last


def label_checkpoint(folder: Path, best: Path | None, last: Path) -> str:
    """Returns "  (best)", "  (last)" or "  (best and last)" if `folder` is that checkpoint of its run, else ""."""
    known = [word for word, place in (("best", best), ("last", last)) if folder == place]
    return f"  ({' and '.join(known)})" if known else ""


def is_finished(run: Path, last: Path) -> bool:
    """Returns whether a run is complete: its status file states it, or `last`, its last checkpoint, is at max_iter."""
    status = run / "status.json"
    if status.is_file() and read_json_object(status).get("state") == "finished":
        return True
    steps = read_tree(run / RUN_CONFIG).get("trainer", {}).get("max_iter")
    return isinstance(steps, int) and folder_iteration(last) >= steps


def resolve_checkpoint(folder: Path) -> Parent:
    """Returns the model in the checkpoint `folder`.

    If the checkpoint contains only trained weights and its base model was moved, `base` is the new path of that model.
    """
    if not is_partial(folder) or (file := record_of(folder.resolve())) is None:
        return Parent(folder)
    record = read_lineage(file)
    moved = [place for place in find_inputs(record, "base") if str(place) not in [e["path"] for e in record.inputs]]
    return Parent(folder, base=str(moved[0].resolve()) if moved else None)


def resolve_result(record: Lineage, choice: str, name: str, seen: tuple[Path, ...]) -> Parent:
    """Returns the model that a result contains or, if it contains none, the model that was used to compute the result.

    Args:
        record: Lineage record of the result.
        choice: Checkpoint to select in a run, see `choose_checkpoint`.
        name: Value of `--parent`, for messages.
        seen: Paths that were followed before, to detect cycles.
    """
    folder, written = record.folder, []
    for entry in record.outputs:
        place = folder / entry["path"]
        if not is_model(place) and not is_run(place):
            continue
        # A run may have continued since, so its content is not compared.
        problem = None if is_run(place) else record.change(entry, place, fingerprint_on_rank_0())
        if problem is not None:
            raise UserError(
                f"{PARENT} {name}: {place} {problem}; `{record.action}` wrote it with fingerprint "
                f"{entry['fingerprint']}"
            )
        written.append(place)
    if folder.resolve() in [place.resolve() for place in written]:
        return resolve_adapter(folder, record) if is_adapter_folder(folder) else Parent(folder)
    if written:
        return resolve(require_single(written, f"{PARENT} {name}", "name one"), choice, name, seen)
    if choice:
        raise UserError(f"{PARENT} {name}: {folder} refers to one model, which `{record.action}` used; omit :{choice}")
    adapters, models = find_inputs(record, "adapter"), find_inputs(record, "model")
    if adapters:
        base = [*find_inputs(record, "base"), *models]
        return Parent(adapters[0], base=str(base[0]) if base else None, is_adapter=True)
    if not models:
        raise UserError(f"{PARENT} {name}: {folder} was created by {record.action}, which used no model")
    return resolve(require_single(models, f"{PARENT} {name}", "name one"), "", name, seen)


def resolve_adapter(folder: Path, record: Lineage | None) -> Parent:
    """Returns the adapter in `folder` with its base weights, which the lineage record `record` or else its files name.

    Raises UserError if neither of them names base weights.
    """
    bases = [] if record is None else find_inputs(record, "base")
    about = read_json_object(folder / ABOUT) if (folder / ABOUT).is_file() else {}
    base = str(bases[0]) if bases else about.get("base_model") or base_of_adapter(folder)
    if not base:
        raise UserError(f"{folder} contains adapters but does not state their base weights; set --model BASE too")
    return Parent(folder, base=base, is_adapter=True)


def find_inputs(record: Lineage, role: str) -> list[Path]:
    """Returns the current paths of the inputs of a lineage record with a role such as "base", "model" or "adapter".

    Raises UserError if the content of such an input has changed.
    """
    places = []
    for entry in record.inputs:
        if entry["role"] == role:
            place = record.locate(entry)
            problem = record.change(entry, place, fingerprint_on_rank_0())
            if problem is not None:
                was = f"it was {entry['path']} with fingerprint {entry['fingerprint']} when {record.folder} was created"
                raise UserError(
                    f"the {role} {place} {problem}; {was}. Restore it, or set the path of the model directly"
                )
            places.append(place if place.exists() else Path(entry["path"]))
    return places


def fingerprint_on_rank_0() -> Callable[[Path], str] | None:
    """Returns the function `fingerprint` on rank 0, and None on other ranks, so that only rank 0 reads the files."""
    return fingerprint if os.environ.get("RANK", "0") == "0" else None


def processor_of(folder: Path) -> Mapping[str, Any] | None:
    """Returns the preprocessing of images and videos in the run that trained the model in `folder`, as plain data.

    None if the run or its preprocessing is unknown.
    """
    found = (training_data_of(folder) or {}).get("processor")
    return found if isinstance(found, dict) else None


def training_data_of(folder: Path) -> Mapping[str, Any] | None:
    """Returns the section `dataloader_train` of the config with which the model in `folder` was trained.

    The result is plain data; None if the config is unknown. For a derived model, such as an export, lineage records
    are followed.
    """
    found = (training_tree_of(folder) or {}).get("dataloader_train")
    return found if isinstance(found, dict) else None


def training_tree_of(folder: Path, depth: int = 20) -> Mapping[str, Any] | None:
    """Returns the config of the run that trained the model in `folder`, as plain data; None if it is unknown.

    Args:
        folder: Folder of a run, a checkpoint or a model. For a derived model, its lineage records are followed.
        depth: Max number of lineage records that are followed one after the other.
    """
    folder = folder.resolve()
    run = folder.parent.parent if folder.parent.name == "checkpoints" else folder
    if (run / RUN_CONFIG).is_file():
        return read_tree(run / RUN_CONFIG)
    record = record_of(folder)
    if record is None or depth == 0:
        return None
    lineage = read_lineage(record)
    places = [lineage.locate(entry) for entry in lineage.inputs if entry["role"] in ("adapter", "model")]
    return next((found for place in places if (found := training_tree_of(place, depth - 1)) is not None), None)


def read_tree(file: Path) -> dict[str, Any]:
    """Returns the content of a YAML config file as plain data; empty if it is not a mapping."""
    tree = read_yaml(read_config_text(file), str(file)).data
    return tree if isinstance(tree, dict) else {}


def as_words(parent: Parent, fields: Collection[str]) -> dict[str, str]:
    """Returns the flags with which a command uses a parent model: name of a config field -> its value as a string.

    Args:
        parent: The model, for `model` and, if needed, `adapter`, `base` and `processor.*`.
        fields: Field names of the command's config. Flags for other fields are not returned, except `model`.
    """
    words = {"model": str(parent.model)}
    if parent.is_adapter and "adapter" in fields:
        words = {"model": str(parent.base), "adapter": str(parent.model)}
    elif parent.base is not None and "base" in fields:
        words["base"] = parent.base
    if parent.processor is not None and "processor" in fields:
        words |= {f"processor.{name}": text for name, text in flatten_to_text(parent.processor).items()}
    return words


def flatten_to_text(tree: Mapping[str, Any]) -> dict[str, str]:
    """Flattens nested plain data to dotted name -> value as a string (JSON unless it is a string already).

    None and class tags (`type`) are omitted.
    """
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in flatten(dict(tree)).items()
        if value is not None and name.rpartition(".")[2] != "type"
    }
