"""`worldsmith gaps`: writes the questions that a model answers wrongly as a table."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from worldsmith.actions.action import Action, Result
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.files.atomic import replacing
from worldsmith.files.errors import require_libraries
from worldsmith.files.remote import RemoteError, file_exists, is_remote
from worldsmith.files.remote_folder import write_remote
from worldsmith.models.model_files import local_path
from worldsmith.monitor.lineage import Input, write_lineage
from worldsmith.tools.gaps.evaluation_results import (
    Annotations,
    AnswerRow,
    EvaluationResults,
    Mode,
    answer_name,
    find_gap,
    text_of,
)

SHOWN = 5
"""Examples that an error names."""
COLUMNS: Mapping[str, str] = {
    "video_id": "string",  # the whole path of what is shown, as the tools that read these tables expect it
    "question": "string",
    "ground_truth": "string",
    "record_id": "string",
    "prediction": "string",
    "normalized_prediction": "string",
    "error_type": "string",
    "task": "string",
    "slice": "string",
    "media": "list",
    "media_exists": "bool",
    "results_file": "string",
    "row": "int64",
    "evaluation": "string",
}
"""Names and types of the table columns, in order; the first three are compatible with the tables of the
gap-analysis tool for results of Cosmos-RL."""


class FindGaps(Action):
    """Lists the failure cases of a reasoner: compares the answers in results.json with the ground truth, as a table.

    All paths may be URLs, such as s3://bucket/folder. The first columns are video_id (the full path of the media
    file), question and ground_truth.
    """

    aliases = {"-o": "gaps_parquet"}
    writes_to_stores = True

    class Config(Action.Config):
        results_dir: str
        """Results of an evaluation: a folder that contains results.json at any depth, or the file."""
        gaps_parquet: str
        """Output table (Parquet); a name that ends with .json writes the same rows as JSON."""
        kpi_ann_path: str | None = None
        """The evaluated annotations; null: those recorded by the evaluation, if they are needed."""
        kpi_media_path: str | None = None
        """Folder that media paths are relative to; null: as in the evaluation, otherwise the folder of the
        annotations."""
        mode: Mode = "exact"
        """Comparison of answers. exact: equal except for case and surrounding whitespace; normalized: also except for
        punctuation and articles; yes_no, letter: the same word or option in any wording."""
        merge: bool = False
        """Combine all results.json files that are found."""
        summary: str | None = None
        """JSON file of the counts; null: next to the table."""
        annotations_out: str | None = None
        """Also write the annotations of the failure cases, as LLaVA JSON for training."""
        force: bool = False
        """Replace existing files."""

    config: Config

    def plan(self) -> Iterator[str]:
        self.require_outputs()
        yield f"results    {len(self.evaluation.answers)} answers in {', '.join(self.evaluation.files)}"
        if self.annotations is not None:
            yield f"records    {len(self.annotations.by_key)} in {self.annotations.location}"
        yield f"table      {self.config.gaps_parquet}"

    def run(self) -> Result:
        config = self.config
        self.require_outputs()
        gaps = find_gaps(self.evaluation, self.annotations, config.mode)
        write_table(config.gaps_parquet, gaps)
        facts = {
            "mode": config.mode,
            **count_gaps(self.evaluation.answers, gaps),
            "table": config.gaps_parquet,
            "results": self.evaluation.files,
            "annotations": self.annotations and self.annotations.location,
        }
        write_json(self.summary, facts)
        if config.annotations_out is not None and self.annotations is not None:
            keys = dict.fromkeys(row["record_id"] for row in gaps)
            write_json(config.annotations_out, [self.annotations.with_full_paths(key) for key in keys])
        self.record()
        return Result(self.lines(facts), facts)

    @cached_property
    def evaluation(self) -> EvaluationResults:
        return EvaluationResults(self.config.results_dir, self.config.merge)

    @cached_property
    def annotations(self) -> Annotations | None:
        """Annotations of the evaluated questions; None if they are not needed.

        They are needed for --kpi-ann-path, for --annotations-out, and if a row of the results does not name its media.

        Raises UserError if they are not found.
        """
        config = self.config
        is_needed = config.kpi_ann_path is not None or config.annotations_out is not None
        if not is_needed and all("media" in answer.row for answer in self.evaluation.answers):
            return None
        return self.evaluation.find_annotations(config.kpi_ann_path, config.kpi_media_path)

    @property
    def summary(self) -> str:
        """Path or URL of the JSON file of the counts."""
        table = self.config.gaps_parquet
        return self.config.summary or f"{table.removesuffix('.json').removesuffix('.parquet')}.summary.json"

    def require_outputs(self) -> None:
        """Raises FileExistsError if an output exists without `--force`, UserError if required pyarrow is missing."""
        config = self.config
        if not config.gaps_parquet.endswith(".json"):
            require_libraries("an output whose name does not end with .json", "gaps", "pyarrow")
        for location in (config.gaps_parquet, self.summary, config.annotations_out):
            if location is not None and not config.force and is_taken(location):
                raise FileExistsError(f"{location} already exists: choose another name, or use --force")

    def lines(self, facts: Mapping[str, Any]) -> Iterator[str]:
        """Yields the output lines: written files, missing media, failures by slice.

        `facts` is the content of the summary file.
        """
        kinds = ", ".join(f"{kind} {count}" for kind, count in facts["error_types"].items()) or "none"
        yield f"table      {facts['table']}"
        yield f"summary    {self.summary}"
        if self.config.annotations_out is not None:
            yield f"records    {self.config.annotations_out}"
            yield "           a model that is trained on these records must be evaluated on other data"
        if facts["media_missing"]:
            yield f"missing    the images or videos of {facts['media_missing']} failure cases"
        if facts["media_unknown"]:
            yield (
                f"unknown    whether the media of {facts['media_unknown']} failure cases exist: their locations "
                "cannot be reached"
            )
        for part, counts in facts["slices"].items():
            yield f"  {counts['gaps']} of {counts['answers']}  {part}"
        yield f"failures   {facts['gaps']} of {facts['answers']} answers: {kinds}"
        yield f"format     {facts['format_only']}: correct, but not in the format that `{facts['mode']}` requires"

    def record(self) -> None:
        """Writes lineage records for the table and the annotation records, unless they are written to URLs."""
        config = self.config
        inputs = [Input("results", file) for file in self.evaluation.files]
        if self.annotations is not None:
            inputs.append(Input("dataset", self.annotations.location, {"records": len(self.annotations.by_key)}))
        for location in (config.gaps_parquet, config.annotations_out):
            if location and not is_remote(location):
                write_lineage(local_path(location), action="gaps", settings=to_dict(config), inputs=inputs)


def find_gaps(evaluation: EvaluationResults, annotations: Annotations | None, mode: Mode) -> list[dict[str, Any]]:
    """Compares all answers with the ground truth.

    Args:
        evaluation: Results of the evaluation.
        annotations: Annotations of the questions; None: the results name the media.
        mode: Comparison mode.

    Returns:
        One table row per wrong answer, with the columns of `COLUMNS`.

    Raises:
        UserError: If an answer belongs to no annotation, or if a ground truth cannot be parsed.
    """
    found, lost, unreadable = [], [], []
    ids = {record.folder: record.id for record in reversed(evaluation.records)}
    for answer in evaluation.answers:
        try:
            gap = find_gap(answer.row, mode)
            if gap is None:
                continue
            key = answer_name(answer.row) if annotations is None else annotations.key_of(answer.row)
        except ValueError as error:
            unreadable.append(f"{answer.file}[{answer.number}]: {error}")
            continue
        if key is None:
            lost.append(answer_name(answer.row))
            continue
        row = answer.row
        media = (annotations.media(key) if annotations else []) or row.get("media") or []
        found.append(
            {
                "video_id": media[0] if media else "",
                "question": text_of(row.get("question")),
                "ground_truth": text_of(row.get("gt")).lower().strip(),
                "record_id": key,
                "prediction": None if row.get("response") is None else text_of(row["response"]),
                "normalized_prediction": gap.normalized,
                "error_type": gap.error_type,
                "task": text_of(row.get("task")),
                "slice": json.dumps(row.get("slice") or {}, ensure_ascii=False, sort_keys=True),
                "media": media,
                "media_exists": all_exist(media),
                "results_file": answer.file,
                "row": answer.number,
                "evaluation": None if is_remote(answer.file) else ids.get(Path(answer.file).resolve().parent),
            }
        )
    if lost and annotations is not None:
        shown = ", ".join(f"'{name}'" for name in lost[:SHOWN])
        raise UserError(
            f"Video {shown} not found in annotations {annotations.location} ({len(lost)} of the wrong answers): pass "
            "the evaluated file as --kpi-ann-path"
        )
    if unreadable:
        more = f"\n  and {len(unreadable) - SHOWN} more" if len(unreadable) > SHOWN else ""
        raise UserError("\n  ".join([f"{len(unreadable)} rows cannot be compared:", *unreadable[:SHOWN]]) + more)
    return found


def count_gaps(answers: Sequence[AnswerRow], gaps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the content of the summary file: numbers of answers and of wrong answers, accuracies from 0 to 1.

    "error_types" has counts by error type; "slices" has, by "name: value" of a slice, {"answers": count, "gaps": count
    of wrong answers}. The accuracies are None without answers.

    `gaps` are the table rows from `find_gaps` for the wrong answers among `answers`.
    """
    total, wrong = len(answers), len(gaps)
    types = Counter(row["error_type"] for row in gaps)
    places = {(row["results_file"], row["row"]) for row in gaps}
    parts = Counter(part for answer in answers for part in slices_of(answer.row))
    failed = Counter(part for answer in answers if answer[:2] in places for part in slices_of(answer.row))
    return {
        "answers": total,
        "right": total - wrong,
        "gaps": wrong,
        "format_only": types["format"],
        "accuracy": (total - wrong) / total if total else None,
        "accuracy_without_format_gaps": (total - wrong + types["format"]) / total if total else None,
        "error_types": dict(sorted(types.items())),
        "media_missing": sum(row["media_exists"] is False for row in gaps),
        "media_unknown": sum(row["media_exists"] is None and bool(row["media"]) for row in gaps),
        "slices": {part: {"answers": count, "gaps": failed[part]} for part, count in sorted(parts.items())},
    }


