"""What people have is imported, checked, and trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from import_sources import SOURCES

from worldsmith.cli.main import main


@pytest.mark.parametrize("name", SOURCES)
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
