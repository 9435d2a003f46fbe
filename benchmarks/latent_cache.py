"""How much faster is a training step on cached latents than one that encodes its clips?

Whole steps (loader, decoding of MP4 files, VAE, forward, backward, optimizer) over 16 moving-shapes clips of 17 frames
of 128 × 128, with the shipped tiny VAE and a network of hidden size 256 and 6 layers, float32. Two runs take turns; the
cached one fills its cache in the turn that warms up. Their losses must be equal to the last bit.

    python benchmarks/latent_cache.py [--rounds 5] [--threads 1] [--quick]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch
from demo_run import demo_config
from side_by_side import medians

from worldsmith.training.trainer import Trainer


def stepper(config: Trainer.Config, folder: Path, losses: list[float]) -> Callable[[], None]:
    """A run in `folder`; each call does one step and notes its loss."""
    trainer = Trainer(config, run_folder=folder)
    batches = iter(trainer.state.loader)
    return lambda: losses.append(trainer.training_step(batches).loss)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns that are timed")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--quick", action="store_true", help="2 clips, 1 layer, 1 turn: checks the program only")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.quick:
        arguments.rounds = 1
    losses: dict[str, list[float]] = {"cached": [], "encoding": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = {"clips": 2, "layers": 1, "size": 64} if arguments.quick else {"clips": 16, "layers": 6, "size": 128}
        cached = demo_config(folder / "data", **size)
        encoding = deepcopy(cached)
        encoding.dataloader_train.latent_cache = ""
        ways = {
            "cached": stepper(cached, folder / "cached", losses["cached"]),
            "encoding": stepper(encoding, folder / "encoding", losses["encoding"]),
        }
        seconds = medians(ways, rounds=arguments.rounds)
    print(f"{size['clips']} clips of 17 frames of {size['size']} × {size['size']}, {arguments.threads} threads")
    for kind, taken in seconds.items():
        print(f"{kind:>8}: {taken:6.2f} s a step (median of {arguments.rounds})")
    print(f"ratio {seconds['encoding'] / seconds['cached']:.2f}")
    same = losses["cached"] == losses["encoding"]
    print(f"losses of {len(losses['cached'])} steps: {'equal to the last bit' if same else 'DIFFERENT'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
