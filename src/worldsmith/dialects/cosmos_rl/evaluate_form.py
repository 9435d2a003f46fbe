"""Maps the keys of an evaluation spec to the settings of `worldsmith evaluate`."""

from __future__ import annotations

import os

from worldsmith.dialects.cosmos_rl.evaluate import EvaluateSpec
from worldsmith.dialects.cosmos_rl.questions import SEVERAL, WITHOUT, questions
from worldsmith.dialects.cosmos_rl.rules import (
    BOUNDS,
    CUT_FIRST,
    CUTS,
    PARENT,
    PIXELS,
    RESIZED,
    UNCUT,
    drop_overruled,
    move_if_any,
    number_format,
    put_frames,
    put_model,
    put_total_pixels,
    refuse_remote_output,
)
from worldsmith.dialects.translation import (
    SpecForm,
    SpecTranslation,
    approximated,
    computed,
    refused,
    renamed,
    unneeded,
)

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
"""Longest answer that the old evaluator lets a model give where letters are asked for."""
TOP_P = 0.95
"""What it draws from, where it draws."""


@computed("model.model_name", "model.enable_lora", "model.base_model_path")
def model(t: SpecTranslation) -> None:
    put_model(t, "model.model_name", "model.")


@computed("results_dir", "model.save_folder")
def place(t: SpecTranslation) -> None:
    if refuse_remote_output(t, "results_dir"):
        return
    folder, inner = t.get("results_dir").removeprefix("file://"), t.get("model.save_folder")
    layout = t.is_stated("model.save_folder") and inner
    t.put("out", f"{folder.rstrip('/')}/{inner}/general" if layout else folder, source="results_dir")
    t.say("results_dir", "renamed", f"out = {t.data['out']}")
    t.say("model.save_folder", "renamed" if layout else "unneeded", f"out = {t.data['out']}")


@computed("task.type", "evaluation.answer_type", "generation.max_tokens", "generation.temperature")
def task(t: SpecTranslation) -> None:
    kind, answers, tokens = TASKS[t.get("task.type")], t.get("evaluation.answer_type"), t.get("generation.max_tokens")
    temperature = t.get("generation.temperature")
    if answers == "letter":
        if kind not in ("auto", "mcq"):
            text = f"letters are compared in multiple choice only, and task.type is {t.get('task.type')}"
            t.refuse("evaluation.answer_type", text, "write freeform, or set task.type = mcq")
            return
        kind, temperature = "mcq", 0.0
        t.say("evaluation.answer_type", "kept", f"task = mcq, likeliest words, at most {LETTER_TOKENS} tokens")
    else:
        t.say("evaluation.answer_type", "unneeded", "<think> and <answer> are read wherever a model writes them")
    limit = min(tokens, LETTER_TOKENS) if answers == "letter" else tokens
    for key, to, value in (
        ("task.type", "task", kind),
        ("generation.max_tokens", "max_new_tokens", limit),
        ("generation.temperature", "temperature", temperature),
    ):
        t.put(to, value, source=key)
        t.say(key, "renamed" if value == t.get(key) or key == "task.type" else "approximated", f"{to} = {value}")
    if temperature > 0:
        t.put("top_p", TOP_P, source="generation.temperature")


