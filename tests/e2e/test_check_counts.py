"""`worldsmith check` counts what a run over the same data consumes and leaves out."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import damaged_data
import pytest
import reasoner_runs
import tiny_runs

from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.tree.references import resolve
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.distributed.world import World
from worldsmith.tasks.registry import task_of
from worldsmith.tools.check.check import CheckData
from worldsmith.training.trainer import Trainer


def clips_run(folder: Path) -> Trainer.Config:
    world = tiny_runs.make_world(folder / "world", clips=1)
    config = tiny_runs.tiny_config(world)
    config.dataloader_train.dataset.path = str(damaged_data.damaged_clips(folder / "data"))
    return config


def chats_run(folder: Path) -> Trainer.Config:
    world = reasoner_runs.make_world(folder / "world", samples=1)
    config = reasoner_runs.reasoner_config(world)
    config.dataloader_train.dataset = LlavaDataset.Config(path=str(damaged_data.damaged_chats(folder / "data").parent))
    return config


def checked(config: Trainer.Config, **settings: Any) -> tuple[dict[str, Any], int]:
    result = CheckData.Config(**settings).build(run=Loaded(resolve(config))).run()
    assert all(len(line) <= 100 or "/" in line for line in result.lines)
    return dict(result.facts), result.code


def trained(config: Trainer.Config, folder: Path) -> tuple[list[str], Counter[str], Counter[str]]:
    """A run over the first pass and a little more: the keys that its first pass gave to the loss, and what it left out
    by the list in the run folder and by its metrics."""
    trainer = Trainer(config, run_folder=folder)
    total, loss, keys = len(trainer.state.loader.dataset), trainer.task.loss, []

    def recorded(batch: Any, **others: Any) -> Any:
        keys.extend(sample.key for sample in batch if sample.position < total)
        return loss(batch, **others)

    trainer.task.loss = recorded
    trainer.train()
    listed = Counter(json.loads(line)["reason"] for line in (folder / "quarantine.jsonl").read_text().splitlines())
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return keys, listed, Counter(last["rejected"])


@pytest.mark.parametrize(
    ("make", "reasons", "kept"),
    [(clips_run, damaged_data.CLIP_REASONS, 10), (chats_run, damaged_data.CHAT_REASONS, 9)],
)
def test_counts_are_those_of_a_run(make: Any, reasons: dict[str, int], kept: int, tmp_path: Path) -> None:
    config = make(tmp_path)
    loader = config.dataloader_train
    loader.max_bad_fraction, config.trainer.grad_accum_iter = 0.9, 1
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")}
    facts, code = checked(config, workers=2)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")} == before
    report = facts["data"]["train"]
    assert (code, facts["can_start"], facts["problems"]) == (0, True, [])
    assert {reason: group["count"] for reason, group in report["left_out"].items()} == reasons
    assert report["kept"] == kept
    assert report["steps"] == report["packs"] == [len(list(fresh_loader(config).first_pass()))]
    config.trainer.max_iter = config.checkpoint.save_iter = report["packs"][0] + 3
    keys, listed, counted = trained(config, tmp_path / "run")
    assert len(keys) == len(set(keys)) == kept
    assert listed == counted == reasons
    at_start = json.loads((tmp_path / "run" / "data_report.json").read_text())["train"]
    assert at_start["positions"] == report["positions"]
    assert not at_start["decoded"]
    assert at_start["left_out"]["bad_record"] == report["left_out"]["bad_record"]  # which needs no look at a file
    if "features" in at_start:  # 16 clips were opened, and their first frames decoded
        assert at_start["features"]["size"]["labels"] == report["features"]["size"]["labels"]
        assert at_start["left_out"]["not_a_video"]["count"] >= 1
    assert checked(config, workers=0)[0]["data"]["train"]["left_out"] == report["left_out"]


def fresh_loader(config: Trainer.Config, rank: int = 0, size: int = 1) -> Any:
    tree = resolve(config)
    model = tree.model.config.build(device="meta")
    data = tree.dataloader_train
    return task_of(tree.model.name)(
        model=model, objective=tree.objective, data=data, world=World(rank=rank, size=size)
    ).loader(dry=True)


def test_packs_of_a_pass_on_every_rank_and_what_is_said_twice(tmp_path: Path) -> None:
    """As many as the loaders of two ranks give; copies under another name are found, other windows are none."""
    config = clips_run(tmp_path)
    config.dataloader_train.max_bad_fraction, config.dataloader_train.max_sequence_length = 0.9, 400
    config.dataloader_train.packer = "pool"
    facts, _ = checked(config, workers=0, processes=2)
    report = facts["data"]["train"]
    assert report["packs"] == [len(list(fresh_loader(config, rank, 2).first_pass())) for rank in range(2)]
    assert report["steps"] == [packs / 2 for packs in report["packs"]]
    assert [sorted(keys) for keys in report["duplicates"]] == [["again_w0", "good0_w0"]]
    assert set(report["fill"]) == {"sequential", "pool"}
    assert all(0.5 < share < 1 for share in report["fill"].values())


def test_a_run_that_could_not_start_is_exit_code_2_and_has_its_counts(tmp_path: Path) -> None:
    config = clips_run(tmp_path)
    facts, code = checked(config, workers=0)
    assert code == 2
    (problem,) = facts["problems"]
    assert "samples are bad" in problem
    assert "dataloader_train.max_bad_fraction" in problem
    with pytest.raises(Exception, match="samples are bad") as stopped:
        trained(config, tmp_path / "run")
    stopped_at, counted = (text.partition(" (")[0].partition(" of ") for text in (str(stopped.value), problem))
    assert (stopped_at[0], counted[0]) == ("[E101] 9", "[E101] 16")  # a run stops at the first one that is too many
    assert stopped_at[2] == counted[2]

    config.dataloader_train.max_bad_fraction, config.dataloader_train.max_sequence_length = 0.9, 30
    facts, code = checked(config, workers=0)
    assert code == 2
    assert facts["data"]["train"]["kept"] == 0
    assert "no sample of" in facts["problems"][0]

    (tmp_path / "data" / "video_dataset_file.jsonl").write_text("{}\n")
    facts, code = checked(config, workers=0)
    assert code == 2
    assert facts["data"]["train"]["left_out"]["bad_record"]["count"] == 1
    assert "no sample of" in facts["problems"][-1]
