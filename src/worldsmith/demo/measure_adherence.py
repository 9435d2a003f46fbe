"""`worldsmith evaluate MODEL --prompts FILE`: measures how often generated videos show the content of the prompt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.actions.action import Result, make_progress_reporter
from worldsmith.actions.model_action import VideoAction, find_device
from worldsmith.checkpoint.formats.export_folder import add_to_card
from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.demo.adherence import Judgement, ShapePrompt, grade_videos, load_prompts
from worldsmith.files.atomic import write_text
from worldsmith.files.json_file import read_json_object
from worldsmith.files.write_checks import require_writable
from worldsmith.monitor.lineage import Input, write_lineage
from worldsmith.monitor.page.run_page import refresh_page

if TYPE_CHECKING:
    from torch import Tensor

RESULT = "adherence.json"
SETTINGS = ("steps", "guidance", "dynamic_guidance", "shift", "scheduler")
MODEL_FILES = (".safetensors", ".distcp", ".json", ".yaml", ".txt")
"""Suffixes of the files in the fingerprint of a model, such as weights and the pointer to the latest checkpoint."""


class MeasureAdherence(VideoAction):
    """Measures how often generated videos show the color, shape and direction that a moving-shapes prompt describes."""

    class Config(VideoAction.Config):
        prompts: str
        """prompts.jsonl of a moving-shapes dataset."""
        out: str
        """Output folder for the videos, a contact sheet and adherence.json."""
        untrained: str | None = None
        """Run whose initial weights are measured in addition to the model."""
        weights: Literal["auto", "ema", "live"] = "auto"
        """auto: the EMA weights (ema) if they exist, otherwise the raw weights (live)."""

    config: Config

    def plan(self) -> Iterator[str]:
        config = self.config
        for name, model in self.find_models().items():
            yield f"{name:<12}{model.folder} ({model.weights_description})"
        yield f"{'prompts':<12}{len(load_prompts(Path(config.prompts)))} of {config.prompts}, one video per model"
        yield f"{'folder':<12}{config.out}{' (already complete)' if self.known() else ''}"

    def run(self) -> Result:
        from worldsmith.sampling.write_media import contact_sheet

        config, out = self.config, Path(self.config.out)
        known = self.known()
        if known:
            line = f"{out / RESULT} is complete for this model and these prompts (to measure again: --force)"
            return Result([line, *summarize_adherence(out, known)], known)
        device = find_device(config.device)
        require_writable(out)
        prompts = load_prompts(Path(config.prompts))
        results, videos = {}, {}
        models = self.find_models()
        for name, model in models.items():
            videos[name] = self.generate(model, prompts, device, name)
            save_videos(out / name, prompts, videos[name])
            results[name] = grade_videos(prompts, [video.permute(1, 2, 3, 0).numpy() for video in videos[name]])
        titles = [title(judgement) for judgement in results["trained"].judgements]
        contact_sheet(out / "contact_sheet.png", list(videos.items()), titles, legend=legend(videos))
        figures = {name: adherence.to_dict() for name, adherence in results.items()}
        score = {"adherence": figures["trained"]["adherence"], "prompts": len(prompts)}
        add_to_card(Path(config.model), score, out / "contact_sheet.png")
        write_text(out / RESULT, json.dumps({"signature": self.signature(), **figures}, indent=1))
        inputs = [Input("model", models["trained"].folder), Input("dataset", config.prompts)]
        write_lineage(out, action="evaluate", settings=to_dict(config), inputs=inputs, outputs=[RESULT])
        refresh_page(out)
        return Result(summarize_adherence(out, figures), figures)

    def find_models(self) -> dict[str, StoredModel]:
        """Returns the models to measure by name: "trained" and, if configured, "untrained".

        Raises UserError if a model does not support text-to-video.
        """
        config = self.config
        models = {"trained": find_model(config.model, weights=config.weights, base=config.base)}
        if config.untrained is not None:
            models["untrained"] = find_model(config.untrained, weights="untrained", base=config.base)
        for model in models.values():
            if "text2video" not in model.config.modes:
                raise UserError(
                    f"{model.folder} generates {', '.join(model.config.modes)}, but these prompts need "
                    "text-to-video; measure your own samples (--input-files)"
                )
        return models

    def generate(self, model: StoredModel, prompts: list[ShapePrompt], device: str, name: str) -> list[Tensor]:
        """Returns one generated video (uint8 [3, T, H, W]) per prompt; `name` is the model's name in progress lines."""
        from worldsmith.sampling.generate_videos import generate
        from worldsmith.sampling.requests import GenerationRequest

        keys = ("prompt", "seed", "height", "width", "num_frames", "fps")
        requests = [GenerationRequest(**{key: getattr(prompt, key) for key in keys}) for prompt in prompts]
        return generate(
            model.load(device),
            requests,
            **self.settings,
            progress=make_progress_reporter(f"generating {len(requests)} videos ({name})"),
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Sampling settings (name -> value), such as the number of steps, that are not None in the config."""
        chosen = {name: getattr(self.config, name) for name in SETTINGS}
        return {name: value for name, value in chosen.items() if value is not None}

    def known(self) -> dict[str, Any]:
        """Returns the metrics in `adherence.json` if they were measured with the same models, prompts and settings.

        The dict maps a model name to a result of `Adherence.to_dict`. It is empty if there are no such metrics, if an
        output file is missing, or with --force. Raises UserError if `adherence.json` is invalid.
        """
        result = Path(self.config.out) / RESULT
        if self.config.force or not result.is_file():
            return {}
        try:
            known = read_json_object(result)
        except UserError as error:
            raise UserError(f"{error}; --force measures again") from None
        if known.pop("signature", None) != self.signature():
            return {}
        try:
            summarize_adherence(result.parent, known)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise UserError(f"{result} contains no metrics of an evaluation; --force measures again") from None
        names = [video_name(index, prompt) for index, prompt in enumerate(load_prompts(Path(self.config.prompts)))]
        made = [result.with_name("contact_sheet.png"), *(result.parent / model / n for model in known for n in names)]
        return known if all(file.is_file() for file in made) else {}

    def signature(self) -> str:
        """Returns the hex SHA-256 over prompts, settings, and sizes and modification times of the model files."""
        config, out = self.config, Path(self.config.out)
        digest = hashlib.sha256(Path(config.prompts).read_bytes())
        digest.update(repr((config.weights, config.base, sorted(self.settings.items()))).encode())
        for root in (Path(folder) for folder in (config.model, config.untrained) if folder is not None):
            for file in sorted(root.rglob("*")):
                wanted = file.suffix in MODEL_FILES and out not in file.parents
                if wanted and file.is_file():
                    status = file.stat()
                    digest.update(f"{file.relative_to(root)} {status.st_size} {status.st_mtime_ns}\n".encode())
        return digest.hexdigest()


def legend(models: Iterable[str]) -> str:
    """Returns the text below a contact sheet that explains its rows (one per model name) and columns."""
    rows = {"trained": "videos of the trained network", "untrained": "videos of the same network before training"}
    return (
        f"Rows: {'; '.join(f'{name} = {rows[name]}' for name in models)}. Columns: one caption each, above its "
        "frames from first to last. In brackets: result of the detector on the video of the trained network; right "
        "= the caption's color, shape and direction; combination held out = these three never occur together in "
        "the training data."
    )


def title(judgement: Judgement) -> str:
    """Returns the title of a video on the contact sheet: the prompt, and "right" or the detected attributes."""
    seen = " ".join(getattr(judgement.seen, name) or "?" for name in ("colour", "shape", "direction"))
    verdict = "right" if judgement.right else f"seen: {seen}"
    return f"{judgement.prompt.prompt} [{verdict}{', combination held out' if judgement.prompt.held_out else ''}]"


def save_videos(folder: Path, prompts: list[ShapePrompt], videos: list[Tensor]) -> None:
    """Writes the video (uint8 [3, T, H, W]) of each prompt as an MP4 file into `folder`."""
    from worldsmith.sampling.write_media import write_mp4

    for index, (prompt, video) in enumerate(zip(prompts, videos, strict=True)):
        write_mp4(folder / video_name(index, prompt), video, prompt.fps)


def video_name(index: int, prompt: ShapePrompt) -> str:
    return f"{index:02d}_{prompt.colour}_{prompt.shape}_{prompt.direction}.mp4"


def summarize_adherence(out: Path, figures: Mapping[str, Any]) -> list[str]:
    """Returns the output lines of `worldsmith evaluate` with moving-shapes prompts.

    The lines are, in this order: the paths of the videos, of the contact sheet and of the metrics file; the fractions
    of correct videos by attribute and by group of prompts; the fraction of videos with all attributes correct.

    Args:
        out: Output folder.
        figures: Results as from `Adherence.to_dict` by model name: "trained" and, if measured, "untrained".
    """
    trained, untrained = figures["trained"], figures.get("untrained")
    apart = [f"{name} {value:.2f}" for name, value in trained["by_attribute"].items()]
    apart += [f"{name} {group['adherence']:.2f} of {group['prompts']}" for name, group in trained["by_novelty"].items()]
    beside = f" (untrained {untrained['adherence']:.2f})" if untrained else ""
    return [
        f"videos        {out / 'trained'}" + (f" (untrained: {out / 'untrained'})" if untrained else ""),
        f"contact sheet {out / 'contact_sheet.png'}",
        f"metrics       {out / RESULT}",
        "right in      " + ", ".join(apart),
        f"adherence {trained['adherence']:.2f}{beside} over {trained['prompts']} prompts",
    ]
