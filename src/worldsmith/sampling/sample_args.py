"""A sample with the final value of every setting, and the source of each value."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from worldsmith.config.errors import UserError
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.resolution import RESOLUTIONS, check_tier
from worldsmith.models.video_model import MODES, ROBOT_MODES, GenerationDefaults, Sampling
from worldsmith.sampling.requests import GenerationRequest
from worldsmith.sampling.sample_files import Layer, SampleEntry, is_image_file, read_condition
from worldsmith.sampling.sample_settings import SampleSettings

STRENGTH = 0.8
"""Default of `strength`, as in the video-to-video pipelines of diffusers."""


MOST_VALUES = 4
"""Max number of different values of a setting that are printed one by one."""


UNPRINTED = ("name", "extra", "prompt", "sources")
"""Fields of `SampleArgs` that are not printed as settings."""
ROBOT_SETTINGS = (
    *("actions", "action_path", "state", "camera_paths", "robot_dataset"),
    *("domain_name", "raw_action_dim", "action_chunk_size", "view_point"),
)
"""Fields of `Sample` that only samples with robot actions have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleArgs:
    """Final settings of one generated image or video, as stored in `sample_args.json`, without the model."""

    name: str
    """Name of the sample: path of its folder, relative to the output folder."""
    model_mode: str
    prompt: str
    negative_prompt: str | None
    negative_metadata_mode: str | None
    structured_metadata: bool
    vision_path: str | None
    condition_frame_indexes_vision: list[int]
    condition_video_keep: str | None
    height: int
    width: int
    num_frames: int
    fps: float
    seed: int
    num_steps: int
    guidance: float
    shift: float | None
    image_save_quality: int
    scheduler: str | None = None
    dynamic_guidance: str | None = None
    strength: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    """Field name -> source of the value, such as a file with line number, or the flags."""

    @property
    def is_image(self) -> bool:
        return self.num_frames == 1

    @property
    def file(self) -> str:
        """File name of the generated image or video."""
        return "vision.jpg" if self.is_image else "vision.mp4"

    @property
    def sampling(self) -> Sampling:
        """Settings of the solver and guidance; samples in the same forward pass must have equal ones."""
        return Sampling(
            steps=self.num_steps,
            guidance=self.guidance,
            shift=self.shift,
            scheduler=self.scheduler,
            dynamic_guidance=self.dynamic_guidance,
            strength=self.strength,
        )

    @property
    def media(self) -> list[str]:
        """Paths of the files with conditioning frames."""
        return [] if self.vision_path is None else [self.vision_path]

    def record(self) -> dict[str, Any]:
        return asdict(self)

    def request(self, grid: LatentGrid) -> GenerationRequest:
        """Returns the generation request of the sample; reads its conditioning frames from `vision_path`, if any.

        Args:
            grid: Number of frames and pixels per latent of the model.

        Raises:
            ValueError: If the file cannot be read, or the request is invalid.
        """
        frames = len(self.condition_frame_indexes_vision)
        condition = None
        if self.vision_path is not None:
            last = self.condition_video_keep == "last"
            needed = self.num_frames if self.strength is not None else grid.pixel_frames(frames)
            condition = read_condition(self.vision_path, needed, last=last)
        request = GenerationRequest(
            prompt=self.prompt,
            height=self.height,
            width=self.width,
            num_frames=self.num_frames,
            fps=self.fps,
            seed=self.seed,
            condition=condition,
            condition_frames=frames,
            negative_prompt=self.negative_prompt,
            negative_metadata=self.negative_metadata_mode,  # type: ignore[arg-type]
            structured_metadata=self.structured_metadata,
        )
        request.check(grid, whole=self.strength is not None)
        return request


