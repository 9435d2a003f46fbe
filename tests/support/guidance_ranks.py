"""The branches of guidance on two ranks: `python guidance_ranks.py FOLDER`. See test_guidance_on_ranks.py."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from imported_once import import_for_videos
from launch import fork_ranks
from tiny_generator import WIDER, generator_config

from worldsmith.distributed.world import start_world, stop_world
from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.sampling.generate_videos import generate_latents
from worldsmith.sampling.requests import GenerationRequest
from worldsmith.tools.generate.sample_order import branch_share

SETTINGS = {"steps": 5, "guidance": 4.0, "shift": 3.0}


def make_generator() -> Cosmos3Generator:
    config = generator_config(**WIDER, initializer_range=0.1)
    return Cosmos3Generator(config, seed=0)


def make_requests() -> list[GenerationRequest]:
    """Of different size, length, condition and negative prompt."""
    clip = torch.randint(0, 256, (3, 5, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    first = GenerationRequest(prompt="A red square.", height=64, width=64, num_frames=9, fps=8.0, seed=1)
    return [
        first,
        replace(first, seed=2, width=96, negative_prompt="A long text about all that nobody wants to see."),
        replace(first, seed=3, num_frames=17, condition=clip, condition_frames=2),
        replace(first, seed=4, num_frames=1, prompt="A picture."),
    ]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    world = start_world(context_parallel=2)
    latents = generate_latents(make_generator(), make_requests(), share=branch_share(world), **SETTINGS)
    torch.save(latents, folder / f"latents_{world.rank}.pt")
    stop_world()


if __name__ == "__main__":
    import_for_videos()
    sys.exit(fork_ranks(partial(main, Path(sys.argv[1]))))
