"""What is measured of samples on disk, and how the figures of models are compared."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from pretrained_folders import make_clip, make_videomae
from torch import Tensor

from worldsmith.config.errors import UserError
from worldsmith.demo.moving_shapes import COLOURS, DIRECTIONS, SHAPES, MovingShapes
from worldsmith.evaluation.generated_video import GeneratedVideo, find_real
from worldsmith.evaluation.metrics.base import Metric, Output, Values
from worldsmith.evaluation.metrics.clip_score import ClipScore
from worldsmith.evaluation.metrics.frechet_distance import FrechetVideoDistance, frechet_distance
from worldsmith.evaluation.metrics.pixel_metrics import groups_of_seeds
from worldsmith.evaluation.metrics.registry import METRICS
from worldsmith.sampling.write_media import write_mp4
from worldsmith.tools.evaluate.video_metrics import (
    Scores,
    format_measurements,
    measure,
    measure_all,
    summarize,
    values_of,
)

BRACKETS = "in brackets: 95 % interval of the mean over the samples"
FEW = "the interval is too narrow for so few samples"


def clip(level: int, frames: int = 5, height: int = 32) -> Tensor:
    """A bright bar that goes right, with texture."""
    video = torch.full((3, frames, height, 48), level, dtype=torch.uint8)
    video[:, :, ::2] += 60
    for time in range(frames):
        video[:, time, :, 8 + 2 * time : 16 + 2 * time] = 250
    return video


def made(folder: Path, name: str, video: Tensor, source: Path | None = None, **args: Any) -> GeneratedVideo:
    folder.mkdir(exist_ok=True)
    write_mp4(folder / f"{name}.mp4", video, 8)
    form = {"num_frames": video.shape[1], "height": video.shape[2], "width": video.shape[3], "fps": 8.0}
    return GeneratedVideo({"name": name, "seed": 0, "extra": {}, **form, **args}, folder / f"{name}.mp4", 1, source)


def values(samples: Sequence[GeneratedVideo], *names: str) -> dict[str, Values]:
    """What metrics without weights measure, by sample."""
    return values_of(measure(samples, [METRICS[name].Config().build() for name in names]))


def distances(samples: Mapping[str, list[GeneratedVideo]], metric: Metric) -> dict[str, Any]:
    """The entry of the Fréchet distance in evaluation.json."""
    found: dict[str, Any] = measure_all(samples, {}, [metric])[0]["fvd_videomae"]
    return found


def test_a_video_is_compared_with_the_real_one_after_what_was_given(tmp_path: Path) -> None:
    real = clip(40)
    write_mp4(tmp_path / "real.mp4", real, 8)
    worse = clip(40)
    worse[:, 1:] = 255 - worse[:, 1:]
    same, other = (made(tmp_path, name, v, tmp_path / "real.mp4") for name, v in (("same", real), ("other", worse)))
    found = values([same, other], "continuation")
    assert found["same"] == {
        "psnr": "the video equals the real one, so its PSNR is infinite", "ssim": 1.0, "motion_error": 0.0,
    }  # fmt: skip
    assert found["other"]["psnr"] < 10  # type: ignore[operator]
    assert found["other"]["ssim"] < 0.2  # type: ignore[operator]
    upside = made(tmp_path, "first_frame", torch.cat([255 - real[:, :1], real[:, 1:]], 1), tmp_path / "real.mp4")
    assert values([upside], "continuation")["first_frame"]["psnr"] > 20  # type: ignore[operator]


def test_real_videos_that_tell_nothing_are_said(tmp_path: Path) -> None:
    write_mp4(tmp_path / "short.mp4", clip(40, 4), 8)
    write_mp4(tmp_path / "fast.mp4", clip(40), 16)
    (tmp_path / "broken.mp4").write_bytes(b"none")
    for name, reason in (
        ("short", "is shorter"), ("fast", "has another frame rate"), ("broken", "broken.mp4: "), ("", "no real video"),
    ):  # fmt: skip
        sample = made(tmp_path, "x", clip(40), tmp_path / f"{name}.mp4" if name else None)
        found = values([sample], "continuation")["x"]
        assert all(reason in str(value) for value in found.values()), found


def test_the_real_video_is_named_or_that_which_goes_on(tmp_path: Path) -> None:
    def sample(extra: dict[str, Any], vision: str | None = None, keep: str | None = None) -> Any:
        return SimpleNamespace(name="x", extra=extra, vision_path=vision, condition_video_keep=keep)

    (tmp_path / "real.mp4").touch()
    assert find_real(sample({"real": "real.mp4"}, "a.mp4", "first"), tmp_path) == tmp_path / "real.mp4"
    assert find_real(sample({}, "a.mp4", "first"), tmp_path) == Path("a.mp4")
    assert find_real(sample({}, "a.mp4", "last"), tmp_path) is None
    assert find_real(sample({}, "a.png"), tmp_path) is find_real(sample({}), tmp_path) is None
    for wrong in ("none.mp4", 3):
        with pytest.raises(UserError, match=r"x: extra.real must be a video file, found .*(none.mp4|3)"):
            find_real(sample({"real": wrong}), tmp_path)


def test_an_image_does_not_move_and_is_sharp(tmp_path: Path) -> None:
    found = values([made(tmp_path, "x", clip(40, 1))], "motion", "sharpness", "shapes")["x"]
    assert found["motion"] == found["flicker"] == "it is an image"
    assert found["sharpness"] > 0  # type: ignore[operator]
    assert found["adherence"] == "no moving-shape attributes in the sample's extra"


def test_shapes_are_looked_for_where_the_notes_name_them(tmp_path: Path) -> None:
    dataset = tmp_path / "data"
    MovingShapes(clips=1, val_clips=1).make(dataset)
    record = json.loads((dataset / "train/video_dataset_file.jsonl").read_text().splitlines()[0])
    colour, shape, direction = attributes_in(json.dumps(record))
    file = next((dataset / "train").rglob("*.mp4"))
    form = {"name": "x", "num_frames": 17}
    other = next(name for name in COLOURS if name != colour)
    for notes, expected in (
        ({"colour": colour, "shape": shape, "direction": direction}, 1.0),
        ({"colour": other, "shape": shape, "direction": direction}, 0.0),
        (
            {"colour": ["red"], "shape": shape, "direction": direction},
            "no moving-shape attributes in the sample's extra",
        ),
    ):
        sample = GeneratedVideo({**form, "extra": notes}, file, 0, None)
        assert values([sample], "shapes")["x"] == {"adherence": expected}


def attributes_in(text: str) -> list[str]:
    """The words of a caption that name a colour, a shape and a direction."""
    return [next(word for word in words if f" {word}" in text) for words in (COLOURS, SHAPES, DIRECTIONS)]


def test_diversity_is_of_samples_that_differ_in_their_seed_alone(tmp_path: Path) -> None:
    args = [{"name": f"a/{seed}", "seed": seed, "prompt": "p", "sources": {"seed": str(seed)}} for seed in (0, 1)]
    args += [{"name": "again", "seed": 1, "prompt": "p"}, {"name": "b", "seed": 0, "prompt": "q"}]
    assert groups_of_seeds(args) == [["a/0", "a/1"], ["b"]]
    videos = [made(tmp_path, name, clip(40), seed=seed) for name, seed in (("c", 0), ("d", 1))]
    other = made(tmp_path, "e", clip(40), seed=0, prompt="another")
    groups = values([*videos, other], "diversity")
    assert groups == {"c": {"diversity": 0}, "e": {"diversity": "one seed only (use num_outputs for several)"}}


def test_figures_of_models_are_compared_by_pairs() -> None:
    trained = {"psnr": Scores({"a": 20.0, "b": 24.0, "c": "why"})}
    untrained = {"psnr": Scores({"a": 10.0, "b": 14.5, "c": 99.0})}
    figure = summarize({"psnr": "dB"}, {"trained": trained, "untrained": untrained})["psnr"]
    assert figure["trained"] == {"mean": 22.0, "interval": (20.0, 24.0), "samples": 2}
    assert figure["difference"]["untrained"] == {"mean": 9.75, "interval": (9.5, 10.0), "samples": 2}
    assert figure["not_measured"] == {"trained": {"why": 1}, "untrained": {}}
    lines = list(format_measurements({"psnr": figure}))
    assert lines[0].split() == ["figure", "unit", "trained", "untrained", "minus", "untrained", "samples"]
    assert lines[1].split()[:5] == ["psnr", "dB", "22", "[20,", "24]"]
    assert lines[2:] == [BRACKETS, FEW, "psnr: 1 not measured (trained): why"]


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_table_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts that are not wider, each with the names of the figures; through a pipe it is one."""
    scores = {name: {"motion": Scores({"a": 4.151, "b": 4.259, "c": 3.9})} for name in ("trained", "untrained", "real")}
    found = summarize({"motion": "pixels/frame"}, scores)
    *piped, brackets, few = format_measurements(found)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    *shown, brackets, few = format_measurements(found)
    assert [brackets, few] == [BRACKETS, FEW]
    assert max(map(len, [*shown, brackets])) <= columns
    assert ("" in shown) == (columns < 200)
    assert all(line.split()[0] in ("figure", "motion") for line in shown if line)
    cells = [cell for line in shown for cell in line.split() if cell not in ("figure", "motion")]
    assert sorted(cells) == sorted(cell for line in piped for cell in line.split()[1:])


