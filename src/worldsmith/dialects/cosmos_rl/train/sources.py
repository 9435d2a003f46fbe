"""Data sources of a training spec: files, saved datasets, and records held out for validation."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from worldsmith.config import ConfigError
from worldsmith.config.tree.read_config import from_dict
from worldsmith.config.tree.references import resolve
from worldsmith.data.conversations.datasets.chat_dataset import ChatDataset
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.data.stream.errors import DataError
from worldsmith.dialects.cosmos_rl.rules import ARCHIVES
from worldsmith.dialects.translation import SpecTranslation, computed, format_value, name_class
from worldsmith.files.remote import is_remote

TRAIN, OLD, VAL = "custom.train_dataset", "custom.dataset", "custom.val_dataset"
PROMPTS = ("custom.system_prompt", "train.train_policy.system_prompt")
NAMES, VAL_NAMES = "train.train_policy.dataset", "validation.dataset"
TEST_SIZE, COLUMN = f"{NAMES}.test_size", "train.train_policy.conversation_column_name"
HELD_OUT = 0.1
"""Fraction of the training records that is held out if a spec sets no `test_size`."""
SAVED = "SavedDataset"
MANIFEST = "ManifestDataset"
FORMS = ("annotation_path", "path", "dataset_root")
"""Keys that name data files, one per layout: LLaVA annotations, a saved dataset, a folder with a manifest."""
MEDIA = ("media_path", "media_root")
"""Alternative keys for the media folder."""
FIELDS = ("name", "subset", "revision", "split", "test_size", "local_dir")


@computed(
    *(TRAIN, OLD, VAL, *PROMPTS, COLUMN),
    *(f"{NAMES}.{name}" for name in FIELDS),
    *(f"{VAL_NAMES}.{name}" for name in FIELDS),
    *("validation.enable", "validation.val_before_train", "validation.batch_size"),
)
def data_sets(t: SpecTranslation) -> None:
    """Sets the training and validation datasets in `t` from the data tables of the spec."""
    key = TRAIN if t.get(TRAIN) is not None or t.get(OLD) is None else OLD
    if t.get(TRAIN) is not None and t.get(OLD) is not None:
        t.refuse(OLD, f"{TRAIN} is also given", f"~{OLD}")
    if names_files(t, key):
        put_files(t, key, "dataloader_train")
        report_unused_names(t, NAMES, f"the data comes from {key}")
    elif t.get(f"{NAMES}.name") or t.get(f"{NAMES}.local_dir"):
        put_named_dataset(t, NAMES, "dataloader_train")
    else:
        t.refuse(f"{TRAIN}.annotation_path", "no data is set", ADVICE)
    put_validation(t)


ADVICE = f"{TRAIN}.annotation_path=FILE {TRAIN}.media_path=FOLDER"


def names_files(t: SpecTranslation, key: str) -> bool:
    """Returns whether the spec table `key` sets a path of data (see `put_files`), and not only a dataset name."""
    return any(t.get(f"{key}.{form}") for form in FORMS)


def put_files(t: SpecTranslation, key: str, loader: str) -> None:
    """Sets a dataset from a spec table that names data files.

    The files are LLaVA annotations (`annotation_path`), a dataset saved with `save_to_disk` (`path`), or a folder with
    a manifest (`dataset_root`).

    Args:
        t: The translation, modified in place.
        key: Key of the table.
        loader: Config section of the data loader, such as "dataloader_train".
    """
    forms = [form for form in FORMS if t.get(f"{key}.{form}")]
    if len(forms) > 1:
        t.refuse(f"{key}.{forms[1]}", f"{key}.{forms[0]} names other data", f"~{key}.{forms[1]} or ~{key}.{forms[0]}")
        return
    source, to = f"{key}.{forms[0]}", f"{loader}.dataset"
    given = t.get(source).removeprefix("file://")
    if given.lower().endswith(ARCHIVES):
        t.refuse(
            source, "records cannot be read from an archive, only media can", f"unpack it: {source}=FILE_OR_FOLDER"
        )
        return
    if not put_media(t, key, to):
        return
    if forms[0] == "annotation_path":
        put_annotations(t, key, to, given)
    elif forms[0] == "path":
        put_saved_dataset(t, source, to, given, "; media paths are relative to the current working directory")
        if not t.get(f"{key}.media_path") and not t.get(f"{key}.media_root"):
            t.put(f"{to}.media_root", ".", source=source)
    else:
        path = os.path.join(given, t.get(f"{key}.meta_file"))
        t.put(f"{to}.type", MANIFEST, source=source)
        t.assign(source, f"{to}.path", path)
        t.report_stated("renamed", f"part of {to}.path", f"{key}.meta_file")
    if forms[0] != "dataset_root":
        t.report_stated("unneeded", f"it is only used with {key}.dataset_root", f"{key}.meta_file")
    t.report_stated("unneeded", f"{source} sets the data", *(f"{key}.{form}" for form in FORMS if form != forms[0]))
    t.report_stated("kept", "the loss is computed on answers only", f"{key}.response_mode")
    put_column(t, forms[0])
    put_prompt(t, key, to)


def put_annotations(t: SpecTranslation, key: str, to: str, given: str) -> None:
    """Sets the path of LLaVA annotations, and whether their video records must have `video_fps`.

    TAO's data hook requires `video_fps` in every video record; older hooks ignore it.

    Args:
        t: The translation, modified in place.
        key: Key of the spec's table.
        to: Dotted path of the dataset's settings.
        given: Path of the annotations.
    """
    source, policy = f"{key}.annotation_path", "optional" if key == OLD else "require"
    t.put(f"{to}.video_fps", policy, source=source)
    rule = f"records with a video must have video_fps, or add -- {to}.video_fps=optional"
    rule = rule if policy == "require" else "video_fps of a record is used if it exists, otherwise the video's own"
    t.assign(source, f"{to}.path", given, f"; {rule}")


def put_media(t: SpecTranslation, key: str, to: str) -> bool:
    """Sets the media folder of a dataset from the keys `media_root` or `media_path` of its spec table.

    Keys on the command line have priority over keys in the file.

    Args:
        t: The translation, modified in place.
        key: Key of the spec's table.
        to: Dotted path of the dataset's settings.

    Returns:
        False, after adding a problem, if both keys are set to different folders; else True.
    """
    files = {name: t.get(f"{key}.{name}") for name in MEDIA}
    words = [name for name in MEDIA if t.spec.is_override(f"{key}.{name}")]
    if words:
        for name in [name for name in files if name not in words]:
            if t.is_stated(f"{key}.{name}") and files[name]:
                t.report(f"{key}.{name}", "unneeded", f"{key}.{words[0]} of the command line replaces it")
            del files[name]
    elif t.spec.is_override(f"{key}.annotation_path") and holds_media(root := t.get(f"{key}.annotation_path")):
        others = [name for name, value in files.items() if value and not is_same_folder(value, root)]
        for name in others:
            text = f"{format_value(root)} of the command line contains annotations.json and the media"
            hint = f"{text}; set {key}.{name}=FOLDER if they are elsewhere"
            t.report(f"{key}.{name}", "unneeded", hint, warn=name == others[0])
            del files[name]
    first, second = (files.get(name) for name in MEDIA)
    if first and second and first != second:
        t.refuse(f"{key}.media_root", "media_path has another value", f"~{key}.media_root or ~{key}.media_path")
        return False
    for name, value in files.items():
        if value:
            packed = "; unpacked once, into a folder next to it" if value.lower().endswith(ARCHIVES) else ""
            t.put(f"{to}.media_root", value.removeprefix("file://"), source=f"{key}.{name}")
            t.report(f"{key}.{name}", "renamed", f"{to}.media_root = {format_value(value)}{packed}")
        else:
            t.report_stated("unneeded", "the folder of the annotations", f"{key}.{name}")
    return True


def holds_media(folder: str) -> bool:
    """Returns whether a folder holds annotations.json and files other than JSON, so that it is the media root too."""
    path = Path(folder.removeprefix("file://"))
    if not (path / "annotations.json").is_file():
        return False
    return any(entry.is_dir() or entry.suffix not in (".json", ".jsonl") for entry in path.iterdir())


def is_same_folder(one: str, other: str) -> bool:
    """Returns whether two paths or file:// URLs are the same folder."""
    return os.path.realpath(one.removeprefix("file://")) == os.path.realpath(other.removeprefix("file://"))


