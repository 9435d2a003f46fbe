"""Whether a request to train becomes a search."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from worldsmith.config import UserError
from worldsmith.dialects.cosmos_rl.policy import NOT_RUNNABLE, choose_policy, route, take_policy

OVERRIDES = [
    "custom.train_dataset.annotation_path=/data/a.json",
    "train.output_dir=/results/x",
    "policy.parallelism.dp_shard_size=8",
    "train.resume=true",
    "parent_job_id=17",
]


@pytest.mark.parametrize(
    ("explicit", "request_text", "policy"),
    [
        (None, "", "auto"),
        (None, "fine-tune Cosmos-Reason2 on my clips", "auto"),
        (None, "turn off AutoML", "off"),
        (None, "please disable AutoML for this one", "off"),
        (None, "train it, no HPO", "off"),
        (None, "just plain training, 3 epochs", "off"),
        (None, "Turn AutoML off.", "off"),
        (None, "train without hyper-parameter search", "off"),
        (None, "do not use AutoML", "off"),
        (None, "I don’t want any HPO", "off"),
        (None, "train with AutoML\ndisabled", "off"),
        (None, "don't disable AutoML", "auto"),
        (None, "do not turn off AutoML", "auto"),
        (None, "never disable the AutoML", "auto"),
        (None, "there is no need to disable AutoML", "auto"),
        (None, "use AutoML instead of plain training", "auto"),
        (None, "no plain training, please", "auto"),
        (None, "I do not want to turn off AutoML", "auto"),
        (None, "It did not converge. Disable AutoML", "off"),
        (None, "turn off AutoML; no, don't disable AutoML", "auto"),
        (None, "don't disable AutoML; on second thought, plain training", "off"),
        (None, "the camera has no hpotenuse filter", "auto"),
        ("off", "", "off"),
        ("auto", "turn off AutoML", "auto"),
        ("off", "don't disable AutoML", "off"),
    ],
)
def test_the_explicit_value_wins_else_the_words_of_the_request_count(
    explicit: str | None, request_text: str, policy: str
) -> None:
    assert choose_policy(explicit, request_text) == policy


@pytest.mark.parametrize(
    ("value", "advice"), [("of", "off"), ("on", "auto or off"), ("", "auto or off"), ("Auto", "auto")]
)
def test_another_value_is_an_error(value: str, advice: str) -> None:
    with pytest.raises(UserError, match=f"automl_policy: expected auto or off, found '{value}'.*") as caught:
        route("train", [f"automl_policy={value}"])
    assert advice in str(caught.value)


def folder_of(tmp_path: Path, *, schema: str | None, template: str | None, manifest: str | None) -> Path:
    (tmp_path / "schemas").mkdir()
    files = {"schemas/train.schema.json": schema, "spec_template_train.yaml": template, "manifest.json": manifest}
    for name, text in files.items():
        if text is not None:
            (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


GOOD, TEMPLATE, ENABLED = '{"properties": {}}', "train: {epoch: 1}\n", json.dumps({"automl_enabled": True})


@pytest.mark.parametrize(
    ("schema", "template", "manifest", "policy", "search", "said"),
    [
        (GOOD, TEMPLATE, ENABLED, None, True, "automl_policy is auto"),
        (GOOD, TEMPLATE, ENABLED, "auto", True, "automl_policy is auto"),
        (GOOD, TEMPLATE, None, None, True, "automl_policy is auto"),
        (GOOD, TEMPLATE, ENABLED, "off", False, "automl_policy is off for this run"),
        (GOOD, TEMPLATE, '{"automl_enabled": false}', None, False, "AutoML is not enabled for this model"),
        (None, TEMPLATE, ENABLED, None, False, "train.schema.json is missing"),
        ("{", TEMPLATE, ENABLED, None, False, "train.schema.json cannot be read"),
        ("[]", TEMPLATE, ENABLED, None, False, "train.schema.json contains no table"),
        (
            '{"a": 1}',
            TEMPLATE,
            ENABLED,
            None,
            False,
            "train.schema.json has no `properties`: expected the JSON Schema of a spec",
        ),
        (GOOD, None, ENABLED, None, False, "spec_template_train.yaml is missing"),
        (GOOD, "a: [", ENABLED, None, False, "spec_template_train.yaml cannot be read"),
        (GOOD, "", ENABLED, None, False, "spec_template_train.yaml contains no table"),
        (None, None, ENABLED, "off", False, "automl_policy is off for this run"),
    ],
)
def test_a_request_goes_where_policy_and_files_allow(
    tmp_path: Path,
    schema: str | None,
    template: str | None,
    manifest: str | None,
    policy: str | None,
    search: bool,
    said: str,
) -> None:
    folder = folder_of(tmp_path, schema=schema, template=template, manifest=manifest)
    words = [*OVERRIDES[:2], *([f"automl_policy={policy}"] if policy else []), *OVERRIDES[2:]]
    found = route("train", words, folder=folder)
    assert found.search == search
    assert said in found.message
    assert found.message.startswith(NOT_RUNNABLE) == ("schema" in said or "template" in said)
    assert list(found.words) == OVERRIDES


def test_without_a_folder_the_program_reads_what_it_makes_itself() -> None:
    assert route("train", OVERRIDES).search
    assert not route("train", OVERRIDES, enabled=False).search
    assert not route("train", OVERRIDES, request="plain training").search


@pytest.mark.parametrize("action", ["evaluate", "inference", "infer", "quantize", "export", "gaps", "tune"])
def test_other_actions_are_untouched(action: str) -> None:
    found = route(action, ["automl_policy=auto", *OVERRIDES])
    assert not found.search
    assert list(found.words) == OVERRIDES


def test_the_last_of_several_policies_counts() -> None:
    assert take_policy(["automl_policy=auto", "a=1", 'automl_policy="off"']) == ("off", ["a=1"])
