"""How many bytes does a checkpoint need with all weights, with the trained ones alone, and with adapters alone?

One step of the demo for each, with a network of hidden size 256 and 6 layers, saved and measured on disk:

- all: generation tower trained, `checkpoint.save_weights = "all"`, the average over everything;
- trained: the same training, `save_weights = "trained"` and `ema.trainable_only`;
- adapters: LoRA of rank 16 on the four attention projections, `save_weights = "trained"`, no average.

Then the same of a CogVideoX of that size: all weights (which are all trained), and adapters.

    python benchmarks/checkpoint_bytes.py [--quick]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from copy import deepcopy
from pathlib import Path

import torch
from cogvideox_step import make_pipeline, our_config
from demo_run import demo_config

from worldsmith.training.trainer import Trainer

PARTS = ("model", "optim")
TRAINED = ["moe_gen", "time_embedder", "vae2llm", "llm2vae"]


def variants(config: Trainer.Config) -> dict[str, Trainer.Config]:
    """The three runs."""
    everything, trained, adapters = (deepcopy(config) for _ in range(3))
    for some in (everything, trained):
        some.optimizer.keys_to_select = list(TRAINED)
    trained.checkpoint.save_weights = "trained"
    trained.model.config.ema.trainable_only = True
    return {"all": everything, "trained": trained, "adapters": with_adapters(adapters)}


def with_adapters(config: Trainer.Config) -> Trainer.Config:
    """Adapters alone, in training and in checkpoints."""
    config.checkpoint.save_weights = "trained"
    config.model.config.ema.enabled = False
    config.model.config.lora_enabled = True
    config.model.config.lora_rank, config.model.config.lora_alpha = 16, 32
    config.optimizer.keys_to_select = ["lora_"]
    return config


def bytes_of(config: Trainer.Config, folder: Path) -> dict[str, int]:
    """Bytes of the parts of a checkpoint after one step, and of all its files."""
    trainer = Trainer(config, run_folder=folder)
    trainer.training_step(iter(trainer.state.loader))
    checkpoint = trainer.state.save()
    files = [file for file in checkpoint.rglob("*") if file.is_file()]
    sizes = {part: sum(f.stat().st_size for f in files if f.is_relative_to(checkpoint / part)) for part in PARTS}
    return {**sizes, "all files": sum(file.stat().st_size for file in files)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 clips and 1 layer: checks the program only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    layers = 1 if arguments.quick else 6
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = variants(demo_config(folder / "data", clips=2, layers=layers))
        make_pipeline(folder / "pipeline", layers)
        video = our_config(folder, layers, "")
        video.model.config.ema.enabled = True
        video_runs = {"all": video, "adapters": with_adapters(deepcopy(video))}
        found = [
            {kind: bytes_of(run, folder / family / kind) for kind, run in some.items()}
            for family, some in (("demo", runs), ("cogvideox", video_runs))
        ]
    print(f"{'':20}" + "".join(f"{part + ', MB':>14}" for part in (*PARTS, "all files")) + f"{'share of all':>14}")
    for family, kinds in zip(("demo", "CogVideoX"), found, strict=True):
        for kind, sizes in kinds.items():
            figures = "".join(f"{size / 1e6:14.2f}" for size in sizes.values())
            print(f"{family:10}{kind:10}{figures}{sizes['all files'] / kinds['all']['all files']:13.1%}")
    totals = [[sizes["all files"] for sizes in kinds.values()] for kinds in found]
    return 0 if all(sizes == sorted(sizes, reverse=True) for sizes in totals) else 1


if __name__ == "__main__":
    sys.exit(main())
