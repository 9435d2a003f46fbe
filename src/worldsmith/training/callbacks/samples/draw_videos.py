"""Videos of a generator, generated during training."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice, repeat, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from worldsmith.config import wrong
from worldsmith.config.declare.ranges import Factor, PositiveFactor, Range, Seed
from worldsmith.config.tree.plain import to_dict
from worldsmith.data.robots.robot_loader import RobotLoader
from worldsmith.data.stream.errors import SampleError
from worldsmith.models.video_model import NOISE_LEVELS, GenerationDefaults, VideoSampler
from worldsmith.monitor.short_text import WEIGHTS_NAMES
from worldsmith.sampling.sample_settings import SampleSettings
from worldsmith.sampling.training_data import first_windows, read_clip, read_first_frame, use_first_clip
from worldsmith.training.callbacks.samples.draw_samples import DrawingSize, DrawnSample, DrawSamples, Weights

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.data.clips.video_dataset import VideoDataset
    from worldsmith.data.clips.window_index import Window
    from worldsmith.sampling.requests import GenerationRequest
    from worldsmith.training.callbacks.base import TrainingRun

logger = logging.getLogger(__name__)

SAME_FOR_ALL = ("num_steps", "guidance", "dynamic_guidance", "shift", "scheduler", "strength", "image_save_quality")
QUALITY = 95
"""Quality of JPEG files."""
FROM_TEXT = {"text2image", "text2video"}
TRAINING, HELD_OUT = "training caption", "held-out caption"
"""Headings under which training captions and validation captions are shown."""
CANDIDATES = 8
"""Number of captions read from the data per sampled caption."""
GOOD_STEPS, LEAST_STEPS = 8, 2
"""Solver steps below which the number of prompts is reduced instead, and the min number of solver steps."""
DECODING = 8
"""Assumed cost of decoding and writing a sample, as a number of forward passes of a training sample."""
REAL = "real"
"""Subfolder with the dataset's own clips."""
REAL_BYTES = 64_000
"""Max file size in bytes of a dataset clip that the HTML report embeds; larger clips are encoded at lower quality."""


@dataclass(frozen=True, slots=True)
class ClipCaption:
    """A caption of the data that is used as a prompt, with its clip."""

    window: Window
    dataset: VideoDataset
    source: str
    """Label of the data that the clip comes from: `TRAINING` or `HELD_OUT`."""


NO_ROBOTS = "samples of robot episodes, which start from a frame and have actions, are not generated while training"
"""Reason why a run on robot episodes generates no samples."""


