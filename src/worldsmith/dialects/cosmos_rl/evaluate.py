"""Spec of an evaluation in Cosmos-RL and TAO: ten flat tables, and the rules that translate their keys."""

from __future__ import annotations

import os
from dataclasses import field
from typing import Annotated, Any, Literal

from worldsmith.config.declare.configurable import Config
from worldsmith.config.declare.ranges import Count, NotNegative, Range, Share
from worldsmith.config.declare.search import Example, Popular, Search
from worldsmith.dialects.cosmos_rl.questions import SEVERAL, WITHOUT, RatePolicy, questions
from worldsmith.dialects.cosmos_rl.rules import (
    BOUNDS,
    PIXELS,
    RESIZED,
    drop_overridden,
    model_rule,
    move_unless_empty,
    number_format,
    put_frames,
    put_total_pixels,
    refuse_remote_output,
)
from worldsmith.dialects.translation import SpecForm, SpecTranslation, computed, read_key_rules, renamed

Ratio = Annotated[float, Range(ge=-2, le=2)]
TASKS = {
    "": "auto",
    "binary": "binary",
    "bcq": "binary",
    "mcq": "mcq",
    "letter": "mcq",
    "text": "text",
    "freeform": "text",
    "its_directionality": "its_directionality",
    "metropolis_sgd": "metropolis_sgd",
}
LIMITS = (*BOUNDS, *PIXELS, *RESIZED)
LETTER_TOKENS = 10
"""Max tokens of an answer in Cosmos-RL's evaluator if `answer_type` is letter."""
TOP_P = 0.95
"""`top_p` of Cosmos-RL's evaluator if it samples."""


class DatasetTable(Config):
    """Table `dataset` of an evaluation spec: the records with questions, and their media files."""

    annotation_path: Annotated[str, Example("data/val/annotations.json"), Popular()]
    """LLaVA annotations: a JSON list of records with conversations."""
    media_dir: Annotated[str, Example("data/val"), Popular()] = ""
    """Folder that the records' images and videos are relative to; "" = that of the annotations."""
    system_prompt: str = ""
    """System prompt of conversations without one; "" = none."""
    video_fps: RatePolicy = "optional"
    """Use of a record's `video_fps`: optional, required of every record with a video, or ignored."""


