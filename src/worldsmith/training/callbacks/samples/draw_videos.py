"""Videos of a generator, drawn while it is trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from worldsmith.config import wrong
from worldsmith.config.declare.ranges import Factor, PositiveFactor, Range, Seed
from worldsmith.config.tree.plain import to_dict
from worldsmith.models.video_model import NOISE_LEVELS
from worldsmith.sampling.sample_settings import SampleSettings
from worldsmith.training.callbacks.samples.draw_samples import DrawSamples, Sample, Weights

if TYPE_CHECKING:
    from worldsmith.data.clips.video_dataset import VideoDataset
    from worldsmith.models.video_model import GenerationDefaults
    from worldsmith.sampling.requests import GenerationRequest
    from worldsmith.training.trainer import Trainer

SAME_FOR_ALL = ("num_steps", "guidance", "dynamic_guidance", "shift", "scheduler", "strength", "image_save_quality")
QUALITY = 95
"""Of JPEG files."""
FROM_TEXT = {"text2image", "text2video"}
NAMES = {"live": "live weights", "ema": "averaged weights"}


class DrawVideos(DrawSamples):
    """Text to video, or to image where the run's clips have one frame, of the size, length and rate of its first clip.

    A step's folder has a file for each prompt, guidance and kind of weights, and `sheet.png` with frames of all.
    """

    class Config(DrawSamples.Config):
        makes: ClassVar[str] = "videos"

        prompts: list[str] = field(default_factory=list)
        """Captions to draw; with none here and in files: the first `samples` different ones of the validation data, if
        the run validates, else of the training data, with their first frames where the model reads an image."""
        prompt_files: list[str] = field(default_factory=list)
        """Files of further samples, or patterns of them, as `worldsmith generate` reads them; they may have a size, a
        seed and an image or a video to begin with."""
        guidance: list[Factor] = field(default_factory=lambda: [0.0, 3.0, 7.0])
        """Scales of classifier-free guidance, each drawn; 0 does not look at the prompt, 1 is without guidance. They
        are the same at every step, whatever the family does otherwise."""
        steps: Annotated[int, Range(ge=1, le=NOISE_LEVELS)] = 35
        """Steps of the solver."""
        shift: PositiveFactor | None = None
        """Shift of the noise schedule; None: that of the training's tier."""
        seed: Seed = 0
        """Fixes the noise of the first prompt; each further one has the next number."""

        def check_run(self, run: Trainer.Config) -> None:
            super().check_run(run)
            if self.enabled and not self.guidance:
                raise wrong(self, "guidance", why="nothing would be drawn", remedy="write [1.0] for no guidance")
            if self.enabled and self.prompts and not FROM_TEXT & set(run.model.config.modes):
                why = f"this model makes {', '.join(run.model.config.modes)}"
                remedy = "give samples with their vision_path in prompt_files, or neither of them"
                raise wrong(self, "prompts", why=why, remedy=remedy)

    config: Config
    requests: Sequence[GenerationRequest] = ()

    def prepare(self, trainer: Trainer) -> None:
        if self.requests:
            return
        from worldsmith.checkpoint.formats.registry import formats_of
        from worldsmith.sampling.requests import GenerationRequest
        from worldsmith.sampling.training_data import of_first_clip

        run, config = trainer.config, self.config
        model: Any = trainer.model
        data = trainer.state.loader.dataset
        defaults = of_first_clip(formats_of(run.model.name).defaults_of_run(to_dict(run)), data, model.latent_grid)
        defaults.refuse({"shift": config.shift})
        defaults = replace(defaults, shift=config.shift or defaults.shift)
        for scale in config.guidance:
            model.sampler(defaults.sampling(steps=config.steps, guidance=scale))  # refuses a scale that it cannot have
        prompts: list[dict[str, Any]] = [{"prompt": prompt} for prompt in config.prompts]
        requests = read_requests(config.prompt_files, defaults, model.config)
        if not prompts and not requests:
            if trainer.validator is not None:
                data = trainer.validator.loader.dataset
            prompts = of_data(data, config.samples, model.config)
        size = {name: getattr(defaults, name) for name in ("height", "width", "num_frames", "fps")}
        captions = [GenerationRequest(**given, seed=config.seed + i, **size) for i, given in enumerate(prompts)]
        model.defaults, self.requests = defaults, [*captions, *requests]

    def draw(self, trainer: Trainer) -> Iterator[list[Sample]]:
        from worldsmith.sampling.generate import generate_latents

        config = self.config
        model: Any = trainer.model
        constant: dict[str, Any] = {} if "dynamic_guidance" in model.defaults.refused else {"dynamic_guidance": "off"}
        for number, scale in enumerate(config.guidance):

            def tell(done: int, total: int, number: int = number) -> None:
                self.give_way(trainer, (number + done / total) / len(config.guidance))

            settings = {"steps": config.steps, "guidance": scale, "progress": tell, **constant}
            latents = generate_latents(model, self.requests, **settings)
            if not trainer.world.is_main:
                latents = []
            yield [
                Sample(prompt=request.prompt, guidance=scale, fps=request.fps, frames=model.decode(latent).cpu())
                for request, latent in zip(self.requests, latents)
            ]

    def write(self, folder: Path, samples: Mapping[Weights, Sequence[Sample]]) -> Iterator[dict[str, Any]]:
        from worldsmith.sampling.video_writer import contact_sheet, write_jpeg, write_mp4

        rows = []
        count = len(self.requests)
        for weights, drawn in samples.items():
            for start, scale in zip(range(0, len(drawn), count), self.config.guidance):
                clips = []
                for number, sample in enumerate(drawn[start : start + count]):
                    assert sample.frames is not None
                    clips.append(sample.frames)
                    is_image = sample.frames.shape[1] == 1
                    file = folder / f"{number:02d}_{weights}_guidance_{scale:g}.{'jpg' if is_image else 'mp4'}"
                    if is_image:
                        write_jpeg(file, sample.frames[:, 0], QUALITY)
                    else:
                        write_mp4(file, sample.frames, sample.fps)
                    yield {
                        "weights": weights,
                        "guidance": scale,
                        "kind": "image" if is_image else "video",
                        "prompt": sample.prompt,
                        "file": str(file.relative_to(folder.parents[1])),
                    }
                rows.append((f"{NAMES[weights]}, guidance {scale:g}", clips))
        contact_sheet(folder / "sheet.png", rows, [request.prompt for request in self.requests])


