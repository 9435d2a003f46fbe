"""What a study leaves and says: its files, brought up to date after each trial, and a few lines."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from worldsmith.config.tree.plain import to_dict
from worldsmith.config.write.convert import convert
from worldsmith.files.atomic import write_text
from worldsmith.monitor.lineage import read_lineage, record_of, write_lineage
from worldsmith.monitor.terminal_text import print_message
from worldsmith.tools.tune.record import BEST, PAGE, RUNS, TRIALS, Record, line_of
from worldsmith.tools.tune.setup import StudySetup
from worldsmith.tools.tune.source import launched, processes_of

BEST_RUN = "best.yaml"
"""The run with the best settings, in a form that `worldsmith train` takes."""


def format_value(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


@dataclass(slots=True)
class Results:
    """The results of the study in `record`: files, a page, and the lines of the command."""

    record: Record
    setup: StudySetup
    at_work: bool = True
    final: dict[str, Any] | None = None
    """The figures on the final data, `best` and `as_it_is`."""

    def changed(self) -> None:
        """Says how a trial has ended, and brings the files up to date."""
        record, best = self.record, self.record.best
        trial = record.finished[-1]
        line = line_of(trial, record.path(trial.number))
        value = f"{self.setup.config.metric} {format_value(line['value'])}" if line["value"] is not None else ""
        what = ", ".join(filter(None, [line["state"], value, line["reason"]]))
        beside = (
            f"; best: trial {best.number}, {format_value(best.value)}" if best and best.number != trial.number else ""
        )
        settings = " ".join(line["words"]) or "the run as it is"
        print_message(f"trial {trial.number} of {self.setup.config.trials}: {what} ({settings}){beside}")
        self.write()

    def write(self) -> dict[str, Any]:
        """Writes trials.jsonl, best.json, best.yaml and the page. Returns what best.json says."""
        record, best = self.record, self.record.best
        record.write_lines()
        if best is None:
            return {"metric": self.setup.config.metric, "trials": record.counts()}
        line = line_of(best, record.path(best.number))
        facts = {
            "metric": self.setup.config.metric,
            "direction": self.setup.direction,
            **{name: line[name] for name in ("trial", "value", "settings", "words", "run")},
            "as_it_is": record.finished[0].value,
            "trials": record.counts(),
            "final": self.final,
        }
        write_text(record.folder / BEST, json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
        loaded = self.setup.source.load(line["words"], keep_unset=True)
        write_text(record.folder / BEST_RUN, convert(loaded, "yaml").text)
        self.write_page(facts)
        return facts

    def write_record(self) -> None:
        """Says what the best settings were found with: what the run of the best trial says of itself."""
        record, best = self.record, self.record.best
        run = record.path(best.number) if best else None
        if run is None or (known := record_of(run)) is None:
            return
        outputs = [TRIALS, BEST, BEST_RUN, f"{RUNS}/{run.name}"]
        inputs = read_lineage(known).inputs
        write_lineage(record.folder, action="tune", settings=to_dict(self.setup.config), inputs=inputs, outputs=outputs)

    def write_page(self, facts: Mapping[str, Any]) -> None:
        from worldsmith.tools.tune.page import write_page

        record, config = self.record, self.setup.config
        names = ("source", "sampler", "startup", "pruner", "reduction", "least_validations", "seed", "parallel")
        rules = {"metric": config.metric, "direction": self.setup.direction, **{n: getattr(config, n) for n in names}}
        write_page(
            record.folder / PAGE,
            name=record.folder.absolute().name,
            space=self.setup.space,
            lines=record.lines(),
            facts=facts,
            rules={**rules, "words": " ".join(config.words), "final_data": " ".join(config.final_data)},
            importances=record.importances(),
            command=self.next,
            at_work=self.at_work,
        )

    @property
    def next(self) -> str:
        """The command of the best run: of a spec its own words, to paste."""
        best = self.record.best
        words = [] if best is None else line_of(best, self.record.path(best.number))["words"]
        processes = processes_of(self.setup.source.load(words).tree)
        if best is not None and self.setup.source.is_spec:
            return f"worldsmith {shlex.join(self.setup.source.command(words, processes=processes))}"
        return f"worldsmith {shlex.join(launched(['train', str(self.record.folder / BEST_RUN)], processes))}"

    def tell(self, ending: str | None) -> Iterator[str]:
        """What the command says at its end."""
        config, record, counts, best = self.setup.config, self.record, self.record.counts(), self.record.best
        ended = ", ".join(f"{counts[name]} {name}" for name in ("complete", "pruned", "failed"))
        draws = f"; {counts['refused_draws']} draws could not run" if counts["refused_draws"] else ""
        yield f"{len(record.finished)} of {self.setup.config.trials} trials: {ended}{draws}"
        if ending == "time":
            yield f"no trial was started after {config.hours:g} hours; the same command goes on"
        if ending == "exhausted":
            yield "nothing is left to draw that has not been tried"
        if ending == "stopped":
            yield "stopped; the same command goes on"
        if best is None or ending == "stopped":
            return
        first = record.finished[0]
        values = f"{format_value(best.value)}; as it is: {format_value(first.value)}"
        yield f"best: trial {best.number}, {config.metric} {values}"
        for word in line_of(best, record.path(best.number))["words"]:
            yield f"  {word}"
        if self.final is not None:
            values = f"{format_value(self.final['best'])}; as it is: {format_value(self.final['as_it_is'])}"
            yield f"on data that no trial saw: {values}"
        elif best.number:
            yield (
                f"that is the best of {counts['complete']} figures on the same data, which flatters it: --final-data "
                "has it measured on data that no trial has seen"
            )
        yield f"next: {self.next}"
        yield f"page: {record.folder / PAGE}"
