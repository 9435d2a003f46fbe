"""Answers on disk as they come, so that an evaluation that was stopped goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import flatten
from worldsmith.files.atomic import write_text
from worldsmith.files.json_file import read_json_object
from worldsmith.files.lines import append_line
from worldsmith.sampling.answers import Answer

FOLDER, SETTINGS = "answers", "settings.json"


class SavedAnswers:
    """A folder of lines, a file for each process that answers; and the settings with which all of them were made."""

    def __init__(self, out: Path) -> None:
        self.folder = out / FOLDER

    def require_same(self, settings: Mapping[str, Any]) -> None:
        """Raises UserError when there are answers that were made with other settings."""
        if not (self.folder / SETTINGS).is_file():
            return
        known, wanted = flatten(read_json_object(self.folder / SETTINGS)), flatten(json.loads(json.dumps(settings)))
        differing = [
            f"{name} was {known.get(name)!r} and is {wanted.get(name)!r}"
            for name in sorted({*known, *wanted})
            if known.get(name) != wanted.get(name)
        ]
        if differing:
            raise UserError(
                f"{self.folder.parent} has answers that were made with other settings: {'; '.join(differing)}. Choose "
                "another folder, or give --force to ask all anew"
            )

    def begin(self, settings: Mapping[str, Any], *, anew: bool) -> None:
        """With `anew` the answers that are there are removed. Raises like `require_same`."""
        if anew and self.folder.exists():
            shutil.rmtree(self.folder)
        self.require_same(settings)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / SETTINGS, json.dumps(settings, indent=2) + "\n")

    def add(self, answer: Answer, mark: str, *, number: int, count: int) -> None:
        """`mark` is that of the question; `number` of `count` is the process."""
        line = {"id": answer.key, "asked": mark, "said": answer.text}
        if answer.error:
            line |= {"error": answer.error, "status": "gen_error" if answer.was_asked else "prep_error"}
        append_line(self.folder / f"{number}_of_{count}.jsonl", json.dumps(line, ensure_ascii=False))

    def read(self) -> dict[tuple[str, str], dict[str, str]]:
        """The lines by id and mark of the question. A later one counts, but no failure replaces an answer; a line that
        was cut off is none."""
        found: dict[tuple[str, str], dict[str, str]] = {}
        for file in sorted(self.folder.glob("*_of_*.jsonl")):
            for text in file.read_bytes().split(b"\n"):
                try:
                    line = json.loads(text)
                    key = (line["id"], line["asked"])
                except (ValueError, LookupError, TypeError):
                    continue
                if "error" not in line or "error" in found.get(key, line):
                    found[key] = line
        return found
