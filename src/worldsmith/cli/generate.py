"""`worldsmith generate MODEL --prompt TEXT`: videos from a trained or exported generator."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.cli.shared_flags import COUNT, NOT_NEGATIVE, POSITIVE, add_base, add_model, add_sampling, number
from worldsmith.files.atomic import write_text

if TYPE_CHECKING:
    from worldsmith.checkpoint.formats.stored_model import StoredModel
    from worldsmith.models.video_model import VideoModel
    from worldsmith.sampling.prompt_files import PromptLine

HELP = "generate videos with a trained or exported generator"
RECORD = "generations.jsonl"
SIZES = ("height", "width", "num_frames", "fps")
REQUEST_OPTIONS = (*SIZES, "negative_prompt", "image", "video", "condition_frames")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `worldsmith generate`."""
    add, count = parser.add_argument, number(int, COUNT)
    add_model(parser, "model", metavar="MODEL", help="run folder, checkpoint folder or exported pipeline")
    add("--adapter", type=Path, metavar="DIR", help="an adapter folder in PEFT's format, merged into the model")
    add_base(parser)
    add("--prompt", action="append", default=[], metavar="TEXT", help="a prompt; may be repeated")
    add(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="a prompt a line, or (.jsonl) objects with 'prompt' and, if wanted, seed, height, width, num_frames, fps, "
        "negative_prompt, image, video, condition_frames; a line's own values win over the options below",
    )
    add("-o", "--out", type=Path, default=Path("generated"), metavar="DIR", help="default: %(default)s")
    add("--force", action="store_true", help="replace the videos that an earlier command has put there")
    condition = parser.add_mutually_exclusive_group()
    condition.add_argument("--image", metavar="FILE", help="first frame of the videos")
    condition.add_argument("--video", metavar="FILE", help="opening frames of the videos")
    add(
        "--condition-frames",
        type=count,
        metavar="N",
        help="latent frames kept of --video (default: 2, its first 5 frames)",
    )
    add_sampling(parser)
    add(
        "--seed",
        type=number(int, NOT_NEGATIVE),
        default=0,
        metavar="N",
        help="seed of the first video; the next ones count up (default: 0)",
    )
    add("--height", type=count, metavar="PX", help="multiple of 16 (default: as in training)")
    add("--width", type=count, metavar="PX", help="multiple of 16 (default: as in training)")
    add("--num-frames", type=count, metavar="N", help="4k+1 (default: as in training)")
    add("--fps", type=number(float, POSITIVE), help="frames per second (default: as in training)")
    add("--negative-prompt", metavar="TEXT", help="what to move away from (default: the empty caption)")
    add(
        "--weights",
        choices=("auto", "ema", "live", "untrained"),
        default="auto",
        help="auto: averaged if there are any",
    )
    add("--device", help="cpu or cuda (default: cuda if there is one)")


def run(args: argparse.Namespace) -> int:
    """Generates; 0 on success. Raises UserError for input that cannot be used."""
    from worldsmith.config.errors import UserError
    from worldsmith.sampling.prompt_files import PromptLine, read_prompts

    try:
        lines = [PromptLine("--prompt", {"prompt": text}, {}) for text in args.prompt]
        lines += read_prompts(args.prompts) if args.prompts else []
        if not lines:
            raise ValueError("no prompt; give --prompt TEXT or --prompts FILE")
        generate_lines(args, lines)
    except ValueError as error:
        raise UserError(str(error)) from error
    print(f"{len(lines)} videos, contact_sheet.png and {RECORD} in {args.out}")
    return 0


