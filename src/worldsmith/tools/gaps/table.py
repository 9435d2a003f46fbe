"""The table of gaps: a parquet file with always the same columns, or the same rows as JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from worldsmith.config.errors import UserError
from worldsmith.files.places import write_bytes

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
"""Names and types, in order; the first three are those of the tool that is replaced."""


def write_table(place: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes the rows to a path or a URL. Raises UserError without pyarrow, and where nothing can be written."""
    if place.endswith(".json"):
        write_bytes(place, (json.dumps(rows, ensure_ascii=False, indent=1) + "\n").encode())
        return
    pyarrow, parquet = require_pyarrow(place)
    types = {"list": pyarrow.list_(pyarrow.string()), "bool": pyarrow.bool_(), "int64": pyarrow.int64()}
    schema = pyarrow.schema([(name, types.get(kind, pyarrow.string())) for name, kind in COLUMNS.items()])
    data = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=schema), data)
    write_bytes(place, data.getvalue())


def require_pyarrow(place: str) -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise UserError(
            f"{place} is written with the library 'pyarrow', which is not installed; install it with "
            "`pip install 'worldsmith[gaps]'`, or give a name that ends with .json"
        ) from None
    return pyarrow, parquet
