"""A table as the text of a TOML file."""

from __future__ import annotations

from typing import Any

from worldsmith.config.write.values import TOML, write


def write_toml(table: dict[str, Any]) -> str:
    """A table as TOML: single values first, then a section per sub-table. Raises ValueError for null and the like."""
    blocks: list[str] = []
    _write_table(table, (), blocks)
    return "\n\n".join(blocks) + ("\n" if blocks else "")


def toml_pair(key: str, value: Any) -> str:
    return f"{TOML.key(key)} = {write(value, TOML)}"


def _write_table(table: dict[str, Any], path: tuple[str, ...], blocks: list[str]) -> None:
    lines = [toml_pair(key, item) for key, item in table.items() if not isinstance(item, dict)]
    if path and (lines or not table):
        lines.insert(0, f"[{'.'.join(map(TOML.key, path))}]")
    if lines:
        blocks.append("\n".join(lines))
    for key, item in table.items():
        if isinstance(item, dict):
            _write_table(item, (*path, key), blocks)
