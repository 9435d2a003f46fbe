"""`worldsmith dataset videophy2 OUT_ROOT`: downloads VideoPhy-2."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Literal

from worldsmith.actions.action import Action, Result, share_done
from worldsmith.config.declare.ranges import Count, NotNegative
from worldsmith.data.conversations.videophy2 import FOLDERS, Wanted, prepare


class PrepareVideoPhy2(Action):
    """Downloads VideoPhy-2 and writes its questions and scores, as videophy2_train and videophy2_val.

    The published test split becomes videophy2_val. Run it again to go on where it stopped: clips that are there are not
    downloaded anew. Rows whose clip or score cannot be had are left out and listed in failed.jsonl. The questions are
    Worldsmith's own words: scores of models that were asked otherwise are not comparable.
    """

    places: ClassVar[tuple[str, ...]] = ("out_root",)

    class Config(Action.Config):
        out_root: str
        """Folder for both splits."""
        split: Literal["train", "test", "both"] = "both"
        """Which of them; test becomes videophy2_val."""
        score_field: Literal["pc", "sa", "joint"] = "pc"
        """The score: physical common sense, semantic adherence (1 to 5), or both as yes or no."""
        include_caption: bool = False
        """End the question with the clip's caption; sa and joint need it."""
        caption_field: str = "upsampled_caption"
        """Column of the caption; where it is empty, `caption`."""
        limit: NotNegative = 0
        """Only so many rows, from the first on; 0 = all."""
        hf_train_repo: str = "videophysics/videophy2_train"
        """Repository of the training table."""
        hf_test_repo: str = "videophysics/videophy2_test"
        """Repository of the test table."""
        media_field_name: str = "video_0"
        """What a conversation calls its video."""
        workers: Count = 16
        """Downloads at a time."""

        def check(self) -> None:
            for split in self.splits():
                self.wanted(split).check()

        def splits(self) -> list[Literal["train", "test"]]:
            return ["train", "test"] if self.split == "both" else [self.split]

        def wanted(self, split: Literal["train", "test"]) -> Wanted:
            repo = self.hf_train_repo if split == "train" else self.hf_test_repo
            caption = self.caption_field if self.include_caption else ""
            return Wanted(repo, self.score_field, caption, self.media_field_name)

    config: Config

    def plan(self) -> Iterator[str]:
        rows = f"the first {self.config.limit} rows" if self.config.limit else "all rows"
        for split in self.config.splits():
            folder = Path(self.config.out_root, FOLDERS[split])
            yield f"videophy2: {rows} of {self.config.wanted(split).repo} with their clips, in {folder}"

    def run(self) -> Result:
        config, lines = self.config, []
        facts: dict[str, dict[str, Any]] = {}
        for split in config.splits():
            made = prepare(
                Path(config.out_root),
                split,
                config.wanted(split),
                endpoint=os.environ.get("HF_ENDPOINT") or "https://huggingface.co",
                limit=config.limit,
                workers=config.workers,
                progress=share_done(f"videophy2 {split}"),
            )
            left_out = f"; {len(made.failed)} rows left out, see {made.folder / 'failed.jsonl'}" if made.failed else ""
            lines.append(f"videophy2: {made.records} records, {made.downloaded} clips new, in {made.folder}{left_out}")
            facts[split] = {**asdict(made), "folder": str(made.folder)}
        return Result(lines, facts, code=0 if all(fact["records"] for fact in facts.values()) else 1)
