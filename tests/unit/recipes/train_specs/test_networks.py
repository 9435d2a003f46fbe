"""A training spec says which network its model has, and where that is known from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from train_specs import COOKBOOK, problems_of

NAME = "policy.model_name_or_path"


def told(read: Any, name: object) -> str:
    report = read(COOKBOOK, f"{NAME}={name}").report
    (line,) = (line for line in report.splitlines() if line.split()[1:2] == [NAME])
    return str(line)


@pytest.mark.parametrize(
    ("name", "network"),
    [
        ("nvidia/Cosmos-Reason1-7B", "a qwen2_5_vl, assumed to be the released one"),
        ("Qwen/Qwen2.5-VL-72B-Instruct", "a qwen2_5_vl, assumed to be the released one"),
        ("nvidia/Cosmos-Reason2-8B", "a qwen3_vl, assumed to be the released one"),
        ("someone/Reason-7B", "its config.json is not on this machine, so its network is only known when the run"),
    ],
)
def test_a_hub_name_that_is_not_on_this_machine(
    read: Any, name: str, network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "nothing"))
    assert f'model_name = "{name}": {network}' in told(read, name)


def write_model(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(text)
    return folder


def test_a_folder_is_what_its_config_says_whatever_its_name(read: Any, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "Qwen3-VL-8B", json.dumps({"model_type": "qwen2_5_vl", "vision_config": {}}))
    assert told(read, folder).endswith(": a qwen2_5_vl, by its config.json")
    text = write_model(tmp_path / "text", json.dumps({"model_type": "llama"}))
    assert told(read, text).endswith(": a llama, by its config.json")


@pytest.mark.parametrize("kind", ["qwen2_vl", "llava", "internvl"])
def test_another_network_is_refused_with_those_that_are_trained(read: Any, kind: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", json.dumps({"model_type": kind, "vision_config": {}}))
    with pytest.raises(Exception, match=rf"model_type is '{kind}'; trainable .*: qwen2_5_vl, qwen3_vl, qwen3_vl_moe"):
        read(COOKBOOK, f"{NAME}={folder}")
    assert set(problems_of(read, COOKBOOK, f"{NAME}={folder}")) == {NAME}


def test_a_damaged_config_is_refused(read: Any, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "{")
    with pytest.raises(Exception, match=r"config\.json"):
        read(COOKBOOK, f"{NAME}={folder}")
