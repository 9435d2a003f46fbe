"""JSON may hold what no file name and no text can be: such records are left out, foretold, and never end a run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import reasoner_runs
import tiny_runs

from worldsmith.cli.main import main
from worldsmith.config.tree.plain import to_yaml
from worldsmith.training.trainer import Trainer

HALF, NUL = "a \ud800 b", "a\0b.mp4"
STEPS = 4


def clips(folder: Path) -> tuple[Trainer.Config, Path, dict[str, tuple[str, int]]]:
    """A run, its data set file, and reason and line of what is to be left out."""
    world = tiny_runs.make_world(folder)
    file = world / "data" / "video_dataset_file.jsonl"
    sound = file.read_text().splitlines()
    os.mkfifo(world / "data" / "pipe.mp4")

    def line(uuid: str, caption: str = "c", path: str | None = None) -> str:
        record = json.loads(sound[0])
        record["t2w_windows"][0]["caption"] = caption
        return json.dumps(record | {"uuid": uuid, "vision_path": path or record["vision_path"]})

    bad = [
        line("h", caption=HALF),
        line("n", path=NUL),
        line("s", path=HALF),
        line("pipe", path="pipe.mp4"),
        line(HALF),
    ]
    file.write_text("\n".join([*sound, *bad]) + "\n")
    records = {f"{file.name}:{len(sound) + n}": ("bad_record", len(sound) + n) for n in (1, 2, 3, 5)}
    expected = {**records, "pipe_w0": ("not_a_video", len(sound) + 4)}
    return tiny_runs.tiny_config(world, steps=STEPS, workers=2), file, expected


def conversations(folder: Path) -> tuple[Trainer.Config, Path, dict[str, tuple[str, int | None]]]:
    world = reasoner_runs.make_world(folder, samples=9)
    file = world / "data" / "annotations.json"
    sound = json.loads(file.read_text())
    for name in ("pipe.mp4", "pipe.png"):
        os.mkfifo(world / "data" / name)

    def record(name: str, text: str = "?", **media: str) -> dict[str, Any]:
        return {
            "id": name,
            **media,
            "conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": "yes"}],
        }

    bad = [record("h", HALF), record("n", video=NUL), record("s", video=HALF), record("p", image=NUL), record(HALF)]
    file.write_text(json.dumps([*sound, *bad, record("film", video="pipe.mp4"), record("picture", image="pipe.png")]))
    keys = [f"{file.name}[{len(sound)}]", "n", f"{file.name}[{len(sound) + 2}]", "p", f"{file.name}[{len(sound) + 4}]"]
    expected = {**dict.fromkeys(keys, "bad_record"), "film": "not_a_video", "picture": "not_an_image"}
    config = reasoner_runs.reasoner_config(world, steps=STEPS, workers=2)
    return config, file, {key: (reason, None) for key, reason in expected.items()}


@pytest.mark.timeout(200)  # a pipe that was opened would be waited for
@pytest.mark.parametrize("make", [clips, conversations])
def test_records_that_no_file_and_no_text_can_be_are_foretold_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], make: Any
) -> None:
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "runs"))
    config, file, expected = make(tmp_path / "world")
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    words = ["train", "--base", str(tmp_path / "run.yaml")]
    assert main([*words, "--dryrun"]) == 0
    plan = capsys.readouterr().out
    assert (
        f"skipped: bad_record {sum(reason == 'bad_record' for reason, _ in expected.values())}, not_a_video 1" in plan
    )
    assert not (tmp_path / "runs").exists()

    assert main(words) == 0
    assert f"done: {STEPS} steps" in capsys.readouterr().out
    listed = [json.loads(line) for line in (tmp_path / "runs/tests/tiny/run/quarantine.jsonl").read_text().splitlines()]
    assert {entry["key"]: (entry["reason"], entry.get("line")) for entry in listed} == expected
    assert len(listed) == len(expected)
    assert {entry["path"] for entry in listed} <= {str(file), str(file.parent / "pipe.mp4")}
    assert all(entry["detail"] for entry in listed)
