"""Whole runs of the toy family: what the trainer does, without clips, a VAE, or any knowledge of a family."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from metrics_files import read_metrics
from toy_family import RowLoader, Rows, ToyModel, toy

from worldsmith.checkpoint.dcp.tensor_reader import load_part, stored_shapes
from worldsmith.config.sections import JobConfig
from worldsmith.training.trainer import Trainer

ROWS = "rows.txt"
VAL_ROWS = "val_rows.txt"


def make_world(folder: Path, *, rows: int = 6) -> Path:
    """Random numbers and twice as much of each, in `folder`: `rows` of them to train on, five to validate on."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, count) in enumerate(((ROWS, rows), (VAL_ROWS, 5))):
        numbers = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
        lines = (" ".join(f"{number:.4f}" for number in [*row, *(2 * n for n in row)]) for row in numbers.tolist())
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder


def toy_config(world: Path, *, steps: int = 8, save_iter: int = 4, workers: int = 0, layers: int = 2) -> Trainer.Config:
    """A run over `make_world(world)` that logs every step."""
    config = toy()
    config.job = JobConfig(project="tests", group="tiny", name="run")
    assert isinstance(config.model.config, ToyModel.Config)
    config.model.config.depth = layers
    config.trainer.max_iter, config.scheduler.cycle_lengths = steps, [steps]
    config.checkpoint.save_iter, config.dataloader_train.num_workers = save_iter, workers
    config.dataloader_train.dataset.path = str(world / ROWS)  # type: ignore[attr-defined]
    return config


def validated(config: Trainer.Config, *, every: int = 3, workers: int = 0) -> Trainer.Config:
    """The run with a validation after every so many steps, before the first and after the last.

    That of `toy_config` has rows for it; another one takes what it trains on, in another order.
    """
    config.trainer.run_validation = config.trainer.run_validation_on_start = True
    config.trainer.validation_iter = every
    if not isinstance(config.dataloader_train, RowLoader.Config):
        config.dataloader_val = dataclasses.replace(config.dataloader_train, seed=7)
        return config
    path = Path(config.dataloader_train.dataset.path).with_name(VAL_ROWS)
    config.dataloader_val = RowLoader.Config(
        dataset=Rows.Config(path=str(path)), max_samples_per_batch=2, num_workers=workers, seed=7
    )
    return config


def read_checkpoint(checkpoint: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint: weights, average, optimizer, schedule, counters and RNG."""
    tensors = {}
    for part in ("model", "optim", "scheduler", "trainer"):
        entries = dcp.FileSystemReader(checkpoint / part).read_metadata().state_dict_metadata
        state = {
            name: torch.empty(shape, dtype=entries[name].properties.dtype)
            for name, shape in stored_shapes(checkpoint / part).items()
        }
        load_part(checkpoint / part, state, no_dist=True)
        tensors |= {f"{part}/{name}": tensor for name, tensor in state.items()}
    return tensors


def read_losses(run_folder: Path) -> list[tuple[int, float, float, int]]:
    """(step, loss, gradient norm, samples) of every logged step."""
    lines = [line for line in read_metrics(run_folder / "metrics.jsonl") if "loss" in line]
    return [(line["step"], line["loss"], line["grad_norm"], line["samples"]) for line in lines]


def read_validations(run_folder: Path) -> list[tuple[int, float, float, int]]:
    """(step, loss, loss of the averaged weights, samples) of every validation."""
    lines = [line for line in read_metrics(run_folder / "metrics.jsonl") if "val/loss" in line]
    return [(line["step"], line["val/loss"], line["val_ema/loss"], line["val/samples"]) for line in lines]


def require_same_end(found: Path, expected: Path, step: int = 8) -> None:
    """Losses of all steps and every bit of the last checkpoint are those of the other run."""
    assert read_losses(found) == read_losses(expected)
    last = f"checkpoints/iter_{step:09d}"
    ours, theirs = read_checkpoint(found / last), read_checkpoint(expected / last)
    assert ours.keys() == theirs.keys()
    assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []
