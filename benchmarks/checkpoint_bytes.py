"""How many bytes does a checkpoint need with all weights, with the trained ones alone, and with adapters alone?

One step of the demo for each, with a network of hidden size 256 and 6 layers, saved and measured on disk:

- all: generation tower trained, `checkpoint.save_weights = "all"`, the average over everything;
- trained: the same training, `save_weights = "trained"` and `ema.trainable_only`;
- adapters: LoRA of rank 16 on the four attention projections, `save_weights = "trained"`, no average.

    python benchmarks/checkpoint_bytes.py [--quick]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from copy import deepcopy
from pathlib import Path

import torch
from demo_run import demo_config

from worldsmith.training.trainer import Trainer

PARTS = ("model", "optim")
TRAINED = ["moe_gen", "time_embedder", "vae2llm", "llm2vae"]


def variants(config: Trainer.Config) -> dict[str, Trainer.Config]:
    """The three runs."""
    everything, trained, adapters = (deepcopy(config) for _ in range(3))
    for some in (everything, trained):
        some.optimizer.keys_to_select = list(TRAINED)
    for some in (trained, adapters):
        some.checkpoint.save_weights = "trained"
    trained.model.config.ema.trainable_only = True
    adapters.model.config.ema.enabled = False
    adapters.model.config.lora_enabled = True
    adapters.optimizer.keys_to_select = ["lora_"]
    return {"all": everything, "trained": trained, "adapters": adapters}


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
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = demo_config(folder / "data", clips=2, layers=1 if arguments.quick else 6)
        found = {kind: bytes_of(some, folder / kind) for kind, some in variants(config).items()}
    print(f"{'':10}" + "".join(f"{part + ', MB':>14}" for part in (*PARTS, "all files")) + f"{'share of all':>14}")
    for kind, sizes in found.items():
        figures = "".join(f"{size / 1e6:14.2f}" for size in sizes.values())
        print(f"{kind:10}{figures}{sizes['all files'] / found['all']['all files']:13.1%}")
    return 0 if found["adapters"]["all files"] < found["trained"]["all files"] < found["all"]["all files"] else 1


if __name__ == "__main__":
    sys.exit(main())
