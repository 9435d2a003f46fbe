"""Settings of a sample to generate, from a file or flags, with the released names and meanings."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, Literal

from worldsmith.config import Config, wrong
from worldsmith.config.declare.ranges import Count, Factor, NotNegative, PositiveFactor, Range, Seed
from worldsmith.data.robots.robot import Viewpoint
from worldsmith.models.video_model import NOISE_LEVELS, DynamicGuidance, Mode, RobotMode

NAME_LENGTH = 100
"""Max number of characters of a sample's name, which is also the name of its folder."""


class SampleSettings(Config):
    """Generation settings of one sample in a sample file, or of all samples as flags. null: the setting is not set."""

    model_mode: Mode | RobotMode | None = None
    """Generation mode; null: it follows from vision_path and num_frames. For models with robot actions also wam (video
    and actions are generated), forward_dynamics (the video) and inverse_dynamics (the actions)."""
    negative_prompt: str | None = None
    """Negative prompt of classifier-free guidance; null: the empty caption, as in training."""
    negative_prompt_file: str | None = None
    """File with the negative prompt: a text file, or a .json file, whose content is used as one line of JSON with ASCII
    escapes."""
    negative_metadata_mode: Literal["none", "same", "inverse"] | None = None
    """Sentences on duration, frame rate and size after the negative prompt: none, the same as after the prompt, or
    their negations (inverse); null: none after a given negative prompt, as in training after the empty caption."""
    negative_prompt_keep_metadata: bool | None = None
    """true: the same as negative_metadata_mode = same."""
    structured_metadata: bool | None = None
    """Whether duration, fps, resolution and aspect_ratio are added to JSON prompts; null: yes for released weights that
    were trained with such prompts, otherwise no."""
    vision_path: str | None = None
    """Conditioning image (.png, .jpg, .jpeg, .webp) or video, with the first frames of the generated video or, in
    families that support strength, the video to regenerate."""
    condition_frame_indexes_vision: list[NotNegative] | None = None
    """Indices from 0 of the latent frames of vision_path that the generated video keeps; null: [0] for an image, [0, 1]
    (the first 5 frames) for a video."""
    condition_video_keep: Literal["first", "last"] | None = None
    """Whether the kept frames are the first or the last ones of the video vision_path; null: first."""
    resolution: str | None = None
    """Resolution bucket, such as 256, 480 or 720; null: the size in training, or the default of the released
    weights."""
    aspect_ratio: Literal["1,1", "4,3", "3,4", "16,9", "9,16"] | None = None
    """Aspect ratio (width,height) in a resolution bucket; null: 16,9."""
    height: Count | None = None
    """Height in pixels, a multiple of 16, instead of a resolution bucket."""
    width: Count | None = None
    """Width in pixels, a multiple of 16, instead of a resolution bucket."""
    num_frames: Count | None = None
    """Number of frames: 1 for an image, 4k+1 (8k+1 in some families) for a video; null: as in training, or the default
    of the released weights."""
    fps: PositiveFactor | None = None
    """Frame rate (fps); null: as in training, or the default of the released weights."""
    seed: Seed | None = None
    """Seed of the noise; null: 0."""
    num_outputs: Count | None = None
    """Number of samples per prompt, with consecutive seeds; null: 1."""
    num_steps: Annotated[int, Range(ge=1, le=NOISE_LEVELS)] | None = None
    """Number of solver steps; null: the family's default, such as 35 or 50."""
    guidance: Factor | None = None
    """Scale of classifier-free guidance, 1 = off; null: the scale of the run's samples, otherwise the family's
    default."""
    dynamic_guidance: DynamicGuidance | None = None
    """Schedule of the guidance scale: off, by_timestep (as released: oscillates between 1 and 1 + guidance), or by_step
    (grows from 1 to 1 + guidance); null: the family's default. Not all families support it."""
    shift: PositiveFactor | None = None
    """Shift of the noise schedule; null: as in training, or the default of the released weights. Not supported by all
    families."""
    scheduler: str | None = None
    """The solver, if the family has several, such as ddim or dpm; null: the family's default."""
    strength: Annotated[float, Range(gt=0, le=1)] | None = None
    """Video-to-video strength: fraction of the solver steps that change the video vision_path, if supported; null:
    0.8."""
    image_save_quality: Annotated[int, Range(ge=1, le=100)] | None = None
    """JPEG quality of an image; null: 95."""
    action_path: str | None = None
    """JSON file with the robot actions of forward_dynamics: a list of rows, or an actions.json of a generated
    sample."""
    robot_dataset: str | None = None
    """Name of the robot dataset whose robot is used, if the model was trained on several (ClipMix)."""
    domain_name: str | None = None
    """Embodiment of the robot; required for released weights, null: that of the training."""
    raw_action_dim: Count | None = None
    """Number of channels of a robot action; null: as in training, or that of domain_name."""
    action_chunk_size: Count | None = None
    """Number of robot actions, one less than frames; null: as in training, 16 for released weights."""
    view_point: Viewpoint | None = None
    """Viewpoint of the robot's camera in the JSON prompt; null: as in training, ego_view for released weights."""

    def check(self) -> None:
        pairs = [("negative_prompt", "negative_prompt_file")]
        pairs += [(size, tier) for size in ("height", "width") for tier in ("resolution", "aspect_ratio")]
        for one, other in pairs:
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise wrong(self, one, other, why="each sets the same value in another way", remedy="omit one of them")
        indexes = self.condition_frame_indexes_vision
        if indexes is not None and indexes != list(range(len(indexes) or 1)):
            raise wrong(
                self,
                "condition_frame_indexes_vision",
                why="only the first frames can be kept",
                remedy="set [0], [0, 1] and so on, or omit it",
            )


