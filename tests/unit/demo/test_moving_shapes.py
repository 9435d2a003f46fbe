"""The procedural dataset: what it writes is repeatable, complete, balanced and keeps its held-out parts apart."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import product

import av
import numpy as np
import pytest

from worldsmith.cli.main import main
from worldsmith.demo.moving_shapes import (
    CANVAS,
    COMBINATIONS,
    HELD_OUT_COMBINATIONS,
    HELD_OUT_WORDINGS,
    STEP,
    TRAIN_WORDINGS,
    WORDINGS,
    MovingShapes,
    dense_caption,
    draw_clip,
    prompts,
    render_moving_shape,
    sample_scene,
    structured_caption,
)

PLAN = MovingShapes(clips=56, val_clips=32, seed=3)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    out = tmp_path_factory.mktemp("moving_shapes") / "set"
    assert PLAN.make(out)
    return out


def read_jsonl(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def decode(path):
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = np.stack([f.to_ndarray(format="rgb24") for f in container.decode(stream)])
        return frames, (stream.codec_context.name, stream.average_rate)  # a closed container takes its streams along


def test_same_seed_gives_the_same_bytes_and_another_seed_gives_others(dataset, tmp_path):
    PLAN.make(tmp_path / "again")
    assert content(tmp_path / "again") == content(dataset)
    other, _ = draw_clip(replace(PLAN, seed=4), "train", 0)
    scene, _ = draw_clip(PLAN, "train", 0)
    assert not np.array_equal(render_moving_shape(scene), render_moving_shape(other))
    assert np.array_equal(render_moving_shape(scene), render_moving_shape(draw_clip(PLAN, "train", 0)[0]))


def test_the_last_bits_of_a_sine_change_no_pixel(monkeypatch):
    """They depend on the CPU: the next number above or below every sine is what another one may have."""
    scenes = [draw_clip(PLAN, "train", index)[0] for index in range(20)]
    before = [render_moving_shape(scene, size=128) for scene in scenes]
    sine = np.sin
    for side in (-np.inf, np.inf):
        monkeypatch.setattr(np, "sin", lambda angle, side=side: np.nextafter(sine(angle), side, dtype=angle.dtype))
        assert np.array_equal([render_moving_shape(scene, size=128) for scene in scenes], before)


def test_rendering_some_frames_gives_exactly_those_frames_of_the_whole():
    scene = draw_clip(PLAN, "train", 5)[0]
    assert np.array_equal(render_moving_shape(scene, frames=slice(3, 8)), render_moving_shape(scene)[3:8])


def test_records_have_the_layout_of_a_video_dataset(dataset):
    records = read_jsonl(dataset / "train" / "video_dataset_file.jsonl")
    assert len(records) == PLAN.clips
    assert len({r["uuid"] for r in records}) == PLAN.clips
    for record in records:
        assert record["duration"] == 17 / 8
        assert (record["width"], record["height"], record["nb_frames"], record["framerate"]) == (64, 64, 17, 8.0)
        (window,) = record["t2w_windows"]
        assert (window["start_frame"], window["end_frame"], window["temporal_interval"]) == (0, 16, 1)
        shown = record["moving_shapes"]
        assert shown["colour"] in window["caption"]
        assert shown["shape"] in window["caption"]
        assert window["caption_json"]["subjects"][0]["description"] == f"{shown['colour']} {shown['shape']}"
        assert (dataset / "train" / record["vision_path"]).is_file()


def test_videos_are_h264_and_decode_to_nearly_the_rendered_pixels(dataset):
    record = read_jsonl(dataset / "train" / "video_dataset_file.jsonl")[0]
    frames, facts = decode(dataset / "train" / record["vision_path"])
    rendered = render_moving_shape(draw_clip(PLAN, "train", 0)[0])
    assert facts == ("h264", 8)
    assert frames.shape == rendered.shape == (17, 64, 64, 3)
    error = (frames.astype(float) - rendered) ** 2
    assert 10 * np.log10(255**2 / error.mean()) > 30


def test_train_lacks_the_held_out_combinations_and_val_has_all(dataset):
    counts = {}
    for split in ("train", "val"):
        records = read_jsonl(dataset / split / "video_dataset_file.jsonl")
        counts[split] = Counter(tuple(r["moving_shapes"].values()) for r in records)
    assert set(counts["train"]) == set(COMBINATIONS) - set(HELD_OUT_COMBINATIONS)
    assert set(counts["train"].values()) == {PLAN.clips // 28}
    assert counts["val"] == Counter(COMBINATIONS)
    for position in range(3):
        values = Counter(c[position] for c in HELD_OUT_COMBINATIONS)
        assert len(set(values.values())) == 1, "no value of an attribute is held out more often than another"


def test_held_out_wordings_are_new_in_both_kinds_of_caption_but_all_their_parts_are_trained():
    train = {(dense_caption(c, w), str(structured_caption(c, w))) for c in COMBINATIONS for w in TRAIN_WORDINGS}
    dense, structured = {d for d, _ in train}, {s for _, s in train}
    for c in COMBINATIONS:
        for w in HELD_OUT_WORDINGS:
            assert dense_caption(c, w) not in dense
            assert str(structured_caption(c, w)) not in structured
    for part in range(3):
        assert {w[part] for w in TRAIN_WORDINGS} == {w[part] for w in WORDINGS}


def test_captions_are_short_sentences():
    for dense in (dense_caption(*pair) for pair in product(COMBINATIONS, WORDINGS)):
        assert 5 <= len(dense.split()) <= 12
        assert dense.endswith(".")


def test_prompts_cover_every_combination_once_in_held_out_words(dataset):
    records = read_jsonl(dataset / "prompts.jsonl")
    trained = {r["t2w_windows"][0]["caption"] for r in read_jsonl(dataset / "train" / "video_dataset_file.jsonl")}
    assert Counter((r["colour"], r["shape"], r["direction"]) for r in records) == Counter(COMBINATIONS)
    assert not trained & {r["prompt"] for r in records}
    assert sum(r["held_out"] for r in records) == len(HELD_OUT_COMBINATIONS)
    assert len({r["seed"] for r in records}) == len(records)
    assert records == list(prompts(PLAN))


@pytest.mark.parametrize("attributes", COMBINATIONS[:8], ids="-".join)
def test_the_shape_stays_inside_the_picture_and_moves_its_way(attributes):
    rng = np.random.default_rng(0)
    for _ in range(10):
        scene = sample_scene(rng, attributes)
        video = render_moving_shape(scene).astype(float)
        colour_distance = np.linalg.norm(video - np.array(scene.colour), axis=-1)
        rows, columns = np.nonzero(colour_distance[0] < 30)
        assert rows.min() >= 1
        assert columns.min() >= 1
        assert rows.max() <= CANVAS - 2
        assert columns.max() <= CANVAS - 2
        end_rows, end_columns = np.nonzero(colour_distance[-1] < 30)
        moved = np.array([end_columns.mean() - columns.mean(), end_rows.mean() - rows.mean()])
        assert moved @ np.array(STEP[attributes.direction]) > 16


def test_a_complete_dataset_is_left_alone_and_another_plan_is_refused(dataset):
    before = content(dataset)
    assert PLAN.make(dataset) is False
    with pytest.raises(FileExistsError, match=r"clips 56, requested 57.*--force"):
        replace(PLAN, clips=57).make(dataset)
    assert content(dataset) == before


def test_an_interrupted_dataset_is_made_anew_and_force_replaces_another(tmp_path):
    small = MovingShapes(clips=3, val_clips=1)

    class StopError(Exception):
        pass

    def stop(done, total):
        if done == 2:
            raise StopError

    with pytest.raises(StopError):
        small.make(tmp_path / "a", progress=stop)
    assert not (tmp_path / "a" / "dataset.json").exists()
    assert small.make(tmp_path / "a")
    MovingShapes(clips=5, val_clips=2).make(tmp_path / "b")
    (tmp_path / "b" / "train" / "mine.txt").write_text("keep")
    with pytest.raises(FileExistsError, match=r"train/mine\.txt\. Move these files first"):
        small.make(tmp_path / "b", force=True)
    (tmp_path / "b" / "train" / "mine.txt").unlink()
    assert small.make(tmp_path / "b", force=True)
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_a_folder_with_other_files_is_never_touched(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "mine.txt").write_text("keep")
    with pytest.raises(FileExistsError, match="not created by this command"):
        PLAN.make(tmp_path, force=True)
    assert content(tmp_path) == {"train/mine.txt": b"keep"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clips": 0}, "clips must be at least 1, found 0"),
        ({"size": 65}, "size must be even"),
        ({"num_frames": 16}, "num_frames must be 4k.1.*found 16; 13 works"),
    ],
)
def test_an_impossible_plan_is_refused_by_name(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        replace(PLAN, **change).make(tmp_path)


def test_command_makes_then_skips_then_refuses(tmp_path, capsys):
    line = [
        "dataset",
        "moving-shapes",
        str(tmp_path / "out"),
        "--clips",
        "2",
        "--val-clips",
        "1",
        "--size",
        "32",
        "--num-frames",
        "5",
    ]
    assert main(line) == 0
    assert "2 train and 1 val clips" in capsys.readouterr().out
    assert main(line) == 0
    assert "already complete" in capsys.readouterr().out
    assert main([*line, "--seed", "9"]) == 2
    assert "seed 0, requested 9" in capsys.readouterr().err
    frames, _ = decode(tmp_path / "out" / "train" / "videos" / "moving-shapes-train-00000.mp4")
    assert frames.shape == (5, 32, 32, 3)
