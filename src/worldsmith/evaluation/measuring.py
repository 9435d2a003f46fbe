"""What is measured of a generated sample, by evaluators that are chosen by name, and the figures of all samples."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from worldsmith.evaluation.adherence import ATTRIBUTES, KNOWN
from worldsmith.evaluation.intervals import mean_interval, share_interval

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.evaluation.made_video import MadeVideo

Values = dict[str, float | str]
"""Of a sample by figure; text says why there is none."""
UNITS = {
    "psnr": "dB", "ssim": "0 to 1", "motion_error": "pixels/frame", "motion": "pixels/frame", "flicker": "grey levels",
    "sharpness": "grey levels²", "diversity": "0 to 1", "adherence": "share",
}  # fmt: skip
"""All figures."""
DIFFERENT = "seed", "name", "sources"
"""Arguments in which samples may differ whose diversity is measured."""


def measure_continuation(sample: MadeVideo) -> Values:
    """Of the frames that were not given, against the real ones; their motion begins at the last one given."""
    from worldsmith.evaluation.motion import measure_motion
    from worldsmith.evaluation.video_figures import psnr, ssim

    names, real = ("psnr", "ssim", "motion_error"), sample.real
    if isinstance(real, str):
        return dict.fromkeys(names, real)
    video, first = sample.video, sample.kept
    values = psnr(video[:, first:], real[:, first:]), ssim(video[:, first:], real[:, first:])
    motions = [measure_motion(frames[:, max(0, first - 1) :]) for frames in (video, real)]
    error = motions[0].error(motions[1]) if motions[0] and motions[1] else None
    why = "it equals the real one, where PSNR has no bound", "the frames are too small", "the frames are too small"
    return {name: told if value is None else value for name, value, told in zip(names, (*values, error), why)}


def measure_movement(video: Tensor) -> Values:
    from worldsmith.evaluation.motion import measure_motion

    motion = measure_motion(video)
    if motion is None:
        why = "it is an image" if video.shape[1] == 1 else "the frames are too small"
        return {"motion": why, "flicker": why}
    return {"motion": motion.magnitude, "flicker": motion.flicker}


def measure_sharpness(video: Tensor) -> Values:
    from worldsmith.evaluation.video_figures import sharpness

    return {"sharpness": sharpness(video)}


def measure_shapes(sample: MadeVideo) -> Values:
    """Whether the detector of moving shapes sees what the sample's notes (`extra`) say."""
    from worldsmith.evaluation.shape_detector import detect

    notes = sample.args["extra"]
    if any(str(notes.get(name)) not in KNOWN[name] for name in ATTRIBUTES):
        return {"adherence": "no notes (extra) of a moving shape"}
    seen = detect(sample.video.permute(1, 2, 3, 0).numpy())
    return {"adherence": float(all(getattr(seen, name) == notes[name] for name in ATTRIBUTES))}


LOOKS: dict[str, Callable[[Tensor], Values]] = {"motion": measure_movement, "sharpness": measure_sharpness}
"""Those that look at any video, a real one too."""
COMPARES: dict[str, Callable[[MadeVideo], Values]] = {"continuation": measure_continuation, "shapes": measure_shapes}
"""Those that compare a sample with what it should be."""
DIVERSITY = "diversity"
"""The one that looks at several samples."""
EVALUATORS = ("continuation", *LOOKS, DIVERSITY, "shapes")
"""All of them."""
REAL = "real"
"""Stands beside the models where real videos are known."""


@dataclass
class Measured:
    """Figures of one model's samples."""

    by_sample: dict[str, Values] = field(default_factory=dict)
    by_group: dict[str, Values] = field(default_factory=dict)
    """Diversity, by the name of the first sample of its group."""

    def values(self, figure: str) -> dict[str, float | str]:
        """By sample, or group of samples."""
        found = self.by_group if figure == DIVERSITY else self.by_sample
        return {name: values[figure] for name, values in found.items() if figure in values}


