"""`worldsmith dataset moving-shapes OUT`: makes the procedural dataset."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HELP = "Make datasets."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the kinds of dataset that can be made, each with its own options."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    shapes = kinds.add_parser(
        "moving-shapes",
        help="one coloured shape that moves in one direction, with captions",
        description="Renders moving coloured shapes to H.264 MP4 files with captions, in a train and a val split, "
        "and writes evaluation prompts. A complete dataset with the same parameters is left as it is.",
    )
    shapes.add_argument("out", type=Path, metavar="OUT", help="folder of the dataset")
    shapes.add_argument("--clips", type=int, default=700, help="training clips (default %(default)s)")
    shapes.add_argument("--val-clips", type=int, default=64, help="validation clips (default %(default)s)")
    shapes.add_argument("--seed", type=int, default=0, help="seed of scenes and captions (default %(default)s)")
    shapes.add_argument("--size", type=int, default=64, help="height and width in pixels (default %(default)s)")
    shapes.add_argument("--num-frames", type=int, default=17, help="frames of a clip, 4k+1 (default %(default)s)")
    shapes.add_argument("--fps", type=int, default=8, help="frames per second (default %(default)s)")
    shapes.add_argument("--force", action="store_true", help="replace a dataset made with other parameters")


def run(args: argparse.Namespace) -> int:
    """Makes the dataset that the arguments describe. Raises UserError for arguments that cannot be met."""
    from worldsmith.config.errors import UserError
    from worldsmith.data.moving_shapes import DatasetPlan, make_dataset

    plan = DatasetPlan(
        clips=args.clips,
        val_clips=args.val_clips,
        seed=args.seed,
        size=args.size,
        num_frames=args.num_frames,
        fps=args.fps,
    )
    try:
        made = make_dataset(args.out, plan, force=args.force, progress=show_progress if sys.stderr.isatty() else None)
    except ValueError as error:
        raise UserError(str(error)) from error
    if made:
        print(f"moving-shapes: {plan.clips} train and {plan.val_clips} val clips in {args.out}")
    else:
        print(f"moving-shapes: {args.out} is complete already, nothing to do")
    return 0


def show_progress(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\rmoving-shapes: clip {done}/{total}", end=end, file=sys.stderr, flush=True)
