"""The commands of docs/post_training.md, one after the other, on two clips of 61 frames."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tiny_runs import moving_gradient, write_mp4

from worldsmith.cli.main import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/post_training.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_commands_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name in ("WORLD_SIZE", "WORLDSMITH_OUTPUT_ROOT", "IMAGINAIRE_OUTPUT_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLDSMITH_LATENT_CACHE", str(tmp_path / "latents"))
    for index in range(2):
        write_mp4(tmp_path / f"my_videos/{index}.mp4", moving_gradient(index, 61, 64, 96), 24)
        (tmp_path / f"my_videos/{index}.txt").write_text(f"Gradient {index}.")
    for line in "".join(re.findall(r"^```bash\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)).splitlines():
        program, *words = shlex.split(line, comments=True)
        if program == "export":
            monkeypatch.setenv(*words[0].split("="))
            continue
        assert program == "worldsmith"
        assert main(words) == 0, line + capsys.readouterr().err
    run = tmp_path / "outputs/train/worldsmith/sft/vision_sft_nano_tiny"
    assert (run / "checkpoints/latest_checkpoint.txt").read_text() == "iter_000000004\n"
    assert (run / "report.html").is_file()
    assert (run / "wandb_id.txt").is_file()
    assert (tmp_path / "my_pipeline/model_index.json").is_file()
    assert (tmp_path / "my_weights/model.safetensors").is_file()
    assert list((tmp_path / "my_samples").glob("*/vision.mp4"))


def test_the_links_of_the_page_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([\w.]+)", PAGE):
        assert (ROOT / "docs" / link).is_file(), link
