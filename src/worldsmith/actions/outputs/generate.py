"""`worldsmith generate MODEL --prompt TEXT`: videos from a trained or exported generator."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from worldsmith.actions.action import Result, share_done
from worldsmith.actions.model_action import PositiveFactor, VideoAction, find_device
from worldsmith.checkpoint.formats.export_folder import read_source
from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.config.declare.ranges import Count, Seed
from worldsmith.config.errors import UserError
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.files.atomic import write_text
from worldsmith.files.lines import read_lines
from worldsmith.files.writable import require_writable
from worldsmith.sampling.training_data import with_clip_size

if TYPE_CHECKING:
    from worldsmith.models.video_model import VideoModel
    from worldsmith.sampling.prompt_files import PromptLine
    from worldsmith.sampling.requests import GenerationRequest

RECORD = "generations.jsonl"
SIZES = ("height", "width", "num_frames", "fps")
REQUEST_OPTIONS = (*SIZES, "negative_prompt", "image", "video", "condition_frames")


class GenerateVideos(VideoAction):
    """Makes videos with a trained or exported generator."""

    class Config(VideoAction.Config):
        prompt: list[str] = field(default_factory=list)
        """A prompt; the flag may be repeated."""
        prompts: str | None = None
        """A file with a prompt a line, or (.jsonl) objects with 'prompt' and, if wanted, seed, height, width,
        num_frames, fps, negative_prompt, image, video, condition_frames; a line's own values win."""
        out: str = "generated"
        """Folder of the videos, a contact sheet and generations.jsonl."""
        adapter: str | None = None
        """An adapter folder in PEFT's format, merged into the model."""
        image: str | None = None
        """First frame of the videos."""
        video: str | None = None
        """Opening frames of the videos."""
        condition_frames: Count | None = None
        """Latent frames kept of the video; null: 2, its first 5 frames."""
        seed: Seed = 0
        """Of the first video; the next ones count up."""
        height: Count | None = None
        """Pixels, a multiple of 16; null: as in training."""
        width: Count | None = None
        """Pixels, a multiple of 16; null: as in training."""
        num_frames: Count | None = None
        """4k+1; null: as in training."""
        fps: PositiveFactor | None = None
        """Frames per second; null: as in training."""
        negative_prompt: str | None = None
        """What to move away from; null: the empty caption."""
        weights: Literal["auto", "ema", "live", "untrained"] = "auto"
        """auto: averaged (ema) if there are any."""
        _alternatives: ClassVar = (("image", "video"),)

    config: Config

    def plan(self) -> Iterator[str]:
        device, model, lines, requests = self.prepare()
        yield f"model    {model.weights_in_words}, on {device}"
        for line, request in zip(lines, requests):
            size = f"{request.num_frames} frames of {request.height}×{request.width}"
            yield f"video    {size}, {request.fps:g} a second, seed {request.seed}: {line.settings['prompt']}"
        yield f"folder   {self.config.out}"

    def run(self) -> Result:
        from worldsmith.sampling.generate import generate
        from worldsmith.sampling.video_writer import contact_sheet, write_mp4

        config, out = self.config, Path(self.config.out)
        device, model, lines, requests = self.prepare()
        generator = load(model, config.adapter, device)
        settings = {
            name: getattr(generator.defaults, name) if getattr(config, name) is None else getattr(config, name)
            for name in ("steps", "guidance", "shift")
        }
        videos = generate(generator, requests, **settings, progress=share_done("generating"))
        make_room(out)
        records = []
        for index, (line, request, video) in enumerate(zip(lines, requests, videos)):
            name = f"{index:03d}_{slug(request.prompt)}.mp4"
            write_mp4(out / name, video, request.fps)
            keys = ("prompt", "negative_prompt", "seed", *SIZES, "condition_frames")
            used = {**{key: getattr(request, key) for key in keys}, "num_frames": video.shape[1]}
            where = {"model": config.model, "weights": model.weights, "iteration": model.iteration}
            where |= {"adapter": config.adapter} if config.adapter else {}
            records.append({**line.notes, "file": name, **used, **settings, **where})
        contact_sheet(out / "contact_sheet.png", [(model.weights_in_words, videos)], [request.prompt for request in requests])
        write_text(out / RECORD, "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records))
        done = f"{len(records)} video{'s' * (len(records) != 1)}, contact_sheet.png and {RECORD} in {out}"
        return Result([done], {"folder": str(out), "videos": records})

    def prepare(self) -> tuple[str, StoredModel, list[PromptLine], list[GenerationRequest]]:
        """Device, model, prompts and requests, after all checks that need no weights."""
        from worldsmith.sampling.prompt_files import PromptLine, read_prompts, to_request

        config, out = self.config, Path(self.config.out)
        lines = [PromptLine("--prompt", {"prompt": text}, {}) for text in config.prompt]
        lines += read_prompts(Path(config.prompts)) if config.prompts else []
        if not lines:
            raise UserError("no prompt; give --prompt TEXT or --prompts FILE")
        device = find_device(config.device)
        require_writable(out)
        if (out / RECORD).exists() and not config.force:
            raise FileExistsError(f"{out} has generated videos already; choose another folder, or give --force")
        model = find_model(config.model, weights=config.weights, base=config.base)
        options = {name: getattr(config, name) for name in REQUEST_OPTIONS}
        if any(options[name] is None and any(name not in line.settings for line in lines) for name in SIZES):
            model = replace(model, defaults=with_clip_size(model.defaults, model.tree, model.config.latent_grid))
        if config.adapter is not None:
            require_no_adapters(model, Path(config.adapter))
        sizes = {name: getattr(model.defaults, name) if options[name] is None else options[name] for name in SIZES}
        grid = LatentGrid(*model.config.latent_grid)
        requests = [to_request(line, {**options, **sizes}, grid, seed=config.seed + i) for i, line in enumerate(lines)]
        for request in requests:
            request.check(grid)
        return device, model, lines, requests


def require_no_adapters(model: StoredModel, adapter: Path) -> None:
    """Raises UserError when `adapter` would be added to weights that hold it, or their run's own adapters, already."""
    source = read_source(model.folder)
    trained = model.has_adapters and model.weights != "untrained"
    if trained or (source.merged and source.run == read_source(adapter).run):
        raise UserError(
            f"--adapter {adapter}: {model.folder} has its run's adapters in its weights already; leave --adapter out, "
            "or give the base that the run started from"
        )


def load(model: StoredModel, adapter: str | None, device: str) -> VideoModel:
    """The generator, with the adapter merged into its weights if there is one."""
    if adapter is None:
        generator: Any = model.load(device)
        return generator
    import torch

    from worldsmith.models.lora import merge_adapters

    generator = model.load(device, full_precision=True)
    model.formats.load_adapter(generator.network, Path(adapter))
    merge_adapters(generator.network)
    generator.cast(getattr(torch, generator.config.precision))
    return generator


def make_room(out: Path) -> None:
    """Removes the videos of an earlier command."""
    record = out / RECORD
    if record.exists():
        for line in read_lines(record):
            (out / Path(json.loads(line)["file"]).name).unlink(missing_ok=True)
        record.unlink()


def slug(prompt: str) -> str:
    """The prompt's first words as part of a file name."""
    return "_".join(re.findall(r"[a-z0-9]+", prompt.lower())[:6])[:48] or "video"
