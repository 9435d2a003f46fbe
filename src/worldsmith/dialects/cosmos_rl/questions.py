"""Data of an evaluation spec: one table `dataset`, or a table `datasets` with several datasets by name."""

from __future__ import annotations

from typing import Any, Literal, get_args

from worldsmith.dialects.cosmos_rl.rules import LLAVA, move_unless_empty
from worldsmith.dialects.translation import SpecTranslation, computed, format_value

RatePolicy = Literal["optional", "require", "probe"]
ONE, SEVERAL = "dataset", "datasets"
FIELDS = {"annotation_path": "path", "media_dir": "media_root", "system_prompt": "system_prompt"}
"""Key of a dataset table -> field of our dataset config."""
RATES = "video_fps"
"""Key of a dataset table that has the same name and values in our dataset config."""
PROMPT = "You are a helpful assistant."
"""Default system prompt of the tables in `datasets`."""
FOLDER = "data_dir"
QA_PAIRS = "QaPairsDataset"
BENCHMARK_PROMPT = "Answer the questions."
WITHOUT = {ONE: {"annotation_path": ""}}
"""Values of keys that a spec with `datasets` may omit: section -> key -> value."""


@computed(*(f"{ONE}.{name}" for name in (*FIELDS, RATES)), SEVERAL, FOLDER)
def questions(t: SpecTranslation) -> None:
    """Sets the evaluation dataset in `t` from the table `dataset`, or from the tables or benchmarks in `datasets`."""
    if t.is_stated(FOLDER) and not isinstance(t.get(SEVERAL), list):
        t.report(FOLDER, "unneeded", f"it is only used if {SEVERAL} is a list of benchmark names")
    if t.get(SEVERAL):
        put_datasets(t)
        if t.is_stated(f"{ONE}.{RATES}"):
            t.report(f"{ONE}.{RATES}", "kept", f"for each of {SEVERAL} without its own {RATES}")
        return
    t.put("dataset.type", LLAVA, source="dataset.annotation_path")
    t.move("dataset.annotation_path", "dataset.path", "renamed")
    move_unless_empty(t, "dataset.media_dir", "dataset.media_root", "media paths are relative to the annotations")
    t.move("dataset.system_prompt", "dataset.system_prompt", "kept")
    if t.is_stated(f"{ONE}.{RATES}"):
        t.move(f"{ONE}.{RATES}", f"dataset.{RATES}", "kept")
    if t.is_stated(SEVERAL):
        t.report(SEVERAL, "unneeded", "it is empty")


def put_datasets(t: SpecTranslation) -> None:
    """Sets the dataset in `t` from `datasets`: one LLaVA dataset, or a mixed dataset with record ids NAME/ID."""
    tables: Any = t.get(SEVERAL)
    if t.get(f"{ONE}.annotation_path"):
        t.refuse(SEVERAL, f"{ONE} also sets data", f"~{SEVERAL} or ~{ONE}")
        return
    if isinstance(tables, list):
        put_benchmarks(t, tables)
        return
    read = {name: read_dataset_table(t, name, table) for name, table in tables.items()}
    found = {name: table for name, table in read.items() if table is not None}
    if len(found) < len(read):
        return
    names = ", ".join(found)
    if len(found) == 1:
        for field, value in next(iter(found.values())).items():
            t.put(f"dataset.{field}", value, source=SEVERAL)
        t.report(SEVERAL, "renamed", f"dataset = the LLaVA annotations of {names}")
    else:
        t.put("dataset.type", "MixedDataset", source=SEVERAL)
        t.put("dataset.datasets", found, source=SEVERAL)
        t.report(SEVERAL, "renamed", f"dataset = a mixed dataset of {names}; ids are NAME/ID")
    if t.get("evaluation.answer_type") == "reasoning":
        text = "no reasoning instruction is added to the system prompt; add one to system_prompt"
        t.report(SEVERAL, "approximated", text, warn=True)
    for name in FIELDS:
        if t.get(f"{ONE}.{name}"):
            t.report(f"{ONE}.{name}", "unneeded", f"{SEVERAL} sets the data")


def put_benchmarks(t: SpecTranslation, names: list[str]) -> None:
    """Sets a mixed dataset of Cosmos-Reason1 benchmarks (multiple choice) in `t`.

    Args:
        t: The translation, modified in place.
        names: Names of the benchmarks, which are folder names in `benchmark` of the spec's `data_dir`.
    """
    root = t.get(FOLDER)
    if not root:
        why = f"{', '.join(names)}: benchmark names require the folder that the benchmarks were downloaded to"
        t.refuse(
            SEVERAL, why, f"{FOLDER}=FOLDER, which contains benchmark/{names[0]}/{names[0]}_benchmark_qa_pairs.json"
        )
        return
    found = {
        name: {
            "type": QA_PAIRS,
            "path": f"{root}/benchmark/{name}",
            "system_prompt": BENCHMARK_PROMPT,
            **frame_rate_setting(t, {}),
        }
        for name in names
    }
    t.put("dataset.type", "MixedDataset", source=SEVERAL)
    t.put("dataset.datasets", found, source=SEVERAL)
    text = "the questions of each benchmark, with ids NAME/ID; the last instruction differs from the original"
    t.report(SEVERAL, "approximated", text)
    t.report(FOLDER, "renamed", f"dataset.datasets.NAME.path = {root}/benchmark/NAME")


def read_dataset_table(t: SpecTranslation, name: str, table: Any) -> dict[str, Any] | None:
    """Returns the settings of one LLaVA dataset from its table in `datasets`.

    Args:
        t: The translation, to which problems of the table are added.
        name: Key of the table in `datasets`.
        table: Value of that key, not checked yet.

    Returns:
        The settings by field name of Worldsmith's dataset config; None if the table is invalid.
    """
    where, before = f"{SEVERAL}.{name}", len(t.problems)
    if not isinstance(table, dict):
        t.refuse(
            where, f"expected a table with the keys {', '.join(FIELDS)}, found {format_value(table)}", f"{where}={{…}}"
        )
        return None
    for key in table:
        if key not in (*FIELDS, RATES):
            t.refuse(f"{where}.{key}", f"unexpected key: expected {', '.join((*FIELDS, RATES))}", f"~{where}.{key}")
        elif key == RATES and table[key] not in get_args(RatePolicy):
            expected = ", ".join(get_args(RatePolicy))
            t.refuse(
                f"{where}.{key}", f"expected one of {expected}, found {format_value(table[key])}", f"~{where}.{key}"
            )
        elif not isinstance(table[key], str) and not (table[key] is None and key != "annotation_path"):
            t.refuse(f"{where}.{key}", f"expected a string, found {format_value(table[key])}", f"{where}.{key}=TEXT")
    if len(t.problems) == before and not table.get("annotation_path"):
        t.refuse(where, "it names no annotations", f"{where}.annotation_path=FILE")
    if len(t.problems) > before:
        return None
    given = {ours: table.get(key) or "" for key, ours in FIELDS.items() if key != "system_prompt"}
    return {
        "type": LLAVA,
        **given,
        "system_prompt": table.get("system_prompt", PROMPT) or "",
        **frame_rate_setting(t, table),
    }


def frame_rate_setting(t: SpecTranslation, table: dict[str, Any]) -> dict[str, Any]:
    """Returns {"video_fps": value} from a dataset's table, else from the spec's `dataset`; {} if neither sets it."""
    value = table.get(RATES) or (t.get(f"{ONE}.{RATES}") if t.is_stated(f"{ONE}.{RATES}") else None)
    return {RATES: value} if value else {}