def test_a_share_has_the_interval_of_a_share() -> None:
    seen = {"adherence": Scores(dict.fromkeys("abcd", 1.0))}
    figure = summarize({"adherence": "share"}, {"trained": seen})["adherence"]
    assert figure["trained"]["interval"][0] == pytest.approx(0.51, abs=0.01)


def test_the_mean_of_a_metric_is_that_of_its_samples(tmp_path: Path) -> None:
    metric = METRICS["motion"].Config().build()
    samples = [made(tmp_path, "a", clip(40)), made(tmp_path, "b", clip(90)), made(tmp_path, "c", clip(90, 1))]
    for batch in (samples[:1], samples[1:]):
        metric.update(batch)
    found = summarize({"motion": ""}, {"trained": measure(samples, [metric])})["motion"]["trained"]
    assert metric.compute()["motion"] == pytest.approx(found["mean"])
    assert found["samples"] == 2
    metric.reset()
    assert metric.compute() == {}


class MeanLevel(Metric):
    """A metric of all videos together, of which it keeps only a sum."""

    outputs = {"level": Output("grey levels", "mean brightness")}
    measures_real = True

    def reset(self) -> None:
        super().reset()
        self.sum = self.count = 0.0

    def update(self, batch: Sequence[GeneratedVideo]) -> None:
        self.sum += sum(float(sample.video.float().mean()) for sample in batch)
        self.count += len(batch)

    def compute(self) -> dict[str, float]:
        return {"level": self.sum / self.count} if self.count else {}


