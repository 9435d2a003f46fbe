"""The commands of docs/check.md work as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from damaged_data import damaged_chats

from worldsmith.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs/check.md").read_text(encoding="utf-8")


def test_the_commands_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`launch` is held against its processes elsewhere; here its command alone does all of the work."""
    monkeypatch.chdir(tmp_path)
    damaged_chats(tmp_path / "my_chats", good=2)
    said = []
    for line in "".join(re.findall(r"^```bash\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)).splitlines():
        program, *words = shlex.split(line)
        assert program == "worldsmith"
        words = words[words.index("encode") :] if words[0] == "launch" else words
        assert main(words) == 0, line
        said.append(capfd.readouterr().out)
    assert "kept         12 of 12 samples" in said[1]
    assert "on each of 2 processes" in said[2]
    assert '"looked_at": 4,' in said[3]
    assert "inspected by their headers only" in " ".join(said[4].split())
    assert "video_fps added to" in said[5]
    assert said[6].startswith("12 samples encoded, 0 already cached, 0 skipped")
    assert said[7].startswith("0 samples encoded, 12 already cached, 0 skipped")
    assert len(list(Path("my_latents").rglob("*.safetensors"))) == 12