class Sample(SampleSettings):
    """One sample of a sample file: prompt, name and generation settings."""

    name: str = ""
    """Name of the sample and of its output folder; "": the name of the sample file, with an index if it has several
    samples."""
    prompt: str | None = None
    """Prompt: a caption, or a structured caption as a JSON object."""
    prompt_path: str | None = None
    """Text file with the prompt."""
    actions: list[list[float]] | None = None
    """Robot actions of forward_dynamics in the units of the robot, instead of action_path."""
    state: dict[str, list[float]] | None = None
    """State of the robot at the first frame: name of each part -> values, if the model was trained with a state."""
    camera_paths: dict[str, str] | None = None
    """Camera -> image or video, for a robot with several cameras, instead of vision_path with all of them."""
    defaults_file: str | None = None
    """File of default settings for this sample."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Values of your own, which are copied to sample_args.json and have no other effect."""

    def check(self) -> None:
        super().check()
        if (self.prompt is None) == (self.prompt_path is None):
            why = "a sample needs one prompt" if self.prompt is None else "a sample has one prompt"
            raise wrong(self, "prompt", "prompt_path", why=why, remedy="set one of them")
        odd = self.name in (".", "..") or any(letter in "/\\\0" for letter in self.name)
        if odd or len(self.name) > NAME_LENGTH:
            raise wrong(
                self, "name", why=f"the name is also a folder name: at most {NAME_LENGTH} characters without / or \\"
            )


OTHER_MODELS = (
    "it is for models of sound, controls or answers, but this model generates only videos, images and robot actions"
)
UNIPC = "the solver is UniPC, with the same guidance scale at every step; omit it"
NOT_HERE: dict[str, str] = {
    **dict.fromkeys(
        [
            *("enable_sound", "sound_path", "edge", "blur", "depth", "seg", "wsm", "control_guidance"),
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
        "the metadata sentences are always those of the model's training; omit it",
    ),
    **dict.fromkeys(["prompt_upsampling"], "prompts are used unchanged; rewrite them before"),
    **dict.fromkeys(["video_save_quality"], "all videos are written with the same quality (H.264, crf 12); omit it"),
    **dict.fromkeys(["image_size"], "the size follows from the frames in vision_path and the resolution; omit it"),
    **dict.fromkeys(["output_dir", "model"], "set it for all samples on the command line"),
    **dict.fromkeys(["tensors_file", "pickle_file"], "conditioning inputs are only text, an image or a video; omit it"),
}
"""Field of the released sample format that has no effect here -> reason; null, false or empty values are accepted."""
PROMPT_UPSAMPLER = "prompt_upsampler_"
