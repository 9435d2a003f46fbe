"""`worldsmith convert SOURCE`: makes a base checkpoint from weights in another format."""

from __future__ import annotations

import argparse
from pathlib import Path

from worldsmith.cli.shared_flags import NOT_NEGATIVE, add_model, number

HELP = "make a base checkpoint from a diffusers, native or Qwen3-VL folder"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `worldsmith convert`."""
    add_model(
        parser,
        "source",
        kind=str,
        metavar="SOURCE",
        help="diffusers pipeline or transformer folder, native export, Qwen3-VL or Edge reasoner folder, the hub name "
        "(org/name) of one of these, or a checkpoint",
    )
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", required=True, help="the new folder")
    parser.add_argument(
        "--to",
        choices=("dcp", "native", "diffusers"),
        default="dcp",
        help="dcp: a checkpoint for checkpoint.load_path; native: safetensors with native names; diffusers: a "
        "transformer folder (default: %(default)s)",
    )
    parser.add_argument(
        "--dtype",
        choices=("stored", "bfloat16", "float32"),
        default="stored",
        help="stored: that of each tensor in SOURCE, float32 for what is initialised (default: %(default)s)",
    )
    parser.add_argument("--action-gen", action="store_true", help="make action heads where SOURCE has none")
    parser.add_argument("--sound-gen", action="store_true", help="make sound heads where SOURCE has none")
    parser.add_argument(
        "--seed", type=number(int, NOT_NEGATIVE), default=0, help="of the initial values (default: %(default)s)"
    )
    parser.add_argument("--force", action="store_true", help="replace an earlier conversion")


def run(args: argparse.Namespace) -> int:
    """Converts and prints what was done with each tensor. Raises UserError for input that cannot be used."""
    from worldsmith.checkpoint.formats.convert import convert
    from worldsmith.config.errors import UserError

    try:
        report = convert(
            args.source,
            args.out,
            to=args.to,
            dtype=args.dtype,
            heads=["action"] * args.action_gen + ["sound"] * args.sound_gen,
            seed=args.seed,
            force=args.force,
        )
    except ValueError as error:
        raise UserError(str(error)) from error
    print("\n".join(report.lines()))
    print(f"converted: {args.out} ({args.to}); to train from it: checkpoint.load_path={args.out}")
    return 0
