"""Config files that other projects publish, rebuilt from their stored names and values, and what becomes of them here.

`tests/oracles/published/REPOSITORY.json` holds, by commit and path, every leaf of a file as `section/key: value`; `[0]`
is an item of a list of tables. Texts of more than 100 characters are stored as their length.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import yaml

from worldsmith.cli.action_command import choose_action, load_settings
from worldsmith.cli.spec_and_parent import MODEL_KEYS
from worldsmith.config.errors import ConfigError, UserError
from worldsmith.config.load import load
from worldsmith.config.write.values import write_toml

FACTS = Path(__file__).parents[1] / "oracles" / "published"
OWNERS = {
    "CogVideo": "THUDM",
    "cosmos-cookbook": "nvidia-cosmos",
    "cosmos-framework": "NVIDIA",
    "cosmos-reason1": "nvidia-cosmos",
    "cosmos-reason2": "nvidia-cosmos",
    "cosmos-rl": "nvidia-cosmos",
    "tao-skill-bank": "NVIDIA-TAO",
    "torchtitan": "pytorch",
}
VERSIONS = {"aa3929ff8e": "7.0.0", "258eff3c67": "7.0.1", "03f2daa8aa": "7.1.0", "49672c2cd0": "7.2"}
RECORDS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class PublishedFile:
    """One file of a public repository at one commit."""

    repository: str
    commit: str
    path: str
    facts: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def data(self) -> dict[str, Any]:
        return nested(self.facts)

    def write(self, folder: Path) -> Path:
        """Writes a file of the same format, name and values, without comments."""
        path = folder / self.name
        text = write_toml(self.data) if path.suffix == ".toml" else yaml.safe_dump(self.data)
        path.write_text(text, encoding="utf-8")
        return path


def published_files() -> list[PublishedFile]:
    """All stored files, sorted by repository; commits and paths are in the order of the facts."""
    return [
        PublishedFile(facts.stem, commit, path, values)
        for facts in sorted(FACTS.glob("*.json"))
        for commit, files in json.loads(facts.read_text(encoding="utf-8")).items()
        for path, values in files.items()
    ]


def nested(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Rebuilds nested tables from flat `section/key` names."""
    root: dict[str, Any] = {}
    for name, value in facts.items():
        *sections, leaf = name.split("/")
        table = root
        for section in sections:
            table = table.setdefault(section, {})
        table[leaf] = value
    return _with_lists(root)


