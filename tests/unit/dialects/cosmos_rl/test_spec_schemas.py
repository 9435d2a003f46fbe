"""Schemas and templates of spec forms: valid, of one mind with the reader, and the same bytes every time.

The judge is the third-party package jsonschema.
"""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from key_rules import keys_without_rule
from published_files import VERSIONS, PublishedFile, published_files

from worldsmith.actions.registry import command_classes
from worldsmith.cli.action_command import load_settings, sort_action_words
from worldsmith.cli.main import main
from worldsmith.cli.schema import all_forms
from worldsmith.config.declare.configurable import Config
from worldsmith.config.declare.search import search_space
from worldsmith.config.tree.paths import parse_path
from worldsmith.dialects.cosmos_rl.names import leaf_keys, spec_key
from worldsmith.dialects.cosmos_rl.spec_file import read_spec
from worldsmith.dialects.cosmos_rl.spec_formats import MODULES, form_of
from worldsmith.dialects.cosmos_rl.write.spec_folder import as_text, spec_files, tao_schema
from worldsmith.dialects.cosmos_rl.write.spec_schema import defaults, spec_schema
from worldsmith.dialects.cosmos_rl.write.spec_template import spec_template
from worldsmith.dialects.translation import SpecForm, format_report, translate

ACTIONS = list(MODULES)
BROKEN: dict[str, list[tuple[str, Any]]] = {
    "train": [
        ("train.epoc", 3),
        ("train.epoch", 0),
        ("train.optm_decay_type", "cosin"),
        ("train.ckpt.max_keep", -2),
        ("train.train_policy.type", "sff"),
        ("policy.parallelism", 8),
        ("policy.lora", {"r": 0}),
        ("custom.vision.fps", -1.0),
    ],
    "evaluate": [
        ("dataset.annotation_pth", "a.json"),
        ("dataset.annotation_path", 3),
        ("model.tp_size", 9),
        ("model.max_length", 100),
        ("model.dtype", "bf16"),
        ("task", "binary"),
        ("task.type", "binry"),
        ("evaluation.limit", 0),
        ("evaluation.soft_accuracy.f1_threshold", 1.5),
        ("generation.temperature", -0.1),
        ("generation.max_tokens", 12.5),
        ("metrics.names", ["blue"]),
        ("metrics.names", "bleu"),
        ("num_gpus", "2"),
        ("resultsdir", "x"),
    ],
    "quantize": [
        ("model.modelpath", "x"),
        ("model.enable_lora", "yes"),
        ("calibration_dataset.num_calibration_samples", 0),
        ("calibration_dataset.num_calibration_samples", 10_001),
        ("calibration_dataset.max_sequence_length", 127),
        ("quantization_method.scheme", "W4A17"),
        ("quantization_method.kv_precision", "fp16"),
        ("quantization_method.smoothing_strength", 1.1),
        ("quantization_method", None),
        ("results_dir", None),
    ],
    "inference": [
        ("type", "audio"),
        ("num_frames", 0),
        ("fps", 0),
        ("total_pixels", "many"),
        ("max_new_tokens", -1),
        ("prompt", ["a"]),
        ("media", None),
        ("torch_dtype", "int8"),
        ("max_tokens", 4),
        ("enable_lora", 1),
    ],
    "gaps": [
        ("results_dir", 1),
        ("results_dirs", "x"),
        ("gaps_parquet", None),
        ("gaps_parquet", True),
        ("kpi_ann_path", 0),
        ("kpi_media_path", []),
        ("kpi_media_path", {}),
        ("mode", "yes_no"),
        ("gap_parquet", "x"),
        ("kpi-ann-path", "x"),
    ],
}
LANGUAGES = {".yaml": yaml.safe_load, ".toml": tomllib.loads, ".json": json.loads}