class Chooser:
    """Selects the value of each setting from several sources, and records in `sources` which one was used.

    Args:
        layers: Settings from the sources, such as flags and files; earlier ones have precedence.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.sources: dict[str, str] = {}

    def find(self, *names: str) -> Layer | None:
        """Returns the first layer that sets at least one of the settings `names`; None if no layer does."""
        return next(
            (one for one in self.layers if any(getattr(one.settings, n, None) is not None for n in names)), None
        )

    def pick(self, name: str, *below: tuple[Any, str]) -> Any:
        """Returns the value of a setting from the first layer that sets it, and records its source.

        Args:
            name: Name of the setting, a field of `SampleSettings`.
            below: (value, source) pairs of defaults if no layer sets it; the first value that is not None is used.

        Returns:
            The value; None if neither a layer nor a default has one.
        """
        layer = self.find(name)
        layer_values = [] if layer is None else [(getattr(layer.settings, name), layer.source)]
        value, source = next((pair for pair in (*layer_values, *below) if pair[0] is not None), (None, ""))
        if source:
            self.sources[name] = source
        return value

    def path(self, name: str) -> str | None:
        """Returns the path setting `name` joined to the folder of its layer and records its source; None if not set."""
        layer = self.find(name)
        if layer is None:
            return None
        self.sources[name] = layer.source
        return str(layer.folder / getattr(layer.settings, name))


def decide(
    entry: SampleEntry,
    flags: Layer,
    defaults: GenerationDefaults,
    grid: LatentGrid,
    defaults_source: str,
    modes: Sequence[str] = MODES,
) -> list[SampleArgs]:
    """Returns the final settings of the samples that one entry of a sample file describes.

    Flags have precedence over the sample file, the sample file over the defaults of the model.

    Args:
        entry: The entry, with the settings of its defaults file.
        flags: Settings from the command line.
        defaults: Default generation settings of the model.
        grid: Number of frames and pixels per latent of the model.
        defaults_source: Name of the source of `defaults`, to be recorded and for messages.
        modes: Generation modes that the model supports.

    Returns:
        One element per output (`num_outputs`), with consecutive seeds.

    Raises:
        UserError: If settings contradict each other, are missing or are not supported by the model.
    """
    where, chooser = entry.layers[0].source, Chooser([flags, *entry.layers])
    try:
        first = decide_first(entry, chooser, defaults, grid, defaults_source, modes)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    return with_outputs(first, chooser)


def with_outputs(first: SampleArgs, chooser: Chooser) -> list[SampleArgs]:
    """Returns one sample per output (`num_outputs`), with consecutive seeds from that of `first`."""
    outputs = chooser.pick("num_outputs") or 1
    if outputs == 1:
        return [first]
    return [replace(first, name=f"{first.name}/{i}", seed=first.seed + i) for i in range(outputs)]


def decide_first(
    entry: SampleEntry,
    chooser: Chooser,
    defaults: GenerationDefaults,
    grid: LatentGrid,
    defaults_source: str,
    modes: Sequence[str],
) -> SampleArgs:
    for layer in chooser.layers:
        defaults.refuse({field.name: getattr(layer.settings, field.name) for field in fields(SampleSettings)})
    vision = chooser.path("vision_path")
    mode, num_frames = choose_mode(chooser, vision, (defaults.num_frames, defaults_source), modes)
    if mode not in ROBOT_MODES and (given := [name for name in ROBOT_SETTINGS if chooser.find(name)]):
        raise ValueError(f"{', '.join(given)}: only for model_mode {', '.join(ROBOT_MODES)}; set it, or omit them")
    if mode not in modes:
        if mode in ROBOT_MODES:
            raise ValueError(f"model_mode {mode}: robot actions are generated by `worldsmith generate` only")
        raise ValueError(f"this model does not support {mode}; supported: {', '.join(modes)}")
    mode_defaults = defaults.image_defaults() if mode == "text2image" else defaults
    height, width = choose_size(chooser, (mode_defaults.height, mode_defaults.width), defaults_source)
    fps = chooser.pick("fps", (mode_defaults.fps, defaults_source))
    shift = chooser.pick("shift", (mode_defaults.shift, defaults_source))
    values = {"height": height, "width": width, "num_frames": num_frames, "fps": fps}
    if missing := [name for name, value in values.items() if value is None]:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise ValueError(f"the model does not record the {', '.join(missing)} of its training; set {flags}")
    if shift is None and "shift" not in mode_defaults.refused and not mode_defaults.shift_of_size:
        raise ValueError("the shift of the model's noise schedule is unknown, or depends on the size; set --shift")
    assert num_frames is not None  # checked above
    whole = grid.pixel_frames(grid.latent_frames(num_frames))
    if whole != num_frames:
        chooser.sources["num_frames"] += f"; rounded up from {num_frames} to complete latent frames"
    own = mode_defaults.sampling()
    negative, metadata = choose_negative(chooser)
    strength = choose_strength(chooser, mode, mode_defaults)
    has_frames = strength is None and mode not in ROBOT_MODES
    indexes, keep = choose_frames(chooser, vision) if has_frames else ([], None)
    return SampleArgs(
        name=entry.name,
        model_mode=mode,
        prompt=read_prompt(entry),
        negative_prompt=negative,
        negative_metadata_mode=metadata,
        structured_metadata=chooser.pick("structured_metadata", (defaults.structured_metadata, defaults_source)),
        vision_path=vision,
        condition_frame_indexes_vision=indexes,
        condition_video_keep=keep,
        height=height or 0,
        width=width or 0,
        num_frames=whole,
        fps=float(fps),
        seed=chooser.pick("seed", (0, "default")),
        num_steps=chooser.pick("num_steps", (own.steps, mode)),
        guidance=chooser.pick("guidance", (own.guidance, defaults_source if mode_defaults is defaults else mode)),
        shift=None if shift is None else float(shift),
        image_save_quality=chooser.pick("image_save_quality", (95, "default")),
        scheduler=chooser.pick("scheduler", (own.scheduler, defaults_source)),
        dynamic_guidance=chooser.pick("dynamic_guidance", (own.dynamic_guidance, defaults_source)),
        strength=strength,
        extra=entry.sample.extra,
        sources=chooser.sources,
    )


def choose_mode(
    chooser: Chooser, vision: str | None, trained: tuple[int | None, str], modes: Sequence[str]
) -> tuple[str, int | None]:
    """Selects the generation mode and the number of frames of a sample.

    Args:
        chooser: Selects the value of each setting.
        vision: Path of the conditioning image or video; None: text only.
        trained: (number of frames in training or None, source of this value).
        modes: Generation modes that the model supports.

    Returns:
        (mode such as "text2video", number of frames or None if it is not known).

    Raises:
        ValueError: If mode, number of frames and conditioning input contradict each other.
    """
    input_type = "text" if vision is None else "image" if is_image_file(vision) else "video"
    requested = chooser.pick("num_frames")
    is_single_frame = requested == 1 or (vision is None and requested is None and set(modes) == {"text2image"})
    mode = chooser.pick("model_mode", (f"{input_type}2{'image' if is_single_frame else 'video'}", "the given inputs"))
    if mode in ROBOT_MODES:
        return mode, chooser.pick("num_frames", trained)
    source, output_type = mode.split("2")
    if source != input_type:
        given = f"begins with {vision}" if vision else "has no vision_path"
        raise ValueError(f"model_mode {mode} does not fit a sample that {given}")
    if output_type == "image" and requested not in (None, 1):
        raise ValueError(f"model_mode {mode} generates one frame, found num_frames {requested}")
    if output_type == "video" and requested == 1:
        raise ValueError(f"model_mode {mode} generates more than one frame, found num_frames 1")
    if output_type == "image" and input_type != "text":
        raise ValueError(f"{mode}: images are generated from text only; omit vision_path, or increase num_frames")
    return mode, chooser.pick("num_frames", (1, mode) if output_type == "image" else trained)


def choose_size(
    chooser: Chooser, trained: tuple[int | None, int | None], defaults_source: str
) -> tuple[int | None, int | None]:
    """Selects the size of a sample from the first layer that sets pixels or a resolution bucket.

    Args:
        chooser: Selects the value of each setting.
        trained: (height, width) in training, in pixels; None: not known.
        defaults_source: Name of the source of `trained`.

    Returns:
        (height, width) in pixels; None: not known.

    Raises:
        ValueError: If the resolution bucket is unknown or missing.
    """
    pixels, tier = ("height", "width"), ("resolution", "aspect_ratio")
    layer = chooser.find(*pixels, *tier)
    if layer is None or any(getattr(layer.settings, name) is not None for name in pixels):
        height, width = (chooser.pick(name, (side, defaults_source)) for name, side in zip(pixels, trained))
        return height, width
    known = next((t for t, sizes in RESOLUTIONS.items() if trained[::-1] in sizes.values()), None)
    resolution = chooser.pick("resolution", (known, defaults_source))
    if resolution is None:
        raise ValueError(
            "aspect_ratio requires a resolution, but the size in training is in no resolution bucket; set --resolution"
        )
    check_tier(resolution)
    aspect = chooser.pick("aspect_ratio", ("16,9", "default"))
    width, height = RESOLUTIONS[resolution][aspect]
    return height, width


def choose_frames(chooser: Chooser, vision: str | None) -> tuple[list[int], str | None]:
    """Selects which latent frames of the conditioning image or video a sample keeps.

    Args:
        chooser: Selects the value of each setting.
        vision: Path of the conditioning image or video; None: text only.

    Returns:
        (indices of the latent frames, whether they are the "first" or "last" ones of the video; None for an image).

    Raises:
        ValueError: If frames are requested without a conditioning image or video, or do not fit it.
    """
    names = "condition_frame_indexes_vision", "condition_video_keep"
    requested = {name: chooser.pick(name) for name in names}
    if vision is None:
        if any(requested.values()):
            raise ValueError(f"{' and '.join(n for n in names if requested[n])} require a vision_path with the frames")
        return [], None
    image = is_image_file(vision)
    if requested[names[0]] == [] or (image and requested[names[0]] not in (None, [0])):
        raise ValueError(
            f"{names[0]} {requested[names[0]]} does not match {vision}; {'write [0]' if image else 'omit it'}"
        )
    if image and requested[names[1]]:
        raise ValueError(f"{names[1]} selects frames of a video, but {vision} is an image; omit it")
    kept: list[int] = chooser.pick(names[0], ([0] if image else [0, 1], "image" if image else "video"))
    return kept, None if image else chooser.pick(names[1], ("first", "default"))


def choose_strength(chooser: Chooser, mode: str, defaults: GenerationDefaults) -> float | None:
    """Selects the fraction of solver steps with which a video is regenerated; None if no video is regenerated.

    Args:
        chooser: Selects the value of each setting.
        mode: Generation mode.
        defaults: Default generation settings of the model.

    Raises:
        ValueError: If strength is given without a video.
    """
    if mode == "video2video" and "strength" not in defaults.refused:
        return chooser.pick("strength", (STRENGTH, "default"))
    if chooser.pick("strength") is not None:
        raise ValueError("strength requires a vision_path of a video to regenerate")
    return None


def choose_negative(chooser: Chooser) -> tuple[str | None, str | None]:
    """Selects the negative prompt and the metadata sentences after it.

    Args:
        chooser: Selects the value of each setting.

    Returns:
        (negative prompt or None, value of `negative_metadata_mode` or None).

    Raises:
        ValueError: If the file with the negative prompt cannot be read.
    """
    text = chooser.pick("negative_prompt")
    layer = chooser.find("negative_prompt", "negative_prompt_file")
    if layer is not None and layer.settings.negative_prompt_file is not None:
        path = layer.folder / layer.settings.negative_prompt_file
        text = read_text(path, "negative_prompt_file")
        if path.suffix.lower() == ".json":
            try:
                text = json.dumps(json.loads(text))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"negative_prompt_file: {path}: not valid JSON: {error}") from None
        chooser.sources["negative_prompt"] = str(path)
    mode = chooser.pick("negative_metadata_mode")
    if mode in (None, "none") and chooser.pick("negative_prompt_keep_metadata"):
        mode = "same"
    return text, mode


def read_prompt(entry: SampleEntry) -> str:
    """Returns the prompt of a sample: the content of its file `prompt_path`, else the value of `prompt`.

    Raises:
        ValueError: If the file cannot be read.
    """
    if entry.sample.prompt_path is None:
        return entry.sample.prompt or ""
    return read_text(entry.layers[0].folder / entry.sample.prompt_path, "prompt_path")


def read_text(path: Path, name: str) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{name}: {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def settings_lines(samples: Sequence[SampleArgs]) -> list[str]:
    """Returns lines "NAME VALUES (SOURCE)" to print, one for each setting and source, sorted.

    Different values of the samples share the line if they come from the same source. Line numbers in sources are
    omitted, and so is the folder of a file whose name is unique.
    """
    files = {re.sub(r":\d+$", "", source) for sample in samples for source in sample.sources.values()}
    names = Counter(Path(file).name for file in files)
    counts: dict[tuple[str, str], Counter[str]] = {}
    for sample in samples:
        values: Mapping[str, Any] = {k: v for k, v in sample.record().items() if k not in UNPRINTED}
        for name, value in values.items():
            if name in sample.sources and name != "seed":
                source = re.sub(r":\d+$", "", sample.sources[name])
                source = Path(source).name if names[Path(source).name] == 1 else source
                counts.setdefault((name, source), Counter())[json.dumps(value, ensure_ascii=False)] += 1
    lines = []
    for (name, source), found in counts.items():
        if len(found) > MOST_VALUES:
            found = Counter({f"{len(found)} different values": found.total()})
        part = "" if found.total() == len(samples) else f"; {found.total()} of {len(samples)} samples"
        texts = [text[:80] for text in found]
        if len(found) > 1:
            texts = [f"{text} for {count} sample{'s' * (count > 1)}" for text, count in zip(texts, found.values())]
        lines.append(f"{name:<20} {', '.join(texts)} ({source}{part})")
    return sorted(lines)
