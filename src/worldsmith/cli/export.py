"""`worldsmith export RUN`: writes a trained generator as a folder that other libraries load."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.cli.shared_flags import add_base, add_model, add_shift

if TYPE_CHECKING:
    from worldsmith.checkpoint.formats.family_formats import Export

HELP = "write a trained model as a diffusers pipeline, as native safetensors, or its adapters for PEFT"
FORMATS = ("diffusers", "native", "adapter")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `worldsmith export`."""
    what = "run folder, one of its checkpoints/iter_… folders, or an export"
    add_model(parser, "model", metavar="RUN", help=what)
    parser.add_argument(
        "--config-file", type=Path, metavar="FILE", help="config.yaml of RUN, which is read in any case"
    )
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="the new folder (default: in RUN)")
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="diffusers",
        help="diffusers: a whole pipeline; native: sharded safetensors with native names and config.json; adapter: the "
        "low-rank adapters alone, in PEFT's format (default: %(default)s)",
    )
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="default: %(default)s")
    parser.add_argument(
        "--weights",
        choices=("auto", "ema", "live"),
        default="auto",
        help="default: averaged (EMA) weights if there are any",
    )
    parser.add_argument(
        "--merge",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="merge a LoRA run's adapters into the weights (default); --no-merge keeps them beside (native only)",
    )
    add_base(parser)
    add_shift(parser, "shift of the exported noise schedule (default: that of training)")
    parser.add_argument("--force", action="store_true", help="replace an older export")


def run(args: argparse.Namespace) -> int:
    """Exports; 0 on success or when there is nothing to do. Raises UserError for input that cannot be used."""
    from worldsmith.checkpoint.formats.export_folder import require_place
    from worldsmith.checkpoint.formats.family_formats import ExportOptions
    from worldsmith.checkpoint.formats.find_model import find_family, find_model
    from worldsmith.checkpoint.formats.registry import formats_of
    from worldsmith.config.errors import UserError
    from worldsmith.sampling.training_data import with_clip_size

    exports = formats_of(find_family(args.model)).exports()
    if args.format not in exports:
        raise UserError(f"--format {args.format}: such a model is exported as {' or '.join(exports)}")
    export = exports[args.format]
    require_meaning(args, export)
    out = args.out or default_folder(args.model, export.folder)
    require_place(out, export.index)
    try:
        model = find_model(args.model, weights=args.weights, base=args.base)
        if not args.merge and not model.has_adapters:
            raise UserError(f"--no-merge keeps adapters, and {args.model} has none; leave it out")
        if model.defaults is not None:
            defaults = with_clip_size(model.defaults, model.tree, model.config.latent_grid)
            shift = defaults.shift if args.shift is None else args.shift
            model = replace(model, defaults=replace(defaults, shift=shift))
        written = export.write(model, out, ExportOptions(dtype=args.dtype, merge=args.merge, force=args.force))
    except ValueError as error:
        raise UserError(str(error)) from error
    what = f"{model.weights} weights after {model.iteration} steps, {args.dtype}"
    print(
        f"exported {export.what}: {out} ({what})" if written else f"{out} is complete already ({what}), nothing to do"
    )
    for line in model.formats.left_out(args.format, model.config):
        print(line)
    if not export.has_weights and model.tree is not None:
        print(f"it belongs to {'the random weights of the run' if model.start is None else model.start.lasting}")
    return 0


def require_meaning(args: argparse.Namespace, export: Export) -> None:
    """Raises UserError for a flag that means nothing in the format asked for, or for another config than the run's."""
    from worldsmith.config.errors import UserError

    own = default_folder(args.model, "config.yaml")
    if args.config_file is not None and args.config_file.resolve() != own.resolve():
        raise UserError(f"--config-file {args.config_file}: a run is exported with its own config, {own}; leave it out")
    if not args.merge and not export.keeps_adapters:
        raise UserError(
            f"--no-merge keeps adapters beside the weights, which --format {args.format} cannot; leave it out, or give "
            "--format native"
        )
    if args.shift is not None and not export.has_schedule:
        raise UserError(
            f"--shift belongs to a noise schedule, which --format {args.format} does not have; leave it out"
        )
    if args.base is not None and not export.has_weights:
        raise UserError(f"--base has no effect: --format {args.format} reads the adapters alone; leave it out")


def default_folder(model: Path, name: str) -> Path:
    """The folder of that name in RUN, also when one of RUN's checkpoints is exported."""
    run = model.resolve().parent.parent if (model / "model").is_dir() else model
    return run / name
