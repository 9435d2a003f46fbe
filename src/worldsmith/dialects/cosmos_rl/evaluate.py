"""The evaluator's spec: ten flat tables, as Cosmos-RL and TAO have them."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, Literal

from worldsmith.config.declare.configurable import Config
from worldsmith.config.declare.ranges import Count, NotNegative, Range, Share
from worldsmith.config.declare.search import Example, Popular, Search

RatePolicy = Literal["optional", "require", "probe"]
Ratio = Annotated[float, Range(ge=-2, le=2)]


class DatasetTable(Config):
    """The questions."""

    annotation_path: Annotated[str, Example("data/val/annotations.json"), Popular()]
    """LLaVA annotations: a JSON list of records with conversations."""
    media_dir: Annotated[str, Example("data/val"), Popular()] = ""
    """Folder that the records' images and videos are relative to; "" = that of the annotations."""
    system_prompt: str = ""
    """Opens every conversation that has no system turn of its own; "" = none."""
    video_fps: RatePolicy = "optional"
    """`video_fps` of a record: used where it is stated, required of every record with a video, or ignored."""


class ModelTable(Config):
    """Who is asked."""

    model_name: Annotated[str, Example("results/train/safetensors/final"), Popular()]
    """Folder of a model, an export or an adapter, or a hub name, also as hf_model://ORG/NAME."""
    save_folder: str = "cr1_1_zero_shot"
    """Folder of the results below results_dir."""
    tokenizer_model_name: str = ""
    """Another model's tokenizer."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "bfloat16"
    """Number format of the weights."""
    max_length: Annotated[int, Range(ge=1024, le=1_000_000)] = 128_000
    """Longest prompt and answer, in tokens."""
    tp_size: Annotated[int, Range(ge=1, le=8)] = 1
    """GPUs that share one copy of the model."""
    enable_lora: bool = False
    """model_name is an adapter."""
    base_model_path: str = ""
    """The model that the adapter belongs to; "" = the one that its adapter_config.json names."""
    config_file: str = ""
    """A model's config.json from elsewhere."""
    export_dir: str = ""
    """Folder of merged models; "" = beside the results."""
    vit_checkpoint_path: str = ""
    """Weights of the vision tower from elsewhere."""


class TaskTable(Config):
    """What the answers are."""

    type_: Annotated[
        Literal["", "binary", "bcq", "mcq", "letter", "text", "freeform", "its_directionality", "metropolis_sgd"],
        Popular(),
    ] = ""
    """"" = as the true answers are: yes or no, letters, or text. its_directionality: left, right or straight."""


class SoftAccuracyTable(Config):
    """When a text is near enough."""

    enabled: bool = True
    """Count soft matches."""
    f1_threshold: Share = 0.8
    """Least F1 of the words that two texts share."""


class EvaluationTable(Config):
    """How the questions are asked."""

    answer_type: Literal["freeform", "letter", "reasoning"] = "freeform"
    """letter: short answers, compared as letters."""
    num_processes: Annotated[int, Range(ge=1, le=128)] = 40
    """Processes that prepare prompts."""
    skip_saved: bool = False
    """Leave out what an earlier evaluation has answered."""
    seed: NotNegative = 1
    """Of the answers that are drawn."""
    limit: Annotated[int, Range(ge=1, also=-1)] = -1
    """Only the first so many records; -1 = all."""
    shard_id: Annotated[int, Range(ge=0, le=63)] = 0
    """Which share of the records, of num_gpus / tp_size."""
    batch_size: Annotated[int, Range(ge=1, le=500), Popular()] = 50
    """Records that are asked at once."""
    soft_accuracy: SoftAccuracyTable = field(default_factory=SoftAccuracyTable)
    """When a text is near enough."""
    shard_strategy: Literal["stride", "media_balanced"] = "stride"
    """How records are divided among processes."""
    barrier_timeout_seconds: Count = 14_400
    """How long processes wait for each other."""


