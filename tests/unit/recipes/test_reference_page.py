"""The reference page is current and complete."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from worldsmith.config.declare.configurable import field_names, walk
from worldsmith.config.recipes.registry import get_recipe
from worldsmith.config.toml.toml_schema import toml_fields

PAGE = Path(__file__).parents[3] / "docs/config_reference.md"
COMMAND = [sys.executable, "-m", "worldsmith.cli.main", "schema", "reference"]


def test_the_page_is_what_the_command_writes(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    subprocess.run([*COMMAND, "-o", str(file)], check=True)
    hint = "refresh it with: worldsmith schema reference -o docs/config_reference.md"
    assert PAGE.read_text(encoding="utf-8") == file.read_text(encoding="utf-8"), hint


def test_every_key_and_every_field_has_a_row_with_a_description() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.replace("\\|", "").strip("|").split("|")] for line in lines if "| `" in line]
    documented = {row[0].strip("`") for row in rows}
    assert {field.path[-1] for field in toml_fields() if field.path != ("custom",)} <= documented
    sections = [node for _, node in walk(get_recipe("vision_sft_tiny")) if hasattr(node, "check")]
    assert {name for node in sections for name in field_names(type(node))} <= documented
    assert all(row[3] for row in rows), [row[0] for row in rows if not row[3]]


def test_tables_are_tables() -> None:
    """A cell with a bar or a line break would tear its row."""
    width = 0
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            cells = line.replace("\\|", "").count("|")
            assert width in (0, cells), line
            width = cells
        else:
            width = 0