def test_a_metric_of_all_videos_together_has_one_value_for_each_model(tmp_path: Path) -> None:
    write_mp4(tmp_path / "real.mp4", clip(90), 8)
    dark = [made(tmp_path, name, clip(level), tmp_path / "real.mp4") for name, level in (("a", 10), ("b", 30))]
    light = [made(tmp_path, name, clip(90), tmp_path / "real.mp4") for name in "cd"]
    metric: Metric = MeanLevel.Config().build()
    figures, models, real = measure_all({"trained": dark, "untrained": light}, {}, [metric])
    level = figures["level"]
    means = [sum(float(sample.video.float().mean()) for sample in of) / 2 for of in (dark, light)]
    assert level["trained"] == {"mean": pytest.approx(means[0]), "interval": None, "samples": 2}
    assert level["difference"]["untrained"] == {
        "mean": pytest.approx(means[0] - means[1]), "interval": None, "samples": 2,
    }  # fmt: skip
    assert level["real"]["mean"] == pytest.approx(means[1], abs=2)
    assert level["not_measured"] == {"trained": {}, "untrained": {}, "real": {}}
    assert real == {}
    assert values_of(models["trained"]) == {}


def test_real_videos_stand_beside_those_that_were_made(tmp_path: Path) -> None:
    write_mp4(tmp_path / "real.mp4", clip(40), 8)
    samples = [made(tmp_path, "a", clip(40, height=64), tmp_path / "real.mp4"), made(tmp_path, "b", clip(40))]
    metrics = [METRICS[name].Config().build() for name in ("motion", "sharpness", "shapes")]
    figures, models, real = measure_all({"trained": samples}, {}, metrics)
    assert list(real) == ["a"]  # in the form of what was made
    assert real["a"].keys() == {"motion", "flicker", "sharpness"}
    figure = figures["motion"]
    assert (figure["trained"]["samples"], figure["real"]["samples"]) == (2, 1)
    difference = models["trained"]["motion"].values["a"] - real["a"]["motion"]  # type: ignore[operator]
    assert figure["difference"]["real"] == {"mean": difference, "interval": None, "samples": 1}
    assert figures["adherence"]["real"]["samples"] == 0
    assert measure_all({"trained": samples}, {}, metrics[2:])[2] == {}


