"""Multiple-choice questions about videos, in the layout of the Cosmos-Reason1 benchmark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from worldsmith.data.conversations.conversation import Turn, say
from worldsmith.data.conversations.datasets.chat_file import ChatFile, file_at
from worldsmith.data.json_records import read_list
from worldsmith.data.stream.errors import SampleError
from worldsmith.files.remote import file_exists

SUFFIX = "_benchmark_qa_pairs.json"
INSTRUCTION = "Give only the letter of the right option."
"""Last line of every question. The wording is ours, so scores are not exactly comparable to published ones."""


class QaPairsDataset(ChatFile):
    """`NAME_benchmark_qa_pairs.json`: a list of `{"video", "qa_pairs": [{"question", "index2ans", "answer"}]}`.

    Each question is a conversation. `path` is the file, or its folder, which must be named NAME. Video paths are
    relative to the folder.
    """

    class Config(ChatFile.Config):
        usual_media: ClassVar[Literal["image", "video"]] = "video"

    def __init__(self, config: Config) -> None:
        self.file_name = f"{os.path.basename(config.path.rstrip('/')).removesuffix(SUFFIX)}{SUFFIX}"
        super().__init__(config)

    @classmethod
    def is_at(cls, path: str) -> bool:
        file = file_at(path, f"{os.path.basename(path.rstrip('/'))}{SUFFIX}")
        return file.endswith(SUFFIX) and file_exists(file)

    def read_records(self) -> Iterator[tuple[int, int | None, Any]]:
        """Yields (index, None, record) for each question of the file.

        A record of the file has one video and several questions. For each question, `record` is a copy that has only
        this question (a dict, not a list) under `qa_pairs`, and the file name of the video without extension as `id`,
        unless the file states an `id`. A record without questions is yielded once, unchanged; `parse` rejects it.

        `index` counts the yielded items of the complete file from 0. The second item is the line number in other
        dataset types; it is always None here, because the file is one JSON list.
        """
        number = 0
        for record in read_list(self.file):
            pairs = record.get("qa_pairs") if isinstance(record, dict) else None
            for pair in (pairs if isinstance(pairs, list) else [pairs]) or [None]:
                name = os.path.splitext(os.path.basename(str(record.get("video"))))[0] if pair else ""
                yield number, None, {"id": name, **record, "qa_pairs": pair} if isinstance(pair, dict) else record
                number += 1

    def parse(self, record: Any) -> list[Turn]:
        pair = record.get("qa_pairs") if isinstance(record, dict) else None
        if not isinstance(pair, dict):
            raise SampleError("bad_record", f"expected an object with 'qa_pairs', found {record!r:.80}")
        options, question = pair.get("index2ans"), pair.get("question")
        answer = pair.get("answer", pair.get("correct_answer"))
        if not isinstance(options, dict) or not isinstance(question, str) or answer not in options:
            raise SampleError(
                "bad_record",
                "expected 'question', 'index2ans' and 'answer', which must be a key of 'index2ans', in 'qa_pairs'",
            )
        lines = [question, *(f"({letter}) {text}" for letter, text in options.items()), INSTRUCTION]
        video = self.medium("video", record.get("video"), record.get("video_fps"))
        return [say("user", video, "\n".join(lines)), say("assistant", str(answer))]