def generate_lines(args: argparse.Namespace, lines: list[PromptLine]) -> None:
    """Makes and writes the videos of all lines."""
    from worldsmith.data.clips.latent_grid import LatentGrid
    from worldsmith.files.writable import require_writable
    from worldsmith.sampling.generate import generate
    from worldsmith.sampling.prompt_files import to_request
    from worldsmith.sampling.video_writer import contact_sheet, write_mp4

    device = find_device(args.device)
    require_writable(args.out)
    make_room(args.out, force=args.force)
    model = open_model(args, lines)
    if args.adapter is not None:
        require_no_adapters(model, args.adapter)
    options = {name: getattr(args, name) for name in REQUEST_OPTIONS}
    sizes = {name: getattr(model.defaults, name) if options[name] is None else options[name] for name in SIZES}
    grid = LatentGrid(*model.config.latent_grid)
    requests = [to_request(line, {**options, **sizes}, grid, seed=args.seed + i) for i, line in enumerate(lines)]
    for request in requests:
        request.check(grid)
    generator = load(model, args.adapter, device)
    settings = {
        name: getattr(generator.defaults, name) if getattr(args, name) is None else getattr(args, name)
        for name in ("steps", "guidance", "shift")
    }
    videos = generate(generator, requests, **settings, progress=show_progress if sys.stderr.isatty() else None)

    records = []
    for index, (line, request, video) in enumerate(zip(lines, requests, videos)):
        name = f"{index:03d}_{slug(request.prompt)}.mp4"
        write_mp4(args.out / name, video, request.fps)
        used = {key: getattr(request, key) for key in ("prompt", "negative_prompt", "seed", *SIZES, "condition_frames")}
        used["num_frames"] = video.shape[1]
        where = {"model": str(args.model), "weights": model.weights, "iteration": model.iteration}
        where |= {"adapter": str(args.adapter)} if args.adapter else {}
        records.append({"file": name, **used, **settings, **where, **line.notes})
    label = "untrained" if model.weights == "untrained" else f"{model.weights} weights, {model.iteration} steps"
    contact_sheet(args.out / "contact_sheet.png", [(label, videos)], [request.prompt for request in requests])
    write_text(args.out / RECORD, "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records))


def open_model(args: argparse.Namespace, lines: list[PromptLine]) -> StoredModel:
    """The model; the training clips are looked at only when a size is left open."""
    from worldsmith.checkpoint.formats.find_model import find_model
    from worldsmith.sampling.training_data import with_clip_size

    model = find_model(args.model, weights=args.weights, base=args.base)
    is_open = any(getattr(args, name) is None and any(name not in line.settings for line in lines) for name in SIZES)
    if not is_open:
        return model
    return replace(model, defaults=with_clip_size(model.defaults, model.tree, model.config.latent_grid))


def find_device(name: str | None) -> str:
    """The device asked for, or else cuda if there is one. Raises UserError for one that is not there."""
    import torch

    from worldsmith.config.errors import UserError

    devices = torch.cuda.device_count()
    if name is None:
        return "cuda" if devices else "cpu"
    match = re.fullmatch(r"(?:cpu|cuda(?::(\d+))?)", name)
    if match is None:
        raise UserError(f"--device {name}: no such device; give cpu or cuda")
    if name != "cpu" and int(match[1] or 0) >= devices:
        found = f"{devices} CUDA device{'' if devices == 1 else 's'}"
        raise UserError(f"--device {name}: this machine has {found}; give {'a lower number or ' * bool(devices)}cpu")
    return name


def require_no_adapters(model: StoredModel, adapter: Path) -> None:
    """Raises UserError when `adapter` would be added to weights that hold it, or their run's own adapters, already."""
    from worldsmith.checkpoint.formats.export_folder import read_source
    from worldsmith.config.errors import UserError

    source = read_source(model.folder)
    trained = model.has_adapters and model.weights != "untrained"
    if trained or (source.merged and source.run == read_source(adapter).run):
        raise UserError(
            f"--adapter {adapter}: {model.folder} has its run's adapters in its weights already; leave --adapter out, "
            "or give the base that the run started from"
        )


def load(model: StoredModel, adapter: Path | None, device: str) -> VideoModel:
    """The generator, with the adapter merged into its weights if there is one."""
    if adapter is None:
        return model.load(device)
    import torch

    from worldsmith.models.lora import merge_adapters

    generator: Any = model.load(device, full_precision=True)
    model.formats.load_adapter(generator.network, adapter)
    merge_adapters(generator.network)
    generator.cast(getattr(torch, generator.config.precision))
    return generator


def make_room(out: Path, *, force: bool) -> None:
    """Removes the videos of an earlier command if `force` says so. Raises FileExistsError if it does not."""
    record = out / RECORD
    if not record.exists():
        return
    if not force:
        raise FileExistsError(f"{out} has generated videos already; choose another folder, or --force to replace them")
    for line in record.read_text(encoding="utf-8").splitlines():
        (out / Path(json.loads(line)["file"]).name).unlink(missing_ok=True)
    record.unlink()


def slug(prompt: str) -> str:
    """The prompt's first words as part of a file name."""
    return "_".join(re.findall(r"[a-z0-9]+", prompt.lower())[:6])[:48] or "video"


def show_progress(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\rgenerating: {100 * done // total} %", end=end, file=sys.stderr, flush=True)
