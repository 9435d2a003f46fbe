"""`metrics.jsonl`: one JSON object per line, each with its step, appended and flushed immediately."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from worldsmith.config.errors import UserError
from worldsmith.files.atomic import replacing
from worldsmith.files.lines import append

logger = logging.getLogger(__name__)


class MetricsLog:
    """JSON Lines file of metrics to which a run appends, with each step recorded once, even if the run is resumed.

    At the start of a run that resumes, lines of later steps and incomplete lines are removed. NaN and infinite
    numbers are written as null, since JSON has no form for them.

    Args:
        path: Metrics file; missing folders are created.
        resumed_step: Step at which the run resumes; 0 for a new run.
        is_redone: Called with each record (dict) of `resumed_step`. If it returns True, the line is removed too,
            because the resumed run writes that record again.

    Raises:
        UserError: If the file cannot be opened.
    """

    def __init__(
        self, path: Path, *, resumed_step: int = 0, is_redone: Callable[[dict[str, Any]], bool] = lambda record: False
    ) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                truncate_after(path, resumed_step, is_redone)
            self.file = path.open("ab", buffering=0)
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror or error}") from error

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Appends one line with the step and its metrics to the file.

        Args:
            step: Number of completed optimizer steps.
            metrics: Numbers, strings, lists and mappings of them, by metric name.

        Raises:
            TypeError: If a value has another type.
            OSError: If the line cannot be written, as on a full disk; the file is then unchanged.
        """
        record = {"step": step, **{key: to_json_value(key, value) for key, value in metrics.items() if key != "step"}}
        append(self.file, (json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n").encode())

    def close(self, *, failed: bool = False) -> None:
        self.file.close()


def truncate_after(path: Path, step: int, is_redone: Callable[[dict[str, Any]], bool] = lambda record: False) -> None:
    """Removes the lines that a run writes again after it resumes at `step`, and invalid lines, from a metrics file.

    The run writes all lines of later steps again, and those lines of `step` for which `is_redone`, called with the
    parsed line, returns True. The file is replaced atomically.
    """
    kept, dropped, broken = [], 0, 0
    for line, record in records(path):
        if record is None:
            broken += 1
        elif record["step"] > step or (record["step"] == step and is_redone(record)):
            dropped += 1
        else:
            kept.append(line)
    if not dropped and not broken:
        return
    if dropped:
        lines = "1 line" if dropped == 1 else f"{dropped} lines"
        logger.info("%s: removed %s written after step %d, because the run resumes at this step", path, lines, step)
    if broken:
        lines = "1 incomplete line" if broken == 1 else f"{broken} incomplete lines"
        logger.warning("%s: removed %s, because the run was interrupted while writing", path, lines)
    with replacing(path) as aside:
        aside.write_bytes(b"".join(kept))


def records(path: Path) -> list[tuple[bytes, dict[str, Any] | None]]:
    """Reads a metrics file into (line, parsed record) pairs; an incomplete record, or one without `step`, is None."""
    found: list[tuple[bytes, dict[str, Any] | None]] = []
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            record = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            record = None
        complete = isinstance(record, dict) and isinstance(record.get("step"), int)
        found.append((line, record if complete else None))
    return found


def to_json_value(key: str, value: Any) -> Any:
    """Converts a metric to a JSON value.

    Args:
        key: Name of the metric, for the error message.
        value: Number, string or None, or a list or mapping of them.

    Returns:
        The value, with scalars of numeric libraries as Python numbers and non-finite numbers as None.

    Raises:
        TypeError: If the value has another type.
    """
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(k): to_json_value(f"{key}.{k}", v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_value(f"{key}[{i}]", v) for i, v in enumerate(value)]
    raise TypeError(
        f"metric '{key}' is a {type(value).__name__}: expected a number, a string, or a list or mapping of them"
    )
