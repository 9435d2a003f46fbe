"""Spec of a quantization, as in TAO; the key names of TAO 7.2 are aliases."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from worldsmith.config.declare.configurable import Config
from worldsmith.config.declare.ranges import Range, Share
from worldsmith.config.declare.search import Example, Popular
from worldsmith.dialects.cosmos_rl.rules import LLAVA, model_rule, refuse_remote_output
from worldsmith.dialects.translation import SpecForm, SpecTranslation, computed, format_value, read_key_rules

CALIBRATION, LENGTH = "calibration_dataset.", "max_sequence_length"
VIDEO_TOKENS = 4096
"""Approximate number of tokens of a question about a short video."""
STATIC = ("FP8", "NVFP4")
"""Schemes with calibrated ranges."""
DYNAMIC = "FP8_DYNAMIC"
"""Scheme for quantization without data."""
FEW = 16
"""Min number of calibration samples for meaningful activation ranges."""


class QuantizedModelTable(Config):
    """Table `model` of a quantization spec: the model to quantize."""

    model_path: Annotated[str, Example("results/train/safetensors/final"), Popular()]
    """Folder of a model, an export or an adapter, or a hub repository (ORG/NAME or hf_model://ORG/NAME)."""
    enable_lora: bool = False
    """Whether model_path is an adapter, which is then merged into its base model first."""
    base_model_path: str = ""
    """Base model of the adapter."""


class CalibrationTable(Config):
    """Table `calibration_dataset` of a quantization spec: data on which activation ranges are measured."""

    dataset_id: str = ""
    """Hub dataset."""
    split: str = ""
    """Split of the dataset."""
    annotation_path: Annotated[str, Popular()] = ""
    """LLaVA annotations; "" = the training set of the run that trained the model."""
    media_dir: Annotated[str, Popular()] = ""
    """Folder that media paths in the annotations are relative to; "" = the folder of the annotations."""
    num_calibration_samples: Annotated[int, Range(ge=1, le=10_000), Popular()] = 512
    """Number of calibration samples."""
    max_sequence_length: Annotated[int, Range(ge=128, le=1_000_000)] = 32_768
    """Max tokens of a calibration sample."""


class MethodTable(Config):
    """Table `quantization_method` of a quantization spec: number formats and method."""

    scheme: Annotated[Literal["FP8_DYNAMIC", "NVFP4", "FP8", "W8A8", "W8A16", "W4A16"], Popular()] = "FP8_DYNAMIC"
    """Number format of weights and activations."""
    kv_precision: Literal["bf16", "fp8"] = "bf16"
    """Number format of the key-value cache."""
    smoothing_strength: Share = 0.8
    """SmoothQuant strength: fraction of the activation range that is moved into the weights."""
    skip_test_generation: bool = False
    """Skip the test of the quantized model."""


class QuantizeSpec(Config):
    """Quantization spec of TAO: the model, the calibration data, the method and the result folder."""

    model: QuantizedModelTable
    """Model to quantize."""
    calibration_dataset: CalibrationTable = field(default_factory=CalibrationTable)
    """Calibration data, on which activation ranges are measured."""
    quantization_method: MethodTable = field(default_factory=MethodTable)
    """Quantization method."""
    results_dir: Annotated[str, Example("results/quantize"), Popular()]
    """Folder of the quantized model."""


def uses_calibration(t: SpecTranslation) -> bool:
    """Returns whether the quantization uses calibration data: the spec in `t` names some, or its scheme needs it."""
    return bool(t.get(f"{CALIBRATION}annotation_path")) or t.get("quantization_method.scheme") in STATIC


@computed("quantization_method.scheme", *(f"{CALIBRATION}{name}" for name in ("num_calibration_samples", LENGTH)))
def samples(t: SpecTranslation) -> None:
    """Sets the quantization scheme, and the number and max length of the calibration samples in `t`."""
    scheme, number = t.get("quantization_method.scheme"), t.get(f"{CALIBRATION}num_calibration_samples")
    length = t.get(f"{CALIBRATION}{LENGTH}")
    t.move("quantization_method.scheme", "scheme", "renamed")
    if not uses_calibration(t):
        for name in ("num_calibration_samples", LENGTH):
            t.report(
                f"{CALIBRATION}{name}",
                "unneeded",
                f"without calibration data {scheme} rounds weights to the nearest value",
            )
        return
    few = f": {number} is enough for a first test; use {FEW} or more for a final result" if number < FEW else ""
    cut = f"; longer samples are skipped and counted, not truncated: samples with video need {VIDEO_TOKENS} or more"
    cut = cut if length < VIDEO_TOKENS else ""
    count = f"{CALIBRATION}num_calibration_samples"
    t.assign(count, "samples", number, few, outcome="approximated" if few else "renamed")
    t.assign(f"{CALIBRATION}{LENGTH}", LENGTH, length, cut, outcome="approximated" if cut else "renamed")


@computed(f"{CALIBRATION}annotation_path", f"{CALIBRATION}media_dir", "quantization_method.skip_test_generation")
def calibration(t: SpecTranslation) -> None:
    """Sets the calibration data in `t` from the spec's `annotation_path` and `media_dir`.

    Unless `skip_test_generation` is true, the same records are also the questions on which the
    original and the quantized model are compared.
    """
    file, compared = f"{CALIBRATION}annotation_path", not t.get("quantization_method.skip_test_generation")
    folder = t.get(f"{CALIBRATION}media_dir")
    uses = ["dataset", *(["questions"] if compared else [])]
    t.put("judge", compared, source="quantization_method.skip_test_generation")
    text = (
        "the original and the quantized model answer questions and are compared; no test sentence is generated"
        if compared
        else "no questions are answered"
    )
    t.report("quantization_method.skip_test_generation", "approximated" if compared else "renamed", text)
    if not t.get(file):
        scheme, text = (
            t.get("quantization_method.scheme"),
            "the training data of the run that trained the model is used if calibration data is needed",
        )
        t.report(f"{CALIBRATION}media_dir", "unneeded", text)
        if scheme in STATIC or scheme == DYNAMIC:
            t.report(file, "unneeded", text)
            return
        why = f"no calibration data is set: without --method gptq, {scheme} rounds each weight to the nearest value"
        keys = f"set data with {file}=FILE, or dataset.annotation_path=FILE, for GPTQ, which loses less accuracy"
        t.report(file, "approximated", f"{why}; {keys}", warn=True)
        return
    t.put("method", "gptq", source=file)
    for use in uses:
        t.put(f"{use}.type", LLAVA, source=file)
        t.put(f"{use}.path", t.get(file), source=file)
        if folder:
            t.put(f"{use}.media_root", folder, source=f"{CALIBRATION}media_dir")
    paths = " and ".join(f"{use}.path" for use in uses)
    t.report(file, "renamed", f"{paths} = {format_value(t.get(file))}, method = gptq")
    text = f"{' and '.join(f'{use}.media_root' for use in uses)} = {format_value(folder)}"
    t.report(
        f"{CALIBRATION}media_dir",
        *(("renamed", text) if folder else ("unneeded", "media paths are relative to the annotations")),
    )


@computed(f"{CALIBRATION}dataset_id", f"{CALIBRATION}split")
def hub_dataset(t: SpecTranslation) -> None:
    """Adds a problem to `t` if the spec's only calibration data is a hub dataset, which is not supported.

    If the spec also has an `annotation_path`, or names no hub dataset, the hub keys are reported as unused.
    """
    name, records = t.get(f"{CALIBRATION}dataset_id"), t.get(f"{CALIBRATION}annotation_path")
    if name and not records:
        why = "hub datasets are not supported here"
        fix = f'set {CALIBRATION}annotation_path, and {CALIBRATION}dataset_id = ""'
        t.refuse(f"{CALIBRATION}dataset_id", why, fix)
        return
    text = "annotation_path has the records" if records else "no hub dataset is named"
    t.report(f"{CALIBRATION}dataset_id", "approximated" if name else "unneeded", text)
    t.report(f"{CALIBRATION}split", "unneeded", text)


@computed("results_dir")
def quantized_folder(t: SpecTranslation) -> None:
    """Sets the result folder `out` in `t` from the spec's `results_dir`; adds a problem for an object store."""
    if not refuse_remote_output(t, "results_dir"):
        t.move("results_dir", "out", "renamed")


@computed("quantization_method.smoothing_strength")
def smoothing(t: SpecTranslation) -> None:
    """Reports in `t` that SmoothQuant is not applied, so that the spec's `smoothing_strength` has no effect."""
    text = "SmoothQuant is not applied; activation scales are computed per token, or calibrated"
    t.report("quantization_method.smoothing_strength", "approximated", text)


FORM = SpecForm(
    "quantize",
    QuantizeSpec,
    (
        *(model_rule("model.model_path"), samples, calibration, smoothing, hub_dataset, quantized_folder),
        *read_key_rules("cosmos_rl", "quantize", "any_result"),
    ),
    left_open=dict.fromkeys(("model.model_path", "results_dir"), ""),
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
