"""How much faster do two processes fill a latent cache than one?

`worldsmith encode` of moving-shapes clips of 17 frames of 128 × 128, one torch thread in each process, an empty cache
each time, with a Wan VAE of random weights that is 64 channels wide: the released one has 160, and the shipped tiny one
16, whose convolutions wait for memory and not for processors (`--width 16` measures that). One process and two take
turns; a turn is timed from the start of its processes, which are forked from this one, to their end. Both must leave
the same files, byte for byte. Where other work keeps the processors busy, the second ratio tells more: processor time
of one process against that of the busier of two.

    python benchmarks/encode.py [--rounds 3] [--clips 32] [--width 64] [--quick]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from demo_run import demo_config
from diffusers import AutoencoderKLWan
from side_by_side import medians

from worldsmith.actions.processes import run_in_processes
from worldsmith.config.tree.config_draft import Loaded
from worldsmith.config.tree.references import resolve
from worldsmith.models.video_vae.wan_files import find_vae, read_vae_config
from worldsmith.tools.encode.encode import Encode
from worldsmith.training.trainer import Trainer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="turns that are timed")
    parser.add_argument("--clips", type=int, default=32, help="clips that are encoded")
    parser.add_argument("--width", type=int, default=64, help="channels of the VAE's first layer")
    parser.add_argument("--quick", action="store_true", help="2 clips of 64 × 64, 1 turn: checks the program only")
    arguments = parser.parse_args()
    width = 16 if arguments.quick else arguments.width
    clips, size, rounds = (2, 64, 1) if arguments.quick else (arguments.clips, 128, arguments.rounds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = demo_config(folder / "data", clips=clips, layers=1, size=size)
        config.trainer.cpu_threads = 1
        config.model.config.tokenizer.vae_path = make_vae(config, folder / "vae", width)

        busiest: dict[int, list[float]] = {1: [], 2: []}

        def encode(processes: int) -> Callable[[], None]:
            cache = folder / f"by_{processes}"

            def once() -> None:
                shutil.rmtree(cache, ignore_errors=True)
                config.dataloader_train.latent_cache = str(cache)
                action = Encode.Config(processes=processes).build(run=Loaded(resolve(config)))

                def work(rank: int, size: int, done: Callable[[int], None]) -> float:
                    action.encode_share(rank, size, done)
                    return time.process_time()

                busiest[processes].append(max(run_in_processes(work, processes, lambda done: None)))

            return once

        seconds = medians({"one": encode(1), "two": encode(2)}, rounds=rounds)
        files = [{path.name: path.read_bytes() for path in (folder / f"by_{n}").rglob("*.safetensors")} for n in (1, 2)]
    print(
        f"{clips} clips of 17 frames of {size} × {size}, VAE {width} wide; load of the machine {os.getloadavg()[0]:.1f}"
    )
    for way, taken in seconds.items():
        print(f"{way} process{'es' * (way == 'two')}: {taken:6.2f} s (median of {rounds})")
    print(f"ratio {seconds['one'] / seconds['two']:.2f}")
    one, two = (statistics.median(busiest[processes][1:]) for processes in (1, 2))
    print(f"processor time: {one:.2f} s for one, {two:.2f} s for the busier of two, ratio {one / two:.2f}")
    same = files[0] == files[1] and len(files[0]) == clips
    print(f"{len(files[0])} files: {'equal, byte for byte' if same else 'DIFFERENT'}")
    return 0 if same else 1


def make_vae(config: Trainer.Config, folder: Path, width: int) -> str:
    """A VAE like that of the run but for its width, and with random weights."""
    settings = read_vae_config(find_vae(resolve(config).model.config.tokenizer.vae_path))
    torch.manual_seed(0)
    AutoencoderKLWan.from_config(settings | {"base_dim": width}).save_pretrained(folder)
    return str(folder)


if __name__ == "__main__":
    sys.exit(main())