def put_saved_dataset(t: SpecTranslation, source: str, to: str, folder: str, note: str = "") -> None:
    """Sets a dataset that was saved with `save_to_disk` of the datasets library.

    Args:
        t: The translation, modified in place.
        source: Key of the spec that names the folder.
        to: Dotted path of the dataset's settings.
        folder: Folder of the saved dataset.
        note: Text appended to the report line.
    """
    t.put(f"{to}.type", SAVED, source=source)
    t.assign(source, f"{to}.path", folder, note)
    t.put(f"{to}.column", t.get(COLUMN), source=COLUMN if t.is_stated(COLUMN) else source)


def put_column(t: SpecTranslation, form: str) -> None:
    """Reports the spec's key of the conversation column in `t`; the key only has an effect for a saved dataset.

    `form`: spec key that names the data files; it is "path" for a saved dataset.
    """
    if form == "path":
        t.report(COLUMN, "renamed", f"dataloader_train.dataset.column = {format_value(t.get(COLUMN))}")
    else:
        t.report(
            COLUMN,
            "unneeded",
            "only a saved dataset has columns; annotations store conversations under `conversations`, as in Cosmos-RL",
        )


def put_named_dataset(t: SpecTranslation, key: str, loader: str) -> None:
    """Sets a dataset from a spec table that has its name (`local_dir` or `name`), which must be an existing folder.

    Args:
        t: The translation, modified in place.
        key: Key of the table.
        loader: Config section of the data loader, such as "dataloader_train".
    """
    source = f"{key}.local_dir" if t.get(f"{key}.local_dir") else f"{key}.name"
    folder, to = t.get(source), f"{loader}.dataset"
    if not is_remote(folder) and not os.path.isdir(folder):
        why, fix = f"'{folder}' is not a folder on this machine, and runs do not download datasets", ADVICE
        if re.fullmatch(r"[\w.-]+/[\w.-]+", folder):
            download = f"hf download {folder} --repo-type dataset --local-dir FOLDER"
            fix = f"{download}, then {key}.name=FOLDER; or {ADVICE}"
        t.refuse(f"{TRAIN}.annotation_path" if key == NAMES else source, f"no data: {why}", fix)
        return
    put_saved_dataset(t, source, to, folder)
    split = t.get(f"{key}.split")
    for name, value in (("split", "+".join(split) if isinstance(split, list) else split), ("subset", None)):
        value = t.get(f"{key}.{name}") if value is None else value
        if value:
            t.assign(f"{key}.{name}", f"{to}.{name}", value)
        else:
            t.report_stated("unneeded", "it is empty", f"{key}.{name}")
    others = [name for name in ("name", "local_dir", "revision") if f"{key}.{name}" != source]
    t.report_stated("unneeded", f"{source} is a folder", *(f"{key}.{name}" for name in others))
    if key == NAMES:
        put_column(t, "path")
        put_prompt(t, "", to)


