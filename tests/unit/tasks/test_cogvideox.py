"""The task of CogVideoX: what it refuses, how batches are made, and a run that learns, stops and goes on."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cogvideox_ranks
import pytest
import tiny_cogvideox
import tiny_runs
import torch

from worldsmith.config import WrongValueError
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.distributed.world import World
from worldsmith.families.cogvideox.architecture import ImageConfig, tiny
from worldsmith.families.cogvideox.model import CogVideoXGenerator
from worldsmith.families.cogvideox.task import CogVideoXTask
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
        (learned_table, r"resolution = '64x64' and num_video_frames = 9, or .*learned_positional_embeddings = false"),
        (set_to("model.config.network.patch_size_t", 2), "clips of up to 64x64"),
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


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (set_to("network.in_channels", 16), "image = null, network.in_channels = 16"),
        (set_to("image", ImageConfig()), "2 . out_channels"),
        (set_to("network.ofs_embed_dim", 8), "ofs_embed_dim"),
        (set_to("network.patch_size_t", 2), "patch_size_t"),
    ],
)
def test_networks_and_images_that_do_not_go_together_are_refused(change: Callable[[Any], None], named: str) -> None:
    config = CogVideoXGenerator.Config(network=tiny())
    config.text_encoder.max_length = 16
    config.check()
    change(config)
    with pytest.raises(WrongValueError, match=named):
        (config.network.check if "patch" in named else config.check)()


def test_clips_of_fewer_frames_than_a_learned_table_are_left_out_and_counted(world: Path) -> None:
    config: Any = tiny_cogvideox.tiny_config(world, "cogvideox_5b_i2v_tiny")
    config.dataloader_train.dataset.num_video_frames, config.dataloader_train.dataset.min_frames = -1, 5
    config.dataloader_train.dataset.temporal_interval_mode = "max_30fps"
    loader = cogvideox_ranks.make_task(config, World()).loader()
    assert {sample.latent_shape for sample in loader.first_samples()} == {(3, 8, 8)}
    assert loader.quarantine.counts == {"other_shape": 4}


def test_noise_that_is_off_and_described_is_refused() -> None:
    with pytest.raises(WrongValueError, match="noise_log_std"):
        ImageConfig(noise=False, noise_log_std=0.1).check()


def test_a_repeated_image_stands_beside_every_frame_and_another_beside_the_first() -> None:
    image = torch.arange(1.0, 5.0).view(1, 4, 1, 1, 1)
    assert ImageConfig(repeat=True).extend(image, 3).flatten(2).tolist() == [[[n] * 3 for n in (1, 2, 3, 4)]]
    assert ImageConfig().extend(image, 3).flatten(2).tolist() == [[[n, 0, 0] for n in (1, 2, 3, 4)]]


def test_clips_have_frames_that_come_out_of_the_decoder_as_they_went_in() -> None:
    grid = LatentGrid(*CogVideoXGenerator.Config().latent_grid)
    assert [grid.usable_frames(n) for n in (1, 8, 9, 16, 17, 49, 50, 56)] == [1, 1, 9, 9, 17, 49, 49, 49]
    assert [grid.latent_frames(n) for n in (1, 2, 9, 10, 49)] == [1, 3, 3, 5, 13]
    assert grid.latent_shape(49, 480, 720) == (13, 60, 90)
    assert grid.vision_tokens((13, 60, 90)) == 17_550
    assert LatentGrid(4, 8, 2, 2, 2).vision_tokens((21, 96, 170)) == 44_880


def test_batches_hold_one_shape_and_a_run_that_was_stopped_goes_on(world: Path, tmp_path: Path) -> None:
    config = tiny_cogvideox.tiny_config(world, "cogvideox_5b_tiny", steps=6)
    config.checkpoint.save_iter = 3
    shapes: list[set[Any]] = []
    loss = CogVideoXTask.loss

    def watched(task: CogVideoXTask, batch: Any, **others: Any) -> Any:
        shapes.append({sample.latent_shape for sample in batch})
        return loss(task, batch, **others)

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


def test_a_run_with_images_goes_on_whether_clips_are_encoded_or_cached(world: Path, tmp_path: Path) -> None:
    """The second run reads the clips' latents that the first one left, and their first frames from the files."""
    config = tiny_cogvideox.tiny_config(world, "cogvideox_5b_i2v_tiny", steps=2)
    config.checkpoint.save_iter = 1
    Trainer(config, run_folder=tmp_path / "whole").train()
    config.trainer.max_iter = 1
    Trainer(config, run_folder=tmp_path / "parts").train()
    config.trainer.max_iter = 2
    last = Trainer(config, run_folder=tmp_path / "parts")
    last.train()
    ends = [tmp_path / name / "checkpoints/iter_000000002" for name in ("whole", "parts")]
    whole, parts = map(tiny_runs.read_checkpoint, ends)
    assert all(torch.equal(whole[name], parts[name]) for name in whole if isinstance(whole[name], torch.Tensor))
    assert tiny_runs.read_losses(tmp_path / "whole")[1:] == tiny_runs.read_losses(tmp_path / "parts")[1:]
    task: Any = last.task
    batch = next(iter(task.loader()))
    assert all(sample.latents is not None and sample.video is None for sample in batch)
    for cached, read in zip(batch, next(iter(task.loader(dry=True))), strict=True):
        assert cached.image.video.shape == (3, 1, 64, 64)
        assert torch.equal(cached.image.video, read.video[:, :1])
        assert torch.equal(pickle.loads(pickle.dumps(cached)).image.video, cached.image.video)  # as from a worker
    task.model.config.image = ImageConfig(dropout=0.0)
    images = [draw_images(task, batch, seed) for seed in (1, 1, 2)]
    assert torch.equal(images[0], images[1])
    assert torch.equal(images[0][1:], draw_images(task, batch[1:], 1))
    task.model.config.image = ImageConfig(dropout=1.0)
    assert not draw_images(task, batch, 1).any()
    assert not torch.allclose(images[0], images[2], atol=1e-3)


def draw_images(task: Any, batch: list[Any], seed: int) -> torch.Tensor:
    found: torch.Tensor = task.draw_images(batch, task.model.config.image, task.prepare_others(batch, seed=seed))
    return found


def test_images_without_noise_are_cached_beside_their_clips(world: Path, tmp_path: Path) -> None:
    config = tiny_cogvideox.tiny_config(world, "cogvideox1_5_5b_i2v_tiny")
    config.model.config.image.noise = False
    config.dataloader_train.latent_cache = str(tmp_path / "latents")
    task: Any = cogvideox_ranks.make_task(config, World())
    before = next(iter(task.loader()))
    assert task.fills_cache(before)
    drawn = draw_images(task, before, 1)
    assert [task.encoder.encode(sample) for sample in before] == [True] * len(before)  # their clips are missing
    after = next(iter(task.loader()))
    assert [sample.image.video for sample in after] == [None] * len(after)
    assert torch.equal(draw_images(task, after, 1), drawn)
    assert not task.fills_cache(after)


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
