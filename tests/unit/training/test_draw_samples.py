"""Samples that are drawn while a run goes on: what lies in their folder, and that the training does not notice."""

from __future__ import annotations

import copy
import json
import logging
import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import reasoner_runs
import tiny_runs
import tiny_wan
import torch
from metrics_files import read_metrics
from PIL import Image
from toy_runs import require_same_end

from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.config.errors import ConfigError, UserError
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.data.conversations.conversation import question
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.video_decoder import examine
from worldsmith.families.diffusers_pipeline.text_encoder import T5TextEncoder
from worldsmith.monitor.page.next_steps import trained_prompt
from worldsmith.monitor.page.run_files import read_run
from worldsmith.monitor.throughput import Throughput
from worldsmith.sampling.generate_answers import Answerer
from worldsmith.sampling.generate_videos import generate
from worldsmith.sampling.requests import GenerationRequest
from worldsmith.sampling.training_data import read_clip
from worldsmith.sampling.write_media import few_frames
from worldsmith.training.callbacks.samples import drawing_budget
from worldsmith.training.callbacks.samples.draw_answers import DrawAnswers
from worldsmith.training.callbacks.samples.draw_samples import DrawnSample, DrawSamples
from worldsmith.training.callbacks.samples.draw_videos import SAME_FOR_ALL, DrawVideos, write_clip
from worldsmith.training.callbacks.samples.drawing_budget import Decision, DrawingBudget
from worldsmith.training.trainer import Outcome, Trainer

NAME = "EveryNDrawSample"
LAST = "step_000000004"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_runs.make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reasoner_runs.make_world(tmp_path_factory.mktemp("chats"))


def video_run(world: Path, *, steps: int = 4, **settings: Any) -> Trainer.Config:
    """Two videos of each drawing, after every second step."""
    config = tiny_runs.tiny_config(world, steps=steps, save_iter=2)
    config.scheduler.cycle_lengths = [4]
    given = {"every": 2, "samples": 2, "steps": 2, "guidance": [1.0, 3.0], "weights": ["live", "ema"]} | settings
    config.trainer.callbacks[NAME] = DrawVideos.Config(**given)
    return config


