"""`worldsmith export RUN`: writes a trained generator as a diffusers pipeline folder."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

HELP = "write a trained generator as a diffusers pipeline folder"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `worldsmith export`."""
    parser.add_argument("model", type=Path, metavar="RUN", help="run folder, or one of its checkpoints/iter_… folders")
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="the new folder (default: RUN/export)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="default: %(default)s")
    parser.add_argument(
        "--weights",
        choices=("auto", "ema", "live"),
        default="auto",
        help="default: averaged (EMA) weights if there are any",
    )
    parser.add_argument("--shift", type=float, help="shift of the exported noise schedule (default: that of training)")
    parser.add_argument("--force", action="store_true", help="replace an older export")


def run(args: argparse.Namespace) -> int:
    """Exports; 0 on success or when there is nothing to do. Raises UserError for input that cannot be used."""
    from worldsmith.checkpoint.export_diffusers import ExportSource, export_pipeline
    from worldsmith.checkpoint.load_model import find_model
    from worldsmith.config.errors import UserError
    from worldsmith.sampling.training_data import with_clip_size

    try:
        model = find_model(args.model, weights=args.weights)
        defaults = with_clip_size(model.defaults, model.tree)
        if args.shift is not None:
            defaults = replace(defaults, shift=args.shift)
        model = replace(model, defaults=defaults)
        out = args.out or default_folder(args.model)
        source = ExportSource(run=model.run, iteration=model.iteration, weights=model.weights)
        written = export_pipeline(
            model.load(full_precision=True), out, source=source, dtype=args.dtype, force=args.force
        )
    except (ValueError, FileNotFoundError, FileExistsError) as error:
        raise UserError(str(error)) from error
    what = f"{model.weights} weights after {model.iteration} steps, {args.dtype}"
    print(f"exported pipeline: {out} ({what})" if written else f"{out} is complete already ({what}), nothing to do")
    return 0


def default_folder(model: Path) -> Path:
    """RUN/export, also when one of RUN's checkpoints is exported."""
    run = model.resolve().parent.parent if (model / "model").is_dir() else model
    return run / "export"
