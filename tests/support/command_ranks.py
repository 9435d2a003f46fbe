"""`worldsmith` on several ranks, without a launcher: `python command_ranks.py WORD…`. See launch.py."""

from __future__ import annotations

import sys

import torch
from imported_once import import_for_videos
from launch import fork_ranks

from worldsmith.cli.main import main
from worldsmith.sampling import generate_videos, sample_args, write_media  # noqa: F401
from worldsmith.tools.generate import sample_order  # noqa: F401 (imported once, before the ranks are forked)


def run() -> None:
    torch.set_num_threads(1)
    if code := main(sys.argv[1:]):
        raise RuntimeError(f"exit code {code}")


if __name__ == "__main__":
    import_for_videos()
    sys.exit(fork_ranks(run))