class VisionTable(Config):
    """How videos are read. One of fps and nframes; neither: 8 frames."""

    fps: (
        Annotated[float, Range(gt=0, le=60), Search(choices=(1.0, 2.0, 3.0), when="nframes=null", on=True), Popular()]
        | None
    ) = None
    """Frames taken of each second."""
    nframes: Annotated[Count, Popular()] | None = None
    """Frames taken of every video."""
    min_frames: Count | None = None
    """At least so many by fps."""
    max_frames: Count | None = None
    """At most so many by fps."""
    video_start: Annotated[float, Range(ge=0)] | None = None
    """Second at which a clip begins."""
    video_end: Annotated[float, Range(gt=0)] | None = None
    """Second at which a clip ends."""
    video_override_map: str | None = None
    """File that names other media files, decoded instead of the videos of some records."""
    total_pixels: Count | None = None
    """Most pixels of a video; two frames count once."""
    min_pixels: Count | None = None
    """Least pixels of a frame."""
    max_pixels: Count | None = None
    """Most pixels of a frame."""
    resized_height: Count | None = None
    """Rows of every frame. Set both or neither."""
    resized_width: Count | None = None
    """Columns of every frame."""


class GenerationTable(Config):
    """How answers are drawn."""

    max_retries: Annotated[int, Range(ge=0, le=50)] = 10
    """How often a failed request is sent again."""
    max_tokens: Annotated[int, Range(ge=1, le=8192), Search(low=4, high=1024, power_of_two=True), Popular()] = 1024
    """Longest answer."""
    temperature: Annotated[float, Range(ge=0, le=2), Search(low=0.0, high=1.0)] = 0.0
    """0 = the likeliest word each time."""
    repetition_penalty: Annotated[float, Range(ge=0.1, le=2), Search(low=1.0, high=1.2)] = 1.0
    """Above 1: words that were said are less likely."""
    presence_penalty: Ratio = 0.0
    """Of words that were said."""
    frequency_penalty: Ratio = 0.0
    """Of words that were said, each time."""


class MetricsTable(Config):
    """Figures of texts."""

    names: list[Literal["bleu", "rouge", "bertscore"]] = field(default_factory=lambda: ["bleu", "rouge"])
    """Which are computed beside exact and soft accuracy."""
    bertscore_model: str = "microsoft/deberta-xlarge-mnli"
    """Folder or hub name of the model that compares texts."""
    bertscore_lang: str = "en"
    """Its language."""
    bertscore_device: str = "cpu"
    """Where it runs."""
    bertscore_batch_size: Count = 1
    """Texts that it reads at once."""


class ResultsTable(Config):
    """What is written."""

    save_individual_results: bool = True
    """A file for each record."""
    save_confusion_matrix: bool = True
    """A picture of which answers were given for which."""
    save_metrics_summary: bool = True
    """The figures."""


class EvaluateSpec(Config):
    """The settings of an evaluation, flat; `evaluate.` may stand before them all."""

    dataset: DatasetTable
    """The questions."""
    datasets: dict[str, Any] | list[str] = field(default_factory=dict)
    """Several data sets in place of one: name = a table with the keys of dataset; or benchmarks by name."""
    data_dir: str = ""
    """Folder with benchmark/NAME of each benchmark in datasets."""
    model: ModelTable
    """Who is asked."""
    task: TaskTable = field(default_factory=TaskTable)
    """What the answers are."""
    evaluation: EvaluationTable = field(default_factory=EvaluationTable)
    """How the questions are asked."""
    vision: VisionTable = field(default_factory=VisionTable)
    """How videos are read."""
    generation: GenerationTable = field(default_factory=GenerationTable)
    """How answers are drawn."""
    metrics: MetricsTable = field(default_factory=MetricsTable)
    """Figures of texts."""
    results: ResultsTable = field(default_factory=ResultsTable)
    """What is written."""
    num_gpus: Annotated[int, Range(ge=1, le=8), Popular()] = 1
    """GPUs that answer."""
    results_dir: Annotated[str, Example("results/evaluate"), Popular()]
    """Where the results go."""