class ModelTable(Config):
    """Table `model` of an evaluation spec: the model to evaluate and how it is loaded."""

    model_name: Annotated[str, Example("results/train/safetensors/final"), Popular()]
    """Folder of a model, an export or an adapter, or a hub repository (ORG/NAME or hf_model://ORG/NAME)."""
    save_folder: str = "cr1_1_zero_shot"
    """Folder of the results below results_dir."""
    tokenizer_model_name: str = ""
    """Another model whose tokenizer is used."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "bfloat16"
    """Number format of the weights."""
    max_length: Annotated[int, Range(ge=1024, le=1_000_000)] = 128_000
    """Max tokens of prompt and answer."""
    tp_size: Annotated[int, Range(ge=1, le=8)] = 1
    """GPUs that share one copy of the model."""
    enable_lora: bool = False
    """Whether model_name is an adapter."""
    base_model_path: str = ""
    """Base model of the adapter; "" = the one that its adapter_config.json names."""
    config_file: str = ""
    """Path of another config.json for the model."""
    export_dir: str = ""
    """Folder for the merged model if model_name is an adapter; "" = next to the results."""
    vit_checkpoint_path: str = ""
    """Path of other vision tower weights."""


class TaskTable(Config):
    """Table `task` of an evaluation spec: the format of the answers."""

    type_: Annotated[
        Literal["", "binary", "bcq", "mcq", "letter", "text", "freeform", "its_directionality", "metropolis_sgd"],
        Popular(),
    ] = ""
    """Answer type; "" = from the ground truth (yes/no, letter or text). its_directionality: left, right or straight."""


class SoftAccuracyTable(Config):
    """Table `evaluation.soft_accuracy` of an evaluation spec: when a text answer counts as a soft match."""

    enabled: bool = True
    """Count soft matches."""
    f1_threshold: Share = 0.8
    """Min token F1 of a soft match."""


class EvaluationTable(Config):
    """Table `evaluation` of an evaluation spec: settings of inference on the questions."""

    answer_type: Literal["freeform", "letter", "reasoning"] = "freeform"
    """letter: short answers, compared as letters."""
    num_processes: Annotated[int, Range(ge=1, le=128)] = 40
    """Number of processes that prepare prompts."""
    skip_saved: bool = False
    """Skip records that already have an answer from an earlier evaluation."""
    seed: NotNegative = 1
    """Seed of sampled answers."""
    limit: Annotated[int, Range(ge=1, also=-1)] = -1
    """Number of records to evaluate, from the first; -1 = all."""
    shard_id: Annotated[int, Range(ge=0, le=63)] = 0
    """0-based index of the shard of records to evaluate; there are num_gpus / tp_size shards."""
    batch_size: Annotated[int, Range(ge=1, le=500), Popular()] = 50
    """Number of records per batch."""
    soft_accuracy: SoftAccuracyTable = field(default_factory=SoftAccuracyTable)
    """Soft matches of text answers."""
    shard_strategy: Literal["stride", "media_balanced"] = "stride"
    """Strategy that distributes records over processes."""
    barrier_timeout_seconds: Count = 14_400
    """Timeout of barriers between processes, in seconds."""


class VisionTable(Config):
    """Table `vision` of an evaluation spec: video preprocessing.

    Set fps or nframes, not both; if both are omitted, 8 frames are sampled.
    """

    fps: (
        Annotated[float, Range(gt=0, le=60), Search(choices=(1.0, 2.0, 3.0), when="nframes=null", on=True), Popular()]
        | None
    ) = None
    """Sampled frames per second of video."""
    nframes: Annotated[Count, Popular()] | None = None
    """Number of frames sampled from every video."""
    min_frames: Count | None = None
    """Min sampled frames with fps."""
    max_frames: Count | None = None
    """Max sampled frames with fps."""
    video_start: Annotated[float, Range(ge=0)] | None = None
    """Start time of a clip, in seconds."""
    video_end: Annotated[float, Range(gt=0)] | None = None
    """End time of a clip, in seconds."""
    video_override_map: str | None = None
    """File that maps videos of records to other files, which are decoded instead."""
    total_pixels: Count | None = None
    """Max pixels of a video; two frames count once."""
    min_pixels: Count | None = None
    """Min pixels of a frame."""
    max_pixels: Count | None = None
    """Max pixels of a frame."""
    resized_height: Count | None = None
    """Height of every frame. Set both or neither."""
    resized_width: Count | None = None
    """Width of every frame."""


class GenerationTable(Config):
    """Table `generation` of an evaluation spec: how answers are generated."""

    max_retries: Annotated[int, Range(ge=0, le=50)] = 10
    """Max number of retries of a failed request."""
    max_tokens: Annotated[int, Range(ge=1, le=8192), Search(low=4, high=1024, power_of_two=True), Popular()] = 1024
    """Max tokens of an answer."""
    temperature: Annotated[float, Range(ge=0, le=2), Search(low=0.0, high=1.0)] = 0.0
    """Sampling temperature; 0 = greedy decoding."""
    repetition_penalty: Annotated[float, Range(ge=0.1, le=2), Search(low=1.0, high=1.2)] = 1.0
    """Values above 1 make tokens less likely that already occurred."""
    presence_penalty: Ratio = 0.0
    """Penalty of tokens that occurred before."""
    frequency_penalty: Ratio = 0.0
    """Penalty of tokens per earlier occurrence."""


class MetricsTable(Config):
    """Table `metrics` of an evaluation spec: text metrics in addition to accuracy."""

    names: list[Literal["bleu", "rouge", "bertscore"]] = field(default_factory=lambda: ["bleu", "rouge"])
    """Metrics in addition to exact and soft accuracy."""
    bertscore_model: str = "microsoft/deberta-xlarge-mnli"
    """Folder or hub repository of the model that BERTScore compares texts with."""
    bertscore_lang: str = "en"
    """Language of BERTScore."""
    bertscore_device: str = "cpu"
    """Device of BERTScore."""
    bertscore_batch_size: Count = 1
    """Batch size of BERTScore."""


class ResultsTable(Config):
    """Table `results` of an evaluation spec: the output files that are written."""

    save_individual_results: bool = True
    """Write one file per record."""
    save_confusion_matrix: bool = True
    """Write a confusion matrix image."""
    save_metrics_summary: bool = True
    """Write the metrics."""


class EvaluateSpec(Config):
    """Evaluation spec of Cosmos-RL or TAO: the model, the dataset, and the settings of an evaluation.

    In a file, all tables are at the top level, or all below one table `evaluate`.
    """

    dataset: DatasetTable
    """The questions."""
    datasets: dict[str, Any] | list[str] = field(default_factory=dict)
    """Several datasets instead of `dataset`: NAME = {keys of dataset}, or a list of benchmark names."""
    data_dir: str = ""
    """Folder that contains the subfolder benchmark/NAME of each benchmark in datasets."""
    model: ModelTable
    """Model to evaluate."""
    task: TaskTable = field(default_factory=TaskTable)
    """Task type of the answers."""
    evaluation: EvaluationTable = field(default_factory=EvaluationTable)
    """Settings of inference on the questions."""
    vision: VisionTable = field(default_factory=VisionTable)
    """Video preprocessing."""
    generation: GenerationTable = field(default_factory=GenerationTable)
    """Sampling of answers."""
    metrics: MetricsTable = field(default_factory=MetricsTable)
    """Text metrics."""
    results: ResultsTable = field(default_factory=ResultsTable)
    """Output files."""
    num_gpus: Annotated[int, Range(ge=1, le=8), Popular()] = 1
    """Number of GPUs."""
    results_dir: Annotated[str, Example("results/evaluate"), Popular()]
    """Folder of the results."""


@computed("results_dir", "model.save_folder")
def evaluation_folder(t: SpecTranslation) -> None:
    """Sets the result folder `out` in `t` from the spec's `results_dir` and `model.save_folder`."""
    if refuse_remote_output(t, "results_dir"):
        return
    folder, inner = t.get("results_dir").removeprefix("file://"), t.get("model.save_folder")
    layout = t.is_stated("model.save_folder") and inner
    t.put("out", f"{folder.rstrip('/')}/{inner}/general" if layout else folder, source="results_dir")
    t.report("results_dir", "renamed", f"out = {t.data['out']}")
    t.report("model.save_folder", "renamed" if layout else "unneeded", f"out = {t.data['out']}")


