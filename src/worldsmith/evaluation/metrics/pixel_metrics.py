"""Metrics of videos that need no network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from worldsmith.evaluation.generated_video import GeneratedVideo
from worldsmith.evaluation.metrics.base import Metric, Output, SampleMetric, Values
from worldsmith.models.video_model import Mode

DIFFERENT = "seed", "name", "sources"
"""Arguments that may differ between the samples whose diversity is measured."""


class Continuation(SampleMetric):
    """PSNR, SSIM and motion error of a generated video against the real one, without the conditioning frames.

    The motion error includes the motion from the last conditioning frame to the first generated one.
    """

    outputs = {
        "psnr": Output("dB", "peak signal-to-noise ratio against the real video, dB", "higher"),
        "ssim": Output(
            "0 to 1",
            "structural similarity of the brightness (Wang et al. 2004), as in scikit-image with Gaussian weights",
            "higher",
        ),
        "motion_error": Output(
            "pixels/frame",
            "distance of block motions, pixels per frame (endpoint error, Baker et al. 2011)",
            "lower",
        ),
    }

    @classmethod
    def skip_reason(cls, config: Metric.Config, mode: Mode | None, modes: Sequence[Mode]) -> str:
        if mode in ("text2video", "text2image"):
            advice = "; use --model-mode image2video to compare them" if "image2video" in modes else ""
            return f"a video generated from text need not look like the clip{advice}"
        return super().skip_reason(config, mode, modes)

    def measure(self, sample: GeneratedVideo) -> Values:
        from worldsmith.evaluation.pixel_measures import measure_motion, psnr, ssim

        if sample.source is not None and not sample.kept and sample.args["vision_path"] is None:
            reason = "the video was generated from text only, so it need not look like the real video"
            return dict.fromkeys(self.outputs, reason)
        real = sample.real
        if isinstance(real, str):
            return dict.fromkeys(self.outputs, real)
        video, first = sample.video, sample.kept
        values = psnr(video[:, first:], real[:, first:]), ssim(video[:, first:], real[:, first:])
        motions = [measure_motion(frames[:, max(0, first - 1) :]) for frames in (video, real)]
        error = motions[0].error(motions[1]) if motions[0] and motions[1] else None
        small = "the frames are too small"
        reasons = "the video equals the real one, so its PSNR is infinite", small, small
        found = zip(self.outputs, (*values, error), reasons)
        return {name: reason if value is None else value for name, value, reason in found}


class MotionStrength(SampleMetric):
    """Mean block motion of a video, and its flicker: the difference that this motion does not explain."""

    outputs = {
        "motion": Output(
            "pixels/frame",
            "mean length of block motions, pixels per frame (8×8 blocks, full search over 8 pixels)",
            "close to the real videos",
        ),
        "flicker": Output(
            "grey levels",
            "change that block motion does not explain, gray levels (warping error, Lai et al. 2018)",
            "close to the real videos",
        ),
    }
    for_images = False
    measures_real = True

    def measure(self, sample: GeneratedVideo) -> Values:
        from worldsmith.evaluation.pixel_measures import measure_motion

        motion = measure_motion(sample.video)
        if motion is None:
            reason = "it is an image" if sample.video.shape[1] == 1 else "the frames are too small"
            return dict.fromkeys(self.outputs, reason)
        return {"motion": motion.magnitude, "flicker": motion.flicker}


class Sharpness(SampleMetric):
    """Sharpness of a video: the variance of the Laplacian."""

    outputs = {
        "sharpness": Output(
            "grey levels²", "variance of the Laplacian (Pech-Pacheco et al. 2000)", "close to the real videos"
        )
    }
    measures_real = True

    def measure(self, sample: GeneratedVideo) -> Values:
        from worldsmith.evaluation.pixel_measures import sharpness

        return {"sharpness": sharpness(sample.video)}


class Diversity(Metric):
    """Diversity of samples that differ only in their seed, without their conditioning frames."""

    outputs = {
        "diversity": Output(
            "0 to 1", "1 − mean SSIM over all pairs of videos that differ only in their seed; 0: all are equal"
        )
    }
    by_default = False

    def reset(self) -> None:
        super().reset()
        self.seen: dict[str, GeneratedVideo] = {}

    def update(self, batch: Sequence[GeneratedVideo]) -> None:
        self.seen |= {sample.name: sample.without_frames() for sample in batch}

    def compute(self) -> dict[str, float]:
        from worldsmith.evaluation.pixel_measures import diversity

        for group in groups_of_seeds([sample.args for sample in self.seen.values()]):
            value: float | str | None = "one seed only (use num_outputs for several)"
            if len(group) > 1:
                value = diversity([self.seen[name].without_frames().video[:, self.seen[name].kept :] for name in group])
            self.by_sample[group[0]] = {"diversity": "the frames are too small" if value is None else value}
        return self.means()


def groups_of_seeds(args: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Returns the names of the samples in groups; samples of a group differ only in their seed.

    `args` are the arguments of the samples, as in `sample_args.json`. A repeated seed is omitted.
    """
    groups: dict[str, dict[int, str]] = {}
    for one in args:
        key = json.dumps({name: value for name, value in one.items() if name not in DIFFERENT}, sort_keys=True)
        groups.setdefault(key, {}).setdefault(one["seed"], one["name"])
    return [list(group.values()) for group in groups.values()]
