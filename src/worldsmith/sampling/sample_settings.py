"""Settings of a sample to generate, from a file or flags, with the released names and meanings."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, Literal

from worldsmith.config import Config, wrong
from worldsmith.config.declare.ranges import Count, Factor, NotNegative, PositiveFactor, Range, Seed
from worldsmith.models.video_model import NOISE_LEVELS, DynamicGuidance, Mode

NAME_LENGTH = 100
"""Max length of a sample's name, which is also a folder name."""


class SampleSettings(Config):
    """Generation settings of one sample in a sample file, or of all samples as flags; null: not set."""

    model_mode: Mode | None = None
    """Generation mode; null: as implied by vision_path and num_frames."""
    negative_prompt: str | None = None
    """Negative prompt of classifier-free guidance; null: the empty caption, as in training."""
    negative_prompt_file: str | None = None
    """File with the negative prompt: text, or .json, used as one line of JSON with ASCII escapes."""
    negative_metadata_mode: Literal["none", "same", "inverse"] | None = None
    """Sentences on duration, frame rate and size after the negative prompt: none, the prompt's, or their negations;
    null: none, and as in training after the empty caption."""
    negative_prompt_keep_metadata: bool | None = None
    """true: the same as negative_metadata_mode same."""
    structured_metadata: bool | None = None
    """Add duration, fps, resolution and aspect_ratio to JSON prompts; null: if the training of the weights is
    unknown."""
    vision_path: str | None = None
    """Conditioning image (.png, .jpg, .jpeg, .webp) or video: the first frames of the generated video, or (with
    strength) the video to regenerate."""
    condition_frame_indexes_vision: list[NotNegative] | None = None
    """Indices of the latent frames that are kept of it, from 0; null: [0] of an image, [0, 1] (its first 5 frames) of a
    video."""
    condition_video_keep: Literal["first", "last"] | None = None
    """Whether the frames are the first or the last of the video; null: first."""
    resolution: str | None = None
    """Resolution bucket, such as 256, 480 or 720; null: the size of training, or of the released weights."""
    aspect_ratio: Literal["1,1", "4,3", "3,4", "16,9", "9,16"] | None = None
    """Aspect ratio (width,height) in a resolution bucket; null: 16,9."""
    height: Count | None = None
    """Height in pixels, a multiple of 16, instead of a resolution bucket."""
    width: Count | None = None
    """Width in pixels, a multiple of 16, instead of a resolution bucket."""
    num_frames: Count | None = None
    """Number of frames: 1 is an image, 4k+1 (8k+1 in some families) a video; null: as in training, or of the released
    weights."""
    fps: PositiveFactor | None = None
    """Frame rate (fps); null: as in training, or of the released weights."""
    seed: Seed | None = None
    """Seed of the noise; null: 0."""
    num_outputs: Count | None = None
    """Number of samples per prompt, with consecutive seeds; null: 1."""
    num_steps: Annotated[int, Range(ge=1, le=NOISE_LEVELS)] | None = None
    """Number of solver steps; null: the family's, such as 35 or 50."""
    guidance: Factor | None = None
    """Scale of classifier-free guidance, 1 = off; null: the scale of the run's samples, otherwise the family's."""
    dynamic_guidance: DynamicGuidance | None = None
    """Schedule of the guidance scale: off, by_timestep (as released: oscillates between 1 and 1 + guidance), or by_step
    (grows from 1 to 1 + guidance); null: the family's default. Not all families support it."""
    shift: PositiveFactor | None = None
    """Shift of the noise schedule; null: as in training, or of the released weights. Not supported by all families."""
    scheduler: str | None = None
    """The solver, if the family has several, such as ddim or dpm; null: the family's default."""
    strength: Annotated[float, Range(gt=0, le=1)] | None = None
    """Fraction of solver steps for video-to-video (vision_path), in families that support it; null: 0.8."""
    image_save_quality: Annotated[int, Range(ge=1, le=100)] | None = None
    """JPEG quality of an image; null: 95."""

    def check(self) -> None:
        pairs = [("negative_prompt", "negative_prompt_file")]
        pairs += [(size, tier) for size in ("height", "width") for tier in ("resolution", "aspect_ratio")]
        for one, other in pairs:
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise wrong(self, one, other, why="each sets the same value in another way", remedy="leave one out")
        indexes = self.condition_frame_indexes_vision
        if indexes is not None and indexes != list(range(len(indexes) or 1)):
            raise wrong(
                self,
                "condition_frame_indexes_vision",
                why="only the first frames can be kept",
                remedy="write [0], [0, 1] and so on, or omit it",
            )


class Sample(SampleSettings):
    """One sample of a sample file: its settings, prompt and name."""

    name: str = ""
    """Name of the output folder; "": the file name with the sample's index."""
    prompt: str | None = None
    """A caption, or a structured caption as a JSON object."""
    prompt_path: str | None = None
    """Text file with the prompt."""
    defaults_file: str | None = None
    """File of default settings for this sample."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Your own notes, which are copied to sample_args.json."""

    def check(self) -> None:
        super().check()
        if (self.prompt is None) == (self.prompt_path is None):
            why = "a sample needs one prompt" if self.prompt is None else "a sample has one prompt"
            raise wrong(self, "prompt", "prompt_path", why=why, remedy="set one of them")
        odd = self.name in (".", "..") or any(letter in "/\\\0" for letter in self.name)
        if odd or len(self.name) > NAME_LENGTH:
            raise wrong(
                self, "name", why=f"it becomes a folder name, of at most {NAME_LENGTH} characters without / or \\"
            )


OTHER_MODELS = (
    "it applies to models for sound, actions, controls or answers, but this one generates videos and images from text"
)
UNIPC = "sampling is UniPC with the same guidance at every step; omit it"
NOT_HERE: dict[str, str] = {
    **dict.fromkeys(
        [
            *("enable_sound", "sound_path", "action_path", "action_chunk_size", "domain_name", "image_size"),
            *("raw_action_dim", "view_point", "edge", "blur", "depth", "seg", "wsm", "control_guidance"),
            *("control_guidance_interval", "num_video_frames_per_chunk", "num_conditional_frames", "max_frames"),
            *("show_control_condition", "show_input", "num_first_chunk_conditional_frames"),
            *("share_vision_temporal_positions", "max_new_tokens", "do_sample", "temperature", "top_k", "top_p"),
            *("repetition_penalty", "presence_penalty"),
        ],
        OTHER_MODELS,
    ),
    **dict.fromkeys(["guidance_interval", "normalize_cfg", "sigma_max", "autoregressive"], UNIPC),
    **dict.fromkeys(
        ["duration_template", "resolution_template", "inverse_duration_template", "inverse_resolution_template"],
        "the sentences are those of the model's training; omit it",
    ),
    **dict.fromkeys(["prompt_upsampling"], "prompts are used unchanged; rewrite them before"),
    **dict.fromkeys(["video_save_quality"], "videos are written in one quality (H.264, crf 12); omit it"),
    **dict.fromkeys(["output_dir", "model"], "set it for all samples on the command line"),
    **dict.fromkeys(["tensors_file", "pickle_file"], "a sample is text, an image or a video"),
}
"""Fields of the published format that have no effect here, with the reason; null, false or empty values are
accepted."""
PROMPT_UPSAMPLER = "prompt_upsampler_"