def is_taken(location: str) -> bool:
    """Returns whether a file, or a local folder, exists at a path or URL."""
    return file_exists(location) if is_remote(location) else local_path(location).exists()


def all_exist(media: Sequence[str]) -> bool | None:
    """Returns whether all media files exist; None if the list is empty or a storage location is not reachable."""
    try:
        return all(map(file_exists, media)) if media else None
    except RemoteError:
        return None


def slices_of(row: Mapping[str, Any]) -> list[str]:
    """Returns the task and the data slices of a row of results.json, each as a string "name: value"."""
    slices = row.get("slice")
    parts = [f"{name}: {value}" for name, value in slices.items()] if isinstance(slices, Mapping) else []
    return [*([f"task: {row['task']}"] if row.get("task") else []), *parts]


def write_json(location: str, data: Any) -> None:
    """Writes data as JSON to `location`, a path or a URL."""
    write_bytes(location, (json.dumps(data, ensure_ascii=False, indent=1) + "\n").encode())


def write_bytes(location: str, data: bytes) -> None:
    """Writes a file at a path or URL, and its parent folders; RemoteError if a storage cannot be written."""
    if is_remote(location):
        return write_remote(location, data)
    path = local_path(location)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as aside:
        aside.write_bytes(data)


def write_table(location: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes the rows to a path or URL: as JSON if it ends with .json, else as parquet.

    Raises UserError if the file cannot be written.
    """
    if location.endswith(".json"):
        write_json(location, rows)
        return
    import pyarrow
    from pyarrow import parquet

    types = {"list": pyarrow.list_(pyarrow.string()), "bool": pyarrow.bool_(), "int64": pyarrow.int64()}
    schema = pyarrow.schema([(name, types.get(kind, pyarrow.string())) for name, kind in COLUMNS.items()])
    data = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=schema), data)
    write_bytes(location, data.getvalue())
