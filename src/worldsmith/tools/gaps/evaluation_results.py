"""Answers of an evaluation, the annotations that they belong to, and the comparison with the ground truth."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from worldsmith.config.errors import UserError
from worldsmith.data.conversations.datasets.chat_dataset import record_name, unique
from worldsmith.evaluation.answers.answer_text import normalize
from worldsmith.evaluation.answers.parse_answers import LETTERS, parse_letter, parse_yes_no
from worldsmith.files.lines import read_bytes
from worldsmith.files.remote import is_remote, join_address
from worldsmith.files.remote_folder import list_remote
from worldsmith.models.model_files import local_path
from worldsmith.monitor.lineage import Lineage, read_lineage, record_of

RESULTS = "results.json"
WRAPPERS = ("annotations", "data", "samples", "items")
KINDS = ("video", "videos", "image", "images")
Mode = Literal["exact", "normalized", "yes_no", "letter"]
ErrorType = Literal["FP", "FN", "wrong", "unparsed", "missing", "format"]
FAILED = ("prep_error", "gen_error")
"""Status values of rows without an answer."""


class AnswerRow(NamedTuple):
    """Answer of an evaluation: path or URL of the results.json, 0-based index of the row in this file, and the row."""

    file: str
    number: int
    row: Mapping[str, Any]


@dataclass
class EvaluationResults:
    """Results of evaluations: each results.json in a folder or URL; several are an error unless `merge` is set."""

    folder: str
    merge: bool = False

    @cached_property
    def files(self) -> list[str]:
        """Paths or URLs of results.json. Raises UserError if there are none, or several without `merge`."""
        files = find_results(self.folder)
        if not files:
            raise UserError(f"{self.folder}: found no {RESULTS} in it; `worldsmith evaluate` writes one")
        if len(files) > 1 and not self.merge:
            listing = "".join(f"\n  {file}" for file in files)
            raise UserError(
                f"{self.folder} has {len(files)} {RESULTS}: select one with --results-dir, or combine them with "
                f"--merge:{listing}"
            )
        return files

    @cached_property
    def answers(self) -> list[AnswerRow]:
        """Answers in all files; ids that occur more than once in a file are removed from the rows."""
        found = []
        for file in self.files:
            rows = read_rows(file)
            ids = Counter(str(row.get("id")) for row in rows)
            found += [
                AnswerRow(file, number, {k: v for k, v in row.items() if k != "id" or ids[str(v)] == 1})
                for number, row in enumerate(rows)
            ]
        return found

    @cached_property
    def records(self) -> list[Lineage]:
        """Lineage records of the evaluations that have one; files at remote URLs have none."""
        places = [record_of(Path(file).resolve()) for file in self.files if not is_remote(file)]
        return [read_lineage(location) for location in places if location is not None]

    def find_annotations(self, location: str | None, media: str | None) -> Annotations:
        """Reads the annotations at `location`, or the annotations that the evaluation recorded.

        Args:
            location: Path or URL of the annotations; None: as recorded.
            media: Folder that media paths are relative to. None: the recorded folder if `location` is None and the
                evaluation recorded a folder, else the folder of the annotation file.

        Raises:
            UserError: If the annotations are unknown, or if the recorded file has changed since the evaluation.
        """
        recorded = {
            record.locate(e): (record, e) for record in self.records for e in record.inputs if e["role"] == "dataset"
        }
        roots = {root for record in self.records if (root := media_root(record))} if location is None else set()
        if location is None:
            if len(recorded) != 1:
                known = "; ".join(map(str, recorded)) or "the evaluation recorded no annotations"
                raise UserError(
                    f"--kpi-ann-path: the annotations of the evaluation are unknown. Pass their file ({known})"
                )
            ((path, (record, entry)),) = recorded.items()
            problem = record.change(entry, path)
            if problem is not None:
                raise UserError(
                    f"{path} {problem}: it differs from the evaluated file; to use it anyway, pass it as --kpi-ann-path"
                )
            location = str(path)
        root = os.path.expanduser(media or "") or (roots.pop() if len(roots) == 1 else "")
        return Annotations(
            location, root or (location.rpartition("/")[0] if is_remote(location) else str(local_path(location).parent))
        )


class Annotations:
    """Annotation records of a JSON file (a list, a list in an object, or a single record) or a JSON Lines file."""

    def __init__(self, location: str, media_root: str) -> None:
        """Reads the file `location`, a path or URL; media paths are relative to `media_root`.

        Raises UserError if it has no records.
        """
        self.location, self.media_root = location, media_root
        self.by_key: dict[str, Mapping[str, Any]] = {}
        self.by_name: dict[str, list[str]] = {}
        seen: dict[str, int] = {}
        for number, record in enumerate(read_records(location)):
            if not isinstance(record, Mapping):
                continue
            name = record_name(record) or f"{location.rpartition('/')[2]}[{number}]"
            key = unique(name, seen)
            self.by_key[key] = record
            self.by_name.setdefault(name, []).append(key)

    def key_of(self, row: Mapping[str, Any]) -> str | None:
        """Returns the key of the annotation record that a row of results.json answers; None if it is not found.

        The record is found by the id of the row, else by its video id. If several records have this video id, the
        question of the row selects one. Raises ValueError if several records with different media remain.
        """
        name = str(row.get("video_id") or row.get("id"))
        if row.get("id") in self.by_key:
            return str(row["id"])
        keys = self.by_name.get(name, [])
        asked = [key for key in keys if same_question(self.by_key[key], str(row.get("question", "")))]
        keys = asked or keys
        if len({json.dumps(self.media(key)) for key in keys}) > 1:
            raise ValueError(f"{len(keys)} records of {self.location} have the name '{name}' but different media files")
        return keys[0] if keys else None

    def media(self, key: str) -> list[str]:
        """Returns paths or URLs of the media files of the record with this key, joined with the media root."""
        record = self.by_key[key]
        listed = [path for kind in KINDS for path in as_list(record.get(kind))]
        return [join_address(self.media_root, path) for path in listed if isinstance(path, str)]

    def with_full_paths(self, key: str) -> dict[str, Any]:
        """Returns a copy of the record with this key, in which the media root is prepended to media paths.

        The copy does not depend on the location of the annotation file.
        """
        record = dict(self.by_key[key])
        for kind in KINDS:
            value = record.get(kind)
            if isinstance(value, str):
                record[kind] = join_address(self.media_root, value)
            elif isinstance(value, list):
                record[kind] = [
                    join_address(self.media_root, path) if isinstance(path, str) else path for path in value
                ]
        return record


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def same_question(record: Mapping[str, Any], question: str) -> bool:
    """Returns whether `question` is a turn of an annotation; media placeholders and whitespace are ignored."""
    turns = record.get("conversations")
    texts = [str(turn.get("value", "")) for turn in as_list(turns) if isinstance(turn, Mapping)]
    return strip_placeholders(question) in map(strip_placeholders, texts)


def strip_placeholders(text: str) -> str:
    """Returns a text without media placeholders and with normalized whitespace."""
    for tag in ("<video>", "<image>"):
        text = text.replace(tag, " ")
    return " ".join(text.split())


def read_records(location: str) -> list[Any]:
    """Returns the records of a JSON or JSON Lines file at a path or URL. Raises UserError if it has no records."""
    text = read_bytes(location if is_remote(location) else local_path(location))
    try:
        data = json.loads(text)
    except ValueError as error:
        try:
            data = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            raise UserError(f"{location} is neither JSON nor JSON Lines: {error}") from None
    if isinstance(data, Mapping):
        wrapped = [data[name] for name in WRAPPERS if isinstance(data.get(name), list)]
        data = wrapped[0] if wrapped else [data]
    if not isinstance(data, list) or not any(isinstance(record, Mapping) for record in data):
        raise UserError(f"{location}: expected a list of records, or an object with one under {' or '.join(WRAPPERS)}")
    return data


def find_results(folder: str) -> list[str]:
    """Returns the sorted paths or URLs of the results.json at any depth in a folder; `folder` itself if it is a file.

    Raises:
        RemoteError: If a URL cannot be reached.
    """
    if not is_remote(folder):
        path = local_path(folder)
        return [str(path)] if path.is_file() else sorted(map(str, path.rglob(RESULTS)))
    names = [name for name in list_remote(folder) if name in (".", RESULTS) or name.endswith(f"/{RESULTS}")]
    return sorted(folder if name == "." else join_address(folder, name) for name in names)


def read_rows(file: str) -> list[Mapping[str, Any]]:
    """Returns the rows of a results.json at a path or URL. Raises UserError if it is invalid."""
    try:
        rows = json.loads(read_bytes(file))
    except ValueError as error:
        raise UserError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{file}: expected a list of objects, one per answer")
    for number, row in enumerate(rows):
        if "gt" not in row or ("video_id" not in row and "id" not in row):
            raise UserError(f"{file}: row {number} lacks 'gt', or both 'video_id' and 'id'; found {', '.join(row)}")
    return rows


def answer_name(row: Mapping[str, Any]) -> str:
    """Returns the id in a row of results.json; if it is missing, the video id, which several rows can share."""
    return str(row.get("id") or row.get("video_id"))


def media_root(record: Lineage) -> str:
    """Returns the `media_root` of the dataset in the lineage record of an evaluation; "" if it is not set."""
    dataset = record.data["settings"].get("dataset")
    return str(dataset.get("media_root") or "") if isinstance(dataset, Mapping) else ""


@dataclass(frozen=True, slots=True)
class Gap:
    """Wrong answer of a model, with the type of the error."""

    error_type: ErrorType
    """FP: yes instead of no; FN: no instead of yes; format: the answer is correct, but the comparison expects another
    form; wrong: another answer; unparsed: no answer was recognized; missing: the row has no answer."""
    normalized: str | None
    """The answer as the comparison parsed it; None: the row has no answer, or it cannot be parsed."""


def normalize_text(text: str) -> str:
    """Returns the text in lower case and without surrounding whitespace, for the comparison mode "exact"."""
    return text.lower().strip()


def normalized(text: str) -> str:
    """Returns the text with normalized case, punctuation and articles, for the comparison mode "normalized".

    A text that is only an article, such as the name of an option, is kept.
    """
    return normalize(text) or normalize(text, articles=True)


READ: Mapping[str, Callable[[str], str | None]] = {
    "exact": normalize_text,
    "normalized": normalized,
    "yes_no": parse_yes_no,
    "letter": parse_letter,
}
"""Function per comparison mode that parses an answer; it returns None if the answer cannot be parsed."""


def find_gap(row: Mapping[str, Any], mode: Mode) -> Gap | None:
    """Compares the answer in a row of results.json with its ground truth; returns None if it is correct.

    Args:
        row: Row of results.json.
        mode: Comparison mode: exact, normalized, yes_no or letter, the keys of `READ`.

    Raises:
        ValueError: If the ground truth cannot be parsed in this mode.
    """
    prediction, ground_truth = row.get("response"), text_of(row.get("gt"))
    if prediction is None or row.get("status") in FAILED:
        return Gap("missing", None)
    wanted = READ[mode](ground_truth)
    if wanted is None:
        raise ValueError(f"the ground truth {ground_truth!r:.60} cannot be parsed as {mode}")
    found = READ[mode](text_of(prediction))
    return None if found == wanted else Gap(classify_error(text_of(prediction), ground_truth), found)


def classify_error(prediction: str, ground_truth: str) -> ErrorType:
    """Returns the error type of a wrong answer: "FP", "FN", "wrong", "unparsed" or "format" (see `Gap.error_type`)."""
    plain = normalized(ground_truth)
    word = parse_yes_no(ground_truth) if plain in ("yes", "no") else None
    letter = parse_letter(ground_truth) if len(plain) == 1 and plain.upper() in LETTERS else None
    if normalized(prediction) == plain and plain:
        return "format"
    if word is None and letter is None:
        return "wrong"
    found, wanted = (parse_yes_no(prediction), word) if word else (parse_letter(prediction), letter)
    if found is None:
        return "unparsed"
    if found == wanted:
        return "format"
    return "wrong" if letter else "FP" if found == "yes" else "FN"


def text_of(value: Any) -> str:
    """Returns an answer as text: a string unchanged, None as "", another value as JSON."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)
