"""Specs of evaluations, quantizations, single questions and gap analyses: what becomes of them, and their traps."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from worldsmith.config.write.values import write_toml
from worldsmith.dialects.cosmos_rl.spec_file import read_spec
from worldsmith.dialects.cosmos_rl.spec_formats import form_of
from worldsmith.dialects.translation import SpecTranslation, format_report, translate

Doc = dict[str, Any]

EVALUATE_70: Doc = {  # as 7.0.0 ships it, but for the model, the paths and what its image cannot do either
    "task": {"type": "its_directionality"},
    "dataset": {"annotation_path": "val.json", "media_dir": "clips", "system_prompt": ""},
    "model": {
        "model_name": "hf_model://nvidia/Cosmos-Reason2-8B",
        "save_folder": "cr1_1_zero_shot",
        "tokenizer_model_name": "qwen2.5-vl-7b",
        "dtype": "bfloat16",
        "max_length": 128_000,
        "tp_size": 1,
        "enable_lora": False,
        "base_model_path": "",
    },
    "evaluation": {
        "answer_type": "freeform",
        "num_processes": 40,
        "skip_saved": False,
        "seed": 1,
        "limit": -1,
        "shard_id": 0,
        "batch_size": 50,
        "soft_accuracy": {"enabled": True, "f1_threshold": 0.8},
    },
    "vision": {"nframes": 8},
    "generation": {"max_retries": 10, "max_tokens": 1024, "temperature": 0, "repetition_penalty": 1},
    "metrics": {"names": ["bleu", "rouge"]},
    "results": {"save_individual_results": True, "save_confusion_matrix": True, "save_metrics_summary": True},
    "num_gpus": 1,
    "results_dir": "/results",
}
QUANTIZE_72: Doc = {  # as 7.2 packages it, but for the paths
    "model_path": "/models/final",
    "dataset": {"dataset_id": "", "dataset_split": "", "annotation_path": "train.json", "media_dir": "clips"},
    "quantize": {
        "num_calibration_samples": 1,
        "max_sequence_length": 4096,
        "quantization_scheme": "W4A16",
        "kv_precision": "bf16",
        "smoothing_strength": 0.8,
        "skip_test_generation": True,
    },
    "results_dir": "/results",
}
QUANTIZE_70: Doc = {
    "model": {"model_path": "/models/final", "enable_lora": False, "base_model_path": ""},
    "calibration_dataset": {"annotation_path": "train.json", "media_dir": "clips", "num_calibration_samples": 512},
    "quantization_method": {"scheme": "FP8_DYNAMIC", "kv_precision": "bf16", "skip_test_generation": False},
    "results_dir": "/results",
}
INFERENCE: Doc = {
    "model_path": "nvidia/Cosmos-Reason2-8B",
    "torch_dtype": "auto",
    "device_map": "auto",
    "num_gpus": 1,
    "type": "video",
    "media": "clip.mp4",
    "fps": 4,
    "num_frames": None,
    "total_pixels": 200_704,
    "prompt": "What happens?",
    "max_new_tokens": 32,
    "enable_lora": False,
    "base_model_path": "",
    "results_dir": "/results",
}
SHIPPED = {"evaluate": EVALUATE_70, "quantize": QUANTIZE_72, "inference": INFERENCE}


def translated(action: str, document: Doc, folder: Path, *words: str, suffix: str = ".yaml") -> SpecTranslation:
    file = folder / f"spec{suffix}"
    file.write_text(write_toml(document) if suffix == ".toml" else yaml.safe_dump(document, sort_keys=False))
    return translate(read_spec(form_of(action), str(file), words))


def changed(document: Doc, **changes: Any) -> Doc:
    """A document with values at dotted keys, written with __."""
    document = copy.deepcopy(document)
    for key, value in changes.items():
        node = document
        *above, last = key.split("__")
        for part in above:
            node = node.setdefault(part, {})
        node[last] = value
    return document


def good(translation: SpecTranslation) -> Doc:
    assert [problem.render() for problem in translation.problems] == []
    return translation.data


@pytest.mark.parametrize("suffix", [".toml", ".yaml"])
@pytest.mark.parametrize("nested", [False, True])
def test_an_evaluation_is_read_flat_and_nested(nested: bool, suffix: str, tmp_path: Path) -> None:
    document = {"evaluate": EVALUATE_70} if nested else EVALUATE_70
    assert good(translated("evaluate", document, tmp_path, suffix=suffix)) == {
        "dataset": {"type": "LlavaDataset", "path": "val.json", "media_root": "clips", "system_prompt": ""},
        "model": "nvidia/Cosmos-Reason2-8B",
        "out": "/results/cr1_1_zero_shot/general",
        "task": "its_directionality",
        "max_new_tokens": 1024,
        "temperature": 0.0,
        "soft_threshold": 0.8,
        "processor": {"media": {"nframes": 8}},
        "metrics": ["bleu", "rouge"],
        "dtype": "bfloat16",
        "seed": 1,
        "batch_size": 50,
        "repetition_penalty": 1.0,
        "item_files": True,
        "confusion_picture": True,
    }


def test_both_generations_of_quantize_names_are_read(tmp_path: Path) -> None:
    data = {"type": "LlavaDataset", "path": "train.json", "media_root": "clips"}
    common = {"model": "/models/final", "out": "/results", "method": "gptq", "dataset": data}
    small = {"samples": 1, "max_sequence_length": 4096, "judge": False}
    large = {"samples": 512, "max_sequence_length": 32_768, "judge": True, "questions": data}
    assert good(translated("quantize", QUANTIZE_72, tmp_path)) == {**common, **small, "scheme": "W4A16"}
    assert good(translated("quantize", QUANTIZE_70, tmp_path)) == {**common, **large, "scheme": "FP8_DYNAMIC"}


def test_without_records_a_model_is_quantized_by_itself_or_by_the_data_of_its_run(tmp_path: Path) -> None:
    document = changed(QUANTIZE_72, dataset__annotation_path="", dataset__media_dir="")
    assert good(translated("quantize", document, tmp_path)) == {
        "model": "/models/final",
        "out": "/results",
        "scheme": "W4A16",
        "judge": False,
    }
    static = good(translated("quantize", document, tmp_path, "quantize.quantization_scheme=NVFP4"))
    assert (static["samples"], static["max_sequence_length"]) == (1, 4096)
    assert not {"dataset", "method"} & set(static)


def test_a_question_is_read(tmp_path: Path) -> None:
    assert good(translated("inference", INFERENCE, tmp_path)) == {
        "model": "nvidia/Cosmos-Reason2-8B",
        "processor": {"media": {"fps": 4.0, "total_pixels": 401_408}},
        "out": "/results/results.json",
        "dtype": "auto",
        "kind": "video",
        "media": "clip.mp4",
        "prompt": "What happens?",
        "max_new_tokens": 32,
    }


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        (["task.type="], {"task": "auto"}),
        (["task.type=binary"], {"task": "binary"}),
        (["task.type=letter"], {"task": "mcq"}),
        (["task.type=", "evaluation.answer_type=letter"], {"task": "mcq", "max_new_tokens": 10, "temperature": 0.0}),
        (["evaluation.limit=112"], {"limit": 112}),
        (["num_gpus=4", "evaluation.shard_id=3"], {"shard": "3/4"}),
        (["num_gpus=4"], {"processes": 4}),
        (["model.tp_size=8"], {"processes": 8}),
        (["vision.num_frames=4"], {"processor": {"media": {"nframes": 4}}}),
        (["~vision"], {"processor": {"media": {"nframes": 8}}}),
        (["~vision.nframes", "vision.fps=2"], {"processor": {"media": {"fps": 2.0}}}),
        (["vision.total_pixels=100352"], {"processor": {"media": {"nframes": 8, "total_pixels": 200_704}}}),
        (
            ["~vision.nframes", "vision.fps=2", "vision.min_frames=4", "vision.max_frames=16"],
            {"processor": {"media": {"fps": 2.0, "min_frames": 4, "max_frames": 16}}},
        ),
        (
            ["vision.resized_height=224", "vision.resized_width=448", "vision.max_pixels=100352"],
            {"processor": {"media": {"nframes": 8, "resized_height": 224, "resized_width": 448}}},
        ),
        (["vision.max_frames=16"], {"processor": {"media": {"nframes": 8}}}),
        (["vision.video_start=null", "vision.video_end=null"], {"processor": {"media": {"nframes": 8}}}),
        (["vision.video_override_map=null"], {"processor": {"media": {"nframes": 8}}}),
        (["generation.temperature=0.6"], {"temperature": 0.6, "top_p": 0.95}),
        (["model.export_dir=/merged"], {"merged": "/merged"}),
        (["~model.save_folder"], {"out": "/results"}),
        (["results.save_confusion_matrix=false"], {"confusion_picture": False}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_words_make_of_an_evaluation(words: list[str], ours: Doc, tmp_path: Path) -> None:
    data = good(translated("evaluate", EVALUATE_70, tmp_path, *words))
    assert {key: data[key] for key in ours} == ours


@pytest.mark.parametrize(("scheme", "number"), [("W4A16", 1), ("W8A8", 1), ("FP8_DYNAMIC", 0), ("NVFP4", 0)])
def test_a_quantization_without_calibration_data_warns_once(scheme: str, number: int, tmp_path: Path) -> None:
    """FP8_DYNAMIC is meant to have no data, and NVFP4 measures with the data of the run or stops."""
    words = [f"quantize.quantization_scheme={scheme}", "quantize.num_calibration_samples=32"]
    translation = translated("quantize", QUANTIZE_72, tmp_path, *words, "dataset.annotation_path=")
    told = [text for text in translation.get_warnings() if "no calibration data is set" in text]
    assert len(told) == number
    for text in told:
        assert "rounds each weight to the nearest value" in text
        assert "calibration_dataset.annotation_path=FILE, or dataset.annotation_path=FILE" in text
    translation = translated("quantize", QUANTIZE_72, tmp_path, *words)
    assert not [text for text in translation.get_warnings() if "no calibration data is set" in text]


HUB = ["dataset.dataset_id=lmms-lab/flickr30k", "dataset.dataset_split=test[:1]"]


@pytest.mark.parametrize(
    ("action", "words", "told", "way_out"),
    [
        ("evaluate", ["vision.fps=2"], "both set the number of frames", "~vision.fps"),
        ("evaluate", ["vision.resized_width=448"], "needs resized_height too", "vision.resized_height=PIXELS"),
        ("evaluate", ["vision.video_start=1.5"], "from its first frame to its last", "cut the clips beforehand"),
        ("evaluate", ["vision.video_end=4"], "from its first frame to its last", "cut the clips beforehand"),
        ("evaluate", ["vision.video_override_map=a.json"], "the video that it specifies", "into the annotations"),
        (
            "evaluate",
            ["model.tp_size=2", "num_gpus=4", "evaluation.shard_id=2"],
            "below num_gpus / tp_size = 2, found 2",
            "",
        ),
        ("evaluate", ["results_dir="], "results_dir: the value is missing", "results_dir=VALUE"),
        ("quantize", ["model.model_path="], "model.model_path: the value is missing", "model.model_path=VALUE"),
        ("inference", ["media="], "media: the value is missing", "media=VALUE"),
        (
            "evaluate",
            ["evaluation.shard_id=1"],
            "expected a 0-based shard index below num_gpus / tp_size = 1, found 1",
            "",
        ),
        ("evaluate", ["generation.presence_penalty=0.5"], "words are not counted", "set it to 0"),
        ("evaluate", ["model.vit_checkpoint_path=vit.pt"], "loaded from one folder", "omit the key"),
        (
            "evaluate",
            ["evaluation.answer_type=letter"],
            "letters are only compared for multiple choice",
            "write freeform",
        ),
        ("evaluate", ["model.dtype=float16"], "float16; use", "use bfloat16"),
        ("evaluate", ["model.model_name=hf_model://nvidia"], "hf_model://ORG/NAME", ""),
        ("evaluate", ["model.enable_lora=true"], "does not exist", "set model.base_model_path"),
        ("evaluate", ["task.type=its_directionalty"], "one of ''", "did you mean"),
        ("evaluate", ["evaluation.limits=3"], "limits", "did you mean"),
        ("evaluate", ["vision.num_frame=4"], "[vision] has no key 'num_frame'", "did you mean 'vision.num_frames'?"),
        ("evaluate", ["parent_job=X"], "no key 'parent_job'", "did you mean 'parent_job_id'?"),
        ("evaluate", ["evaluate.num_gpu=2"], "no key 'num_gpu'", "did you mean 'num_gpus'?"),
        ("quantize", ["model_pth=M"], "no key 'model_pth'", "did you mean 'model_path'?"),
        (
            "quantize",
            ["quantize.quantization_schem=FP8"],
            "[quantize] has no key 'quantization_schem'",
            "did you mean 'quantize.quantization_scheme'?",
        ),
        ("quantize", ["quantize.xyz=1"], "[quantize] has no key 'xyz'", "accepts: num_calibration_samples, "),
        ("evaluate", ["evaluation.seed='${trainer.seed}'"], "a reference is only allowed as the value of a string", ""),
        ("quantize", ["quantize.kv_precision=fp8"], "the KV cache", "set it to bf16"),
        ("quantize", [*HUB, "dataset.annotation_path="], "hub datasets are not supported", "annotation_path"),
        ("quantize", ["enable_lora=true"], "does not exist", "set model.base_model_path"),
        ("quantize", ["quantization_method.scheme=W4A17"], "W4A17", "did you mean"),
        ("inference", ["num_frames=8"], "both set the number of frames", "~fps"),
        ("inference", ["num_gpus=2"], "inference uses one GPU", "set num_gpus = 1"),
        ("inference", ["device_map=balanced"], "over several devices is not supported", "write auto, cpu or cuda"),
        ("inference", ["type=audio"], "audio", "video"),
        ("inference", ["~prompt"], "prompt: the value is missing", "prompt=VALUE"),
        ("evaluate", ["~model"], "model.model_name: the value is missing", "model.model_name=VALUE"),
        ("evaluate", ["~dataset"], "dataset.annotation_path: the value is missing", "dataset.annotation_path=VALUE"),
        (
            "evaluate",
            ["~dataset.annotation_path"],
            "dataset.annotation_path: the value is missing",
            "dataset.annotation_path=VALUE",
        ),
        ("evaluate", ["dataset=3"], "expected a section", "its keys are dataset.annotation_path"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_trap_is_an_error_with_the_way_out(
    action: str, words: list[str], told: str, way_out: str, tmp_path: Path
) -> None:
    translation = translated(action, SHIPPED[action], tmp_path, *words)
    text = "\n".join(problem.render() for problem in translation.problems)
    assert told in text
    assert way_out in text
    assert len(translation.problems) == 1


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (changed(EVALUATE_70, task="its_directionality"), "its keys are task.type"),
        (changed(EVALUATE_70, metrics=["bleu"]), "its keys are metrics.names, "),
        ({"model.model_name": "x", **EVALUATE_70}, "the key contains dots"),
        (changed(QUANTIZE_72, calibration_dataset={"annotation_path": "x"}), "which is also set"),
    ],
)
def test_a_file_in_the_wrong_shape_is_said(document: Doc, told: str, tmp_path: Path) -> None:
    action = "evaluate" if "task" in document else "quantize"
    assert told in "\n".join(problem.render() for problem in translated(action, document, tmp_path).problems)


def outcomes(translation: SpecTranslation) -> dict[str, str]:
    return {line.key: line.outcome for line in translation.lines}


@pytest.mark.parametrize("shape", [EVALUATE_70, {"evaluate": EVALUATE_70}], ids=["flat", "nested"])
def test_words_may_have_the_prefix_of_a_nested_file(shape: Doc, tmp_path: Path) -> None:
    words = ["evaluate.model.model_name=/mine", "evaluate.vision.num_frames=4", "+evaluate.evaluation.limit=3"]
    data = good(translated("evaluate", shape, tmp_path, *words))
    assert (data["model"], data["limit"], data["processor"]["media"]) == ("/mine", 3, {"nframes": 4})


OPEN_72 = {
    "model__dtype": "", "model__max_length": 0, "evaluation__answer_type": "", "evaluation__batch_size": 0,
    "evaluation__seed": 0, "vision": {"num_frames": 0, "min_pixels": 0, "max_pixels": 0}, "generation__max_tokens": 0,
    "metrics__names": [], "num_gpus": 0,
}  # fmt: skip
"""What the template of 7.2 leaves to a plan."""


def test_zeros_of_a_template_leave_values_open(tmp_path: Path) -> None:
    """The defaults of the earlier versions count, each with a warning, and no pixels are set; a seed of 0 is a seed."""
    translation = translated("evaluate", changed(EVALUATE_70, task__type="", **OPEN_72), tmp_path)
    data = good(translation)
    shown = {"processor": {"media": {"nframes": 8}}, "max_new_tokens": 1024, "batch_size": 50, "dtype": "bfloat16"}
    assert {key: data[key] for key in shown} == shown
    assert (data["seed"], data["metrics"]) == (0, [])
    told = "\n".join(translation.get_warnings())
    for text in ("generation.max_tokens is approximated: 0 is a placeholder: max_new_tokens = 1024", "vision.nframes"):
        assert text in told
    assert "max_pixels" not in told
    words = ["generation.max_tokens=4", "vision.num_frames=2"]
    data = good(translated("evaluate", changed(EVALUATE_70, **OPEN_72), tmp_path, *words))
    assert (data["max_new_tokens"], data["processor"]["media"]) == (4, {"nframes": 2})


def test_how_fast_videos_are_read_is_unneeded(tmp_path: Path) -> None:
    keys = {
        key: 1 for rule in form_of("evaluate").rules if rule.outside for key in rule.keys if key.startswith("vision.")
    }
    assert len(keys) == 11
    document = changed(EVALUATE_70, **{key.replace(".", "__"): value for key, value in keys.items()})
    translation = translated("evaluate", document, tmp_path, "evaluation.skip_saved=true")
    good(translation)
    assert {outcomes(translation)[key] for key in keys} == {"unneeded"}
    assert translation.get_warnings() == []


def test_limits_that_other_settings_overrule_are_reported(tmp_path: Path) -> None:
    words = ["vision.max_frames=16", "vision.resized_height=224", "vision.resized_width=448"]
    words += ["vision.total_pixels=100352", "vision.min_pixels=3136", "evaluation.skip_saved=true"]
    translation = translated("evaluate", EVALUATE_70, tmp_path, *words)
    good(translation)
    told = translation.get_warnings()
    for name in ("max_frames", "total_pixels", "min_pixels"):
        assert any(f"vision.{name} is dead" in line for line in told), name
    assert len(told) == 3


def test_answers_that_are_kept_anyway_are_reported(tmp_path: Path) -> None:
    """A spec that asks for everything again gets the saved answers of the same settings, unless it is forced."""
    translation = translated("evaluate", EVALUATE_70, tmp_path)
    assert outcomes(translation)["evaluation.skip_saved"] == "approximated"
    told = (
        "evaluation.skip_saved is approximated: answers with the same settings are reused; --force generates them again"
    )
    assert [told in line for line in translation.get_warnings()] == [True]
    assert translated("evaluate", EVALUATE_70, tmp_path, "evaluation.skip_saved=true").get_warnings() == []


def test_bertscore_goes_with_its_model(tmp_path: Path) -> None:
    document = changed(
        EVALUATE_70, metrics={"names": ["bleu", "bertscore"], "bertscore_model": "/models/roberta-large"}
    )
    data = good(translated("evaluate", document, tmp_path))
    assert data["metrics"] == ["bleu", "bertscore"]
    assert data["bertscore"] == {"model": "/models/roberta-large", "device": "cpu", "batch_size": 1}
    assert "bertscore" not in good(translated("evaluate", document, tmp_path, "metrics.names=[bleu]"))


@pytest.mark.parametrize(
    ("words", "processes", "told"),
    [
        (["num_gpus=8"], None, ""),
        (["num_gpus=8"], "1", "1 of 8 processes evaluate the records, each on its own GPU"),
        (["num_gpus=8"], "2", "2 of 8 processes evaluate the records"),
        (["num_gpus=8"], "8", ""),
        (["model.tp_size=8"], None, "tensor parallelism over 8 GPUs is not supported"),
        (["model.tp_size=8"], "2", "2 of 8 processes evaluate the records"),
        ([], None, ""),
    ],
)
def test_gpus_of_a_template_stop_nobody(
    words: list[str], processes: str | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if processes:
        monkeypatch.setenv("WORLD_SIZE", processes)
    translation = translated("evaluate", EVALUATE_70, tmp_path, "evaluation.skip_saved=true", *words)
    good(translation)
    found = "\n".join(translation.get_warnings())
    assert told in found
    assert bool(found) == bool(told)


def test_a_split_without_a_data_set_of_the_hub_is_ignored(tmp_path: Path) -> None:
    split = translated("quantize", QUANTIZE_72, tmp_path, "dataset.dataset_split=test[:1]")
    assert good(split) == good(translated("quantize", QUANTIZE_72, tmp_path))
    assert outcomes(split)["calibration_dataset.split"] == "unneeded"
    both = translated("quantize", QUANTIZE_72, tmp_path, *HUB)
    assert good(both) == good(split)
    assert "dataset_id is approximated: annotation_path has the records" in "\n".join(both.get_warnings())


def adapter(folder: Path, **facts: str) -> str:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(facts), encoding="utf-8")
    return str(folder)


def test_an_adapter_is_asked_with_its_base(tmp_path: Path) -> None:
    named = adapter(tmp_path / "adapter", base_model_name_or_path="/models/base")
    document = changed(EVALUATE_70, model__model_name=named)
    (refused,) = translated("evaluate", document, tmp_path).problems
    assert "is an adapter, and model.enable_lora is false" in refused.render()
    data = good(translated("evaluate", document, tmp_path, "model.enable_lora=true"))
    assert (data["model"], data["adapter"]) == ("/models/base", named)
    words = ["model.enable_lora=true", "model.base_model_path=hf_model://org/other"]
    assert good(translated("evaluate", document, tmp_path, *words))["model"] == "org/other"
    data = good(translated("quantize", changed(QUANTIZE_72, model_path=named, enable_lora=True), tmp_path))
    assert (data["model"], data["adapter"]) == ("/models/base", named)


def test_what_is_not_quite_as_it_was_said_is_a_warning(tmp_path: Path) -> None:
    static = translated("quantize", QUANTIZE_72, tmp_path, "quantize.quantization_scheme=NVFP4")
    told = "\n".join(static.get_warnings())
    assert "use 16 or more" in told
    assert "smoothing_strength is approximated" in told
    words = ["quantize.quantization_scheme=FP8", "quantize.max_sequence_length=2048"]
    short = translated("quantize", QUANTIZE_72, tmp_path, *words)
    assert "samples with video need 4096 or more" in "\n".join(short.get_warnings())
    assert "samples with video need" not in "\n".join(static.get_warnings())


def test_the_report_has_a_line_for_every_key_of_the_file(tmp_path: Path) -> None:
    told = format_report(translated("evaluate", EVALUATE_70, tmp_path))
    assert "the tokenizer and processor are those of the model's folder" in told
    stated = [line for line in told.splitlines() if line.startswith("  ")]
    for key in ("model.max_length", "evaluation.num_processes", "generation.max_tokens", "num_gpus", "results_dir"):
        assert sum(f" {key} " in line for line in stated) == 1


def test_the_words_of_the_gap_tool_are_keys(tmp_path: Path) -> None:
    document = {"results_dir": "/r", "gaps_parquet": "/g.parquet", "kpi_ann_path": "a.json", "kpi_media_path": "m"}
    assert good(translated("gaps", document, tmp_path)) == document


@pytest.mark.parametrize(
    ("action", "word", "key", "remedy"),
    [
        ("evaluate", "results_dir=s3://bucket/out", "results_dir", "results_dir=FOLDER, and copy it afterwards"),
        ("quantize", "results_dir=gs://bucket/out", "results_dir", "results_dir=FOLDER, and copy it afterwards"),
        ("inference", "results_dir=s3://bucket/out", "results_dir", "results_dir=FOLDER, and copy it afterwards"),
    ],
)
def test_results_in_an_object_store_are_refused_at_their_key(
    action: str, word: str, key: str, remedy: str, tmp_path: Path
) -> None:
    t = translated(action, SHIPPED[action], tmp_path, word)
    assert [problem.path for problem in t.problems] == [key]
    assert remedy in t.problems[0].render()


@pytest.mark.parametrize(
    ("action", "word", "key"),
    [
        ("inference", "media=s3://bucket/clips", "media"),
        ("inference", "model_path=s3://bucket/model", "model"),
        ("evaluate", "model.model_name=s3://bucket/model", "model"),
        ("quantize", "model_path=s3://bucket/model", "model"),
        ("quantize", "dataset.annotation_path=s3://bucket/a.json", "dataset"),
    ],
)
def test_inputs_may_be_in_an_object_store(action: str, word: str, key: str, tmp_path: Path) -> None:
    found, address = good(translated(action, SHIPPED[action], tmp_path, word))[key], word.partition("=")[2]
    assert (found["path"] if isinstance(found, dict) else found) == address


def test_a_missing_adapter_folder_is_an_error_at_its_key(tmp_path: Path) -> None:
    document = changed(EVALUATE_70, model__model_name="nowhere/lora", model__enable_lora=True)
    t = translated("evaluate", document, tmp_path)
    assert [problem.path for problem in t.problems] == ["model.base_model_path"]
    assert "the file nowhere/lora/adapter_config.json does not exist" in t.problems[0].render()
