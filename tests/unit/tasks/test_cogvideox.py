"""The task of CogVideoX: what it refuses, how batches are made, and a run that learns, stops and goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_cogvideox
import tiny_runs
import torch

from worldsmith.config import WrongValueError
from worldsmith.tasks.cogvideox import CogVideoXTask, DecodableGrid
from worldsmith.training.trainer import Trainer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_cogvideox.make_world(tmp_path_factory.mktemp("cogvideox"))


def learned_table(run: Any) -> None:
    run.model.config.network.use_rotary_positional_embeddings = True
    run.model.config.network.use_learned_positional_embeddings = True


def set_to(path: str, value: Any) -> Callable[[Any], None]:
    def change(run: Any) -> None:
        *sections, name = path.split(".")
        for section in sections:
            run = getattr(run, section)
        setattr(run, name, value)

    return change


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (set_to("model.config.network.in_channels", 8), "image to video"),
        (learned_table, "image to video"),
        (set_to("model.config.network.patch_size_t", 2), "1.5"),
        (set_to("model.config.network.ofs_embed_dim", 8), "1.5"),
        (set_to("dataloader_train.packer", "sequential"), "packer"),
        (set_to("dataloader_train.max_caption_tokens", 17), "max_caption_tokens"),
        (set_to("dataloader_train.dataset.conditioning_config", {"0": 1.0, "1": 0.5}), "conditioning_config"),
    ],
)
def test_what_it_cannot_train_is_refused_by_name(world: Path, change: Callable[[Any], None], named: str) -> None:
    run = tiny_cogvideox.tiny_config(world)
    CogVideoXTask.check(run)
    change(run)
    with pytest.raises(WrongValueError, match=named):
        CogVideoXTask.check(run)


def test_clips_have_frames_that_come_out_of_the_decoder_as_they_went_in() -> None:
    grid = DecodableGrid(4, 8, 2)
    assert [grid.usable_frames(n) for n in (1, 8, 9, 16, 17, 49, 50, 56)] == [1, 1, 9, 9, 17, 49, 49, 49]
    assert grid.latent_shape(49, 480, 720) == (13, 60, 90)


def test_batches_hold_one_shape_and_a_run_that_was_stopped_goes_on(world: Path, tmp_path: Path) -> None:
    config = tiny_cogvideox.tiny_config(world, "cogvideox_5b_tiny", steps=6)
    config.checkpoint.save_iter = 3
    shapes: list[set[Any]] = []
    loss = CogVideoXTask.loss

    def watched(task: CogVideoXTask, batch: Any, *, seed: int) -> Any:
        shapes.append({sample.latent_shape for sample in batch})
        return loss(task, batch, seed=seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CogVideoXTask, "loss", watched)
        Trainer(config, run_folder=tmp_path / "whole").train()
    assert all(len(found) == 1 for found in shapes)
    assert {shape for found in shapes for shape in found} == {(1, 8, 8), (3, 8, 8)}

    config.trainer.max_iter = 3
    Trainer(config, run_folder=tmp_path / "parts").train()
    config.trainer.max_iter = 6
    Trainer(config, run_folder=tmp_path / "parts").train()
    ends = [tmp_path / name / "checkpoints/iter_000000006" for name in ("whole", "parts")]
    whole, parts = map(tiny_runs.read_checkpoint, ends)
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole if isinstance(whole[name], torch.Tensor))
    assert tiny_runs.read_losses(tmp_path / "whole")[3:] == tiny_runs.read_losses(tmp_path / "parts")[3:]


def test_adapters_learn_and_nothing_else(world: Path, tmp_path: Path) -> None:
    config = tiny_cogvideox.tiny_config(world, steps=3)
    model = config.model.config
    model.lora_enabled, model.lora_rank, model.lora_alpha, model.precision = True, 4, 1, "bfloat16"
    trainer = Trainer(config, run_folder=tmp_path / "run")
    trained = [name for name, p in trainer.model.network.named_parameters() if p.requires_grad]
    assert len(trained) == 8 * model.network.num_layers
    trainer.train()
    losses = [line[1] for line in tiny_runs.read_losses(tmp_path / "run")]
    assert len(losses) == 3
    assert all(0.2 < loss < 3 for loss in losses)
    adapters = [p for name, p in trainer.model.network.named_parameters() if "lora_B" in name]
    assert all(p.abs().max() > 0 for p in adapters)


def test_the_published_schedule_of_rates() -> None:
    from worldsmith.config.recipes.registry import get_recipe
    from worldsmith.training.scheduler import LambdaLinear

    config: Any = get_recipe("cogvideox_2b")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule: LambdaLinear = config.scheduler.build(optimizer=optimizer)
    rates = []
    for _ in range(1000):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[:100] == pytest.approx([0.05] * 100)
    assert [rates[k - 1] for k in (101, 200, 500, 1000)] == pytest.approx([0.909, 0.81, 0.51, 0.01])
