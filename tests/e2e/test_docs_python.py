"""The programs of docs/python.md work as they stand, one after the other."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import worldsmith
from worldsmith.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs/python.md").read_text(encoding="utf-8")
SHORTER = {
    "max_iter = 20": "max_iter = 2",
    'load_config("wan21_t2v_1b_lora", ': 'load_config("vision_sft_nano_tiny", ["model.config.precision=bfloat16"], ',
}
"""Two steps, and a plan of a tiny variant."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(300)
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("DATASET_PATH", "BASE_CHECKPOINT_PATH", "WAN_VAE_PATH", "WORLDSMITH_OUTPUT_ROOT", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    program, *words = shlex.split(blocks("bash")[0])
    assert program == "worldsmith"
    assert main(words) == 0
    code = "#".join(blocks("python"))
    assert all(code.count(text) == 1 for text in SHORTER)
    printed = []
    for block in blocks("python"):
        for text, shorter in SHORTER.items():
            block = block.replace(text, shorter)
        capsys.readouterr()
        found: dict[str, Any] = {}
        exec(block, found)
        printed.append(capsys.readouterr().out)
        if "pipeline" in found:
            assert found["pipeline"].transformer.config.hidden_size == 192
    trained, planned, generated, _, evaluated = printed
    assert trained.splitlines()[-1] == "Outcome.FINISHED outputs/train/worldsmith/demo/my_run"
    assert re.search(r"^fits: \d\.\d of 23\.5 GiB\n\d\.\d\d to \d\.\d\d s/step\n", planned, flags=re.MULTILINE)
    (video,) = Path("outputs/my_videos").glob("*/vision.mp4")
    assert generated.splitlines()[-1] == f"0 {video}"
    assert re.search(r"^loss +\d\.\d+ \[.*\n\d\.\d+$", evaluated, flags=re.MULTILINE | re.DOTALL)


def test_the_table_names_what_is_public() -> None:
    named = set(re.findall(r"`([A-Za-z_]+)", PAGE.partition("|---|")[2].partition("\n\n")[0]))
    assert set(worldsmith.__all__) <= named


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)", PAGE):
        assert (Path(__file__).parents[2] / "docs" / link).exists(), link
