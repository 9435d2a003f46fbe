"""`worldsmith dataset caption SOURCE --model MODEL -o OUT`: captions clips with a vision-language model."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from worldsmith.actions.action import Result, left_out_lines, make_progress_reporter
from worldsmith.actions.model_action import AnswerAction, WritingAction, require_outside
from worldsmith.actions.pool_action import PoolAction
from worldsmith.actions.processes import FailedItem
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.data.clips.captions import CAPTION_KEYS, LEGACY_STYLES
from worldsmith.data.clips.clip_records import LAST, find_file, line_records
from worldsmith.data.conversations.conversation import Part, Turn, say
from worldsmith.data.shards.addresses import absolute_path
from worldsmith.data.stream.errors import DataError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.video_decoder import IMAGES
from worldsmith.distributed.world import take_device
from worldsmith.evaluation.answers.answer_text import split_answer
from worldsmith.evaluation.answers.saved_answers import SavedAnswers, question_fingerprints
from worldsmith.files.atomic import write_text
from worldsmith.files.fingerprint import fingerprint
from worldsmith.files.remote import join_address
from worldsmith.files.write_checks import require_writable
from worldsmith.monitor.lineage import Input, write_lineage
from worldsmith.sampling.generate_answers import Answer

logger = logging.getLogger(__name__)

Batch = tuple[tuple[str, tuple[Turn, ...]], ...]
"""(Key, conversation) of each window that is captioned together with others."""
PROMPTS = {
    "text": "Describe this video or image in one paragraph: the setting, the objects and people with their "
    "appearance, what they do in order of time, and how the camera moves. State only what is visible.",
    "json": "Describe this video or image as one JSON object with the keys subjects (list of objects with name and "
    "appearance), setting (text), actions (list of objects with time and description, in order of time) and "
    "cinematography (object with framing, camera_motion and lighting). State only what is visible. Reply with the JSON "
    "object only.",
}
"""Form of the captions -> default instruction."""
KEYS = {"text": "caption", "json": "caption_json"}
"""Form of the captions -> its key in the windows of the dataset file."""
SHOWN = 80
"""Max characters of a reply in a message."""
ENDS = ("start_frame", "end_frame")
FILE = "video_dataset_file.jsonl"


class CaptionClips(PoolAction, AnswerAction, WritingAction):
    """Captions every window of the clips of a dataset with a vision-language model, and writes a new dataset file.

    Clips are not copied, and earlier captions are not kept. Each caption is saved at once, so the same command
    continues after a stop. `worldsmith dataset import VIDEOS -o OUT --layout sidecar --caption missing` makes a dataset
    of videos without captions.
    """

    places: ClassVar[tuple[str, ...]] = ("source",)

    class Config(PoolAction.Config, AnswerAction.Config, WritingAction.Config):
        source: str
        """Dataset of clips: path or address of video_dataset_file.jsonl or its folder."""
        out: str
        """Folder of the new dataset."""
        form: Literal["text", "json"] = "text"
        """Form of a caption: text, or a JSON object. A reply that is not a JSON object has failed."""
        prompt: str | None = None
        """Instruction to the model; null: a general one for the form."""

    config: Config

    def plan(self) -> Iterator[str]:
        clips, model = self.read(), self.find()
        yield f"model    {model.folder} ({model.weights_description})"
        yield f"clips    {len(clips.records)} with {len(clips.questions)} windows, in {clips.file}"
        yield from left_out_lines(clips.left_out)
        yield f"prompt   {self.prompt}"
        yield f"would write {Path(self.config.out, FILE)}"

    def run(self) -> Result:
        config, out = self.config, Path(self.config.out)
        clips, model, saved = self.read(), self.find(), SavedAnswers(out)
        require_outside(out, model)
        require_writable(out)
        if (out / FILE).exists() and not saved.folder.exists() and not config.force:
            raise FileExistsError(f"{out / FILE} belongs to another command: choose another folder, or use --force")
        marks = {"model": fingerprint(model.folder), "adapter": model.adapter and fingerprint(model.adapter)}
        settings = {**marks, "weights": model.weights, **self.how(model), "form": config.form}
        saved.begin(settings, overwrite=config.force)
        known, report = clips.saved(saved)[0], make_progress_reporter("captions")
        waiting = [(key, turns) for key, turns in clips.questions.items() if key not in known]
        batches = [tuple(waiting[i : i + config.batch_size]) for i in range(0, len(waiting), config.batch_size)]

        def shown(done: int) -> None:
            report(len(known) + done, len(clips.questions))

        self.save(saved, clips.marks, self.apply(partial(make_captioner, config), batches), shown)
        captions, failed = clips.saved(saved)
        self.require_few_failures(len(failed), "captioned")
        count = clips.write(out / FILE, captions, KEYS[config.form])
        inputs = [*self.inputs(model), Input("dataset", clips.file)]
        write_lineage(out / FILE, action="caption", settings=to_dict(config), inputs=inputs)
        said = f"{len(captions)} windows of {count} clips have captions, {len(known)} of them from an earlier start"
        lines = [f"{said}: {out / FILE}", *left_out_lines([*clips.left_out, *failed])]
        return Result(lines, {"captions": len(captions), "known": len(known), "clips": count, "failed": len(failed)})

    def save(
        self, saved: SavedAnswers, marks: Mapping[str, str], batches: Iterable[Any], report: Callable[[int], None]
    ) -> None:
        """Saves captions and failures as they are generated. Raises UserError above `max_failures` failures.

        Args:
            saved: Folder of the captions.
            marks: Fingerprint of the conversation of each window.
            batches: Answers of each batch, or a `FailedItem`.
            report: Called with the number of finished windows.
        """
        done = failed = 0
        for batch in batches:
            if isinstance(batch, FailedItem):
                batch = [Answer(key, error=batch.reason) for key, _ in batch.item]
            for answer in batch:
                saved.add(answer, marks[answer.key])
                if answer.error:
                    logger.warning("%s: %s", answer.key, answer.error)
                done, failed = done + 1, failed + bool(answer.error)
            self.require_few_failures(failed, "captioned")
            report(done)

    @property
    def prompt(self) -> str:
        return self.config.prompt or PROMPTS[self.config.form]

    def read(self) -> UncaptionedClips:
        """Reads the dataset file. Raises DataError or UserError if it cannot be read or has no usable window."""
        file = find_file(self.config.source)
        if absolute_path(join_address(self.config.out, FILE)) == absolute_path(file):
            raise UserError(f"--out {self.config.out} is the folder of {file}, which would be replaced: choose another")
        clips = UncaptionedClips(file)
        clips.add_records(self.prompt)
        if not clips.questions:
            raise DataError("\n".join([f"{file} has no window that can be captioned", *left_out_lines(clips.left_out)]))
        return clips


@dataclass
class UncaptionedClips:
    """The clips of a dataset file, and a conversation about each window."""

    file: str
    records: list[dict[str, Any]] = field(default_factory=list)
    """Records of the clips, with the absolute paths or addresses of the clips."""
    questions: dict[str, tuple[Turn, ...]] = field(default_factory=dict)
    """Key "UUID_wINDEX" of each window → conversation whose answer is the caption."""
    left_out: list[str] = field(default_factory=list)
    """Skipped records and windows, with the reason."""

    def add_records(self, prompt: str) -> None:
        """Reads the records of the file, and makes a conversation with `prompt` about each window."""
        for record in line_records(self.file):
            if isinstance(record, Rejection):
                self.left_out.append(f"{record.key}: {record.reason}: {record.detail}")
                continue
            path = absolute_path(record.path)
            self.records.append({**record.facts, "vision_path": path})
            for number, window in enumerate(record.facts["t2w_windows"]):
                key = window_key(record.facts, number)
                start, end = map(window.get, ENDS) if isinstance(window, dict) else (None, None)
                if not (isinstance(start, int) and isinstance(end, int)):
                    self.left_out.append(f"{key}: expected a window with the integers {' and '.join(ENDS)}")
                    continue
                frames = None if (start, end) == (0, LAST) else (start, None if end == LAST else end + 1)
                is_image = path.lower().endswith(IMAGES)
                part = Part("image", source=path) if is_image else Part("video", source=path, frames=frames)
                self.questions[key] = (say("user", part, prompt),)

    @cached_property
    def marks(self) -> dict[str, str]:
        """Fingerprint of the conversation of each window; another one if the clip, the window or the prompt changed."""
        return question_fingerprints(self.questions.items())

    def saved(self, answers: SavedAnswers) -> tuple[dict[str, str], list[str]]:
        """Returns the saved captions by window, and the windows that failed, with the reason."""
        lines = [line for (key, mark), line in answers.read().items() if self.marks.get(key) == mark]
        failed = [f"{line['id']}: {line['error']}" for line in lines if "error" in line]
        return {line["id"]: line["said"] for line in lines if "error" not in line}, failed

    def write(self, file: Path, captions: Mapping[str, str], name: str) -> int:
        """Writes the dataset file with the windows that have a caption; returns the number of clips.

        Args:
            file: The new dataset file.
            captions: Caption of each window.
            name: Key of the captions in a window.
        """
        lines = []
        for record in self.records:
            windows = [
                {key: value for key, value in window.items() if key not in {*CAPTION_KEYS, *LEGACY_STYLES}}
                | {name: json.loads(caption) if name == KEYS["json"] else caption}
                for number, window in enumerate(record["t2w_windows"])
                if (caption := captions.get(window_key(record, number))) is not None
            ]
            if windows:
                lines.append(json.dumps({**record, "t2w_windows": windows}, ensure_ascii=False))
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, "".join(f"{line}\n" for line in lines))
        return len(lines)


def window_key(record: Mapping[str, Any], number: int) -> str:
    return f"{record['uuid']}_w{number}"


def make_captioner(config: CaptionClips.Config, number: int) -> Callable[[Batch], list[Answer]]:
    """Loads the model, on GPU `number` if there is one, and returns the function that captions a batch of windows."""
    action = CaptionClips(replace(config, device="cpu" if config.device == "cpu" else take_device(number)))
    answerer = action.answerer(action.find())

    def caption(batch: Batch) -> list[Answer]:
        sizes = {"batch_size": len(batch), "max_new_tokens": config.max_new_tokens}
        found = answerer.answers(batch, **sizes, decoding=action.decoding, forgiving=True)
        return [answer if answer.error else check_caption(answer, config.form) for answer in found]

    return caption


def check_caption(answer: Answer, form: str) -> Answer:
    """Returns an answer with the caption as text, without reasoning; with an error if it is not of this form."""
    text = split_answer(answer.text)[1]
    if form == "json":
        text = text[text.find("{") : text.rfind("}") + 1]
        try:
            is_valid = isinstance(json.loads(text), dict) and text != "{}"
        except ValueError:
            is_valid = False
        if not is_valid:
            return replace(answer, text="", error=f"the reply is not a JSON object: {answer.text[:SHOWN]!r}")
    return replace(answer, text=text) if text else replace(answer, text="", error="the reply is empty")
