"""`worldsmith evaluate`: how often generated videos show what the prompt asks for."""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.cli.shared_flags import add_base, add_sampling

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.evaluation.adherence import Adherence, Judgement, ShapePrompt
    from worldsmith.models.video_model import VideoModel

HELP = "measure how often generated videos show what the prompt asks for"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="exported pipeline folder, run folder or checkpoint folder")
    parser.add_argument("--prompts", type=Path, required=True, help="prompts.jsonl of a moving-shapes dataset")
    parser.add_argument(
        "--untrained", type=Path, metavar="RUN", help="measure this run's first weights beside the model"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for videos, contact sheet and figures")
    parser.add_argument(
        "--weights", choices=["auto", "ema", "live"], default="auto", help="auto: the average if there is one"
    )
    add_base(parser)
    add_sampling(parser)
    parser.add_argument("--force", action="store_true", help="measure again although the result is there")


def run(args: argparse.Namespace) -> int:
    """Measures; 0 on success or when there is nothing to do. Raises UserError for input that cannot be used."""
    from worldsmith.config.errors import UserError

    try:
        return measure(args)
    except ValueError as error:
        raise UserError(str(error)) from error


def measure(args: argparse.Namespace) -> int:
    result = args.output / "adherence.json"
    signature = signature_of(args)
    if result.is_file() and not args.force:
        known = json.loads(result.read_text(encoding="utf-8"))
        if known.get("signature") == signature:
            print(f"{result} is complete for this model and these prompts; nothing to do (--force measures again)")
            print_summary(args.output, known["trained"], known.get("untrained"))
            return 0
    from worldsmith.checkpoint.formats.export_folder import add_to_card
    from worldsmith.evaluation.adherence import load_prompts
    from worldsmith.files.atomic import write_text
    from worldsmith.files.writable import require_writable
    from worldsmith.sampling.video_writer import contact_sheet

    require_writable(args.output)
    prompts = load_prompts(args.prompts)
    models: dict[str, tuple[Path, Any]] = {"trained": (args.model, args.weights)}
    if args.untrained is not None:
        models["untrained"] = (args.untrained, "untrained")
    judged, videos = {}, {}
    for name, (path, weights) in models.items():
        generator = load(path, weights, args.base)
        videos[name] = generate_videos(generator, prompts, args, name)
        save_videos(args.output / name, prompts, videos[name])
        judged[name] = judge_videos(prompts, videos[name])
    titles = [title(judgement) for judgement in judged["trained"].judgements]
    contact_sheet(args.output / "contact_sheet.png", list(videos.items()), titles)
    figures = {name: adherence.to_dict() for name, adherence in judged.items()}
    score = {"adherence": figures["trained"]["adherence"], "prompts": len(prompts)}
    if add_to_card(args.model, score, args.output / "contact_sheet.png"):
        signature = signature_of(args)
    write_text(result, json.dumps({"signature": signature, **figures}, indent=1))
    print_summary(args.output, figures["trained"], figures.get("untrained"))
    return 0


def load(path: Path, weights: Literal["auto", "ema", "live", "untrained"], base: str | None) -> VideoModel:
    from worldsmith.checkpoint.formats.find_model import load_model

    generator: VideoModel = load_model(path, weights=weights, base=base)
    return generator


def generate_videos(
    generator: VideoModel, prompts: list[ShapePrompt], args: argparse.Namespace, name: str
) -> list[Tensor]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from worldsmith.sampling.generate import GenerationRequest, generate

    requests = [
        GenerationRequest(
            prompt=prompt.prompt,
            seed=prompt.seed,
            height=prompt.height,
            width=prompt.width,
            num_frames=prompt.num_frames,
            fps=prompt.fps,
        )
        for prompt in prompts
    ]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"generating {len(requests)} videos ({name})")
        return generate(
            generator,
            requests,
            steps=args.steps,
            guidance=args.guidance,
            shift=args.shift,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )


def judge_videos(prompts: list[ShapePrompt], videos: list[Tensor]) -> Adherence:
    from worldsmith.evaluation.adherence import judge

    return judge(prompts, [video.permute(1, 2, 3, 0).numpy() for video in videos])


def title(judgement: Judgement) -> str:
    """The prompt, and what the detector made of the trained model's video."""
    seen = " ".join(getattr(judgement, name) or "?" for name in ("colour", "shape", "direction"))
    verdict = "right" if judgement.right else f"seen: {seen}"
    return f"{judgement.prompt.prompt} [{verdict}{', combination held out' if judgement.prompt.held_out else ''}]"


def save_videos(folder: Path, prompts: list[ShapePrompt], videos: list[Tensor]) -> None:
    from worldsmith.sampling.video_writer import write_mp4

    for index, (prompt, video) in enumerate(zip(prompts, videos, strict=True)):
        write_mp4(folder / f"{index:02d}_{prompt.colour}_{prompt.shape}_{prompt.direction}.mp4", video, prompt.fps)


def print_summary(output: Path, trained: dict[str, Any], untrained: dict[str, Any] | None) -> None:
    """Where the results are, the figures apart, and the one line that counts."""
    print(f"videos        {output / 'trained'}" + (f" (untrained: {output / 'untrained'})" if untrained else ""))
    print(f"contact sheet {output / 'contact_sheet.png'}")
    print(f"figures       {output / 'adherence.json'}")
    apart = [f"{name} {value:.2f}" for name, value in trained["by_attribute"].items()]
    apart += [f"{name} {group['adherence']:.2f} of {group['prompts']}" for name, group in trained["by_novelty"].items()]
    print("right in      " + ", ".join(apart))
    beside = f" (untrained {untrained['adherence']:.2f})" if untrained else ""
    print(f"adherence {trained['adherence']:.2f}{beside} over {trained['prompts']} prompts")


def signature_of(args: argparse.Namespace) -> str:
    """Changes with the prompts, the settings and every file of the measured models."""
    digest = hashlib.sha256(args.prompts.read_bytes())
    digest.update(repr((args.weights, args.base, args.steps, args.guidance, args.shift)).encode())
    for root in (args.model, args.untrained):
        for file in sorted(root.rglob("*")) if root is not None else ():
            if (
                file.is_file()
                and file.suffix in (".safetensors", ".distcp", ".json", ".yaml")
                and args.output not in file.parents
            ):
                status = file.stat()
                digest.update(f"{file.relative_to(root)} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
