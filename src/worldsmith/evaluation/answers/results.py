"""`results.json`: one row per record of the evaluation, in the order of the annotations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from worldsmith.config.errors import UserError
from worldsmith.files.atomic import write_text

RESULTS, METRICS = "results.json", "metrics.json"
Status = Literal["ok", "unparsed", "prep_error", "gen_error"]
"""ok: answered; unparsed: answered, but the answer cannot be parsed; prep_error: the record or its media cannot be
used; gen_error: the model failed."""
REQUIRED = ("id", "question", "response", "gt", "status")


@dataclass(slots=True)
class Row:
    """Result of one evaluated record: question, answer, ground truth and grade; a row of results.json."""

    id: str
    """Unique id of the record."""
    video_id: str = ""
    """Id that the annotation states; several records may have the same one."""
    question: str = ""
    response: str = ""
    """The answer without its reasoning."""
    gt: str = ""
    """The ground-truth answer."""
    full_response: str = ""
    """Full generated text, with the reasoning."""
    task: str = ""
    status: Status = "prep_error"
    reason: str = ""
    """Reason for a status other than "ok"."""
    correct: bool | None = None
    """Whether the answer is correct; None if the record has no answer or its task is not graded."""
    media: list[str] = field(default_factory=list)
    """Media files of the question."""
    slice: dict[str, str] = field(default_factory=dict)
    """Value of each slice for this record, by slice name, such as "5 to 10 s" for "duration"."""

    @property
    def answered(self) -> bool:
        return self.status in ("ok", "unparsed")

    def as_json(self) -> dict[str, Any]:
        data = asdict(self)
        return {name: value for name, value in data.items() if value or name not in ("reason", "slice")}


def write_results(folder: Path, rows: Sequence[Row]) -> None:
    """Writes `results.json` into `folder`, with one row per line."""
    lines = [json.dumps(row.as_json(), ensure_ascii=False) for row in rows]
    write_text(folder / RESULTS, "[\n" + ",\n".join(lines) + "\n]\n")


def read_results(place: str | Path) -> list[Mapping[str, Any]]:
    """Reads the rows of a results.json; also accepts the format of TAO's evaluator, without `id` and `status`.

    Args:
        place: The file, or a folder that contains results.json.

    Returns:
        The rows as dictionaries with at least `id`, `question`, `response`, `gt` (ground truth) and `status`.

    Raises:
        UserError: If the file cannot be read or has another format.
    """
    file = Path(place)
    file = file / RESULTS if file.is_dir() else file
    try:
        rows = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read as results: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{file}: expected a list of objects, one per answer")
    known: list[Mapping[str, Any]] = [{"id": row.get("video_id"), "status": "ok", **row} for row in rows]
    for number, row in enumerate(known):
        if missing := [name for name in REQUIRED if not isinstance(row.get(name), str)]:
            raise UserError(f"{file}: row {number}: expected strings in {', '.join(missing)}")
    return known