def _with_lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value and all(re.fullmatch(r"\[\d+\]", key) for key in value):
        return [_with_lists(item) for item in value.values()]
    return {key: _with_lists(item) for key, item in value.items()}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a published file here.

    Attributes:
        outcome: "works" as it is, "works with" further words, or "refused".
        given: The words that have to be given in addition to the file.
        reasons: Key (or "") and message of each mistake that is left.
    """

    outcome: str
    given: tuple[str, ...] = ()
    reasons: tuple[tuple[str, str], ...] = ()


TEXT_ENCODER = "model.conditioner_config.params.emb_models[0].params.model_dir"
DATA = "data"
MODEL_FILE, RUN_FILE = "cogvideox1.5_5b.yaml", "sft.yaml"
NETWORK = "Qwen3VLForConditionalGeneration"
COMMANDS = {"evaluate": "evaluate", "quantize": "quantize", "inference": "infer"}
ANSWERS = {
    "custom.train_dataset.annotation_path": "custom.train_dataset.annotation_path=annotations.json",
    "custom.train_dataset.media_path": "custom.train_dataset.media_path=clips",
    "custom.dataset.path": "custom.dataset.path=saved",
    "custom.dataset.dataset_root": "custom.dataset.dataset_root=.",
    "custom.dataset.annotation_path": "custom.dataset.annotation_path=annotations.json",
    "custom.dataset.media_path": "custom.dataset.media_path=clips",
    "custom.val_dataset.annotation_path": "custom.val_dataset.annotation_path=annotations.json",
    "custom.val_dataset.media_path": "custom.val_dataset.media_path=clips",
    "policy.model_name_or_path": "policy.model_name_or_path=nvidia/Cosmos-Reason2-2B",
    "train.train_batch_per_replica": "train.train_batch_per_replica=4",
    "dataset.annotation_path": "dataset.annotation_path=annotations.json",
    "dataset.media_dir": "dataset.media_dir=clips",
    "results_dir": "results_dir=results",
    "datasets": "~datasets",
    "args.input_file": "args.input_file=prompts.txt",
    "train.fsdp_offload": "train.fsdp_offload=false",
    "model.model_name": "model.model_name=model",
    "model.model_path": "model.model_path=model",
    "model_path": "model_path=model",
    "media": "media=clips/clip0.mp4",
    "args.load": "args.load=zai-org/CogVideoX-2b",
    "args.train_data": "args.train_data=[.]",
    "args.valid_data": "args.valid_data=[.]",
    "model.first_stage_config.params.ckpt_path": "model.first_stage_config.params.ckpt_path=zai-org/CogVideoX-2b",
    TEXT_ENCODER: f"{TEXT_ENCODER}=google/t5-v1_1-xxl",
}
"""What a user gives where a report asks for a key."""
TOGETHER = {
    "custom.train_dataset.annotation_path": (DATA,),
    "custom.dataset.annotation_path": (DATA,),
    "validation.dataset.name": ("custom.val_dataset.annotation_path", "custom.val_dataset.media_path"),
    "validation.enable": ("custom.val_dataset.annotation_path", "custom.val_dataset.media_path"),
}
"""Keys that a report asks for under another key; DATA stands for the keys of data that the file has."""
VARIABLES = ("DATASET_PATH", "BASE_CHECKPOINT_PATH", "WAN_VAE_PATH", "VIDEOPHYSICS_ROOT", "VLM_SAFETENSORS_PATH",
             "LIBERO_ROOT", "DROID_ROOT", "ROBOT_STATISTICS")  # fmt: skip


def all_verdicts(folder: Path) -> dict[PublishedFile, Verdict]:
    """Gives every stored file its verdict, in a folder with a small data set and a model folder."""
    make_data(folder)
    files = published_files()
    with contextlib.chdir(folder), mock.patch.dict(os.environ, dict.fromkeys(VARIABLES, str(folder))):
        for file in files:
            if file.name in (MODEL_FILE, RUN_FILE):
                file.write(folder)
        return {file: give_verdict(file, folder) for file in files}


def make_data(folder: Path, records: int = RECORDS) -> None:
    """Writes small data in each of the layouts that files ask for, and a folder that is known as a reasoner."""
    for name in ("clips", "videos", "texts", "model"):
        (folder / name).mkdir()
    (folder / "prompts.txt").write_text("A ball falls.\n", encoding="utf-8")
    (folder / "clips" / "clip0.mp4").touch()
    chat = [{"from": "human", "value": "<video>\nWhat falls?"}, {"from": "gpt", "value": "A ball."}]
    record = {"video": "clip0.mp4", "video_fps": 4.0, "conversations": chat}
    write_json(folder / "annotations.json", [{"id": str(number), **record} for number in range(records)])
    rows = {"conversations": [json.dumps([{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}])]}
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({name: values * records for name, values in rows.items()}).save_to_disk(folder / "saved")
    entry = {"media": "clips/clip0.mp4", "conversation": "texts/chat.json"}
    write_json(folder / "meta.json", [{"id": str(number), **entry} for number in range(records)])
    turns = [
        {"role": "user", "content": [{"type": "video", "video": "video_0"}]},
        {"role": "assistant", "content": "!"},
    ]
    write_json(folder / "texts" / "chat.json", turns)
    write_json(folder / "model" / "config.json", {"model_type": "qwen3_vl", "architectures": [NETWORK]})


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def give_verdict(file: PublishedFile, folder: Path) -> Verdict:
    """Reads a published file as its command would, and gives what each report asks for until nothing more is asked."""
    path, given = file.write(folder), []
    while reasons := mistakes(file, path, given):
        asked = [key for name, _ in reasons for key in TOGETHER.get(name, (name,))]
        asked = [own for key in asked for own in (data_keys(file) if key == DATA else (key,))]
        words = [ANSWERS[key] for key in asked if key in ANSWERS and ANSWERS[key] not in given]
        if not words:
            return Verdict("refused", tuple(given), reasons)
        given += dict.fromkeys(words)
    return Verdict("works with" if given else "works", tuple(given))


def data_keys(file: PublishedFile) -> list[str]:
    """The keys that name the training data, as the file has them."""
    own = [key.replace("/", ".") for key in file.facts if key.startswith("custom/dataset/")]
    return [key for key in own if key in ANSWERS] or [
        "custom.train_dataset.annotation_path",
        "custom.train_dataset.media_path",
    ]


def mistakes(file: PublishedFile, path: Path, given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Key and message of every mistake that the command for the file reports; none where it would go on."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            read(file, path, given)
    except ConfigError as error:
        return tuple((problem.path, problem.message) for problem in error.problems)
    except (UserError, OSError) as error:
        is_model = str(error).startswith("model ")
        return ((MODEL_KEYS[action_of(file)] if is_model else "", str(error)),)
    return ()


def read(file: PublishedFile, path: Path, given: Sequence[str]) -> None:
    """Reads the file and the words as `train`, `evaluate`, `quantize` or `infer` would before it begins."""
    action = action_of(file)
    if file.repository in ("cosmos-framework", "torchtitan"):
        load(str(path))
    elif file.repository == "CogVideo":
        read_sat(path, given)
    elif action:
        prefix, kinds, words = choose_action(COMMANDS[action], ["--spec", str(path), *given])
        load_settings(prefix, kinds[0], words, [])
    else:
        load(str(path), spec_words=given)


def read_sat(path: Path, given: Sequence[str]) -> None:
    """Reads a file of SAT as a part of its stack: a model's file with sft.yaml, and inference.yaml with a model's."""
    if path.name == "inference.yaml":
        stack = [str(path.parent / MODEL_FILE), str(path)]
        prefix, kinds, words = choose_action("generate", ["--spec", *stack, *given])
        load_settings(prefix, kinds[0], words, [])
    else:
        model = MODEL_FILE if path.name == RUN_FILE else path.name
        load([str(path.parent / model), str(path.parent / RUN_FILE)], spec_words=given)


def action_of(file: PublishedFile) -> str | None:
    """The action whose spec a file is; None for what describes a training."""
    if any(key.startswith("policy/") for key in file.facts):
        return None
    parts = {"eval": "evaluate", "quantize": "quantize", "inference": "inference"}
    return next((action for part, action in parts.items() if part in file.name), None)


PAGE = Path(__file__).parents[2] / "docs" / "published_files.md"
"""The page with the table of outcomes."""
INTRODUCTION = """\
# Published config files