class DrawVideos(DrawSamples):
    """Generates videos (images if the run's clips have one frame) of the same captions while the run trains.

    Size, length and fps are those of the run's first training clip. The folder of a step has a file for each prompt,
    guidance scale and kind of weights, and `sheet.png` with frames of all of them. The clips that belong to the
    captions are written once, as training sees them.

    Cost of a video: two forward passes per solver step (one with guidance 1), and decoding. Without `every`, all videos
    take at most `max_time_fraction` (3 %) of the run's time.
    """

    class Config(DrawSamples.Config):
        makes: ClassVar[str] = "videos"

        prompts: list[str] = field(default_factory=list)
        """Captions to generate. Without any here and in `prompt_files`: `samples` captions of the data, half of them of
        training clips and half of held-out clips if the run validates, otherwise all of training clips. A model with
        image input gets the first frame of the caption's clip."""
        prompt_files: list[str] = field(default_factory=list)
        """Files with more samples, or glob patterns, in the format of `worldsmith generate`; a sample may have a size,
        a seed, and an image or a video to start from."""
        guidance: list[Factor] = field(default_factory=lambda: [3.0])
        """Scales of classifier-free guidance, one video each; 0 ignores the prompt, 1 is without guidance and takes
        half the time. A scale is constant over the solver steps, also for families that otherwise vary it."""
        steps: Annotated[int, Range(ge=1, le=NOISE_LEVELS)] = 35
        """Number of solver steps of a video; the maximum if `every` is None."""
        shift: PositiveFactor | None = None
        """Shift of the noise schedule; None: as in training for the resolution bucket."""
        seed: Seed = 0
        """Seed of the first prompt's noise; each later prompt uses the next seed."""

        def check_run(self, run: Any) -> None:
            super().check_run(run)
            if self.enabled and self.every is not None and isinstance(run.dataloader_train, RobotLoader.Config):
                raise wrong(self, "every", why=NO_ROBOTS, remedy="omit it")
            if self.enabled and not self.guidance:
                raise wrong(self, "guidance", why="no samples would be generated", remedy="use [1.0] for no guidance")
            if self.enabled and self.prompts and not FROM_TEXT & set(run.model.config.modes):
                why = f"this model generates {', '.join(run.model.config.modes)}"
                remedy = "use prompt_files with samples that have a vision_path, or omit prompts"
                raise wrong(self, "prompts", why=why, remedy=remedy)

        def fit(self, passes: float) -> DrawingSize:
            counts = [len(self.prompts)] if self.prompts else range(self.samples, 0, -1)
            return self.choose(passes, counts, self.steps, good=GOOD_STEPS, least=LEAST_STEPS)

        def cost(self, size: DrawingSize) -> float:
            branches = sum(1 if scale == 1 else 2 for scale in self.guidance)
            return size.prompts * (branches * size.steps + len(self.guidance) * DECODING)

    config: Config
    requests: Sequence[GenerationRequest] = ()
    captions: Sequence[ClipCaption] = ()
    """Clips of the first prompts, if these are captions of the data."""

    @property
    def steps(self) -> int:
        return self.config.steps if self.size is None else self.size.steps

    def start_lines(self, trainer: TrainingRun) -> Iterable[str]:
        if self.config.enabled and isinstance(trainer.config.dataloader_train, RobotLoader.Config):
            return [f"samples      none: {NO_ROBOTS}"]
        return super().start_lines(trainer)

    def obstacle(self, run: Any) -> str:
        if isinstance(run.dataloader_train, RobotLoader.Config):
            return NO_ROBOTS
        network = run.model.config.sampling_network
        return f"{network} would be loaded in addition to the trained network" if network else ""

    def prepare(self, trainer: TrainingRun) -> None:
        if self.requests:
            return
        from worldsmith.checkpoint.formats.family_formats import formats_of
        from worldsmith.sampling.requests import GenerationRequest, read_request

        run, config = trainer.config, self.config
        model: Any = trainer.model
        data = trainer.state.loader.dataset
        defaults = use_first_clip(formats_of(run.model.name).defaults_of_run(to_dict(run)), data, model.latent_grid)
        defaults.refuse({"shift": config.shift})
        defaults = replace(defaults, shift=config.shift or defaults.shift)
        model.defaults = defaults
        samplers = [  # which refuse a scale that they cannot have
            model.sampler(defaults.sampling(steps=self.steps, guidance=scale)) for scale in config.guidance
        ]
        prompts: list[dict[str, Any]] = [{"prompt": prompt} for prompt in config.prompts]
        requests = read_requests(config.prompt_files, defaults, model.config)
        found: dict[str, ClipCaption] = {}
        if not prompts and not requests:
            found = self._choose_captions(trainer, samplers[0])
            prompts = request_arguments(found, model.config)
        size = {name: getattr(defaults, name) for name in ("height", "width", "num_frames", "fps")}
        captions = [GenerationRequest(**given, seed=config.seed + i, **size) for i, given in enumerate(prompts)]
        requests = [*captions, *requests]
        known = [read_request(sampler, request) for sampler in samplers for request in requests]
        texts = [tuple(layout.text_ids) for one in known for layout in (one.conditional, one.unconditional)]
        samplers[0].load_texts(list(dict.fromkeys(texts)))
        self.requests, self.captions = requests, list(found.values())

    def _choose_captions(self, trainer: TrainingRun, sampler: VideoSampler) -> dict[str, ClipCaption]:
        """Returns caption -> clip for `num_prompts` captions, alternately of training clips and of held-out clips.

        Held-out clips are used if the run validates; those with a caption of a chosen training clip are omitted.
        Captions that `sampler` rejects are only used if it rejects all captions of a dataset.
        """
        training = self._select_captions(trainer.state.loader.dataset, sampler, TRAINING)
        held_out: dict[str, ClipCaption] = {}
        if trainer.validator is not None:
            held_out = self._select_captions(trainer.validator.loader.dataset, sampler, HELD_OUT)
        others = [item for item in held_out.items() if item[0] not in training][: self.num_prompts // 2]
        pairs = zip_longest(list(training.items())[: self.num_prompts - len(others)], others)
        return dict(item for item in chain.from_iterable(pairs) if item is not None)

    def _select_captions(self, data: VideoDataset, sampler: VideoSampler, source: str) -> dict[str, ClipCaption]:
        """Returns caption -> clip for up to `num_prompts` captions of `data` that `sampler` accepts.

        The sampler rejects captions that are too long (training truncates them); if it rejects all, the first captions
        are returned. `source`: label of the dataset, `TRAINING` or `HELD_OUT`.
        """
        from worldsmith.sampling.requests import GenerationRequest, read_request

        found = {
            caption: ClipCaption(window, data, source)
            for caption, window in first_windows(data, CANDIDATES * self.num_prompts).items()
        }
        defaults, accepted = sampler.model.defaults, {}
        size = {name: getattr(defaults, name) for name in ("height", "width", "num_frames", "fps")}
        for caption, origin in found.items():
            with suppress(ValueError):
                read_request(sampler, GenerationRequest(prompt=caption, **size))
                accepted[caption] = origin
            if len(accepted) == self.num_prompts:
                break
        return accepted or dict(islice(found.items(), self.num_prompts))

    def draw(self, trainer: TrainingRun) -> Iterator[list[DrawnSample]]:
        from worldsmith.sampling.generate_videos import generate_latents

        config = self.config
        requests = self.requests[: self.decision.prompts or None]
        model: Any = trainer.model
        constant: dict[str, Any] = {} if "dynamic_guidance" in model.defaults.refused else {"dynamic_guidance": "off"}
        for number, scale in enumerate(config.guidance):

            def report(done: int, total: int, number: int = number) -> None:
                self.end_if_stopped(trainer, (number + done / total) / len(config.guidance))

            settings = {"steps": self.steps, "guidance": scale, "progress": report, **constant}
            latents = generate_latents(model, requests, **settings)
            if not trainer.world.is_main:
                latents = []
            sources = chain((caption.source for caption in self.captions), repeat(None))
            yield [
                DrawnSample(prompt=request.prompt, guidance=scale, fps=request.fps, latents=latent, source=source)
                for request, latent, source in zip(requests, latents, sources)
            ]

    def write(
        self, trainer: TrainingRun, folder: Path, samples: Mapping[Weights, Sequence[DrawnSample]]
    ) -> Iterator[dict[str, Any]]:
        from worldsmith.sampling.write_media import contact_sheet, few_frames

        run = folder.parents[1]
        model: Any = trainer.model
        real = self._write_dataset_clips(trainer, folder.parent / REAL)
        requests = self.requests[: self.decision.prompts or None]
        nothing: list[Path | None] = [None] * len(requests)
        rows = []
        if real and None not in real:
            rows.append(("clips of the data", [few_frames(file) for file in real[: len(requests)] if file]))
        for weights, drawn in samples.items():
            for start, scale in zip(range(0, len(drawn), len(requests)), self.config.guidance):
                clips = []
                for number, (sample, clip) in enumerate(zip(drawn[start : start + len(requests)], real or nothing)):
                    assert sample.latents is not None
                    frames = model.decode(sample.latents).cpu()
                    clips.append(frames)
                    is_image = frames.shape[1] == 1
                    file = folder / f"{number:02d}_{weights}_guidance_{scale:g}"
                    file = write_clip(file, frames, sample.fps)
                    yield {
                        "weights": weights,
                        "guidance": scale,
                        "solver_steps": self.steps,
                        "kind": "image" if is_image else "video",
                        "prompt": sample.prompt,
                        **({} if sample.source is None else {"source": sample.source}),
                        "file": str(file.relative_to(run)),
                        **({} if clip is None else {"real": str(clip.relative_to(run))}),
                    }
                rows.append((f"{WEIGHTS_NAMES[weights]}, guidance {scale:g}", clips))
        sources = [f"{caption.source}: " for caption in self.captions]
        titles = [f"{source}{request.prompt}" for request, source in zip(requests, chain(sources, repeat("")))]
        contact_sheet(folder / "sheet.png", rows, titles)

    def _write_dataset_clips(self, trainer: TrainingRun, folder: Path) -> list[Path | None]:
        """Writes the clips of the data whose captions are prompts, as seen in training, in the size of the samples.

        Existing files are not written again. The result contains None for a clip that cannot be read; it is empty if
        the prompts are not from the data.
        """
        model: Any = trainer.model
        files: list[Path | None] = []
        for caption, request in zip(self.captions, self.requests):
            window, size = caption.window, (request.height, request.width)
            name = hashlib.blake2b(repr((window.path, window.key, size)).encode(), digest_size=4).hexdigest()
            found: Path | None = next(folder.glob(f"{name}.*"), None)
            if found is None:
                try:
                    frames, fps = read_clip(window, caption.dataset, model.latent_grid, size)
                    found = write_clip(folder / name, frames, fps, max_bytes=REAL_BYTES)
                except SampleError as error:
                    logger.warning("%s is not shown next to its samples: %s", window.key, error)
            files.append(found)
        return files


def write_clip(stem: Path, frames: Tensor, fps: float, *, max_bytes: int | None = None) -> Path:
    """Writes uint8 frames [3, T, H, W] as an MP4 file, or one frame as a JPEG file, and returns its path.

    Args:
        stem: Path without suffix; missing folders are created.
        frames: Frames in RGB.
        fps: Frames per second.
        max_bytes: Size above which the quality is lowered, as far as possible; None: no limit.
    """
    from worldsmith.sampling.write_media import write_jpeg, write_mp4

    is_image = frames.shape[1] == 1
    file = stem.with_name(f"{stem.name}.{'jpg' if is_image else 'mp4'}")
    file.parent.mkdir(parents=True, exist_ok=True)
    for quality, crf in zip((QUALITY, 85, 70, 50), (12, 20, 28, 36)):
        if is_image:
            write_jpeg(file, frames[:, 0], quality)
        else:
            write_mp4(file, frames, fps, crf=crf)
        if max_bytes is None or file.stat().st_size <= max_bytes:
            break
    return file


def request_arguments(captions: Mapping[str, ClipCaption], model: Any) -> list[dict[str, Any]]:
    """Returns the keyword arguments of a `GenerationRequest` for each caption of the data.

    Args:
        captions: Caption -> its clip.
        model: Model config.

    Returns:
        Dicts with `prompt`; if the model cannot generate from text only, also with `condition`, the first frame of the
        clip, and `condition_frames`, which is 1.
    """
    if FROM_TEXT & set(model.modes):
        return [{"prompt": caption} for caption in captions]
    return [
        {
            "prompt": caption,
            "condition": read_first_frame(origin.window, origin.dataset, model.latent_grid),
            "condition_frames": 1,
        }
        for caption, origin in captions.items()
    ]


def read_requests(files: Sequence[str], defaults: GenerationDefaults, model: Any) -> list[GenerationRequest]:
    """Reads generation requests for samples from files.

    Args:
        files: Files or glob patterns in the format of `worldsmith generate`.
        defaults: Values of settings that a sample does not state.
        model: Model config.

    Raises:
        UserError: If a file or sample is invalid.
        ValueError: If a sample has a setting that must be the same for all, or transforms a video.
    """
    from worldsmith.data.clips.latent_grid import LatentGrid
    from worldsmith.sampling.sample_args import decide
    from worldsmith.sampling.sample_files import Layer, read_files

    cells, found = LatentGrid(*model.latent_grid), []
    nothing = Layer("", SampleSettings(), Path())
    for entry in read_files(files) if files else ():
        for layer in entry.layers:
            if own := [name for name in SAME_FOR_ALL if getattr(layer.settings, name) is not None]:
                raise ValueError(
                    f"{layer.source}: {', '.join(own)} cannot be set per sample: they are the same for "
                    "all samples of a run. Remove them"
                )
        decided = decide(entry, nothing, defaults, cells, "the run", model.modes)
        if any(args.strength is not None for args in decided):
            raise ValueError(
                f"{entry.layers[0].source}: video-to-video is not supported for samples of a run; set vision_path to "
                "an image, or omit it"
            )
        found += [args.request(cells) for args in decided]
    return found
