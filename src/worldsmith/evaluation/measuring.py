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
    from worldsmith.evaluation.pretrained import ClipScorer, VideoFeatures

Values = dict[str, float | str]
"""Of a sample by figure; text says why there is none."""
LOSS, CLIP_SCORE, DISTANCE = "loss", "clip_score", "fvd_videomae"
UNITS = {
    LOSS: "", "psnr": "dB", "ssim": "0 to 1", "motion_error": "pixels/frame", "motion": "pixels/frame",
    "flicker": "grey levels", "sharpness": "grey levels²", "diversity": "0 to 1", "adherence": "share",
    CLIP_SCORE: "0 to 100",
}  # fmt: skip
"""All figures that have a value for each sample, group of samples or clip."""
DIFFERENT = "seed", "name", "sources"
"""Arguments in which samples may differ whose diversity is measured."""


def measure_continuation(sample: MadeVideo) -> Values:
    """Of the frames that were not given, against the real ones; their motion begins at the last one given."""
    from worldsmith.evaluation.motion import measure_motion
    from worldsmith.evaluation.video_figures import psnr, ssim

    names = ("psnr", "ssim", "motion_error")
    if sample.source is not None and not sample.kept and sample.args["vision_path"] is None:
        return dict.fromkeys(names, "it was generated from text alone, which the real video need not look like")
    real = sample.real
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
EVALUATORS = (LOSS, "continuation", *LOOKS, DIVERSITY, "shapes", "clip", "fvd")
"""All of them."""
REAL = "real"
"""Stands beside the models where real videos are known."""


@dataclass
class Measured:
    """Figures of one model's samples."""

    by_sample: dict[str, Values] = field(default_factory=dict)
    by_group: dict[str, Values] = field(default_factory=dict)
    """Diversity, by the name of the first sample of its group."""
    by_clip: dict[str, Values] = field(default_factory=dict)
    """The held-out loss, by the key of the clip."""

    def values(self, figure: str) -> dict[str, float | str]:
        """By sample, group of samples, or clip."""
        found = {DIVERSITY: self.by_group, LOSS: self.by_clip}.get(figure, self.by_sample)
        return {name: values[figure] for name, values in found.items() if figure in values}


def measure(
    samples: Sequence[MadeVideo],
    chosen: Collection[str],
    done: Callable[[int, int], None],
    clip: ClipScorer | None = None,
) -> Measured:
    """Asks the chosen evaluators of every sample; `done` is told (samples, of all)."""
    from worldsmith.evaluation.video_figures import diversity

    measured, by_name = Measured(), {sample.name: sample for sample in samples}
    for number, sample in enumerate(samples, start=1):
        fresh, values = sample.unread(), Values()
        for name, evaluator in COMPARES.items():
            values |= evaluator(fresh) if name in chosen else {}
        values |= look(fresh.video, chosen)
        values |= {} if clip is None else {CLIP_SCORE: clip.score(str(sample.args["prompt"]), fresh.video)}
        measured.by_sample[sample.name] = values
        done(number, len(samples))
    for group in groups_of_seeds([sample.args for sample in samples]) if DIVERSITY in chosen else ():
        value: float | str | None = "one seed only (num_outputs makes several)"
        if len(group) > 1:
            value = diversity([by_name[name].unread().video[:, by_name[name].kept :] for name in group])
        measured.by_group[group[0]] = {DIVERSITY: "the frames are too small" if value is None else value}
    return measured


def measure_real(samples: Sequence[MadeVideo], chosen: Collection[str], clip: ClipScorer | None = None) -> Measured:
    """What can be seen in the real videos by themselves; of samples without one there is nothing."""
    measured = Measured()
    for sample in samples:
        real = "" if sample.source is None else sample.unread().real
        if isinstance(real, str):
            continue
        values = look(real, chosen)
        values |= {} if clip is None else {CLIP_SCORE: clip.score(str(sample.args["prompt"]), real)}
        measured.by_sample[sample.name] = values
    return measured


def measure_distances(models: Mapping[str, Sequence[MadeVideo]], features: VideoFeatures) -> dict[str, Any]:
    """The Fréchet distance of each model's videos from their real ones, as a figure like those of `summarize`.

    It has a note if the videos are fewer than those of which distances are reported, or shorter than the network reads.
    """
    import numpy as np

    from worldsmith.evaluation.pretrained import ENOUGH_VIDEOS, frechet_distance

    figure: dict[str, Any] = {"unit": "", "difference": {}, "not_measured": {}, "notes": []}
    distances: dict[str, float | None] = {}
    real_features: dict[str, np.ndarray] = {}
    count = 0
    for name, samples in models.items():
        found: dict[str, np.ndarray] = {}
        for sample in (sample.unread() for sample in samples if sample.args["num_frames"] > 1):
            if not isinstance(sample.real, str):
                found[sample.name] = features(sample.video)
                real_features.setdefault(sample.name, features(sample.real))
        count = len(found)
        pair = [np.stack([of[key] for key in found]) for of in (found, real_features)] if count > 1 else None
        distances[name] = None if pair is None else frechet_distance(*pair)
        still = all(sample.args["num_frames"] == 1 for sample in samples)
        why = "they are images" if still else "fewer than two videos have a real one"
        figure["not_measured"][name] = {why: 1} if pair is None else {}
        figure[name] = {"mean": distances[name], "interval": None, "samples": count}
    first = distances[next(iter(models))]
    if first is None:
        return figure
    for name, distance in list(distances.items())[1:]:
        difference = None if distance is None else first - distance
        figure["difference"][name] = {"mean": difference, "interval": None, "samples": count}
    figure["unit"] = f"of {count} videos"
    if count < ENOUGH_VIDEOS:
        figure["notes"].append(
            f"{count} videos are too few for a distance that can be compared with others ({ENOUGH_VIDEOS} are usual): "
            "it is the larger the fewer they are. Compare models on the same clips only"
        )
    shortest = min(sample.args["num_frames"] for sample in next(iter(models.values())))
    if shortest < features.frames:
        figure["notes"].append(f"of videos of {shortest} frames some are repeated, as VideoMAE reads {features.frames}")
    return figure


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
        notes += [f"{name}: {note}" for note in figure.get("notes", [])]
    widths = [max(map(len, column)) for column in zip(*rows)]
    yield from ("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)
    yield from notes


def in_words(fact: Mapping[str, Any]) -> str:
    if fact["mean"] is None:
        return "-"
    interval = "" if fact["interval"] is None else " [{:.4g}, {:.4g}]".format(*fact["interval"])
    return f"{fact['mean']:.4g}{interval}"
