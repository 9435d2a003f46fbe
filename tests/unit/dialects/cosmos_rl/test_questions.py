"""Data of evaluation specs: one table, several by name, and what of them cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from worldsmith.dialects.cosmos_rl.spec_file import read_spec
from worldsmith.dialects.cosmos_rl.spec_formats import form_of
from worldsmith.dialects.translation import SpecTranslation, format_report, translate

LLAVA = "LlavaDataset"
ENVIRONMENT = {
    "annotation_path": "/wts/mcq.json",
    "media_dir": "/wts/val",
    "system_prompt": "Answer about the footage.",
}
SPEC: dict[str, Any] = {
    "datasets": {"environment": ENVIRONMENT},
    "model": {"model_name": "/models/tuned", "save_folder": "tuned", "tokenizer_model_name": "qwen2.5-vl-7b"},
    "evaluation": {"answer_type": "letter", "num_processes": 40, "skip_saved": False, "seed": 1},
    "vision": {"fps": 1, "max_pixels": 81920},
    "results_dir": "results",
}


def translated(folder: Path, *words: str, **changes: Any) -> SpecTranslation:
    (folder / "eval.yaml").write_text(yaml.safe_dump({**SPEC, **changes}, sort_keys=False))
    return translate(read_spec(form_of("evaluate"), str(folder / "eval.yaml"), words))


def problems(translation: SpecTranslation) -> dict[str, str]:
    return {problem.path: problem.hint or "" for problem in translation.problems}


def test_a_single_table_is_the_data_set(tmp_path: Path) -> None:
    translation = translated(tmp_path)
    assert problems(translation) == {}
    assert translation.data["dataset"] == {
        "type": LLAVA, "path": "/wts/mcq.json", "media_root": "/wts/val", "system_prompt": "Answer about the footage.",
    }  # fmt: skip
    lines = [line.split()[:2] for line in format_report(translation).partition("left out")[0].splitlines()]
    assert ["renamed", "datasets"] in lines
    assert not any(line[-1:] == ["dataset.annotation_path"] for line in lines)


def test_several_tables_are_a_mixed_data_set(tmp_path: Path) -> None:
    translation = translated(tmp_path, "datasets.other.annotation_path=/b.json", "evaluation.answer_type=reasoning")
    assert problems(translation) == {}
    mixed = translation.data["dataset"]
    assert mixed["type"] == "MixedDataset"
    assert list(mixed["datasets"]) == ["environment", "other"]
    assert mixed["datasets"]["other"] == {
        "type": LLAVA, "path": "/b.json", "media_root": "", "system_prompt": "You are a helpful assistant.",
    }  # fmt: skip
    assert any(line.warn and "no reasoning instruction" in line.text for line in translation.lines)


@pytest.mark.parametrize(
    ("words", "changes", "expected"),
    [
        (["datasets.environment.media_dri=x"], {}, {
            "datasets.environment.media_dri": "~datasets.environment.media_dri"}),
        (["datasets.b=3"], {}, {"datasets.b": "datasets.b={…}"}),
        (["datasets.b={media_dir: x}"], {}, {"datasets.b": "datasets.b.annotation_path=FILE"}),
        (["datasets.environment.annotation_path=3"], {}, {
            "datasets.environment.annotation_path": "datasets.environment.annotation_path=TEXT"}),
        (["dataset.annotation_path=a.json"], {}, {"datasets": "~datasets or ~dataset"}),
        ([], {"datasets": ["robovqa", "av"]}, {
            "datasets": "data_dir=FOLDER, which contains benchmark/robovqa/robovqa_benchmark_qa_pairs.json"}),
        (["~datasets"], {}, {
            "dataset.annotation_path": "set it, or add dataset.annotation_path=VALUE"}),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_read_is_said(
    tmp_path: Path, words: list[str], changes: dict[str, Any], expected: dict[str, str]
) -> None:
    assert problems(translated(tmp_path, *words, **changes)) == expected


def test_a_rate_that_is_required_of_all_or_of_one(tmp_path: Path) -> None:
    """The key of `dataset` counts for each table and benchmark without its own; a wrong value is an error."""
    tables = {"a": {"annotation_path": "a.json"}, "b": {"annotation_path": "b.json", "video_fps": "probe"}}
    translation = translated(tmp_path, "dataset.video_fps=require", datasets=tables)
    assert problems(translation) == {}
    found = {name: table["video_fps"] for name, table in translation.data["dataset"]["datasets"].items()}
    assert found == {"a": "require", "b": "probe"}
    assert {line.key: line.outcome for line in translation.lines}["dataset.video_fps"] == "kept"
    of_benchmarks = translated(tmp_path, "dataset.video_fps=require", "data_dir=/data", datasets=["robovqa"])
    assert of_benchmarks.data["dataset"]["datasets"]["robovqa"]["video_fps"] == "require"
    assert list(problems(translated(tmp_path, "dataset.video_fps=all"))) == ["dataset.video_fps"]
    assert list(problems(translated(tmp_path, "datasets.environment.video_fps=all"))) == [
        "datasets.environment.video_fps"
    ]


def test_benchmarks_are_folders_below_the_data_folder(tmp_path: Path) -> None:
    translation = translated(tmp_path, "data_dir=/data", datasets=["robovqa", "av"])
    assert problems(translation) == {}
    mixed = translation.data["dataset"]
    assert mixed["type"] == "MixedDataset"
    assert [table["path"] for table in mixed["datasets"].values()] == ["/data/benchmark/robovqa", "/data/benchmark/av"]