def report_unused_names(t: SpecTranslation, key: str, why: str) -> None:
    """Reports the keys of the dataset table `key` that the spec sets, except `test_size`, as unneeded.

    `why`: reason, which is the text of the report lines.
    """
    names = (f"{key}.{name}" for name in FIELDS)
    t.report_stated("unneeded", why, *(name for name in names if name != TEST_SIZE))


def put_prompt(t: SpecTranslation, key: str, to: str) -> None:
    """Sets the system prompt of a dataset: the one of its table, else of `custom`, else of `train.train_policy`.

    Args:
        t: The translation, modified in place.
        key: Key of the dataset's table; "" if the table has no prompt.
        to: Dotted path of the dataset's settings.
    """
    keys = (*([f"{key}.system_prompt"] if key else []), *PROMPTS)
    given = [name for name in keys if t.is_stated(name) and t.get(name) is not None]
    for number, name in enumerate(given):
        if number == 0:
            t.assign(name, f"{to}.system_prompt", t.get(name))
        elif t.get(name) != t.get(given[0]):
            t.refuse(name, f"{given[0]} sets another prompt", f"~{name} or ~{given[0]}")
        elif key != VAL:
            t.report(name, "kept", f"the same as {given[0]}")


def put_validation(t: SpecTranslation) -> None:
    """Sets the validation data and its batch size in `t`, if the spec enables validation.

    If the spec names no validation data, the first training records are held out for it.
    """
    enabled = t.get("validation.enable")
    t.assign("validation.enable", "trainer.run_validation", enabled)
    named = f"{VAL_NAMES}.name" if t.get(f"{VAL_NAMES}.name") else f"{VAL_NAMES}.local_dir"
    if not enabled:
        unused = (VAL, VAL_NAMES, "validation.val_before_train", "validation.batch_size", TEST_SIZE)
        t.report_stated("unneeded", "validation.enable is false: no validation", *unused)
        return
    if names_files(t, VAL):
        put_files(t, VAL, "dataloader_val")
        report_unused_names(t, VAL_NAMES, f"the data comes from {VAL}")
    elif t.get(named):
        put_named_dataset(t, VAL_NAMES, "dataloader_val")
    else:
        hold_out(t)
        report_unused_names(t, VAL_NAMES, "no dataset is named")
    if names_files(t, VAL) or t.get(named):
        t.report_stated("unneeded", "there is validation data, so no records are held out", TEST_SIZE)
    t.move("validation.val_before_train", "trainer.run_validation_on_start", "renamed")
    size, source = t.get("validation.batch_size"), "validation.batch_size"
    if size is None:
        size, source = t.get("train.train_policy.mini_batch"), "train.train_policy.mini_batch"
    t.put("dataloader_val.max_samples_per_batch", size, source=source)
    put_token_limits(t, "dataloader_val", size, source)
    t.report("validation.batch_size", "renamed", f"dataloader_val.max_samples_per_batch = {size}")


