"""`worldsmith gaps`: the questions that a model answers wrongly, as a table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from worldsmith.actions.action import Action, Result
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.files.places import exists, find, is_remote, local, read_bytes, write_bytes
from worldsmith.monitor.lineage import Input, Lineage, read_lineage, record_of, write_lineage
from worldsmith.tools.gaps.annotations import SHOWN, Annotations
from worldsmith.tools.gaps.compare import Gap, Mode, compare, text_of
from worldsmith.tools.gaps.table import require_pyarrow, write_table

RESULTS = "results.json"


class FindGaps(Action):
    """Compares the answers in results.json with the true ones, and writes those that differ as a table.

    All places may be URLs, such as s3://bucket/folder. The first columns are video_id (the whole path of what is
    shown), question and ground_truth.
    """

    aliases = {"-o": "gaps_parquet"}

    class Config(Action.Config):
        results_dir: str
        """What an evaluation has written: the folder anywhere below which results.json is, or the file."""
        gaps_parquet: str
        """The table; with a name that ends with .json the same rows as JSON."""
        kpi_ann_path: str | None = None
        """The annotations that were asked; null: those that the evaluation has recorded, if they are needed."""
        kpi_media_path: str | None = None
        """Folder to which paths in them are relative; null: as the evaluation had it, else that of the annotations."""
        mode: Mode = "exact"
        """What makes an answer right. exact: the same text but for case and blanks around it; normalized: also but for
        punctuation and articles; yes_no, letter: the same word or option, however it is said."""
        merge: bool = False
        """Read all results.json that are found, where there are several."""
        summary: str | None = None
        """JSON file of the counts; null: beside the table."""
        annotations_out: str | None = None
        """Write the annotations of the gaps too, as LLaVA JSON that a run can be trained on."""
        force: bool = False
        """Replace what is there."""

    config: Config

    def plan(self) -> Iterator[str]:
        self.require_places()
        rows = self.rows
        yield f"results    {len(rows)} answers in {', '.join(self.files)}"
        if self.annotations is not None:
            yield f"records    {len(self.annotations.by_key)} in {self.annotations.place}"
        yield f"table      {self.config.gaps_parquet}"

    def run(self) -> Result:
        config = self.config
        self.require_places()
        found = self.gaps()
        write_table(config.gaps_parquet, [row for row, _ in found])
        facts = self.facts(found)
        write_bytes(self.summary, (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())
        if config.annotations_out is not None and self.annotations is not None:
            self.write_annotations(self.annotations, config.annotations_out, found)
        self.record()
        return Result(self.lines(facts), facts)

    @property
    def summary(self) -> str:
        table = self.config.gaps_parquet
        return self.config.summary or f"{table.removesuffix('.json').removesuffix('.parquet')}.summary.json"

    def require_places(self) -> None:
        """Raises for a file that is there already, and without the library that writes the table."""
        config = self.config
        if not config.gaps_parquet.endswith(".json"):
            require_pyarrow(config.gaps_parquet)
        for place in (config.gaps_parquet, self.summary, config.annotations_out):
            if place is not None and not config.force and exists(place):
                raise FileExistsError(f"{place} exists; choose another name, or give --force")

    @cached_property
    def files(self) -> list[str]:
        """The results. Raises UserError for none, and for several without `merge`."""
        root = self.config.results_dir
        files = find(root, RESULTS)
        if not files:
            raise UserError(f"{root}: there is no {RESULTS} below it; `worldsmith evaluate` writes one")
        if len(files) > 1 and not self.config.merge:
            listing = "".join(f"\n  {file}" for file in files)
            raise UserError(f"{root} has {len(files)} {RESULTS}; give one as --results-dir, or --merge them:{listing}")
        return files

    @cached_property
    def rows(self) -> list[tuple[str, int, Mapping[str, Any]]]:
        """(file, index, row) of all answers. An id that several rows of a file have is none."""
        found: list[tuple[str, int, Mapping[str, Any]]] = []
        for file in self.files:
            rows = read_rows(file)
            ids = Counter(str(row.get("id")) for row in rows)
            found += [
                (file, n, {k: v for k, v in row.items() if k != "id" or ids[str(v)] == 1}) for n, row in enumerate(rows)
            ]
        return found

    @cached_property
    def records(self) -> list[Lineage]:
        """What the evaluations have recorded of themselves."""
        places = [record_of(local(file).resolve()) for file in self.files if not is_remote(file)]
        return [read_lineage(place) for place in places if place is not None]

    @cached_property
    def annotations(self) -> Annotations | None:
        """None where the results say themselves what was shown, and nothing else is wanted.

        Raises UserError where the annotations are not named, or are no longer those that were asked.
        """
        config = self.config
        if (
            config.kpi_ann_path is None
            and config.annotations_out is None
            and all("media" in r for _, _, r in self.rows)
        ):
            return None
        told = {
            record.locate(e): (record, e) for record in self.records for e in record.inputs if e["role"] == "dataset"
        }
        place = config.kpi_ann_path
        if place is None:
            if len(told) != 1:
                known = "; ".join(map(str, told)) or "the evaluation has not recorded any"
                raise UserError(f"--kpi-ann-path: which annotations were asked? Give their file ({known})")
            ((path, (record, entry)),) = told.items()
            problem = record.change(entry, path)
            if problem is not None:
                raise UserError(
                    f"{path} {problem}: it is not what was asked; give it as --kpi-ann-path if that is meant"
                )
            place = str(path)
        roots = {root for record in self.records if (root := media_root(record))}
        root = config.kpi_media_path or (roots.pop() if len(roots) == 1 and config.kpi_ann_path is None else "")
        return Annotations(place, root or (place.rpartition("/")[0] if is_remote(place) else str(local(place).parent)))

    def gaps(self) -> list[tuple[dict[str, Any], Gap]]:
        """The rows of the table, each with its gap.

        Raises UserError for answers to no record, and for true answers that cannot be read.
        """
        found, lost, unreadable = [], [], []
        for file, number, row in self.rows:
            try:
                gap = compare(row, self.config.mode)
                if gap is None:
                    continue
                key = name_of(row) if self.annotations is None else self.annotations.key_of(row)
            except ValueError as error:
                unreadable.append(f"{file}[{number}]: {error}")
                continue
            if key is None:
                lost.append(name_of(row))
                continue
            found.append((self.row(file, number, row, gap, key), gap))
        if lost and self.annotations is not None:
            shown = ", ".join(f"'{name}'" for name in lost[:SHOWN])
            raise UserError(
                f"Video {shown} not found in annotations {self.annotations.place} ({len(lost)} of the wrong answers); "
                "give the file that was asked as --kpi-ann-path"
            )
        if unreadable:
            more = f"\n  and {len(unreadable) - SHOWN} more" if len(unreadable) > SHOWN else ""
            raise UserError("\n  ".join([f"{len(unreadable)} rows cannot be compared:", *unreadable[:SHOWN]]) + more)
        return found

    def row(self, file: str, number: int, row: Mapping[str, Any], gap: Gap, key: str) -> dict[str, Any]:
        media = (self.annotations.media(key) if self.annotations else []) or row.get("media") or []
        record = next((r.id for r in self.records if r.folder == local(file).resolve().parent), None)
        return {
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
            "media_exists": are_there(media),
            "results_file": file,
            "row": number,
            "evaluation": record,
        }

    def facts(self, found: Sequence[tuple[dict[str, Any], Gap]]) -> dict[str, Any]:
        """The counts, as plain data."""
        total, wrong = len(self.rows), len(found)
        form = sum(gap.error_type == "format" for _, gap in found)
        parts = Counter(part for _, _, row in self.rows for part in parts_of(row))
        failed = Counter(part for _, number, row in self.failed(found) for part in parts_of(row))
        return {
            "mode": self.config.mode,
            "answers": total,
            "right": total - wrong,
            "gaps": wrong,
            "format_only": form,
            "accuracy": (total - wrong) / total if total else None,
            "accuracy_without_format_gaps": (total - wrong + form) / total if total else None,
            "error_types": dict(sorted(Counter(gap.error_type for _, gap in found).items())),
            "media_missing": sum(row["media_exists"] is False for row, _ in found),
            "media_unknown": sum(row["media_exists"] is None and bool(row["media"]) for row, _ in found),
            "slices": {part: {"answers": count, "gaps": failed[part]} for part, count in sorted(parts.items())},
            "table": self.config.gaps_parquet,
            "results": self.files,
            "annotations": self.annotations and self.annotations.place,
        }

    def failed(self, found: Sequence[tuple[dict[str, Any], Gap]]) -> list[tuple[str, int, Mapping[str, Any]]]:
        places = {(row["results_file"], row["row"]) for row, _ in found}
        return [entry for entry in self.rows if entry[:2] in places]

    def lines(self, facts: Mapping[str, Any]) -> Iterator[str]:
        kinds = ", ".join(f"{kind} {count}" for kind, count in facts["error_types"].items()) or "none"
        yield f"table      {facts['table']}"
        yield f"summary    {self.summary}"
        if self.config.annotations_out is not None:
            yield f"records    {self.config.annotations_out}"
            yield "           a model that learns from them is to be measured on other data than these"
        if facts["media_missing"]:
            yield f"not there  the images or videos of {facts['media_missing']} gaps"
        if facts["media_unknown"]:
            yield f"unknown    whether those of {facts['media_unknown']} gaps are there: their places cannot be reached"
        for part, counts in facts["slices"].items():
            yield f"  {counts['gaps']} of {counts['answers']}  {part}"
        yield f"gaps       {facts['gaps']} of {facts['answers']} answers: {kinds}"
        yield f"of form    {facts['format_only']}: right, and not said as `{facts['mode']}` compares"

    def write_annotations(
        self, annotations: Annotations, place: str, found: Sequence[tuple[dict[str, Any], Gap]]
    ) -> None:
        """The records of the gaps, each once, with whole paths."""
        keys = dict.fromkeys(row["record_id"] for row, _ in found)
        records = [annotations.with_places(key) for key in keys]
        write_bytes(place, (json.dumps(records, ensure_ascii=False, indent=1) + "\n").encode())

    def record(self) -> None:
        """Lineage of what was written on this machine."""
        config = self.config
        made = [place for place in (config.gaps_parquet, config.annotations_out) if place and not is_remote(place)]
        inputs = [Input("results", file) for file in self.files]
        if self.annotations is not None:
            inputs.append(Input("dataset", self.annotations.place, {"records": len(self.annotations.by_key)}))
        for place in made:
            write_lineage(local(place), action="gaps", settings=to_dict(config), inputs=inputs)


def read_rows(file: str) -> list[Mapping[str, Any]]:
    try:
        rows = json.loads(read_bytes(file))
    except ValueError as error:
        raise UserError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{file}: expected a list of objects, one for each answer")
    for number, row in enumerate(rows):
        if "gt" not in row or ("video_id" not in row and "id" not in row):
            raise UserError(f"{file}: row {number} lacks 'gt', or both 'video_id' and 'id'; found {', '.join(row)}")
    return rows


def name_of(row: Mapping[str, Any]) -> str:
    """What a row calls the record that it answers: by its own id, else by what several may share."""
    return str(row.get("id") or row.get("video_id"))


def are_there(media: Sequence[str]) -> bool | None:
    """Whether all files are there; None for no files, and where a place cannot be reached."""
    try:
        return all(map(exists, media)) if media else None
    except UserError:
        return None


def media_root(record: Lineage) -> str:
    dataset = record.data["settings"].get("dataset")
    return str(dataset.get("media_root") or "") if isinstance(dataset, Mapping) else ""


def parts_of(row: Mapping[str, Any]) -> list[str]:
    """The parts of the data that a row belongs to, by what divides them."""
    slices = row.get("slice")
    parts = [f"{name}: {value}" for name, value in slices.items()] if isinstance(slices, Mapping) else []
    return [*([f"task: {row['task']}"] if row.get("task") else []), *parts]
