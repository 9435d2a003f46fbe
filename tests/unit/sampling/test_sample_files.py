"""Files of samples: every mistake in one report, with its place; what is said where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from worldsmith.config.errors import ConfigError
from worldsmith.sampling.sample_files import read_files


def write(folder: Path, **files: object) -> list[str]:
    """Files by name, in which _ stands for the point; data become JSON."""
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content, indent=1)
        (folder / name.replace("_", ".")).write_text(text)
    return [str(folder / name.replace("_", ".")) for name in files]


def report(files: list[str]) -> str:
    with pytest.raises(ConfigError) as error:
        read_files(files)
    return str(error.value)


def test_every_kind_of_file_and_patterns(tmp_path: Path) -> None:
    """Names are those of the files, with a number where there are several samples; a name of one's own wins."""
    write(
        tmp_path,
        a_json={"prompt": {"subjects": ["ü"]}, "resolution": 256},
        b_jsonl='{"prompt": "one"}\n\n{"prompt": "two ${x}", "name": "mine", "negative_prompt": {"a": 1}}\n',
        c_yaml="- prompt: three\n  fps: 8\n- prompt: four\n",
        d_txt="five\n\nsix@@here/it is.png\n",
        e_yml="prompt: seven",
    )
    found = {entry.name: entry for entry in read_files([str(tmp_path / "*"), str(tmp_path / "a.json")])}
    assert list(found) == ["a", "b_0", "mine", "c_0", "c_1", "d_0", "d_1", "e"]
    assert found["a"].sample.prompt == '{"subjects": ["ü"]}'
    assert found["a"].sample.resolution == "256"
    assert (found["mine"].sample.prompt, found["mine"].sample.negative_prompt) == ("two ${x}", '{"a": 1}')
    assert found["mine"].layers[0].source == f"{tmp_path / 'b.jsonl'}:3"
    assert found["c_0"].sample.fps == 8.0
    assert (found["d_0"].sample.prompt, found["d_0"].sample.vision_path) == ("five", None)
    assert (found["d_1"].sample.prompt, found["d_1"].sample.vision_path) == ("six", "here/it is.png")


def test_all_mistakes_of_all_files_in_one_report(tmp_path: Path) -> None:
    files = write(
        tmp_path,
        a_json={"prompt": "x", "num_step": 3, "guidance": "much", "height": 3, "resolution": "256", "shift": -1},
        b_jsonl='{"prompt": "x", "sed": 3}\n{"prompt": "x", "seed": "${a}"}\n{"name": "a/b", "prompt": "x"}\n{"a"\n[1]',
        c_yaml="- prompt: x\n  condition_frame_indexes_vision: [1]\n- {}\n- prompt: y\n  prompt_path: z\n",
        d_txt="\n",
        e_csv="",
    )
    text = report([*files, str(tmp_path / "none" / "*.json"), str(tmp_path / "absent.json")])
    a, b, c = (str(tmp_path / name) for name in ("a.json", "b.jsonl", "c.yaml"))
    for expected in (
        *(f"{a}:3:2: num_step: Sample has no field 'num_step'", "did you mean 'num_steps'?"),
        f"{a}:4:14: guidance: expected a number or null, found 'much' (text)",
        *('height = 3 and resolution = "256": each sets the same value', "shift must be finite and above 0, found -1"),
        *(f"{b}:1:17: sed: Sample has no field 'sed'", "did you mean 'seed'?"),
        f"{b}:2:25: seed: references are not supported in sample files",
        f'{b}:3:10: name = "a/b": the name is also a folder name',
        f"{b}:5:1: expected a table of the sample's settings, found a list of 1",
        f"{b}:4:5: not valid JSON",
        f"{c}:2:35: condition_frame_indexes_vision = [1]: only the first frames can be kept",
        "prompt = null and prompt_path = null: a sample needs one prompt",
        'prompt = "y" and prompt_path = "z": a sample has one prompt',
        f"{tmp_path / 'd.txt'}: the file has no samples; expected one sample per line",
        f"{tmp_path / 'e.csv'}: no sample files: expected .json, .jsonl",
        f"no file matches {tmp_path / 'none' / '*.json'}",
        f"{tmp_path / 'absent.json'}: cannot be read",
    ):
        assert expected in text, expected
    assert text.startswith("16 mistakes in the sample files")


def test_published_fields_without_effect_are_refused_unless_they_ask_for_nothing(tmp_path: Path) -> None:
    idle = {"enable_sound": False, "edge": None, "normalize_cfg": False, "prompt_upsampler_seed": None}
    (entry,) = read_files(write(tmp_path, a_json={"prompt": "x", **idle}))
    assert entry.sample.prompt == "x"
    asked = {"enable_sound": True, "guidance_interval": [0, 500], "prompt_upsampler_top_k": 3, "video_save_quality": 9}
    text = report(write(tmp_path, b_json={"prompt": "x", **asked}))
    assert text.count("this field of the released sample format has no effect here") == 4
    assert "enable_sound: " in text
    assert "the same guidance scale at every step" in text


def test_two_samples_of_one_name(tmp_path: Path) -> None:
    files = write(tmp_path, a_jsonl='{"prompt": "x", "name": "n"}\n{"prompt": "y", "name": "n"}')
    assert f"{files[0]}:1 is also named 'n'" in report(files)


def test_a_file_of_defaults(tmp_path: Path) -> None:
    write(tmp_path, my_json={"num_steps": 4, "guidance": 2.0})
    (entry,) = read_files(write(tmp_path, a_json={"prompt": "x", "defaults_file": "my.json", "guidance": 3.0}))
    assert [layer.settings.guidance for layer in entry.layers] == [3.0, 2.0]
    write(tmp_path, my_json={"num_stepz": 4, "prompt": "y"})
    text = report(write(tmp_path, a_json={"prompt": "x", "defaults_file": "my.json"}))
    assert "did you mean 'num_steps'?" in text
    assert "SampleSettings has no field 'prompt'" in text


@pytest.mark.parametrize("text", ['{"prompt":' * 100_000, '{"prompt": "x", "seed": ' + "9" * 5000 + "}"])
def test_json_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    assert "p.jsonl:1" in report(write(tmp_path, p_jsonl=text))
