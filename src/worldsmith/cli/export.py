"""`worldsmith export RUN`: writes a trained generator as a folder that other libraries load."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from worldsmith.cli.shared_flags import add_base, add_shift

if TYPE_CHECKING:
    from worldsmith.checkpoint.formats.cosmos3.load_model import StoredModel

HELP = "write a trained generator as a diffusers pipeline, as native safetensors, or its adapters for PEFT"
FOLDERS = {"diffusers": "export", "native": "export_native", "adapter": "export_adapter"}
INDEX = {"diffusers": "model_index.json", "native": "config.json", "adapter": "adapter_config.json"}
"""What every folder of the format has."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `worldsmith export`."""
    parser.add_argument(
        "model", type=Path, metavar="RUN", help="run folder, one of its checkpoints/iter_… folders, or an export"
    )
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="the new folder (default: in RUN)")
    parser.add_argument(
        "--format",
        choices=tuple(FOLDERS),
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
    from worldsmith.checkpoint.formats.cosmos3.load_model import find_model
    from worldsmith.checkpoint.formats.export_folder import require_place
    from worldsmith.config.errors import UserError
    from worldsmith.models.model_files import lasting_name
    from worldsmith.sampling.training_data import with_clip_size

    if not args.merge and args.format != "native":
        raise UserError(
            f"--no-merge keeps adapters beside the weights, which --format {args.format} cannot; leave it out, or give "
            "--format native"
        )
    if args.shift is not None and args.format == "adapter":
        raise UserError("--shift belongs to a noise schedule, which --format adapter does not have; leave it out")
    if args.base is not None and args.format == "adapter":
        raise UserError("--base has no effect: --format adapter reads the adapters alone; leave it out")
    out = args.out or default_folder(args.model, args.format)
    require_place(out, INDEX[args.format])
    try:
        model = find_model(args.model, weights=args.weights, base=args.base)
        if not args.merge and not model.config.lora_enabled:
            raise UserError(f"--no-merge keeps adapters, and {args.model} has none; leave it out")
        defaults = with_clip_size(model.defaults, model.tree)
        if args.shift is not None:
            defaults = replace(defaults, shift=args.shift)
        model = replace(model, defaults=defaults)
        written = write(model, out, args)
    except ValueError as error:
        raise UserError(str(error)) from error
    what = f"{model.weights} weights after {model.iteration} steps, {args.dtype}"
    name = {"diffusers": "pipeline", "native": "weights", "adapter": "adapter"}[args.format]
    print(f"exported {name}: {out} ({what})" if written else f"{out} is complete already ({what}), nothing to do")
    if args.format == "native":
        print(f"the VAE is not copied: {lasting_name(model.config.tokenizer.vae_path)}")
    if args.format == "adapter" and model.tree is not None:
        print(f"it belongs to {lasting_name(model.tree['checkpoint']['load_path'] or 'the random weights of the run')}")
    return 0


def write(model: StoredModel, out: Path, args: argparse.Namespace) -> bool:
    """Writes the folder in the format asked for; False when it is there already."""
    from worldsmith.checkpoint.formats.cosmos3.export_diffusers import export_pipeline, require_exportable
    from worldsmith.checkpoint.formats.cosmos3.native_export import export_native
    from worldsmith.checkpoint.formats.cosmos3.peft_adapter import export_stored_adapter
    from worldsmith.checkpoint.formats.export_folder import ExportSource, read_source

    merged = (model.config.lora_enabled and args.merge) or read_source(model.folder).merged
    origin = ExportSource(run=model.run, iteration=model.iteration, weights=model.weights, merged=merged)
    if args.format == "adapter":
        return export_stored_adapter(model, out, dtype=args.dtype, force=args.force)
    if args.format == "diffusers":
        require_exportable(model.config, model.defaults)
    if args.merge:
        model.require_effect()
    if args.format == "native":
        return export_native(
            model.open(merge=args.merge),
            model.config.without_adapters() if args.merge else model.config,
            out,
            defaults=model.defaults,
            origin=origin,
            average=model.average,
            dtype=args.dtype,
            force=args.force,
        )
    generator = model.load(full_precision=True)
    return export_pipeline(generator, out, source=origin, dtype=args.dtype, force=args.force)


def default_folder(model: Path, format: str) -> Path:
    """RUN/export, RUN/export_native or RUN/export_adapter, also when one of RUN's checkpoints is exported."""
    run = model.resolve().parent.parent if (model / "model").is_dir() else model
    return run / FOLDERS[format]