def measure(samples: Sequence[MadeVideo], chosen: Collection[str], done: Callable[[int, int], None]) -> Measured:
    """Asks the chosen evaluators of every sample; `done` is told (samples, of all)."""
    from worldsmith.evaluation.video_figures import diversity

    measured, by_name = Measured(), {sample.name: sample for sample in samples}
    for number, sample in enumerate(samples, start=1):
        fresh, values = sample.unread(), Values()
        for name, evaluator in COMPARES.items():
            values |= evaluator(fresh) if name in chosen else {}
        values |= look(fresh.video, chosen)
        measured.by_sample[sample.name] = values
        done(number, len(samples))
    for group in groups_of_seeds([sample.args for sample in samples]) if DIVERSITY in chosen else ():
        value: float | str | None = "one seed only (num_outputs makes several)"
        if len(group) > 1:
            value = diversity([by_name[name].unread().video[:, by_name[name].kept :] for name in group])
        measured.by_group[group[0]] = {DIVERSITY: "the frames are too small" if value is None else value}
    return measured


def measure_real(samples: Sequence[MadeVideo], chosen: Collection[str]) -> Measured:
    """What can be seen in the real videos by themselves; of samples without one there is nothing."""
    known = ((sample.name, sample.unread().real) for sample in samples if sample.source is not None)
    return Measured({name: look(real, chosen) for name, real in known if not isinstance(real, str)})


def look(video: Tensor, chosen: Collection[str]) -> Values:
    return {name: value for one, see in LOOKS.items() if one in chosen for name, value in see(video).items()}


def groups_of_seeds(args: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Names of the samples that differ in their seed alone."""
    groups: dict[str, dict[int, str]] = {}
    for one in args:
        key = json.dumps({name: value for name, value in one.items() if name not in DIFFERENT}, sort_keys=True)
        groups.setdefault(key, {}).setdefault(one["seed"], one["name"])
    return [list(group.values()) for group in groups.values()]


def summarize(models: Mapping[str, Measured]) -> dict[str, Any]:
    """Each figure's mean and interval of each model, and the paired difference of the first model from each other."""
    found: dict[str, Any] = {}
    first = next(iter(models))
    for figure, unit in UNITS.items():
        values = {name: measured.values(figure) for name, measured in models.items()}
        if not any(values.values()):
            continue
        numbers = {name: numbers_of(of) for name, of in values.items()}
        reasons = {
            name: dict(sorted(Counter(value for value in of.values() if isinstance(value, str)).items()))
            for name, of in values.items()
        }
        differences = {}
        for name in list(models)[1:]:
            pairs = [numbers[first][key] - numbers[name][key] for key in numbers[first] if key in numbers[name]]
            differences[name] = facts(pairs)
        found[figure] = {
            "unit": unit,
            **{name: facts(list(of.values()), share=unit == "share") for name, of in numbers.items()},
            "difference": differences,
            "not_measured": reasons,
        }
    return found


def numbers_of(values: Mapping[str, float | str]) -> dict[str, float]:
    return {name: value for name, value in values.items() if not isinstance(value, str)}


def facts(values: Sequence[float], *, share: bool = False) -> dict[str, Any]:
    mean = sum(values) / len(values) if values else None
    interval = share_interval(int(sum(values)), len(values)) if share else mean_interval(values)
    return {"mean": mean, "interval": interval, "samples": len(values)}


def table(figures: Mapping[str, Any]) -> Iterator[str]:
    """For people: a line for each figure, intervals in brackets, and what could not be measured."""
    some, *_ = figures.values()
    models = list(some["not_measured"])
    rows = [["figure", "unit", *models, *(f"minus {name}" for name in models[1:]), "samples"]]
    notes = []
    for name, figure in figures.items():
        first = figure[models[0]]
        told = [*(figure[model] for model in models), *figure["difference"].values()]
        rows.append([name, figure["unit"], *map(in_words, told), str(first["samples"])])
        for model, reasons in figure["not_measured"].items():
            notes += [f"{name}: {count} not measured ({model}): {reason}" for reason, count in reasons.items()]
    widths = [max(map(len, column)) for column in zip(*rows)]
    yield from ("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)
    yield from notes


def in_words(fact: Mapping[str, Any]) -> str:
    if fact["mean"] is None:
        return "-"
    interval = "" if fact["interval"] is None else " [{:.4g}, {:.4g}]".format(*fact["interval"])
    return f"{fact['mean']:.4g}{interval}"
