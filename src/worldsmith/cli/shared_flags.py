"""Flags that several commands have, and numbers that the parser checks, so that a wrong one costs nothing."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worldsmith.config.declare.ranges import Range

COUNT = Range(ge=1)
NOT_NEGATIVE = Range(ge=0)
SCALE = Range(ge=0, finite=True)
POSITIVE = Range(gt=0, finite=True)


def number(kind: type[int] | type[float], limits: Range) -> Callable[[str], Any]:
    """The `type` of an argument that is a number within limits; the parser adds the argument's name to a complaint."""

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"expected {what}, found {text!r}") from None
        if not limits.allows(value):
            raise argparse.ArgumentTypeError(f"must be {limits}, found {text}")
        return value

    return read


def add_model(
    parser: argparse.ArgumentParser, name: str, *, kind: Callable[[str], Any] = Path, metavar: str, help: str
) -> None:
    """The argument that names weights; the guides of other trainers write it as --checkpoint-path."""

    def read(text: str) -> Any:
        return text if text is argparse.SUPPRESS else kind(text)  # the parser reads its own default too

    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument(name, nargs="?", default=argparse.SUPPRESS, type=read, metavar=metavar, help=help)
    either.add_argument("--checkpoint-path", dest=name, type=kind, metavar=metavar, help=f"the same as {metavar}")


def add_base(parser: argparse.ArgumentParser) -> None:
    """--base of the commands that read a run whose base may have moved."""
    parser.add_argument(
        "--base",
        metavar="DIR",
        help="where the weights are now that the run started from, if its checkpoints hold the trained ones only",
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """--steps, --guidance and --shift of the commands that make videos; None: the model's own."""
    add = parser.add_argument
    add("--steps", type=number(int, COUNT), metavar="N", help="sampling steps (default: the model's, 35)")
    add(
        "--guidance",
        type=number(float, SCALE),
        metavar="G",
        help="scale of classifier-free guidance, 1 = off (default: the model's, 6)",
    )
    add_shift(parser, "shift of the noise schedule (default: that of training)")


def add_shift(parser: argparse.ArgumentParser, help: str) -> None:
    """--shift of a noise schedule."""
    parser.add_argument("--shift", type=number(float, POSITIVE), metavar="S", help=help)
