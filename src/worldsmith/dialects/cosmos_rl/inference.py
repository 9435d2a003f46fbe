"""Spec of inference on single questions, as in TAO: one flat table."""

from __future__ import annotations

from typing import Annotated, Literal

from worldsmith.config.declare.configurable import Config
from worldsmith.config.declare.ranges import Count, Range
from worldsmith.config.declare.search import Example, Popular, Search
from worldsmith.dialects.cosmos_rl.rules import (
    model_rule,
    number_format,
    put_frames,
    put_total_pixels,
    refuse_remote_output,
)
from worldsmith.dialects.translation import SpecForm, SpecTranslation, computed, read_key_rules, renamed


class InferenceSpec(Config):
    """Inference spec of TAO: a model, one question, and the media files about which the question is asked."""

    model_path: Annotated[str, Example("results/train/safetensors/final"), Popular()]
    """Folder of a model, an export or an adapter, or a hub repository (ORG/NAME or hf_model://ORG/NAME)."""
    torch_dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Number format of the weights."""
    device_map: str = "auto"
    """Device of the model: auto, cpu or cuda."""
    num_gpus: Count = 1
    """Number of GPUs."""
    type_: Annotated[Literal["video", "image"], Popular()] = "video"
    """Media types of the folder that are used."""
    media: Annotated[str, Example("data/val/clip.mp4"), Popular()]
    """A file, or a folder or archive; the question is asked about each file separately."""
    fps: Annotated[float, Range(gt=0, le=60), Search(choices=(1.0, 2.0, 3.0), when="num_frames=null"), Popular()] = 1.0
    """Sampled frames per second of video."""
    num_frames: Count | None = None
    """Number of frames sampled from every video, instead of fps."""
    total_pixels: Count = 200_704
    """Max pixels of a video; two frames count once."""
    prompt: Annotated[str, Example("Describe the video."), Popular()]
    """The question."""
    max_new_tokens: Annotated[Count, Popular()] = 32
    """Max tokens of an answer."""
    enable_lora: bool = False
    """Whether model_path is an adapter."""
    base_model_path: str = ""
    """Base model of the adapter; "" = the one that its adapter_config.json names."""
    results_dir: Annotated[str, Example("results/inference"), Popular()]
    """Folder of the answers."""


@computed("fps", "num_frames", "total_pixels")
def inference_frames(t: SpecTranslation) -> None:
    """Sets the frame sampling and pixel limit of videos in `t` from `fps`, `num_frames` and `total_pixels`."""
    put_frames(t, "", count="num_frames")
    put_total_pixels(t, "")


@computed("device_map")
def device(t: SpecTranslation) -> None:
    """Sets the device in `t` from the spec's `device_map`; adds a problem for a model on several devices."""
    placed = t.get("device_map")
    if placed == "auto":
        t.report("device_map", "kept", "a GPU if available")
    elif placed == "cpu" or placed.startswith("cuda"):
        t.move("device_map", "device", "renamed")
    else:
        t.refuse(
            "device_map",
            f"splitting a model over several devices is not supported, found '{placed}'",
            "write auto, cpu or cuda",
        )


@computed("results_dir")
def answers_file(t: SpecTranslation) -> None:
    """Sets the output file in `t` to results.json in the spec's `results_dir`; adds a problem for an object store."""
    if refuse_remote_output(t, "results_dir"):
        return
    t.put("out", f"{t.get('results_dir').removeprefix('file://').rstrip('/')}/results.json", source="results_dir")
    t.report("results_dir", "renamed", f"out = {t.data['out']}")


FORM = SpecForm(
    "inference",
    InferenceSpec,
    (
        *(model_rule("model_path"), inference_frames, device, answers_file),
        renamed("media", "media"),
        renamed("torch_dtype", "dtype", number_format),
        *read_key_rules("cosmos_rl", "inference", "any_result"),
    ),
    left_open=dict.fromkeys(("model_path", "media", "prompt", "results_dir"), ""),
)