def put_token_limits(t: SpecTranslation, loader: str, samples: int, source: str) -> None:
    """Sets the token limits of a data loader from the spec's `policy.model_max_length` (L).

    A sample may have L tokens, and a packed batch `samples` times L, plus 1.

    Args:
        t: The translation, modified in place.
        loader: Config section of the data loader, such as "dataloader_train".
        samples: Number of samples in a packed batch.
        source: Spec key to which a mistake in the limit of the packed batch is attributed.
    """
    longest = t.get("policy.model_max_length")
    t.put(f"{loader}.max_sample_tokens", longest, source="policy.model_max_length")
    t.put(f"{loader}.max_sequence_length", samples * longest + 1, source=source)


def hold_out(t: SpecTranslation) -> None:
    """Holds out the first training records for validation in `t`: a number or a fraction of them, at least one.

    Adds a problem if the spec holds out 0 records, or if the dataset has only one or cannot be read.
    """
    size, train = t.get(TEST_SIZE), t.data.get("dataloader_train", {}).get("dataset", {})
    ways = f"{VAL}.annotation_path=FILE, or validation.enable=false"
    if size is not None and size == 0:
        why = f"there is no validation data: {VAL} names none, and {TEST_SIZE} = 0 holds out none"
        t.refuse("validation.enable", why, f"{TEST_SIZE}={HELD_OUT}, or {ways}")
        return
    if not train.get("path"):
        return  # what is missing has been reported
    try:
        records, _ = count_records(train)
    except (ValueError, OSError) as error:
        t.refuse("validation.enable", f"the records cannot be counted, so none can be held out: {error}", ways)
        return
    requested = HELD_OUT if size is None else size
    count = max(min(int(records * requested) if isinstance(requested, float) else requested, records - 1), 1)
    if records < 2:
        t.refuse("validation.enable", "a single record cannot be held out for validation", ways)
        return
    source = TEST_SIZE if t.is_stated(TEST_SIZE) else "validation.enable"
    for name, value in train.items():
        t.put(f"dataloader_val.dataset.{name}", value, source=source)
    t.put("dataloader_val.dataset.limit", count, source=source)
    t.put("dataloader_train.dataset.skip", count, source=source)
    usual = "" if size is not None else f" (no size is set, and the default of Cosmos-RL is {HELD_OUT:.0%})"
    text = f"held out {count} of {records} records for validation, the first ones{usual}; they are not trained on"
    t.report(TEST_SIZE, "renamed", text, warn=True)


def count_records(dataset: dict[str, Any]) -> tuple[int, int]:
    """Returns the numbers of all and of usable records of a dataset, by building the dataset.

    Args:
        dataset: The settings of the dataset as plain data. `video_fps` is not required of its records.

    Returns:
        The number of all records, and of those that can be used according to the annotations.

    Raises:
        ValueError: If the settings or the file are invalid, or no record can be used.
        OSError: If the file cannot be read.
    """
    try:
        settings = {"type": LlavaDataset.__name__, **dataset, "video_fps": "optional"}
        name_class(settings, ChatDataset.Config, None)
        found = resolve(from_dict(settings)).build()
    except ConfigError as error:
        raise ValueError("; ".join(problem.message for problem in error.problems)) from error
    except DataError as error:
        raise ValueError(str(error)) from error
    if not len(found):
        why = f", the first: {found.rejections[0].detail}" if found.rejections else ""
        raise ValueError(f"{found.name} has {found.num_records} records, but none can be used{why}")
    return found.num_records, len(found)
