"""What people have is imported, checked, and trained on."""

from __future__ import annotations

import json
from pathlib import Path

import object_store
import pytest
from import_sources import SOURCES, clip, write

from worldsmith.cli.main import main

SLOW = {"captions", "table", "pictures", "sidecar", "lerobot_v2"}
"""Sources that the default run imports, in tests/unit/tools/datasets/imports, and does not train on."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in SOURCES]
)
def test_a_source_is_imported_checked_and_trained_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every window that is written is read by the check and in each of two steps, and none is left out."""
    make, layout = SOURCES[name]
    make(tmp_path / "source")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATASET_PATH", "clips")
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "runs"))
    assert main(["dataset", "import", "source", "-o", "clips", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["layout"], facts["left_out"]) == (layout, {})

    words = ["--", "dataloader_train.dataset.resolution=64", "dataloader_train.dataset.min_frames=1"]
    words += ["trainer.max_iter=2", f"dataloader_train.max_samples_per_batch={facts['clips']['train']}"]
    words += ["dataloader_train.max_sequence_length=null", "dataloader_train.latent_cache=", "trainer.cpu_threads=1"]
    words += ["dataloader_train.num_workers=0"]
    assert main(["check", "vision_sft_tiny", "--json", *words]) == 0
    checked = json.loads(capsys.readouterr().out)["data"]["train"]
    assert (checked["kept"], checked["left_out"]) == (facts["clips"]["train"], {})
    assert main(["train", "vision_sft_tiny", *words]) == 0
    folder = tmp_path / "runs/worldsmith/sft/vision_sft_tiny"
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == [1, 2]
    assert not (folder / "quarantine.jsonl").exists()


def test_a_table_of_clips_in_an_object_store_is_imported_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    clip(tmp_path / "clips/a.mp4")
    write(
        tmp_path / "source/metadata.csv",
        "file_name,caption\ns3://bucket/clips/a.mp4,Bars.\ns3://bucket/clips/b.mp4,?\n",
    )
    with object_store.serving() as store, object_store.connected(store, monkeypatch, tmp_path / "cache"):
        store.put_folder(tmp_path / "clips", "clips")
        assert main(["dataset", "import", "source", "-o", "out", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["left_out"] == {"missing_file": 1}
        record = json.loads(Path("out/train/video_dataset_file.jsonl").read_text())
        assert record["vision_path"] == "s3://bucket/clips/a.mp4"
        assert (record["nb_frames"], record["width"]) == (9, 96)
        words = ["--", "dataloader_train.dataset.resolution=64", "dataloader_train.dataset.min_frames=1"]
        assert main(["check", "out", "--json", *words]) == 0
        assert json.loads(capsys.readouterr().out)["data"]["train"]["kept"] == 1
