"""From a source to the data set file: what is kept, what is left out and why, and what is said."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from import_sources import SOURCES, clip, lerobot_v2, lines, sidecar, table, write

from worldsmith.cli.main import main
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.stream.errors import DataError
from worldsmith.data.video_decoder import examine
from worldsmith.tools.datasets.import_clips import LAYOUTS, ImportClips


def run(source: Path, out: Path, **settings: object) -> dict:
    return dict(ImportClips.Config(source=str(source), out=str(out), **settings).build().run().facts)


def records(out: Path, split: str = "train") -> list[dict]:
    return [json.loads(line) for line in (out / split / "video_dataset_file.jsonl").read_text().splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_layouts_of_the_flag_are_those_that_there_are() -> None:
    choices = ImportClips.Config.__dataclass_fields__["layout"].type
    assert re.findall(r"\w+", str(choices))[1:] == ["auto", *LAYOUTS]


def test_where_validation_clips_come_from_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dataset", "import", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "To validate on some clips, move them into SOURCE/val." in shown
    assert all(f" {layout} " in shown for layout in LAYOUTS)
    source, out = tmp_path / "source", tmp_path / "out"
    for name in ("a", "b"):
        write(clip(source / f"{name}.mp4").with_suffix(".txt"), "A square.")
    words = ["dataset", "import", str(source), "-o", str(out), "--force"]
    assert main(words) == 0
    assert "no validation data: move some clips into a folder `val` of the source" in capsys.readouterr().out
    (source / "val").mkdir()
    for suffix in ("mp4", "txt"):
        (source / f"b.{suffix}").rename(source / f"val/b.{suffix}")
    assert main(words) == 0
    assert f"to validate: export VAL_DATASET_PATH={out}/val\n" in capsys.readouterr().out
    assert (len(records(out)), len(records(out, "val"))) == (1, 1)


@pytest.mark.parametrize("name", SOURCES)
def test_the_reader_takes_every_window_and_a_second_import_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    make, layout = SOURCES[name]
    make(tmp_path / "source")
    facts = run(tmp_path / "source", tmp_path / "out")
    assert facts["layout"] == layout
    for split, count in facts["clips"].items():
        dataset = VideoDataset.Config(path=str(tmp_path / "out" / split), min_frames=1).build()
        assert len(dataset.windows) == count > 0
        assert not dataset.rejections
        assert all(examine(window.path)[1].num_frames for window in dataset.windows)
    assert facts["windows"] == sum(facts["clips"].values())
    before = contents(tmp_path / "out")
    run(tmp_path / "source", tmp_path / "out", force=True)
    assert contents(tmp_path / "out") == before


def test_a_data_set_that_is_there_is_replaced_only_by_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sidecar(tmp_path / "source")
    words = ["dataset", "import", str(tmp_path / "source"), "-o", str(tmp_path / "out")]
    assert main(words) == 0
    assert main(words) == 2
    assert "replace it with --force" in capsys.readouterr().err
    clip(tmp_path / "source/three.mp4")
    write(tmp_path / "source/three.txt", "a third")
    assert main([*words, "--force"]) == 0
    assert len(records(tmp_path / "out")) == 3
    (tmp_path / "mine").mkdir()
    write(tmp_path / "mine/notes.txt", "mine")
    assert main([*words[:-1], str(tmp_path / "mine"), "--force"]) == 2
    assert "was not created by this command" in capsys.readouterr().err


def test_a_dry_run_says_the_same_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(tmp_path / "source")
    words = ["dataset", "import", str(tmp_path / "source"), "-o", str(tmp_path / "out")]
    assert main([*words, "--dryrun"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert not (tmp_path / "out").exists()
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[: len(said) - 1] == said[:-1]
    assert "train: 2 clips, 2 windows" in said[3]


def test_what_is_wrong_is_counted_with_the_reason_that_training_would_give(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    good = clip(source / "good.mp4")
    names = ["good.mp4", "good.mp4", "absent.mp4", "half.mp4", "empty.mp4", "song.mp4", "", "folder.mp4", "silent.mp4"]
    names += ["https://there.org/far.mp4", "../good.mp4", "sub/../good.mp4"]
    (source / "half.mp4").write_bytes(good.read_bytes()[:700])
    write(source / "empty.mp4", "")
    write(source / "song.mp4", "no video at all")
    (source / "folder.mp4").mkdir()
    shutil.copy(good, source / "silent.mp4")
    write(source / "videos.txt", "".join(f"{name}\n" for name in names))
    prompts = ["" if name == "silent.mp4" else "a bar" for name in names]
    write(source / "prompts.txt", "".join(f"{prompt}\n" for prompt in prompts))
    facts = run(source, out)
    assert facts["left_out"] == {
        "duplicate": 2, "empty_file": 1, "missing_file": 2, "no_caption": 1, "no_path": 1, "not_a_video": 2,
        "remote_path": 1, "truncated": 1,
    }  # fmt: skip
    assert [record["uuid"] for record in records(out)] == ["good"]
    listed = [json.loads(line) for line in (out / "left_out.jsonl").read_text().splitlines()]
    assert len(listed) == sum(facts["left_out"].values())
    # The reader of training, given the same files, says the same.
    lines_ = [{**records(out)[0], "uuid": name, "vision_path": str(source / name)} for name in names[2:6]]
    write(tmp_path / "set/video_dataset_file.jsonl", "".join(json.dumps(line) + "\n" for line in lines_))
    from worldsmith.data.clips.inspect_clips import summarize_dataset
    from worldsmith.data.clips.latent_grid import LatentGrid

    dataset = VideoDataset.Config(path=str(tmp_path / "set"), min_frames=1).build()
    drops = {r.path: r.reason for r in summarize_dataset(dataset, LatentGrid(frames=4, pixels=16, patch=2)).rejections}
    ours = {entry["path"]: entry["reason"] for entry in listed}
    assert drops == {path: ours[path] for path in drops}
    assert len(drops) == 4


def test_a_name_that_is_no_unicode_is_left_out_and_said(tmp_path: Path) -> None:
    sidecar(tmp_path / "source")
    odd = os.fsdecode(b"\xff")
    shutil.copy(tmp_path / "source/one.mp4", tmp_path / f"source/{odd}.mp4")
    shutil.copy(tmp_path / "source/one.txt", tmp_path / f"source/{odd}.txt")
    assert run(tmp_path / "source", tmp_path / "out")["left_out"] == {"bad_path": 1}
    assert len(records(tmp_path / "out")) == 2


def test_clips_from_elsewhere_are_named_by_their_whole_path(tmp_path: Path) -> None:
    clip(tmp_path / "far/one.mp4")
    clip(tmp_path / "near/one.mp4")
    write(tmp_path / "near/list.csv", f"path,caption\n{tmp_path}/far/one.mp4,far\n../far/../near/one.mp4,near\n")
    run(tmp_path / "near/list.csv", tmp_path / "out")
    keys = {record["t2w_windows"][0]["caption"]: record["uuid"] for record in records(tmp_path / "out")}
    assert keys == {"far": f"{tmp_path}/far/one".removeprefix("/"), "near": "one"}


def test_windows_that_are_too_short_are_listed(tmp_path: Path) -> None:
    sidecar(tmp_path / "source")
    facts = run(tmp_path / "source", tmp_path / "out", window_frames=5, min_frames=4)
    assert (facts["windows"], facts["left_out"]) == (4, {"too_short": 1})
    ends = [(w["start_frame"], w["end_frame"]) for r in records(tmp_path / "out") for w in r["t2w_windows"]]
    assert ends == [(0, 4), (5, 9), (0, 4), (5, 8)]


def test_an_episode_that_is_longer_than_its_file_is_left_out(tmp_path: Path) -> None:
    lerobot_v2(tmp_path / "source")
    clip(max((tmp_path / "source/videos").rglob("*.mp4")), 12)
    assert run(tmp_path / "source", tmp_path / "out")["left_out"] == {"window_out_of_range": 1}


def test_a_constant_caption_is_for_those_without_one(tmp_path: Path) -> None:
    sidecar(tmp_path / "source")
    clip(tmp_path / "source/bare.mp4")
    facts = run(tmp_path / "source", tmp_path / "out", caption="a bar")
    found = {record["uuid"]: record["t2w_windows"][0].get("caption") for record in records(tmp_path / "out")}
    assert found == {"bare": "a bar", "one": "a bar becomes red", "deep/two": "A bar becomes red."}
    assert (facts["constant_captions"], facts["left_out"]) == (1, {})


def test_two_files_of_one_name_keep_names_of_their_own(tmp_path: Path) -> None:
    sidecar(tmp_path / "source")
    clip(tmp_path / "source/one.mov")
    run(tmp_path / "source", tmp_path / "out")
    assert {r["uuid"]: Path(r["vision_path"]).suffix for r in records(tmp_path / "out") if "one" in r["uuid"]} == {
        "one": ".mov",
        "one.mp4": ".mp4",
    }


def test_facts_are_those_of_the_file_and_an_image_has_no_rate(tmp_path: Path) -> None:
    for name in ("sidecar", "images"):
        SOURCES[name][0](tmp_path / name)
    run(tmp_path / "sidecar", tmp_path / "out")
    record = next(r for r in records(tmp_path / "out") if r["uuid"] == "one")
    facts = {name: record[name] for name in ("width", "height", "nb_frames", "framerate", "duration")}
    assert facts == {"width": 96, "height": 64, "nb_frames": 9, "framerate": 8.0, "duration": 9 / 8}
    assert run(tmp_path / "images", tmp_path / "out2")["frame_rates"] == {"one frame": 2}
    assert "framerate" not in records(tmp_path / "out2")[0]


def test_unevenly_spaced_frames_and_long_files_are_said(tmp_path: Path, write_clip, capsys) -> None:
    write_clip(tmp_path / "source/a.mp4", frames=6, times=[0, 100, 150, 400, 450, 1000])
    write_clip(tmp_path / "source/b.mkv", frames=70, fps=1)
    for name in "ab":
        write(tmp_path / f"source/{name}.txt", "a bar")
    assert main(["dataset", "import", str(tmp_path / "source"), "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "on average, unevenly spaced (1 file)" in said
    assert "the longest file has a duration of 70.0 s" in said
    assert "dataloader_train.dataset.max_duration=71" in said


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"camera": ["top"]}, "--camera has no effect on the layout lines"),
        ({"caption_column": "text"}, "--caption-column has no effect on the layout lines"),
        ({"out": "source/out"}, "lies inside the source"),
        ({"source": "nowhere"}, "does not exist"),
    ],
)
def test_what_does_not_go_together_is_refused(
    settings: dict, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines(Path("source"))
    with pytest.raises((ValueError, OSError), match=message):
        ImportClips.Config(**{"source": "source", "out": "out", **settings}).build().run()


def test_flags_without_effect_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["dataset", "import", str(tmp_path), "-o", str(tmp_path / "out")]
    for flags in (["--overlap", "0.5"], ["--scene-threshold", "3"], ["--window-frames", "5", "--window-seconds", "1"]):
        assert main([*words, *flags]) == 2
    assert capsys.readouterr().err.count("worldsmith: error") == 3


def test_a_source_without_any_usable_clip_writes_nothing(tmp_path: Path) -> None:
    clip(tmp_path / "source/bare.mp4")
    with pytest.raises(DataError, match=r"no clip can be used\nskipped: no_caption 1"):
        run(tmp_path / "source", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_data_set_moves_together_with_its_source_also_below_links(tmp_path: Path) -> None:
    """Actions too; the folder that a link leads to is of another depth."""
    (tmp_path / "far/away").mkdir(parents=True)
    (tmp_path / "all").symlink_to(tmp_path / "far/away")
    lerobot_v2(tmp_path / "all/source")
    run(tmp_path / "all/source", tmp_path / "all/out")
    (tmp_path / "far/away").rename(tmp_path / "moved")
    folder = tmp_path / "moved/out/train"
    for record in records(tmp_path / "moved/out"):
        assert (folder / record["vision_path"]).is_file()
        assert (folder / record["lerobot"]["path"]).is_file()
