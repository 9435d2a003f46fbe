"""Answers that are saved one by one, so that a command that was stopped continues, and fingerprints of questions."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import flatten
from worldsmith.data.content_fingerprint import READERS, file_fingerprint
from worldsmith.data.conversations.conversation import Part, Turn
from worldsmith.files.atomic import write_text
from worldsmith.files.json_file import read_json_object
from worldsmith.files.lines import append_line
from worldsmith.files.remote import file_size
from worldsmith.sampling.generate_answers import Answer

FOLDER, SETTINGS = "answers", "settings.json"


class SavedAnswers:
    """Folder `answers` of an evaluation: one JSON Lines file per process, and the settings of all saved answers."""

    def __init__(self, out: Path) -> None:
        self.folder = out / FOLDER

    def require_same(self, settings: Mapping[str, Any]) -> None:
        """Raises UserError if the saved answers were generated with other settings than `settings`.

        `settings` is the result of `EvaluateAnswers.answer_settings`: model fingerprints and generation settings.
        """
        if not (self.folder / SETTINGS).is_file():
            return
        known, wanted = flatten(read_json_object(self.folder / SETTINGS)), flatten(json.loads(json.dumps(settings)))
        differing = [
            f"{name} was {known.get(name)!r} and is now {wanted.get(name)!r}"
            for name in sorted({*known, *wanted})
            if known.get(name) != wanted.get(name)
        ]
        if differing:
            raise UserError(
                f"{self.folder.parent} has answers that were generated with other settings: {'; '.join(differing)}. "
                "Choose another folder, or answer all questions again with --force"
            )

    def begin(self, settings: Mapping[str, Any], *, overwrite: bool) -> None:
        """Creates the folder and stores the settings of its answers; with `overwrite`, first deletes existing answers.

        Raises UserError if the folder has answers that were generated with other settings.
        """
        if overwrite and self.folder.exists():
            shutil.rmtree(self.folder)
        self.require_same(settings)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / SETTINGS, json.dumps(settings, indent=2) + "\n")

    def add(self, answer: Answer, mark: str, *, number: int = 0, count: int = 1) -> None:
        """Appends an answer, or the error instead of an answer, to the file of process `number` of `count`.

        `mark` is the fingerprint of the question, from `question_fingerprint`.
        """
        line = {"id": answer.key, "asked": mark, "said": answer.text}
        if answer.error:
            line |= {"error": answer.error, "status": "gen_error" if answer.was_asked else "prep_error"}
        append_line(self.folder / f"{number}_of_{count}.jsonl", json.dumps(line, ensure_ascii=False))

    def read(self) -> dict[tuple[str, str], dict[str, str]]:
        """Returns the saved answers of all processes, by (record id, fingerprint of the question).

        Each has the keys "id" (of the record), "asked" (fingerprint of the question) and `said` (text of the answer).
        If the answer could not be generated, it also has "error" (message) and "status" ("prep_error", "gen_error").
        Incomplete lines are ignored. Of several answers to a question the last one is returned, but an error never
        replaces an answer.
        """
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


def question_fingerprint(turns: Sequence[Turn]) -> str:
    """Returns a fingerprint of a question: texts, media content, rates, sizes and frames; file names do not matter."""
    facts = [[turn.role, [part_facts(part) for part in turn.parts]] for turn in turns]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def part_facts(part: Part) -> list[Any]:
    """Returns what a model is shown of a part, as JSON data; without the used frames if these are all frames."""
    frames = [] if part.frames is None else [part.frames]
    return [part.kind, part.text, *media_fingerprint(part), part.fps, part.resized, *frames]


def question_fingerprints(questions: Iterable[tuple[str, Sequence[Turn]]]) -> dict[str, str]:
    """Returns the fingerprint of each question by its key; media files are read in several threads."""
    keys, turns = zip(*questions) if (questions := list(questions)) else ((), ())
    with ThreadPoolExecutor(READERS) as pool:
        return dict(zip(keys, pool.map(question_fingerprint, turns)))


def media_fingerprint(part: Part) -> tuple[str, int]:
    """Returns (fingerprint of the content, size in bytes) of an image or video; (file name, -1) for an unreadable file.

    The result does not depend on where a file is stored. At most 48 KiB of it are read.
    """
    if not is_file(part):
        data = part.source if isinstance(part.source, bytes) else part.source.encode()
        return hashlib.sha256(data).hexdigest(), len(data)
    mark = file_fingerprint(source := str(part.source))
    return (mark, media_size(part)) if mark else (os.path.basename(source), -1)


def media_size(part: Part) -> int:
    """Returns the size of an image or video in bytes; -1 if its file cannot be read."""
    if not is_file(part):
        return len(part.source)
    try:
        return file_size(str(part.source))
    except (OSError, ValueError):
        return -1


def is_file(part: Part) -> bool:
    """Returns whether a part of a message is a media file, and not text or embedded data."""
    return part.kind != "text" and isinstance(part.source, str) and not part.source.startswith("data:")