def test_a_video_made_from_text_alone_is_not_compared_with_a_real_one(tmp_path: Path) -> None:
    write_mp4(tmp_path / "real.mp4", clip(40), 8)
    sample = made(tmp_path, "a", clip(40), tmp_path / "real.mp4", vision_path=None)
    found = values([replace(sample, kept=0)], "continuation")["a"]
    assert found.keys() == {"psnr", "ssim", "motion_error"}
    assert all("was generated from text only" in str(value) for value in found.values())


def test_captions_are_held_against_generated_and_real_videos(tmp_path: Path) -> None:
    write_mp4(tmp_path / "real.mp4", clip(90), 8)
    scorer: ClipScore = ClipScore.Config(clip=str(make_clip(tmp_path / "clip"))).build()
    sample = made(tmp_path, "a", clip(40), tmp_path / "real.mp4", prompt="a red square")
    figures, models, real = measure_all({"trained": [sample]}, {}, [scorer])
    assert models["trained"]["clip_score"].values == {"a": scorer.score("a red square", sample.video)}
    assert real["a"] == {"clip_score": scorer.score("a red square", cast(Tensor, sample.real))}
    assert figures["clip_score"]["trained"]["samples"] == 1


def test_the_distance_is_of_all_videos_and_says_how_many(tmp_path: Path) -> None:
    folder = make_videomae(tmp_path / "videomae")
    metric: FrechetVideoDistance = FrechetVideoDistance.Config(videomae=str(folder)).build()
    videos, real = [clip(level, height=64) for level in (0, 40, 90)], [clip(level, height=64) for level in (20, 60, 70)]
    for place, video in enumerate(real):
        write_mp4(tmp_path / f"real{place}.mp4", video, 8)
    samples = [made(tmp_path, f"a{place}", video, tmp_path / f"real{place}.mp4") for place, video in enumerate(videos)]
    same = [made(tmp_path, f"b{place}", video, tmp_path / f"real{place}.mp4") for place, video in enumerate(real)]
    figure = distances({"trained": samples, "same": same}, metric)
    expected = frechet_distance(
        *(np.stack([metric.features_of(v) for v in of]) for of in (decoded(samples), decoded(same)))
    )
    assert figure["trained"] == {"mean": pytest.approx(expected), "interval": None, "samples": 3}
    assert figure["same"]["mean"] == pytest.approx(0, abs=1e-6)
    assert figure["difference"]["same"]["mean"] == pytest.approx(expected)
    assert figure["unit"] == "of 3 videos"
    lines = list(format_measurements({"fvd_videomae": figure}))
    assert lines[2] == "lower is better: fvd_videomae"
    assert "fvd_videomae: 3 videos are too few" in lines[3]
    assert "2048" in lines[3]


def decoded(samples: list[GeneratedVideo]) -> list[Tensor]:
    return [sample.without_frames().video for sample in samples]


def test_images_and_single_videos_have_no_distance(tmp_path: Path) -> None:
    folder = make_videomae(tmp_path / "videomae")
    metric: FrechetVideoDistance = FrechetVideoDistance.Config(videomae=str(folder)).build()
    write_mp4(tmp_path / "real.mp4", clip(40), 8)
    for video, reason in (
        (clip(40, 1), "they are images"),
        (clip(40), "fewer than two videos have a real video to compare with"),
    ):
        sample = made(tmp_path, f"x{video.shape[1]}", video, tmp_path / "real.mp4")
        figure = distances({"trained": [sample], "same": [sample]}, metric)
        assert figure["trained"]["mean"] is None
        assert figure["not_measured"] == {"trained": {reason: 1}, "same": {reason: 1}}
        assert list(format_measurements({"fvd_videomae": figure}))[1].split() == [
            "fvd_videomae",
            "-",
            "-",
            "-",
            str(int(video.shape[1] > 1)),
        ]
