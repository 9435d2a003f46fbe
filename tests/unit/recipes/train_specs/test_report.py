"""What is said of every key of a training spec; which files are specs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from key_rules import keys_without_rule
from train_specs import COOKBOOK

from worldsmith.config.errors import ConfigError
from worldsmith.config.load import load
from worldsmith.dialects.cosmos_rl.names import leaf_keys
from worldsmith.dialects.cosmos_rl.spec_file import read_spec
from worldsmith.dialects.cosmos_rl.train.key_rules import FORM
from worldsmith.dialects.cosmos_rl.train.read_spec import has_spec_keys
from worldsmith.dialects.cosmos_rl.write.spec_template import spec_template
from worldsmith.dialects.translation import translate


def test_every_stated_key_is_in_the_report_once(read: Any) -> None:
    report = read(COOKBOOK).report
    assert report.startswith(f"{read(COOKBOOK).source}: 25 keys: ")
    stated = report.partition("omitted keys, with")[0]
    keys = ("redis", "train.enable_validation", "custom.dataset.media_path", "train.train_policy.dataset.test_size")
    for key in keys:
        assert sum(line.split()[1] == key for line in stated.splitlines()[1:]) == 1
    assert "train.epsilon" in report.partition("omitted")[2]


SAYING = (
    *("train.seed=-1", "train.optm_warmup_epochs=1", "train.optm_decay_ratio=0.5", "train.max_num_steps=9"),
    *("custom.system_prompt=a", "custom.train_dataset.system_prompt=a", "train.train_policy.system_prompt=a"),
    *("custom.vision={nframes: 8, min_frames: 2, min_pixels: 5}", "train.fa_version=2", "policy.model_revision=x"),
    *("policy.freeze_pattern=[a]", "logging.group_name=g", "train.train_policy.mini_batch=1"),
    "policy.lora={r: 4, lora_names: [default], lora_path: '', primary_adapter: null, target_modules: [q_proj]}",
)


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("passes", [0, 1])
def test_no_stated_key_is_left_out_of_the_report(
    read: Any, data: Path, tmp_path: Path, enabled: bool, saved: bool, passes: int
) -> None:
    """The template with every key, switched on and off."""
    file = tmp_path / "every.yaml"
    file.write_text(spec_template(FORM, str(file)))
    words = (
        *(f"custom.{name}_dataset.annotation_path={data}/annotations.json" for name in ("train", "val")),
        *(f"validation.enable={str(enabled).lower()}", f"validation.freq_in_epoch={passes}"),
        *(f"train.ckpt.enable_checkpoint={str(saved).lower()}", f"train.ckpt.save_freq_in_epoch={passes}"),
    )
    translation = translate(read_spec(FORM, str(file), [*words, *SAYING]))
    assert [problem.render() for problem in translation.problems] == []
    told = {line.key for line in translation.lines}
    assert [key for key in leaf_keys(FORM.spec) if translation.is_stated(key) and key not in told] == []


def test_no_key_is_without_a_row_and_none_has_two() -> None:
    keys = leaf_keys(FORM.spec)
    assert keys_without_rule(FORM, keys) == []
    told = [key for rule in FORM.rules for key in rule.keys]
    assert len(told) == len(set(told))
    inside = [key for rule in FORM.rules if not rule.outside for key in rule.keys]
    assert [key for key in inside if not any(f"{leaf}.".startswith(f"{key}.") for leaf in keys)] == []


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"train": {"epoch": 1}}, True),
        ({"policy": {"lora": {}}, "custom": {}}, True),
        ({"train": {"steps": 1}}, False),
        ({"train": 3, "logging": {"logger": []}}, False),
        ({"train": {"epoch": 1}, "dialect": "other"}, False),
        ({"train": {"epoch": 1}, "recipe": "pre_exp012_llava_ov"}, False),
    ],
)
def test_a_spec_is_known_by_its_tables(data: dict[str, Any], expected: bool) -> None:
    assert has_spec_keys(data) == expected


def test_a_file_of_ours_is_no_spec(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[job]\ntask = "vlm"\nexperiment = "pre_exp012_llava_ov"\n[train]\nepoch = 1\n')
    with pytest.raises(ConfigError, match="the file has no key 'train'"):
        load(str(file))
