"""`worldsmith infer`: answers a question with a reasoner, once or about each file of a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from worldsmith.actions.action import Result, make_progress_reporter
from worldsmith.actions.model_action import AnswerAction, WritingAction
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.config import wrong
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.data.conversations.chat_processor import ChatProcessor
from worldsmith.data.conversations.conversation import Part, Turn, say
from worldsmith.data.conversations.media.media_processor import VideoPlan
from worldsmith.data.conversations.media_archives import is_archive, media_folders
from worldsmith.evaluation.answers.answer_text import split_answer
from worldsmith.files.atomic import write_text
from worldsmith.files.remote import file_exists, is_remote, join_address
from worldsmith.files.remote_folder import list_remote
from worldsmith.files.write_checks import require_writable
from worldsmith.monitor.lineage import write_lineage
from worldsmith.sampling.generate_answers import Answer

Kind = Literal["image", "video"]
SUFFIXES: dict[str, Kind] = {
    **dict.fromkeys((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif"), "image"),
    **dict.fromkeys((".mp4", ".mov", ".mkv", ".webm", ".avi", ".m4v"), "video"),
}
"""File suffix -> media type."""


class Infer(AnswerAction):
    """Generates a reasoner's answer to one question about images, videos or text, and prints it.

    With --media FOLDER, the question is answered separately for each image and video of a folder. With --out FILE, the
    answers are written as JSON, with the prompt and the frames that the model received, and all settings.
    """

    aliases = WritingAction.aliases

    class Config(AnswerAction.Config):
        prompt: str
        """The question."""
        image: list[str] = field(default_factory=list)
        """Image files, in the order in which they are shown before the question."""
        video: list[str] = field(default_factory=list)
        """Video files, shown after the images."""
        media: str | None = None
        """A file, or a folder or archive (.tar, .tar.gz, .zip); the question is asked about each image and video in it
        separately; an archive is unpacked once, into a folder next to it."""
        kind: Literal["all", "image", "video"] = "all"
        """Media types that are used from the folder or archive."""
        system: str = ""
        """System prompt; "": no system prompt."""
        out: str | None = None
        """JSON file for the answers; null: no file is written."""
        force: bool = False
        """Replace the file of an earlier command."""

        def check(self) -> None:
            super().check()
            if self.media is not None and (self.image or self.video):
                raise wrong(self, "media", "image" if self.image else "video",
                            why="the question is asked about each file of media separately")  # fmt: skip
            if self.kind != "all" and self.media is None:
                raise wrong(self, "kind", "media", why="it chooses among the files of media")

    config: Config

    def plan(self) -> Iterator[str]:
        model = self.find()
        yield f"model    {model.folder} ({model.weights_description})"
        yield f"question {self.config.prompt}"
        for parts in self.media_by_question():
            yield from (f"media    {part.kind} {part.source!s}" for part in parts)

    def run(self) -> Result:
        config, questions, model = self.config, self.questions(), self.find()
        out = None if config.out is None else Path(config.out)
        if out is not None:
            require_writable(out.parent)
            if out.exists() and not config.force:
                raise FileExistsError(f"{out} already exists: choose another file, or use --force")
        answerer = self.answerer(model)
        show = make_progress_reporter("answering") if len(questions) > config.batch_size else None
        answers = list(self.answer_all(answerer, [*questions.items()], show, forgiving=len(questions) > 1))
        if len(answers) == 1 and answers[0].error:
            raise UserError(answers[0].error)
        told = [describe_answer(answer, questions[answer.key], answerer.processor) for answer in answers]
        facts = {**self.facts(model), "answers": told}
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_text(out, json.dumps(facts, ensure_ascii=False, indent=2) + "\n")
            write_lineage(out, action="infer", settings=to_dict(config), inputs=self.inputs(model))
        lines = [answers[0].text] if len(answers) == 1 else [f"{a.key}: {a.error or a.text}" for a in answers]
        return Result(lines, facts, code=int(all(answer.error for answer in answers)))

    def facts(self, model: StoredModel) -> dict[str, Any]:
        """Returns the question, the model and the generation settings, as JSON data for the file of --out."""
        return {
            "prompt": self.config.prompt,
            "system": self.config.system,
            "model": str(model.folder),
            "weights": model.weights,
            "iteration": model.iteration,
            "adapter": None if model.adapter is None else str(model.adapter),
            "generation": self.how(model),
        }

    def questions(self) -> dict[str, list[Turn]]:
        """Returns the conversations to answer, by path of the media file.

        Without --media, it is one conversation with the key "the question".
        """
        system = [say("system", self.config.system)] if self.config.system else []
        return {
            str(parts[0].source) if self.config.media else "the question": [
                *system,
                say("user", *parts, self.config.prompt),
            ]
            for parts in self.media_by_question()
        }

    def media_by_question(self) -> list[list[Part]]:
        """Returns the images and videos of each question: one list per question.

        Raises UserError for a file that does not exist.
        """
        config = self.config
        if config.media is not None:
            return [[Part(kind, source=file)] for file, kind in media_of(config.media, config.kind)]
        named: list[tuple[Kind, str]] = [("image", name) for name in config.image]
        named += [("video", name) for name in config.video]
        parts = [Part(kind, source=name.removeprefix("file://")) for kind, name in named]
        if missing := [part.source for part in parts if not file_exists(str(part.source))]:
            raise UserError(f"{missing[0]!s} is not a file")
        return [parts]


def media_of(place: str, kind: str) -> list[tuple[str, Kind]]:
    """Returns the images and videos at a path or address, sorted, each with its media type.

    Args:
        place: An image or video, a folder (subfolders are not searched), or an archive, which is unpacked.
        kind: "image" or "video" selects only this media type; "all": both.

    Raises:
        UserError: If there are no such files.
    """
    place = place.removeprefix("file://")
    path = Path(place)
    if is_archive(place) and file_exists(place):
        files = sorted(str(file) for folder in media_folders(place) for file in folder.rglob("*") if file.is_file())
    elif is_remote(place):
        files = sorted(
            place if name == "." else join_address(place, name) for name in list_remote(place, recursive=False)
        )
    else:
        files = sorted(str(file) for file in (path.iterdir() if path.is_dir() else [path]) if file.is_file())
    found = [(file, SUFFIXES.get(os.path.splitext(file)[1].lower())) for file in files]
    chosen = [(file, is_a) for file, is_a in found if is_a is not None and kind in ("all", is_a)]
    if not chosen:
        what = "images or videos" if kind == "all" else f"{kind}s"
        raise UserError(f"{place} contains no {what}: expected files that end with {', '.join(SUFFIXES)}")
    return chosen


def describe_answer(answer: Answer, turns: Sequence[Turn], processor: ChatProcessor) -> Mapping[str, Any]:
    """Returns an answer with the media and the prompt that the model received, as JSON data for the file of --out.

    Args:
        answer: The generated answer or its error.
        turns: The conversation to answer.
        processor: Processor of the model, which renders the prompt.
    """
    media = [str(part.source) for turn in turns for part in turn.parts if part.kind != "text"]
    if answer.error:
        status = "gen_error" if answer.was_asked else "prep_error"
        return {"media": media, "status": status, "reason": answer.error}
    plan = processor.plan(turns, generation_prompt=True)
    reasoning, final_answer = split_answer(answer.text)
    return {
        "media": media,
        "status": "ok",
        "answer": final_answer,
        "reasoning": reasoning,
        "full_response": answer.text,
        "prompt_text": processor.template.render(turns, generation_prompt=True),
        "num_tokens": len(plan),
        "shown": [
            {
                "size": list(medium.size),
                "tokens": medium.tokens,
                **({"frames": medium.indices, "times": medium.times} if isinstance(medium, VideoPlan) else {}),
            }
            for medium in plan.media
        ],
    }
