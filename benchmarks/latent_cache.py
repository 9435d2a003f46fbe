"""How much faster is a training step on cached latents than one that encodes its clips?

Whole steps of a run (loader, VAE, forward, backward, optimizer) over moving-shapes clips of 25 frames at tier 64, with
the shipped tiny VAE and a network of hidden size 256 and 6 layers, float32. The two runs take turns; the cached one has
filled its cache before. Both have the same losses, to the last bit.

    python benchmarks/latent_cache.py [--clips 8] [--rounds 5] [--threads 1] [--quick]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from side_by_side import medians

from worldsmith.cli.main import main as worldsmith
from worldsmith.recipes.vision_tiny import vision_sft_tiny
from worldsmith.training.trainer import Trainer


def make_trainer(folder: Path, data: Path, name: str, *, cached: bool, quick: bool) -> Trainer:
    """A run of the demo's recipe in a folder of its own; nothing is saved."""
    config = vision_sft_tiny()
    config.trainer.callbacks = {}
    config.trainer.grad_accum_iter = 1
    config.dataloader_train.dataset.path = str(data)
    config.dataloader_train.latent_cache = str(folder / "latents") if cached else ""
    if quick:
        config.model.config.network.num_hidden_layers = 1
    return Trainer(config, run_folder=folder / name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=8, help="clips in the data set")
    parser.add_argument("--rounds", type=int, default=5, help="turns that are timed")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--quick", action="store_true", help="one layer and one turn: checks the program only")
    arguments = parser.parse_args()