@computed("task.type", "evaluation.answer_type", "generation.max_tokens", "generation.temperature")
def task(t: SpecTranslation) -> None:
    """Sets the task, the max number of new tokens and the temperature in `t` from the spec's task and answer type.

    Adds a problem for answers of type "letter" if the task is not multiple choice.
    """
    kind, answers, tokens = TASKS[t.get("task.type")], t.get("evaluation.answer_type"), t.get("generation.max_tokens")
    temperature = t.get("generation.temperature")
    if answers == "letter":
        if kind not in ("auto", "mcq"):
            text = f"letters are only compared for multiple choice, but task.type is {t.get('task.type')}"
            t.refuse("evaluation.answer_type", text, "write freeform, or set task.type = mcq")
            return
        kind, temperature = "mcq", 0.0
        t.report("evaluation.answer_type", "kept", f"task = mcq, greedy decoding, at most {LETTER_TOKENS} tokens")
    else:
        t.report("evaluation.answer_type", "unneeded", "<think> and <answer> are parsed if a model writes them")
    limit = min(tokens, LETTER_TOKENS) if answers == "letter" else tokens
    for key, to, value in (
        ("task.type", "task", kind),
        ("generation.max_tokens", "max_new_tokens", limit),
        ("generation.temperature", "temperature", temperature),
    ):
        t.put(to, value, source=key)
        t.report(key, "renamed" if value == t.get(key) or key == "task.type" else "approximated", f"{to} = {value}")
    if temperature > 0:
        t.put("top_p", TOP_P, source="generation.temperature")


