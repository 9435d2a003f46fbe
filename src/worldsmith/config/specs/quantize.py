"""The spec of a quantization, as TAO has it; the names of its 7.2 are aliases."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from worldsmith.config.declare.configurable import Config
from worldsmith.config.declare.ranges import Range, Share
from worldsmith.config.declare.search import Example, Popular
from worldsmith.config.specs.form import SpecForm, computed, refused, renamed
from worldsmith.config.specs.rules import LLAVA, PARENT, move_if_any, put_model
from worldsmith.config.specs.translation import Translation

VIDEO_TOKENS = 4096
"""Room that a question about a short video needs."""
STATIC = ("FP8", "NVFP4")
"""Schemes whose ranges are measured."""
FEW = 16
"""Samples below which a measured range means little."""


class ModelTable(Config):
    """What is quantized."""

    model_path: Annotated[str, Example("results/train/safetensors/final"), Popular()]
    """Folder of a model, an export or an adapter, or a hub name, also as hf_model://ORG/NAME."""
    enable_lora: bool = False
    """model_path is an adapter; it is merged with its base first."""
    base_model_path: str = ""
    """The model that the adapter belongs to."""


class CalibrationTable(Config):
    """What is shown to the model while ranges are measured."""

    dataset_id: str = ""
    """A data set of the hub."""
    split: str = ""
    """Its split."""
    annotation_path: Annotated[str, Popular()] = ""
    """LLaVA annotations; "" = the training set of the run that made the model."""
    media_dir: Annotated[str, Popular()] = ""
    """Folder that their images and videos are relative to; "" = that of the annotations."""
    num_calibration_samples: Annotated[int, Range(ge=1, le=10_000), Popular()] = 512
    """How many are shown."""
    max_sequence_length: Annotated[int, Range(ge=128, le=1_000_000)] = 32_768
    """Longest of them, in tokens."""


class MethodTable(Config):
    """How numbers are stored."""

    scheme: Annotated[Literal["FP8_DYNAMIC", "NVFP4", "FP8", "W8A8", "W8A16", "W4A16"], Popular()] = "FP8_DYNAMIC"
    """Number format of weights and activations."""
    kv_precision: Literal["bf16", "fp8"] = "bf16"
    """Number format of remembered keys and values."""
    smoothing_strength: Share = 0.8
    """How much of the activations' range is moved into the weights first."""
    skip_test_generation: bool = False
    """Do not ask the result anything."""


class QuantizeSpec(Config):
    """The settings of a quantization."""

    model: ModelTable
    """What is quantized."""
    calibration_dataset: CalibrationTable = field(default_factory=CalibrationTable)
    """What is shown to the model while ranges are measured."""
    quantization_method: MethodTable = field(default_factory=MethodTable)
    """How numbers are stored."""
    results_dir: Annotated[str, Example("results/quantize"), Popular()]
    """Where the quantized model goes."""


@computed("model.model_path", "model.enable_lora", "model.base_model_path")
def model(t: Translation) -> None:
    put_model(t, "model.model_path", "model.", base_to="base")


@computed("calibration_dataset.annotation_path", "calibration_dataset.media_dir")
def questions(t: Translation) -> None:
    if not t.get("calibration_dataset.annotation_path"):
        t.say(
            "calibration_dataset.annotation_path", "unneeded", "the training set of the run, where ranges are measured"
        )
        t.say("calibration_dataset.media_dir", "unneeded", "without annotations there is no medium to find")
        return
    t.put("dataset.type", LLAVA, source="calibration_dataset.annotation_path")
    t.move("calibration_dataset.annotation_path", "dataset.path", "renamed")
    move_if_any(t, "calibration_dataset.media_dir", "dataset.media_root", "media lie beside the annotations")


@computed("calibration_dataset.num_calibration_samples", "quantization_method.scheme")
def samples(t: Translation) -> None:
    key = "calibration_dataset.num_calibration_samples"
    number, scheme = t.get(key), t.get("quantization_method.scheme")
    t.move("quantization_method.scheme", "scheme", "renamed")
    t.put("samples", number, source=key)
    few = (
        f": {number} is enough to try it, for {scheme} take {FEW} or more" if number < FEW and scheme in STATIC else ""
    )
    t.say(key, "approximated" if few else "renamed", f"samples = {number}{few}")


@computed("calibration_dataset.max_sequence_length")
def length(t: Translation) -> None:
    key = "calibration_dataset.max_sequence_length"
    t.put("max_sequence_length", t.get(key), source=key)
    short = t.get(key) < VIDEO_TOKENS
    text = f"; longer samples are left out and counted, not cut: videos want {VIDEO_TOKENS} or more" if short else ""
    t.say(key, "approximated" if short else "renamed", f"max_sequence_length = {t.get(key)}{text}")


@computed("quantization_method.skip_test_generation")
def judge(t: Translation) -> None:
    key, skip = "quantization_method.skip_test_generation", t.get("quantization_method.skip_test_generation")
    t.put("judge", not skip, source=key)
    text = "questions to the model and to its parent take the place of a test sentence"
    t.say(key, "renamed" if skip else "approximated", f"judge = {str(not skip).lower()}: {text}")


@computed("quantization_method.smoothing_strength")
def smoothing(t: Translation) -> None:
    text = "nothing is moved into the weights first; activations keep a range for each token, or a measured one"
    t.say("quantization_method.smoothing_strength", "approximated", text)


FORM = SpecForm(
    "quantize",
    QuantizeSpec,
    (
        model,
        questions,
        samples,
        length,
        judge,
        smoothing,
        refused(
            "calibration_dataset.dataset_id",
            "calibration_dataset.split",
            why="data sets of the hub are not read here",
            way_out='give calibration_dataset.annotation_path, and set this to ""',
            but=("",),
        ),
        refused(
            "quantization_method.kv_precision",
            why="keys and values are remembered in the number format of the activations",
            way_out="write bf16",
            but=("bf16",),
        ),
        renamed("results_dir", "out"),
        PARENT,
    ),
    aliases={
        "model_path": "model.model_path",
        "enable_lora": "model.enable_lora",
        "base_model_path": "model.base_model_path",
        "dataset.dataset_id": "calibration_dataset.dataset_id",
        "dataset.dataset_split": "calibration_dataset.split",
        "dataset.annotation_path": "calibration_dataset.annotation_path",
        "dataset.media_dir": "calibration_dataset.media_dir",
        "quantize.num_calibration_samples": "calibration_dataset.num_calibration_samples",
        "quantize.max_sequence_length": "calibration_dataset.max_sequence_length",
        "quantize.quantization_scheme": "quantization_method.scheme",
        "quantize.kv_precision": "quantization_method.kv_precision",
        "quantize.smoothing_strength": "quantization_method.smoothing_strength",
        "quantize.skip_test_generation": "quantization_method.skip_test_generation",
    },
)
