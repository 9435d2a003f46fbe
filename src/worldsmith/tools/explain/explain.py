"""`worldsmith explain LOG|RUN|CODE|-`: explains the errors in a log and suggests fixes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from worldsmith.actions.action import Action, Result
from worldsmith.config.errors import UserError
from worldsmith.config.tree.suggest import did_you_mean_folder
from worldsmith.tools.explain.causes import Cause, find_causes, last_error, patterns
from worldsmith.tools.explain.explanation import explain_in_detail, explanation_data, shorten_line
from worldsmith.tools.explain.facts import Run, run_in
from worldsmith.tools.explain.logs import FOLDER, Stream, read_log, read_logs_of, split


class Explain(Action):
    """Finds known errors in a log or a run folder, and explains their meaning and fix, the cause first.

    An error code, such as E103, is explained without a log. From a run folder it reads the logs of all ranks,
    messages.jsonl and status.json of the last start; suggested fixes are overrides with the values of that run.
    """

    places: ClassVar[tuple[str, ...]] = ("log",)

    class Config(Action.Config):
        log: str
        """A log file of any program, a run folder, an error code such as E103, or - for standard input."""
        run: str | None = None
        """Run folder of the log, whose values the suggested fixes contain; null: the folder that contains logs/, if
        the log file is in logs/."""

    config: Config

    def run(self) -> Result:
        code = re.fullmatch(r"\[?E(\d+)\]?", self.config.log)
        if code and not Path(self.config.log).exists():
            return self.explain_code(int(code[1]))
        streams, run = self.read()
        causes = find_causes(streams)
        error = last_error(streams)
        facts = {
            "causes": [explanation_data(cause, run) for cause in causes],
            "error": error and {"text": error[0], "file": error[1].source, "line": error[1].line},
            "lines": sum(len(stream.lines) for stream in streams),
        }
        return Result(list(lines(causes, run, streams)), facts)

    def explain_code(self, code: int) -> Result:
        """Returns the explanation of an error code. Raises UserError for an unknown code."""
        if code not in patterns():
            raise UserError(f"E{code} is not an error code: expected a code that a message shows, such as [E103]")
        run = run_in(Path(self.config.run)) if self.config.run is not None else None
        cause = Cause(patterns()[code])
        return Result(
            list(explain_in_detail(cause, run)), {"causes": [explanation_data(cause, run)], "error": None, "lines": 0}
        )

    def read(self) -> tuple[list[Stream], Run | None]:
        """Returns the lines of the log as one stream per file and rank, and the run that wrote the log (None: unknown).

        Raises UserError if the path is neither a log nor a run folder.
        """
        log = self.config.log
        run = run_in(Path(self.config.run)) if self.config.run is not None else None
        if log == "-":
            return split(sys.stdin.buffer.read().decode(errors="replace"), "-"), run
        path = Path(log)
        if path.is_dir():
            return read_logs_of(path), run or run_in(path)
        if not path.exists():
            raise UserError(f"{log}: no such log or run folder{did_you_mean_folder(log)}; - reads standard input")
        above = path.absolute().parent.parent
        if run is None and path.absolute().parent.name == FOLDER and (above / "config.yaml").exists():
            run = run_in(above)
        return read_log(path), run


def lines(causes: Sequence[Cause], run: Run | None, streams: Sequence[Stream]) -> Iterator[str]:
    """Yields the output lines of an explanation: causes in detail, consequences by name, an unknown error as logged.

    Args:
        causes: Known errors in the log.
        run: The run, for values in the suggested fixes; None: unknown.
        streams: Output of the processes, for an error that is not known.
    """
    known = [cause for cause in causes if not cause.pattern.consequence] or causes
    for number, cause in enumerate(known):
        yield from [""] * (number > 0)
        yield from explain_in_detail(cause, run)
    for cause in causes:
        if cause not in known:
            yield ""
            yield f"as a consequence: {cause.pattern.name} ({cause.place.source}:{cause.place.line})"
    if causes:
        return
    if error := last_error(streams):
        text, place = error
        yield f"{place.source}:{place.line}: {shorten_line(text)}"
        yield "This error is not known."
        return
    count = sum(len(stream.lines) for stream in streams)
    yield f"No known error in {count} line{'s' * (count != 1)}."