This page lists config files that other projects publish, and shows which of them work with Worldsmith and which
overrides they need. `python tests/support/published_files.py` generates the page. A test rebuilds every file from its
stored names and values, reads it in the same way as `worldsmith`, and compares the outcome with this page.

| outcome | meaning |
|---|---|
| works | the file works unchanged, with the environment variables that it names |
| works with … | the file needs these overrides; the error report requests them |
| refused | the file requires a feature that is not available; the reason is that of the error report |
"""


def page(verdicts: Mapping[PublishedFile, Verdict]) -> str:
    """Renders the verdicts as Markdown: one table for each repository, one row for the files of one outcome."""
    lines = [INTRODUCTION]
    for repository, owner in OWNERS.items():
        own = {file: verdict for file, verdict in verdicts.items() if file.repository == repository}
        count = sum(verdict.outcome != "refused" for verdict in own.values())
        lines += [
            f"## {owner}/{repository}",
            "",
            f"{count} of {len(own)} work.",
            "",
            "| outcome | files |",
            "|---|---|",
        ]
        rows: dict[str, list[str]] = {}
        for file, verdict in own.items():
            version = VERSIONS.get(file.commit, file.commit[:7])
            rows.setdefault(cell(verdict), []).append(f"{file.path} ({version})")
        lines += [f"| {outcome} | {', '.join(files)} |" for outcome, files in rows.items()]
        lines.append("")
    return "\n".join(lines)


def cell(verdict: Verdict) -> str:
    """One table cell: the outcome with the words to give, or with the first reasons."""
    if verdict.outcome != "refused":
        words = ", ".join(f"`{word}`" for word in verdict.given)
        return f"{verdict.outcome} {words}".strip()
    reasons = [f"`{key}`: {message}" if key else message for key, message in verdict.reasons[:2]]
    more = len(verdict.reasons) - len(reasons)
    text = "; ".join(reasons) + (f"; {more} more" if more > 0 else "")
    return f"refused: {text}".replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(page(all_verdicts(Path(folder))), encoding="utf-8")
