"""A run of a tiny video generator on disk, as a finished training leaves it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from tiny_generator import generator_config

from worldsmith.checkpoint.run.checkpointer import Checkpointer
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.yaml.yaml_text import dump_yaml
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.models.spec import ModelSpec
from worldsmith.objectives.rectified_flow import RectifiedFlow
from worldsmith.sampling.write_media import write_mp4
from worldsmith.tools.generate.sample_order import OUTPUTS, MadeSample, read_sample


def write_generator_run(root: Path) -> Path:
    """A run on two 96x64 clips of 9 frames at 8 fps, with one checkpoint of random weights."""
    records = []
    for index in range(2):
        clip = torch.full((3, 9, 64, 96), 40, dtype=torch.uint8)
        clip[index, :, 16:40, 16:40] = 220
        write_mp4(root / "data" / f"{index}.mp4", clip, 8)
        window = {"start_frame": 0, "end_frame": 8, "temporal_interval": 1, "caption": "A square."}
        records.append(
            {"uuid": str(index), "vision_path": f"{index}.mp4", "width": 96, "height": 64, "t2w_windows": [window]}
        )
    data = root / "data" / "video_dataset_file.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    config = generator_config()
    dataset = VideoDataset.Config(path=str(data), resolution="64", min_frames=1)
    tree = {
        "job": {"project": "demo", "group": "", "name": "tiny"},
        "model": to_dict(ModelSpec(name="cosmos3", config=config)),
        "objective": to_dict(RectifiedFlow.Config()),
        "trainer": {"seed": 0},
        "checkpoint": to_dict(Checkpointer.Config(init="scratch")),
        "dataloader_train": to_dict(VideoLoader.Config(dataset=dataset, max_sequence_length=500)),
    }
    folder = root / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_yaml(tree))
    weights = Cosmos3Generator(config, seed=3).network.state_dict()
    model = {prefix + name: tensor for prefix in ("net.", "net_ema.") for name, tensor in weights.items()}
    Checkpointer.Config(init="scratch").build(folder=folder / "checkpoints").save(4, {"model": model})
    return folder


def find_samples(root: Path) -> Iterator[MadeSample]:
    """Yields the complete samples of `worldsmith generate` below the folder `root`, sorted by path."""
    for outcome in sorted(root.rglob(OUTPUTS)):
        if found := read_sample(outcome.parent):
            yield found