def of_data(data: VideoDataset, count: int, model: Any) -> list[dict[str, Any]]:
    """Captions of the data, with their first frames where a model with this config reads an image."""
    from worldsmith.sampling.training_data import first_frame, first_windows

    windows = first_windows(data, count)
    if FROM_TEXT & set(model.modes):
        return [{"prompt": caption} for caption in windows]
    return [
        {"prompt": caption, "condition": first_frame(window, data, model.latent_grid), "condition_frames": 1}
        for caption, window in windows.items()
    ]


def read_requests(files: Sequence[str], defaults: GenerationDefaults, model: Any) -> list[GenerationRequest]:
    """The samples of files, for a model with this config.

    Raises UserError or ValueError for one that cannot be made like all the others.
    """
    from worldsmith.data.clips.latent_grid import LatentGrid
    from worldsmith.sampling.sample_args import decide
    from worldsmith.sampling.sample_files import Layer, read_files

    cells, found = LatentGrid(*model.latent_grid), []
    nothing = Layer("", SampleSettings(), Path())
    for entry in read_files(files) if files else ():
        for layer in entry.layers:
            if own := [name for name in SAME_FOR_ALL if getattr(layer.settings, name) is not None]:
                raise ValueError(f"{layer.source}: {', '.join(own)} cannot be a sample's own: all are drawn alike")
        decided = decide(entry, nothing, defaults, cells, "the run", model.modes)
        if any(args.strength is not None for args in decided):
            raise ValueError(f"{entry.layers[0].source}: a video that is made anew is not drawn; give an image or none")
        found += [args.request(cells) for args in decided]
    return found