def read(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / NAME / "samples.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps with samples of steps 0, 2 and 4."""
    run = tmp_path_factory.mktemp("whole") / "run"
    Trainer(video_run(world, on_start=True), run_folder=run).train()
    return run


def test_every_drawing_has_a_line_a_file_and_a_cell_of_the_sheet_for_each_sample(whole: Path) -> None:
    samples = read(whole)
    assert [(s["step"], s["weights"], s["guidance"]) for s in samples] == [
        (step, weights, guidance)
        for step in (0, 2, 4)
        for weights in ("live", "ema")
        for guidance in (1.0, 3.0)
        for _ in range(2)
    ]
    assert all(s["kind"] == "video" and (whole / s["file"]).stat().st_size for s in samples)
    assert len({s["file"] for s in samples}) == len(samples)
    assert len({s["prompt"] for s in samples}) == 2  # of the training's captions
    assert all(s["prompt"].startswith("clip ") for s in samples)
    for step in ("step_000000000", "step_000000002", LAST):
        with Image.open(whole / NAME / step / "sheet.png") as sheet:
            assert sheet.width > 300
            assert sheet.height > 4 * 100


@pytest.mark.parametrize("weights", ["live", "ema"])
def test_a_sample_is_what_the_stored_weights_generate_from_the_same_noise(
    whole: Path, tmp_path: Path, weights: str
) -> None:
    from worldsmith.sampling.training_data import with_clip_size
    from worldsmith.sampling.write_media import write_mp4

    found = find_model(str(whole), weights=weights)
    model: Any = found.load("cpu")
    model.defaults = size = with_clip_size(model.defaults, found.tree, model.latent_grid)
    drawn = [s for s in read(whole) if (s["step"], s["weights"], s["guidance"]) == (4, weights, 3.0)]
    common = {name: getattr(size, name) for name in ("height", "width", "num_frames", "fps")}
    requests = [GenerationRequest(prompt=s["prompt"], seed=seed, **common) for seed, s in enumerate(drawn)]
    for sample, video in zip(drawn, generate(model, requests, steps=2, guidance=3.0), strict=True):
        write_mp4(tmp_path / "expected.mp4", video, common["fps"])
        assert (whole / sample["file"]).read_bytes() == (tmp_path / "expected.mp4").read_bytes()


def test_raw_and_ema_weights_give_other_samples_and_at_the_start_the_same(whole: Path) -> None:
    files = {
        (s["step"], s["weights"], s["guidance"], s["prompt"]): (whole / s["file"]).read_bytes() for s in read(whole)
    }
    same = [files[key] == files[(key[0], "ema", *key[2:])] for key in files if key[:2] == (0, "live")]
    later = [files[key] == files[(key[0], "ema", *key[2:])] for key in files if key[:2] == (4, "live")]
    assert all(same)
    assert not any(later)


def test_training_is_the_same_to_the_bit_with_and_without(
    world: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when something in it draws from the generators of the process, whose state is in the checkpoint."""
    Trainer(video_run(world, enabled=False), run_folder=tmp_path / "without").train()
    require_same_end(whole, tmp_path / "without", step=4)
    assert list((tmp_path / "without" / NAME).iterdir()) == []
    drawn = []
    monkeypatch.setattr(DrawSamples, "end_if_stopped", lambda *_: drawn.append((random.random(), torch.rand(1))))
    Trainer(video_run(world), run_folder=tmp_path / "random").train()
    require_same_end(tmp_path / "random", tmp_path / "without", step=4)
    assert drawn


@pytest.mark.slow
def test_a_resumed_run_draws_again_what_it_does_again(world: Path, whole: Path, tmp_path: Path) -> None:
    Trainer(video_run(world, steps=2, on_start=True), run_folder=tmp_path).train()
    later = tmp_path / NAME / "step_000000003"
    later.mkdir()
    with (tmp_path / NAME / "samples.jsonl").open("a") as file:
        file.write('{"step": 3}\n')
    Trainer(video_run(world, on_start=True), run_folder=tmp_path).train()
    assert read(tmp_path) == read(whole)
    assert not later.exists()
    for sample in read(whole):
        assert (tmp_path / sample["file"]).read_bytes() == (whole / sample["file"]).read_bytes()


def test_prompts_of_ones_own_and_a_shift(world: Path, tmp_path: Path) -> None:
    config = video_run(world, prompts=["a red ball"], guidance=[0.0], weights=["live"], shift=2.5, every=4)
    Trainer(config, run_folder=tmp_path).train()
    file = f"{NAME}/{LAST}/00_live_guidance_0.mp4"
    sample = {"step": 4, "weights": "live", "guidance": 0.0, "solver_steps": 2, "kind": "video"}
    assert read(tmp_path) == [{**sample, "prompt": "a red ball", "file": file}]  # of neither data set
    assert not (tmp_path / NAME / "real").exists()


def test_samples_of_a_file_may_begin_with_a_clip_and_have_a_size(world: Path, tmp_path: Path) -> None:
    lines = [
        {"prompt": "it goes on", "vision_path": str(world / "data/videos/0.mp4"), "num_frames": 13, "seed": 5},
        {"prompt": "small", "height": 32, "width": 32},
    ]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = video_run(world, prompts=["first"], prompt_files=[str(file)], guidance=[3.0], weights=["live"], every=4)
    Trainer(config, run_folder=tmp_path / "run").train()
    samples = read(tmp_path / "run")
    assert [s["prompt"] for s in samples] == ["first", "it goes on", "small"]
    sizes = [examine(str(tmp_path / "run" / s["file"]))[1] for s in samples]
    assert [(s.width, s.height, s.num_frames) for s in sizes[1:]] == [(64, 64, 13), (32, 32, sizes[0].num_frames)]


def test_images_become_jpeg_files(world: Path, tmp_path: Path) -> None:
    config = video_run(world, guidance=[1.0], weights=["live"], every=4)
    assert isinstance(config.dataloader_train, VideoLoader.Config)
    config.dataloader_train.dataset.num_video_frames = 1
    config.dataloader_train.dataset.conditioning_config = {}
    Trainer(config, run_folder=tmp_path).train()
    assert [(s["kind"], s["file"][-4:]) for s in read(tmp_path)] == [("image", ".jpg")] * 2
    with Image.open(tmp_path / read(tmp_path)[0]["file"]) as picture:
        assert (picture.format, picture.size) == ("JPEG", (64, 64))


def test_a_prompt_that_cannot_be_drawn_ends_no_run_and_is_said_once(
    world: Path, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = video_run(world, prompts=["long " * 700])
    trainer = Trainer(config, run_folder=tmp_path)
    assert trainer.train() is Outcome.FINISHED
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert sum("sample generation failed after step 2" in text and "max_caption_tokens" in text for text in said) == 1
    assert "2 sample generations have failed" in said
    counts = [line.get("failed_drawings") for line in read_metrics(tmp_path / "metrics.jsonl")]
    assert counts == [None, 1, 1, 2]
    assert read(tmp_path) == []
    require_same_end(tmp_path, whole, step=4)


def test_a_sample_of_a_file_has_no_scale_of_its_own(
    world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    others = {"dynamic_guidance": "off", "scheduler": "ddim", "strength": 0.5}
    values = {name: others.get(name, 2) for name in SAME_FOR_ALL}
    (tmp_path / "mine.jsonl").write_text(json.dumps({"prompt": "x", **values}))
    config = video_run(world, prompt_files=[str(tmp_path / "mine.jsonl")], steps=1, every=1)
    config.trainer.max_iter = 1
    Trainer(config, run_folder=tmp_path / "run").train()
    assert f"mine.jsonl:1: {', '.join(SAME_FOR_ALL)} cannot be set per sample" in caplog.text


def test_a_full_disk_ends_no_run_and_the_next_drawing_is_there(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = DrawVideos.write

    def failing(self: DrawVideos, trainer: Trainer, folder: Path, samples: Any) -> Any:
        if folder.name != LAST:
            raise OSError(28, "No space left on device")
        return write(self, trainer, folder, samples)

    monkeypatch.setattr(DrawVideos, "write", failing)
    Trainer(video_run(world), run_folder=tmp_path).train()
    assert "after step 2, but the run continues: OSError: [Errno 28]" in caplog.text
    assert {s["step"] for s in read(tmp_path)} == {4}


def test_a_stop_does_not_wait_for_it_and_it_is_made_up_for(
    world: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGTERM in the middle of the drawing after step 2, with the averaged weights in the network."""
    look, calls, shares = DrawSamples.end_if_stopped, [], []
    caplog.set_level("INFO")

    def end_if_stopped(self: DrawSamples, trainer: Trainer, share: float) -> None:
        calls.append(trainer.doing)
        if len(calls) == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        look(self, trainer, share)
        shares.append(trainer.share)

    monkeypatch.setattr(DrawSamples, "end_if_stopped", end_if_stopped)
    assert Trainer(video_run(world), run_folder=tmp_path).train() is Outcome.STOPPED
    assert calls == ["sampling"] * 6
    assert shares == sorted(shares)
    assert shares[3] == 0.5  # all of the live weights, of two videos and two scales
    assert "samples after step 2 are skipped: the run was asked to stop" in caplog.text
    assert read(tmp_path) == []
    monkeypatch.undo()
    Trainer(video_run(world), run_folder=tmp_path).train()
    assert [s for s in read(whole) if s["step"]] == read(tmp_path)
    require_same_end(tmp_path, whole, step=4)


def test_a_sample_of_a_caption_of_the_data_names_the_clip_as_training_sees_it(whole: Path, world: Path) -> None:
    samples = read(whole)
    clips = {s["prompt"]: s["real"] for s in samples}
    assert len(clips) == len(set(clips.values())) == 2
    assert len(list((whole / NAME / "real").iterdir())) == 2
    sizes = [examine(str(whole / s[key]))[1] for s in samples[:1] for key in ("file", "real")]
    assert (sizes[0].width, sizes[0].height) == (sizes[1].width, sizes[1].height)
    for prompt, file in clips.items():
        original = few_frames(world / f"data/videos/{prompt.split()[1]}.mp4", 99)
        shown = few_frames(whole / file, 99)
        frames = original[:, : shown.shape[1]]
        assert (shown.float() - frames.float()).abs().mean() < 8
        assert (whole / file).stat().st_size <= 64_000


def test_a_clip_that_cannot_be_read_costs_no_sample(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreadable(window: Any, *_: Any) -> Any:
        if window.captions["caption"].startswith("clip 0"):
            raise SampleError("unreadable", "the file is gone")
        return read_clip(window, *_)

    monkeypatch.setattr("worldsmith.training.callbacks.samples.draw_videos.read_clip", unreadable)
    Trainer(video_run(world, every=4, weights=["live"]), run_folder=tmp_path).train()
    assert {s["prompt"].startswith("clip 0"): "real" in s for s in read(tmp_path)} == {True: False, False: True}
    assert "is not shown next to its samples: unreadable: the file is gone" in caplog.text


def test_a_caption_that_training_cuts_is_no_prompt(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world, tmp_path / "world")
    file = tmp_path / "world/data/video_dataset_file.jsonl"
    lines = file.read_text().splitlines()
    long = [line.replace(" moves", " moves" + " far" * 60) for line in lines[:4]]
    file.write_text("\n".join([*long, *lines[4:]]) + "\n")
    config = video_run(tmp_path / "world", every=4, weights=["live"])
    config.dataloader_train.max_caption_tokens = 250
    Trainer(config, run_folder=tmp_path / "run").train()
    assert {s["prompt"] for s in read(tmp_path / "run")} == {"clip 4 moves", "clip 5 moves"}


def test_a_large_clip_is_written_with_less_quality(tmp_path: Path) -> None:
    frames = torch.randint(0, 255, (3, 17, 96, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    fine, small = write_clip(tmp_path / "a", frames, 8.0), write_clip(tmp_path / "b", frames, 8.0, max_bytes=60_000)
    assert fine.stat().st_size > 60_000 >= small.stat().st_size
    assert write_clip(tmp_path / "c", frames[:, :1], 8.0, max_bytes=5_000).stat().st_size <= 5_000


def auto_run(world: Path, *, steps: int = 4, **settings: Any) -> Trainer.Config:
    return video_run(world, steps=steps, **({"every": None, "guidance": [3.0], "weights": []} | settings))


def test_without_an_interval_a_run_draws_at_both_ends_and_trains_as_without(
    world: Path, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    Trainer(auto_run(world), run_folder=tmp_path).train()
    samples = read(tmp_path)
    assert [(s["step"], s["weights"], s["solver_steps"]) for s in samples] == [(0, "ema", 2), (4, "ema", 2)]
    assert all("real" in s for s in samples)
    require_same_end(tmp_path, whole, step=4)
    assert caplog.text.count("samples      ") == 1
    assert "samples      before the first step, after the last step; at most 3 % of the run's time: " in caplog.text


@pytest.mark.slow
def test_the_start_says_when_samples_come(world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def said(**settings: Any) -> list[str]:
        caplog.clear()
        Trainer(auto_run(world, **settings), run_folder=tmp_path / str(len(list(tmp_path.iterdir())))).train()
        lines = [record.getMessage() for record in caplog.records]
        return [line.removeprefix("samples      ") for line in lines if line.startswith("samples      ")]

    caplog.set_level(logging.INFO)
    (line,) = said(max_time_fraction=1.0)
    assert line.startswith("before the first step, after about step 2, later if time allows, after the last step; at")
    (line,) = said(every=3, on_start=True)
    assert line.startswith("before the first step, after every 3 steps and the last: ")
    assert line.endswith(f"{NAME}/samples.jsonl")
    assert said(enabled=False) == []


def held_out_run(world: Path, tmp_path: Path, **settings: Any) -> Trainer.Config:
    """A run that validates on clips with other captions than those that it is trained on."""
    data = tmp_path / "held_out"
    shutil.copytree(world / "data", data)
    file = data / "video_dataset_file.jsonl"
    file.write_text(file.read_text().replace(" moves", " is held out"))
    config = video_run(world, every=4, weights=["live"], guidance=[3.0], **settings)
    config.trainer.run_validation = True
    config.dataloader_val = copy.deepcopy(config.dataloader_train)
    config.dataloader_val.dataset.path = str(file)
    return config


@pytest.mark.parametrize("count", [pytest.param(4, marks=pytest.mark.slow), 3, pytest.param(1, marks=pytest.mark.slow)])
def test_half_of_the_captions_are_of_training_clips_and_half_held_out(world: Path, tmp_path: Path, count: int) -> None:
    Trainer(held_out_run(world, tmp_path, samples=count), run_folder=tmp_path / "run").train()
    samples = read(tmp_path / "run")
    labels = ["training caption", "held-out caption"] * 2
    assert [s["source"] for s in samples] == labels[:count]
    assert [s["prompt"].endswith(" is held out") for s in samples] == [False, True, False, True][:count]
    assert trained_prompt(read_run(tmp_path / "run")) == samples[0]["prompt"]
    for sample in samples:  # next to the clip of its own data set
        number = sample["prompt"].split()[1]
        original = few_frames(world / f"data/videos/{number}.mp4", 99)
        shown = few_frames(tmp_path / "run" / sample["real"], 99)
        assert (shown.float() - original[:, : shown.shape[1]].float()).abs().mean() < 8


def test_captions_that_are_trained_on_are_not_called_held_out(world: Path, tmp_path: Path) -> None:
    config = held_out_run(world, tmp_path, samples=2)
    assert isinstance(config.dataloader_val, VideoLoader.Config)
    config.dataloader_val.dataset.path = config.dataloader_train.dataset.path
    Trainer(config, run_folder=tmp_path / "run").train()
    assert [s["source"] for s in read(tmp_path / "run")] == ["training caption"] * 2


@pytest.mark.slow
def test_a_run_that_goes_on_without_an_interval_keeps_its_first_samples(
    world: Path, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Trainer(auto_run(world, steps=2), run_folder=tmp_path).train()
    assert [s["step"] for s in read(tmp_path)] == [0, 2]
    caplog.set_level(logging.INFO)
    Trainer(auto_run(world), run_folder=tmp_path).train()
    assert "samples      after the last step; at most 3 % of the run's time: " in caplog.text
    assert "before the first step" not in caplog.text
    assert [s["step"] for s in read(tmp_path)] == [0, 2, 4]
    require_same_end(tmp_path, whole, step=4)


@pytest.mark.slow
def test_the_time_decides_how_often_samples_are_drawn(
    world: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And not what is trained."""
    monkeypatch.setattr(DrawingBudget, "decide", lambda budget, step, prompts: Decision(step % 3, step + 1))
    Trainer(auto_run(world, max_time_fraction=1.0), run_folder=tmp_path / "often").train()
    assert {s["step"] for s in read(tmp_path / "often")} == {0, 1, 2, 4}
    require_same_end(tmp_path / "often", whole, step=4)
    monkeypatch.undo()
    monkeypatch.setattr(drawing_budget, "SMALL_DRAWING", 0.0)
    caplog.set_level(logging.INFO)
    Trainer(auto_run(world, max_time_fraction=1e-9), run_folder=tmp_path / "once").train()
    assert [s["step"] for s in read(tmp_path / "once")] == [0]
    assert (
        "no samples are generated after step 4, the last: they would take more than a fraction of 1e-09" in caplog.text
    )


def test_after_a_drawing_the_vae_is_as_it_was(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a full latent cache a run does without its weights, and their memory may be needed."""
    Trainer(auto_run(world, enabled=False), run_folder=tmp_path / "fills").train()
    decoded = []
    write = DrawVideos.write

    def writing(self: DrawVideos, trainer: Trainer, *given: Any) -> Any:
        yield from write(self, trainer, *given)
        decoded.append("model" in vars(vars(trainer.model)["vae"]))

    monkeypatch.setattr(DrawVideos, "write", writing)
    trainer = Trainer(auto_run(world), run_folder=tmp_path / "run")
    trainer.train()
    assert decoded == [True, True]
    assert "model" not in vars(vars(trainer.model)["vae"])


def test_what_fails_in_decoding_ends_no_run(
    world: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no memory is left")

    config = auto_run(world)
    trainer = Trainer(config, run_folder=tmp_path)
    monkeypatch.setattr(type(trainer.model), "decode", fails)
    assert trainer.train() is Outcome.FINISHED
    assert "sample generation failed after step 0, but the run continues: OutOfMemoryError: no memory" in caplog.text
    assert read(tmp_path) == []
    require_same_end(tmp_path, whole, step=4)


@pytest.mark.slow
def test_a_forward_pass_that_fails_leaves_no_trace_in_the_training(
    world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the first forward pass, and in the middle of a layer while FSDP holds its EMA weights for the pass."""

    def run(name: str, **settings: Any) -> Trainer:
        config = video_run(world, **settings)
        config.model.config.precision = "bfloat16"
        return Trainer(config, run_folder=tmp_path / name)

    run("without", enabled=False).train()
    failing = run("failing", on_start=True)
    drawing: Any = failing.callbacks[NAME]
    draw = drawing.draw

    def fails_at_the_start(trainer: Trainer) -> Iterator[list[DrawnSample]]:
        if not trainer.iteration:
            raise ValueError("there is nothing to draw")
        yield from draw(trainer)

    def fails(module: torch.nn.Module, args: Any) -> None:
        if failing.doing == "sampling" and drawing.parts_done == 1:
            raise torch.OutOfMemoryError("no memory is left")

    drawing.draw = fails_at_the_start
    next(iter(failing.model.parts().layers)).register_forward_pre_hook(fails)
    assert failing.train() is Outcome.FINISHED
    assert "sample generation failed after step 0, but the run continues: ValueError: there is" in caplog.text
    assert drawing.failed == 3
    require_same_end(tmp_path / "failing", tmp_path / "without", step=4)


@pytest.mark.parametrize(
    ("passes", "size"), [(1e9, (4, 35)), (100, (4, 8)), (60, (2, 8)), (45, (1, 17)), (13, (1, 2)), (0, (1, 2))]
)
def test_the_size_of_a_drawing_follows_what_it_may_cost(passes: float, size: tuple[int, int]) -> None:
    found = DrawVideos.Config().fit(passes)
    assert (found.prompts, found.steps) == size


def test_a_network_that_only_sampling_loads_is_not_loaded_by_default(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The expert that an A14B run does not train is as large as the other one."""
    caplog.set_level(logging.INFO)
    config = tiny_wan.tiny_config(tiny_wan.make_world(tmp_path / "world"), tiny_wan.I2V, steps=1)
    config.trainer.callbacks[NAME] = DrawVideos.Config()
    Trainer(config, run_folder=tmp_path / "run").train()
    assert list((tmp_path / "run" / NAME).iterdir()) == []
    assert (
        f"expert would be loaded in addition to the trained network; set trainer.callbacks.{NAME}.every=N"
        in caplog.text
    )


def test_cached_captions_need_no_text_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_wan.tiny_config(tiny_wan.make_world(tmp_path / "world"), tiny_wan.T2V, steps=1)
    config.trainer.callbacks[NAME] = DrawVideos.Config(steps=2)
    Trainer(config, run_folder=tmp_path / "first").train()
    monkeypatch.setattr(T5TextEncoder, "load", None)
    Trainer(config, run_folder=tmp_path / "second").train()
    assert {sample["step"] for sample in read(tmp_path / "second")} == {0, 1}


def test_own_prompts_are_all_drawn() -> None:
    assert DrawVideos.Config(prompts=["a"] * 7).fit(0).prompts == 7
    found = DrawAnswers.Config().fit(1e9), DrawAnswers.Config().fit(30), DrawAnswers.Config().fit(0)
    assert [(size.prompts, size.steps) for size in found] == [(4, 64), (4, 16), (1, 8)]


def answer_run(chats: Path, **settings: Any) -> Trainer.Config:
    config = reasoner_runs.reasoner_config(chats, steps=4, save_iter=4)
    given = {"every": 2, "samples": 3, "max_new_tokens": 5, "weights": ["live", "ema"]} | settings
    config.trainer.callbacks[NAME] = DrawAnswers.Config(**given)
    return config


def test_a_reasoner_answers_the_same_questions(chats: Path, tmp_path: Path) -> None:
    config = answer_run(chats, enabled=True)
    run = tmp_path / "run"
    trainer = Trainer(config, run_folder=run)
    trainer.train()
    samples = read(run)
    assert [(s["step"], s["weights"]) for s in samples] == [
        (step, weights) for step in (2, 4) for weights in ("live", "ema") for _ in range(3)
    ]
    assert all(s["kind"] == "answer" and s["prompt"] == "Is the clip possible?" for s in samples)
    assert {s["source"] for s in samples} == {"training question"}
    places = [0, 2, 4]  # evenly over six
    assert [s["expected"] for s in samples] == [("yes", "no")[place % 2] for place in places] * 4
    assert [s["media"] and (run / s["media"]).name for s in samples[:3]] == ["chat0.mp4", "chat2.png", "chat4.mp4"]
    assert all((run / s["media"]).is_file() for s in samples)
    assert all((run / s["media"]).resolve().is_relative_to(run.resolve()) for s in samples)
    dataset = trainer.state.loader.dataset
    for weights in ("live", "ema"):
        model: Any = find_model(str(run), weights=weights).load("cpu")
        asked = [(str(place), question(dataset.turns(place))) for place in places]
        answers = Answerer(model, config.dataloader_train.processor).answers(asked, batch_size=3, max_new_tokens=5)
        drawn = [s["answer"] for s in samples if (s["step"], s["weights"]) == (4, weights)]
        assert [answer.text for answer in answers] == drawn
    Trainer(answer_run(chats, enabled=False), run_folder=tmp_path / "without").train()
    require_same_end(run, tmp_path / "without", step=4)


def test_what_cannot_be_drawn_is_refused(world: Path, chats: Path, tmp_path: Path) -> None:
    for config, said in (
        (answer_run(chats, enabled=True), None),
        (video_run(world, guidance=[]), "guidance"),
        (video_run(world, weights=["ema"]), "no EMA weights"),
    ):
        if said is None:
            config.trainer.callbacks[NAME] = DrawVideos.Config(enabled=True)
            said = "generate answers, this callback videos"
        if said == "no EMA weights":
            config.model.config.ema.enabled = False
        with pytest.raises((ConfigError, UserError), match=said):
            Trainer(config, run_folder=tmp_path)


def test_the_throughput_counts_no_drawing(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left_out: list[float] = []
    monkeypatch.setattr(Throughput, "leave_out", lambda pace, seconds: left_out.append(seconds))
    Trainer(video_run(world, guidance=[1.0]), run_folder=tmp_path).train()
    assert len(left_out) == 2
    assert min(left_out) > 0