@computed("model.tp_size", "num_gpus", "evaluation.shard_id")
def gpus(t: SpecTranslation) -> None:
    size, number, shard = t.get("model.tp_size"), t.get("num_gpus"), t.get("evaluation.shard_id")
    if size > 1:
        text = (
            f"a model is not split over {size} GPUs here: each process has all of it, and they share the records; for "
            "one that is too large for a GPU, evaluate its result of `worldsmith quantize`"
        )
        t.say("model.tp_size", "approximated", text)
    else:
        t.say("model.tp_size", "kept", "as it is here")
    number = max(number, size)
    shards, launched = max(1, number // size), os.environ.get("WORLD_SIZE")
    if shard >= shards:
        told = f"there are num_gpus / tp_size = {shards} shards, which count from 0, found {shard}"
        t.refuse("evaluation.shard_id", told)
    elif shard:
        t.put("shard", f"{shard}/{shards}", source="evaluation.shard_id")
        t.say("evaluation.shard_id", "renamed", f"shard = {shard}/{shards}")
        t.say("num_gpus", "kept", "the number of shards")
    else:
        t.say("evaluation.shard_id", "unneeded", "all records")
        if launched is None and number > 1:
            t.put("processes", number, source="num_gpus")
            t.say("num_gpus", "renamed", f"processes = {number}, at most one for each GPU of the machine")
        elif number <= int(launched or 1):
            t.say("num_gpus", "kept", "as it is here")
        else:
            t.say("num_gpus", "approximated", f"{launched} of {number} processes answer, each with a GPU of its own")


@computed("evaluation.soft_accuracy.enabled", "evaluation.soft_accuracy.f1_threshold")
def soft(t: SpecTranslation) -> None:
    t.move("evaluation.soft_accuracy.f1_threshold", "soft_threshold", "renamed")
    on = t.get("evaluation.soft_accuracy.enabled")
    text = "soft matches are counted" if on else "soft matches are counted all the same; leave the figure out"
    t.say("evaluation.soft_accuracy.enabled", "kept" if on else "approximated", text)


@computed("evaluation.limit")
def limit(t: SpecTranslation) -> None:
    if t.get("evaluation.limit") > 0:
        t.move("evaluation.limit", "limit", "renamed")
    else:
        t.say("evaluation.limit", "unneeded", "all records")


@computed("model.export_dir")
def merged(t: SpecTranslation) -> None:
    move_if_any(t, "model.export_dir", "merged", "merged models lie beside the results")


@computed(*(f"vision.{name}" for name in ("fps", "nframes", *LIMITS)))
def frames(t: SpecTranslation) -> None:
    given = {name: t.get(f"vision.{name}") for name in LIMITS if t.get(f"vision.{name}") is not None}
    is_sized = set(RESIZED) <= given.keys()
    by_fps = t.get("vision.fps") is not None and t.get("vision.nframes") is None
    drop_overruled(t, "vision.", given, by_fps=by_fps)
    put_frames(t, "vision.", count="nframes", default=8)
    if not is_sized:
        put_total_pixels(t, "vision.")
    for name in given:
        if name != "total_pixels":
            t.move(f"vision.{name}", f"processor.media.{name}", "renamed")


@computed("metrics.names", "metrics.bertscore_model", "metrics.bertscore_device", "metrics.bertscore_batch_size")
def metrics(t: SpecTranslation) -> None:
    t.move("metrics.names", "metrics", "renamed")
    keys = (("metrics.bertscore_model", "model"), ("metrics.bertscore_device", "device"),
            ("metrics.bertscore_batch_size", "batch_size"))  # fmt: skip
    for key, name in keys:
        if "bertscore" in t.get("metrics.names"):
            t.move(key, f"bertscore.{name}", "renamed")
        else:
            t.say(key, "unneeded", "metrics.names has no bertscore")


DECODING = (
    "video_decoder", "video_cache_size", "frame_transfer", "process_threads", "decoder_cache_size", "decoder_threads",
    "decoder_device", "dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_multiprocessing_context",
    "dataloader_persistent_workers",
)  # fmt: skip
"""Settings of 7.2 for how videos are decoded and handed over."""
NO_SERVER = "answers come from this process; there is no server in between"
ROWS = (
    questions,
    model,
    place,
    task,
    gpus,
    soft,
    limit,
    frames,
    metrics,
    unneeded("model.tokenizer_model_name", why="the tokenizer and processor are those of the model's folder"),
    renamed("model.dtype", "dtype", number_format),
    unneeded("model.max_length", why="a prompt is never cut; max_new_tokens bounds the answer"),
    refused(
        "model.config_file",
        "model.vit_checkpoint_path",
        why="a model is read from one folder",
        way_out="put the parts into one folder, or leave the key out",
        but=("",),
    ),
    merged,
    unneeded("evaluation.num_processes", "generation.max_retries", why=NO_SERVER),
    approximated("evaluation.skip_saved", "", "answers of the same settings are kept; --force asks again", but=(True,)),
    renamed("evaluation.seed", "seed"),
    renamed("evaluation.batch_size", "batch_size"),
    unneeded("evaluation.shard_strategy", "evaluation.barrier_timeout_seconds", why="shards are merged by record"),
    refused(*(f"vision.{name}" for name in CUTS), why=UNCUT, way_out=CUT_FIRST, but=(None,)),
    refused(
        "vision.video_override_map",
        why="every record shows the video that it names",
        way_out="write the paths of the replacements into the annotations, and leave the key out",
        but=(None, ""),
    ),
    renamed("generation.repetition_penalty", "repetition_penalty"),
    refused(
        "generation.presence_penalty",
        "generation.frequency_penalty",
        why="words are not counted while an answer is drawn",
        way_out="set it to 0; generation.repetition_penalty is honoured",
        but=(0.0,),
    ),
    unneeded("metrics.bertscore_lang", why="it chooses a model, and metrics.bertscore_model names one"),
    renamed("results.save_individual_results", "item_files"),
    renamed("results.save_confusion_matrix", "confusion_picture"),
    approximated("results.save_metrics_summary", "", "metrics.json is always written", but=(True,)),
    unneeded(*(f"vision.{name}" for name in DECODING), why="how fast videos are read, not what is read", outside=True),
    PARENT,
)

FORM = SpecForm(
    "evaluate",
    EvaluateSpec,
    ROWS,
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
