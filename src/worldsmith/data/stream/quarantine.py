"""The quarantine of skipped samples, and the limit above which a run stops."""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from worldsmith.data.stream.errors import DataError
from worldsmith.files.lines import append_line

log = logging.getLogger(__name__)

Split = Literal["train", "val"]
LOGGED_PER_REASON = 3
FILTER_REASONS = frozenset({"too_short", "too_long", "too_small", "other_shape", "over_token_cap", "idle"})


@dataclass(slots=True, frozen=True)
class Rejection:
    """Skipped sample, or skipped record of the dataset file, with the reason."""

    key: str
    """Key of the sample; "<file name>:<line>" if the record has none."""
    reason: str
    """Short slug, e.g. missing_file, truncated, bad_json."""
    detail: str
    """Message for users."""
    path: str
    """Path of the clip, or of the dataset file."""
    line: int | None = None
    """Line number in the dataset file; None if the file does not have a record per line."""
    index: int | None = None
    """0-based index of the record in the dataset file; None if it is not known."""

    @property
    def is_filter(self) -> bool:
        """Whether the sample is valid and only outside the limits of the config; False: it is broken."""
        return self.reason in FILTER_REASONS


class Quarantine:
    """Counts skipped samples, and lists each one in `quarantine.jsonl` once per run, even if the run is resumed.

    Counts start at zero in each process, so samples that were repaired before a run is resumed no longer count.
    """

    refuses: ClassVar[bool] = True
    """Whether a loader raises DataError if its dataset has no usable sample."""

    def __init__(self, folder: Path | None, *, rank: int = 0, split: Split = "train") -> None:
        """Prepares the quarantine file of one rank and split.

        Args:
            folder: Folder of the file; None: skipped samples are only counted.
            rank: Index of the rank; each rank writes its own file.
            split: "train" or "val", for the data loader in the config section `dataloader_train` or `dataloader_val`.
        """
        name = "quarantine" + ("" if split == "train" else f"_{split}") + (f"_rank{rank}" if rank else "")
        self.file = Path(folder) / f"{name}.jsonl" if folder is not None else None
        if folder is not None:  # here and not for each line: a run folder that was moved is not created again
            Path(folder).mkdir(parents=True, exist_ok=True)
        self.section = f"dataloader_{split}"
        self.counts: Counter[str] = Counter()
        self.unwritten = 0
        """Number of samples that could not be written to the file."""
        self.keys: set[str] = set()
        self.bad_keys: set[str] = set()
        """Keys of broken samples; samples that are only outside the configured limits are not included."""
        self._written = read_keys(self.file) if self.file else set()

    def add(self, rejection: Rejection) -> bool:
        """Counts and lists a skipped sample; returns False, without an effect, if its key was added before."""
        if rejection.key in self.keys:
            return False
        self.keys.add(rejection.key)
        self.counts[rejection.reason] += 1
        if not rejection.is_filter:
            self.bad_keys.add(rejection.key)
        self.tell(rejection)
        return True

    def tell(self, rejection: Rejection) -> None:
        """Logs a rejection if it is among the first of its reason; appends it to the file unless it is listed there."""
        count = self.counts[rejection.reason]
        if count <= LOGGED_PER_REASON:
            more = " (further samples with this reason are not logged)" if count == LOGGED_PER_REASON else ""
            log.warning("skipped %s: %s: %s%s", rejection.key, rejection.reason, rejection.detail, more)
        if self.file is not None and rejection.key not in self._written:
            self._written.add(rejection.key)
            line = {name: getattr(rejection, name) for name in ("key", "path", "reason", "detail")}
            if rejection.line is not None:
                line["line"] = rejection.line
            self._list(self.file, json.dumps(line, ensure_ascii=False))

    def _list(self, file: Path, line: str) -> None:
        """Appends a line to the quarantine file; a write error, as on a full disk, is only logged and counted."""
        try:
            append_line(file, line)
        except OSError as error:
            self.unwritten += 1
            if self.unwritten == 1:
                log.warning("%s cannot be written, the run continues: %s", file, error)

    def check(self, total: int, *, max_bad_fraction: float, bad_samples_allowed: int) -> None:
        """Raises DataError if more samples are broken than the limits allow.

        Args:
            total: Number of samples, including broken ones.
            max_bad_fraction: Fraction of broken samples above which the run stops.
            bad_samples_allowed: Number of broken samples that are tolerated in any case, as long as they are at most
                half of the data.
        """
        allowed = max(int(max_bad_fraction * total), min(bad_samples_allowed, total // 2))
        if len(self.bad_keys) > allowed:
            other = f" or {self.section}.bad_samples_allowed (now {bad_samples_allowed})"
            raise DataError(
                f"[E101] {len(self.bad_keys)} of {total} samples are bad, {allowed} are allowed ({self.describe()}). "
                f"Repair or remove them, or raise {self.section}.max_bad_fraction "
                f"(now {max_bad_fraction}){other if len(self.bad_keys) <= total // 2 else ''}."
            )

    def describe(self) -> str:
        """Returns text with the number of skipped samples per reason and the path of the quarantine file."""
        counts = ", ".join(f"{reason} {n}" for reason, n in sorted(self.counts.items())) or "none"
        listed = f"; listed in {self.file}" if self.file else ""
        return f"skipped: {counts}{listed}{f', but {self.unwritten} could not be written' if self.unwritten else ''}"


def read_keys(file: Path) -> set[str]:
    """Returns the keys of the samples that are listed in a quarantine file; incomplete lines are skipped."""
    keys = set()
    if file.exists():
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                keys.add(str(json.loads(line)["key"]))
            except (ValueError, KeyError, TypeError):
                continue
    return keys


class Tally(Quarantine):
    """Quarantine for data checks: it collects rejections in a list, without log messages, and raises no error."""

    refuses: ClassVar[bool] = False

    def __init__(self, split: Split = "train") -> None:
        super().__init__(None, split=split)
        self.rejections: list[Rejection] = []
        self.refusal: str | None = None
        """Error message with which a run would stop, since too many samples are broken; None if it would not stop."""

    def tell(self, rejection: Rejection) -> None:
        self.rejections.append(rejection)

    def check(self, total: int, *, max_bad_fraction: float, bad_samples_allowed: int) -> None:
        try:
            super().check(total, max_bad_fraction=max_bad_fraction, bad_samples_allowed=bad_samples_allowed)
        except DataError as error:
            self.refusal = str(error)