@computed("model.tp_size", "num_gpus", "evaluation.shard_id")
def processes(t: SpecTranslation) -> None:
    """Sets `processes` or `shard` in `t` from the spec's tensor parallelism degree, number of GPUs and shard index.

    Adds a problem if the shard index is not below the number of shards, which is `num_gpus` / `model.tp_size`.
    """
    size, number, shard = t.get("model.tp_size"), t.get("num_gpus"), t.get("evaluation.shard_id")
    if size > 1:
        text = (
            f"tensor parallelism over {size} GPUs is not supported: each process loads the complete model and "
            "evaluates a shard of the records; if the model is too large for one GPU, use `worldsmith quantize` first"
        )
        t.report("model.tp_size", "approximated", text)
    else:
        t.report("model.tp_size", "kept", "unchanged")
    number = max(number, size)
    shards, launched = max(1, number // size), os.environ.get("WORLD_SIZE")
    if shard >= shards:
        text = f"expected a 0-based shard index below num_gpus / tp_size = {shards}, found {shard}"
        t.refuse("evaluation.shard_id", text)
    elif shard:
        t.put("shard", f"{shard}/{shards}", source="evaluation.shard_id")
        t.report("evaluation.shard_id", "renamed", f"shard = {shard}/{shards}")
        t.report("num_gpus", "kept", "the number of shards")
    else:
        t.report("evaluation.shard_id", "unneeded", "all records")
        if launched is None and number > 1:
            t.assign("num_gpus", "processes", number, ", at most one per GPU of the machine")
        elif number <= int(launched or 1):
            t.report("num_gpus", "kept", "unchanged")
        else:
            t.report(
                "num_gpus",
                "approximated",
                f"{launched} of {number} processes evaluate the records, each on its own GPU",
            )


@computed("evaluation.soft_accuracy.enabled", "evaluation.soft_accuracy.f1_threshold")
def soft_matches(t: SpecTranslation) -> None:
    """Sets the token-F1 threshold of soft matches in `t`; also reports that they are always counted."""
    t.move("evaluation.soft_accuracy.f1_threshold", "soft_threshold", "renamed")
    on = t.get("evaluation.soft_accuracy.enabled")
    text = "soft matches are always counted; omit this setting" if on else "soft matches are counted"
    t.report("evaluation.soft_accuracy.enabled", "kept" if on else "approximated", text)


@computed("evaluation.limit")
def limit(t: SpecTranslation) -> None:
    """Sets the max number of evaluated records in `t`; -1 in the spec means all."""
    if t.get("evaluation.limit") > 0:
        t.move("evaluation.limit", "limit", "renamed")
    else:
        t.report("evaluation.limit", "unneeded", "all records")


@computed("model.export_dir")
def merged_folder(t: SpecTranslation) -> None:
    """Sets the folder of merged models in `t` from the spec's `model.export_dir`, if it is not empty."""
    move_unless_empty(t, "model.export_dir", "merged", "merged models are stored next to the results")


@computed(*(f"vision.{name}" for name in ("fps", "nframes", *LIMITS)))
def evaluation_frames(t: SpecTranslation) -> None:
    """Sets the frame sampling and pixel limits of videos in `t` from the spec's table `vision`."""
    given = {name: t.get(f"vision.{name}") for name in LIMITS if t.get(f"vision.{name}") is not None}
    is_sized = set(RESIZED) <= given.keys()
    by_fps = t.get("vision.fps") is not None and t.get("vision.nframes") is None
    drop_overridden(t, "vision.", given, by_fps=by_fps)
    put_frames(t, "vision.", count="nframes", default=8)
    if not is_sized:
        put_total_pixels(t, "vision.")
    for name in given:
        if name != "total_pixels":
            t.move(f"vision.{name}", f"processor.media.{name}", "renamed")


@computed("metrics.names", "metrics.bertscore_model", "metrics.bertscore_device", "metrics.bertscore_batch_size")
def metrics(t: SpecTranslation) -> None:
    """Sets the text metrics and the settings of BERTScore in `t` from the spec's table `metrics`."""
    t.move("metrics.names", "metrics", "renamed")
    keys = (("metrics.bertscore_model", "model"), ("metrics.bertscore_device", "device"),
            ("metrics.bertscore_batch_size", "batch_size"))  # fmt: skip
    for key, name in keys:
        if "bertscore" in t.get("metrics.names"):
            t.move(key, f"bertscore.{name}", "renamed")
        else:
            t.report(key, "unneeded", "metrics.names has no bertscore")


FORM = SpecForm(
    "evaluate",
    EvaluateSpec,
    (
        *(
            questions,
            model_rule("model.model_name"),
            evaluation_folder,
            task,
            processes,
            soft_matches,
            limit,
            evaluation_frames,
        ),
        *(metrics, merged_folder),
        renamed("model.dtype", "dtype", number_format),
        *read_key_rules("cosmos_rl", "evaluate", "any_result"),
    ),
    instead={SEVERAL: WITHOUT},
    aliases={"vision.num_frames": "vision.nframes", "evaluation.fps": "vision.fps"},
    wrapper="evaluate",
    left_open={
        **dict.fromkeys(("dataset.annotation_path", "model.model_name", "results_dir"), ""),
        "model.dtype": "",
        "model.max_length": 0,
        "evaluation.answer_type": "",
        "evaluation.batch_size": 0,
        "vision.nframes": 0,
        "vision.min_pixels": 0,
        "vision.max_pixels": 0,
        "generation.max_tokens": 0,
        "num_gpus": 0,
    },
)