def judge(action: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(spec_schema(form_of(action)))


def ours(action: str, folder: Path, document: Any, *words: str) -> str:
    """What the reader says against a document; empty if it is fine."""
    file = folder / "spec.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return "\n".join(problem.render() for problem in read_spec(form_of(action), str(file), words).problems)


def put(document: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(document)
    node = document
    *above, last = key.split(".")
    for part in above:
        node = node.setdefault(part, {})
    node[last] = value
    return document


@pytest.mark.parametrize("action", ACTIONS)
def test_a_schema_is_a_schema_and_says_every_default(action: str) -> None:
    schema = spec_schema(form_of(action))
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["default"] == defaults(form_of(action).spec)
    assert "Infinity" not in as_text(schema)
    assert json.loads(as_text(schema)) == schema


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("action", ACTIONS)
def test_a_template_passes_its_own_validator(action: str, language: str, tmp_path: Path) -> None:
    file = tmp_path / f"spec{language}"
    text = spec_template(form_of(action), str(file))
    file.write_text(text, encoding="utf-8")
    document = LANGUAGES[language](text)
    assert document == defaults(form_of(action).spec, examples=True)
    judge(action).validate(document)
    steps = ["train.max_num_steps=10"] if action == "train" else []  # the example names records that do not exist
    translation = translate(read_spec(form_of(action), str(file), steps))
    assert [problem.render() for problem in translation.problems] == []
    keys = leaf_keys(form_of(action).spec)
    assert all(any(f"{key}.".startswith(f"{line.key}.") for key in keys) for line in translation.lines)


MUST_BE_GIVEN = {
    "train": {"train.train_policy.type", "custom.train_dataset"},
    "evaluate": {"dataset.annotation_path", "model.model_name", "results_dir"},
    "quantize": {"model.model_path", "results_dir"},
    "inference": {"model_path", "media", "prompt", "results_dir"},
    "gaps": {"results_dir", "gaps_parquet"},
}


@pytest.mark.parametrize("action", ACTIONS)
def test_a_template_differs_from_the_default_of_its_schema_only_in_keys_that_must_be_given(action: str) -> None:
    form = form_of(action)
    template, default = defaults(form.spec, examples=True), spec_schema(form)["default"]

    def differences(found: dict[str, Any], known: dict[str, Any], path: str) -> set[str]:
        keys: set[str] = set()
        for key in found.keys() | known.keys():
            left, right = found.get(key), known.get(key)
            if isinstance(left, dict) and isinstance(right, dict):
                keys |= differences(left, right, f"{path}{key}.")
            elif left != right:
                keys.add(f"{path}{key}")
        return keys

    assert differences(template, default, "") == MUST_BE_GIVEN[action]
    if action == "train":
        assert "; for example 1000)" in spec_template(form, "spec.yaml")


@pytest.mark.parametrize(("action", "key", "value"), [(a, k, v) for a, rows in BROKEN.items() for k, v in rows])
def test_a_broken_spec_is_refused_by_the_schema_and_by_the_reader(
    action: str, key: str, value: Any, tmp_path: Path
) -> None:
    good = defaults(form_of(action).spec, examples=True)
    broken = put(good, key, value)
    assert list(judge(action).iter_errors(broken)) != []
    assert ours(action, tmp_path, broken) != ""
    assert ours(action, tmp_path, good) == ""


PARTS = {"train": "train", "_config": "train", "evaluate": "evaluate", "quantize": "quantize", "inference": "inference"}
SHIPPED = [
    (next(action for part, action in PARTS.items() if part in file.name), file)
    for file in published_files()
    if file.repository == "tao-skill-bank"
]


@pytest.mark.parametrize(
    ("action", "file"), SHIPPED, ids=[f"{file.name} {VERSIONS[file.commit]}" for _, file in SHIPPED]
)
def test_a_published_template_passes_the_schema(action: str, file: PublishedFile) -> None:
    judge(action).validate(file.data)


QUANTIZE = {"model": {"model_path": "m"}, "results_dir": "r"}
BENCHMARKS = {"model": {"model_name": "m"}, "results_dir": "r"}
EVALUATE = {"dataset": {"annotation_path": "a"}, **BENCHMARKS}


@pytest.mark.parametrize(
    ("action", "document", "is_right"),
    [
        ("quantize", {"model_path": "m", "results_dir": "r"}, True),
        ("quantize", {"model_path": "m", "model": {"enable_lora": False}, "results_dir": "r"}, True),
        ("quantize", {"model": {"enable_lora": False}, "results_dir": "r"}, False),
        ("quantize", {"model_path": 3, "results_dir": "r"}, False),
        ("quantize", {**QUANTIZE, "quantize": {"quantization_scheme": "W4A16"}}, True),
        ("quantize", {**QUANTIZE, "quantize": {"quantization_scheme": "W4A17"}}, False),
        ("quantize", {**QUANTIZE, "quantize": {"quantization_schem": "W4A16"}}, False),
        ("evaluate", {"evaluate": EVALUATE}, True),
        ("evaluate", {"evaluate": {**EVALUATE, "num_gpus": 9}}, False),
        ("evaluate", {"evaluate": {**EVALUATE, "num_gpu": 1}}, False),
        ("evaluate", {"evaluate": {"dataset": {"annotation_path": "a"}}, "results_dir": "r"}, False),
        ("evaluate", {**BENCHMARKS, "datasets": {"a": {"annotation_path": "a"}}}, True),
        ("evaluate", BENCHMARKS, False),
        ("evaluate", {**EVALUATE, "vision": {"num_frames": 4}}, True),
        ("evaluate", {**EVALUATE, "vision": {"num_frames": -4}}, False),
        ("evaluate", {**EVALUATE, "num_gpus": 0}, True),
    ],
)
def test_both_judge_other_names_alike(action: str, document: dict[str, Any], is_right: bool, tmp_path: Path) -> None:
    assert (list(judge(action).iter_errors(document)) == []) == is_right
    assert (ours(action, tmp_path, document) == "") == is_right


def test_the_short_words_of_a_training_have_the_limits_of_their_keys() -> None:
    good = defaults(form_of("train").spec, examples=True)
    assert list(judge("train").iter_errors({**good, "num_epochs": 2, "learning_rate": 1e-5})) == []
    assert len(list(judge("train").iter_errors({**good, "num_epochs": 0, "batch_size": "x"}))) == 2


ODD: list[Any] = [None, True, 0, -1, 2.5, 10**30, "", "x", "${a.b}", "\u2028", [], ["x"], {}, {"type": "x"}, {"": 1}]


@pytest.mark.parametrize("action", ACTIONS)
def test_both_judge_odd_values_alike_and_none_stops_the_reader(action: str, tmp_path: Path) -> None:
    """Twenty seeded documents; also what is refused is translated as far as it goes."""
    dice, file, schema = random.Random(5), tmp_path / "spec.json", judge(action)
    good = defaults(form_of(action).spec, examples=True)
    leaves = [key for key in leaf_keys(form_of(action).spec) if key.count(".") < 2]
    for _ in range(20):
        key = dice.choice(leaves)
        key = dice.choice([key, key, key.partition(".")[0]])
        document = put(good, key, copy.deepcopy(dice.choice(ODD)))
        if dice.random() < 0.2:
            document.pop(key.partition(".")[0])
        file.write_text(json.dumps(document), encoding="utf-8")
        spec = read_spec(form_of(action), str(file))
        told = [problem.render() for problem in spec.problems]
        format_report(translate(spec))
        references = [text for text in told if "a reference is only allowed as the value of a string" in text]
        if references or spec.open:  # the reader alone knows what a reference, or an open value of a template, means
            continue
        assert bool(told) == (list(schema.iter_errors(document)) != []), (document, told)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_template_survives_words_and_a_typo_has_a_suggestion(action: str, tmp_path: Path) -> None:
    good = defaults(form_of(action).spec, examples=True)
    key = next(
        key for key in leaf_keys(form_of(action).spec) if key.rpartition(".")[2] in ("results_dir", "output_dir")
    )
    file = tmp_path / "spec.yaml"
    file.write_text(spec_template(form_of(action), str(file)), encoding="utf-8")
    spec = read_spec(form_of(action), str(file), [f"{key}=/elsewhere"])
    assert spec.problems == []
    assert spec.get(key) == "/elsewhere"
    told = ours(action, tmp_path, good, f"{key[:-1]}=/elsewhere")
    assert key.rpartition(".")[2] in told
    assert "did you mean" in told


@pytest.mark.parametrize("action", ACTIONS)
def test_every_key_has_a_row_and_a_description(action: str) -> None:
    form = form_of(action)
    assert keys_without_rule(form, leaf_keys(form.spec)) == []

    def undescribed(schema: dict[str, Any]) -> list[str]:
        inner = schema.get("properties", {}).items()
        return [key for key, field in inner if not field.get("description")] + [
            key for _, field in inner for key in undescribed(field)
        ]

    assert undescribed(spec_schema(form)) == []


@pytest.mark.parametrize("action", ACTIONS)
def test_dependencies_are_named_at_both_ends(action: str) -> None:
    fields: dict[str, dict[str, Any]] = {}

    def collect(schema: dict[str, Any], path: str) -> None:
        for key, field in schema.get("properties", {}).items():
            fields[f"{path}{key}"] = field
            for option in (field, *field.get("anyOf", [])):
                collect(option, f"{path}{key}.")

    collect(spec_schema(form_of(action)), "")
    needed = {path for field in fields.values() for path in field.get("x-depends-on", [])}
    assert needed == {path for path, field in fields.items() if field.get("x-parent")}


TAO_KEYS = {
    *("title", "type", "description", "default", "minimum", "maximum", "enum", "option_weights", "examples", "pattern"),
    *("math_cond", "parent_param", "depends_on", "automl_enabled", "popular", "anyOf", "properties"),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_the_export_has_the_keys_of_tao_and_no_infinity(action: str) -> None:
    exported = tao_schema(form_of(action))
    text = as_text(exported)
    assert "Infinity" not in text
    assert json.loads(text) == exported
    assert exported["default"] == defaults(form_of(action).spec)
    assert set(exported["x_tao_schema"]) == {
        *("action", "core_module", "model", "network_arch", "schema_action", "schema_version", "source")
    }

    def check(properties: dict[str, Any]) -> list[str]:
        for name, field in properties.items():
            assert set(field) <= TAO_KEYS, name
            assert isinstance(field["type"], str), name
            assert field["automl_enabled"] in ("TRUE", "FALSE"), name
        return [*properties, *(key for field in properties.values() for key in check(field.get("properties", {})))]

    keys = check(exported["properties"])
    named = [*exported["automl_default_parameters"], *exported["automl_disabled_parameters"]]
    assert sorted(key.rpartition(".")[2] for key in named) == sorted(keys)


def test_what_the_export_says_of_a_search_can_be_drawn_from() -> None:
    train = tao_schema(form_of("train"))["properties"]
    lora = train["policy"]["properties"]["lora"]["properties"]
    assert (lora["r"]["minimum"], lora["r"]["maximum"], lora["r"]["math_cond"]) == (4, 256, "^ 2")
    assert lora["r"]["parent_param"] == "TRUE"
    alpha = lora["lora_alpha"]
    assert (alpha["depends_on"], alpha["math_cond"], alpha["automl_enabled"]) == (
        "policy.lora.r",
        "> depends_on",
        "TRUE",
    )
    assert not {"enum", "maximum"} & set(alpha)
    rate = train["train"]["properties"]["optm_lr"]
    assert rate["minimum"] < rate["default"] < rate["maximum"]
    assert rate["description"].endswith(
        "A search samples from 5e-07 to 2e-05 (log) if policy.lora=null; 1e-05 to 0.0005 (log) otherwise."
    )
    decay = train["train"]["properties"]["optm_decay_type"]
    assert (decay["type"], len(decay["enum"])) == ("categorical", len(decay["option_weights"]))


def test_the_folder_is_the_same_bytes_whatever_the_hashes(tmp_path: Path) -> None:
    """Two processes, each with its own order of sets; and what this one makes."""
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "worldsmith.cli.main", "schema", "--all", "-o", str(tmp_path / seed)]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run(command, check=True, capture_output=True, env=environment, timeout=60)
    texts = spec_files(all_forms(), "json-schema")
    for seed in ("1", "2"):
        found = {
            file.relative_to(tmp_path / seed).as_posix(): file.read_text(encoding="utf-8")
            for file in (tmp_path / seed).rglob("*")
            if file.is_file()
        }
        assert found == texts
    manifest = json.loads(texts["manifest.json"] or "")
    assert manifest["failures"] == {}
    assert list(manifest["actions"]) == [*ACTIONS, "tune"]
    for entry in manifest["actions"].values():
        assert {entry["path"], entry["spec_template"]} <= set(texts)


class NoExample(Config):
    needed: str
    """Has neither default nor example."""


def test_a_form_that_cannot_be_written_is_a_failure_in_the_manifest() -> None:
    broken = SpecForm("broken", NoExample, ())
    files = spec_files({"broken": lambda: broken, "gaps": lambda: form_of("gaps")}, "tao")
    manifest = json.loads(files["manifest.json"] or "")
    assert "NoExample.needed has no default and no Example" in manifest["failures"]["broken"]
    assert list(manifest["actions"]) == ["gaps"]
    assert files["schemas/broken.schema.json"] is None
    assert "TRUE" in (files["schemas/gaps.schema.json"] or "")


@pytest.mark.parametrize("action", ACTIONS)
def test_what_marks_offer_fits_the_field(action: str, tmp_path: Path) -> None:
    good = defaults(form_of(action).spec, examples=True)
    spec_file = tmp_path / "good.yaml"
    spec_file.write_text(yaml.safe_dump(good), encoding="utf-8")
    root = read_spec(form_of(action), str(spec_file)).root
    for searched in search_space(root):
        mark = searched.mark(root)
        for value in (mark.candidates() or [mark.low, mark.high]) if mark and not mark.ratio_of else []:
            key = spec_key(parse_path(searched.path))
            assert ours(action, tmp_path, put(good, key, value)) == "", (key, value)


def test_the_commands_write_what_is_tested_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "infer"]) == 0
    assert capsys.readouterr().out == as_text(spec_schema(form_of("inference")))
    assert main(["schema", "gaps", "--style", "tao"]) == 0
    assert capsys.readouterr().out == as_text(tao_schema(form_of("gaps")))
    assert main(["config", "new", "--action", "evaluate", str(tmp_path / "e.toml")]) == 0
    assert (tmp_path / "e.toml").read_text(encoding="utf-8") == spec_template(form_of("evaluate"), "e.toml")
    assert main(["schema", "--all", "-o", str(tmp_path / "all"), "--style", "tao"]) == 0
    assert json.loads((tmp_path / "all/manifest.json").read_text(encoding="utf-8"))["style"] == "tao"
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["schema", "toml", "--all"], "name a schema"),
        (["schema", "--all"], "name a folder with -o DIR"),
        (["schema", "toml", "--style", "tao"], "--style requires the spec of an action"),
        (["schema", "evaluate", "videophy2_sft_nano"], "a recipe can be used with"),
        (["config", "new", "--action", "evaluate", "x.txt"], "must end in .toml, .yaml or .json"),
    ],
)
def test_a_wrong_word_is_said(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_settings_of_a_search_have_a_schema_and_a_template(
    language: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"tune{language}"
    assert main(["config", "new", "--action", "tune", str(file)]) == 0
    document = LANGUAGES[language](file.read_text(encoding="utf-8"))
    assert main(["schema", "tune"]) == 0
    schema = json.loads(capsys.readouterr().out.partition("\n")[2])
    jsonschema.Draft202012Validator(schema).validate(document)
    assert list(jsonschema.Draft202012Validator(schema).iter_errors({**document, "trials": 1})) != []
    (kind,) = command_classes("tune").values()
    settings = load_settings(
        "worldsmith tune", kind, sort_action_words(["--settings", str(file), "--trials", "3"], [kind]), []
    ).tree
    assert (settings.source, settings.trials, settings.sampler) == (document["source"], 3, "tpe")
