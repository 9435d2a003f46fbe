"""`--spec`: a spec in place of a settings file, dotted words, flags above it, and a parent in place of its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from worldsmith.actions.registry import command_classes
from worldsmith.cli.action_command import SETTINGS, load_settings, sort_action_words
from worldsmith.cli.main import main
from worldsmith.cli.spec_and_parent import SPEC, adopt_parent, read_spec_words
from worldsmith.config import UserError
from worldsmith.config.errors import ConfigError
from worldsmith.dialects.cosmos_rl.spec_formats import MODULES, form_of
from worldsmith.dialects.cosmos_rl.write.spec_template import spec_template

COMMANDS = ["evaluate", "quantize", "gaps", "infer"]


def read(command: str, *words: str, tail: tuple[str, ...] = ()) -> Any:
    """The settings that a command line with a template, and words for it, leads to."""
    (kind,) = [cls for name, cls in command_classes(command).items() if name in ("answers", "")]
    sorted_words = sort_action_words(list(words), [kind])
    read_spec_words(command, sorted_words, settings=SETTINGS)
    return load_settings(f"worldsmith {command}", kind, sorted_words, list(tail))


@pytest.fixture
def template(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    file = tmp_path / "spec.toml"
    file.write_text(spec_template(form_of(request.param), str(file)), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize(("command", "template"), [(name, name) for name in COMMANDS], indirect=["template"])
def test_a_template_becomes_settings_of_the_action(command: str, template: str) -> None:
    settings = read(command, SPEC, template).tree
    if command == "gaps":
        assert (settings.results_dir, settings.gaps_parquet) == ("results/evaluate", "results/gaps.parquet")
    else:
        assert settings.model == "results/train/safetensors/final"
        assert str(settings.out).startswith(f"results/{command}")


@pytest.mark.parametrize("template", ["evaluate"], indirect=True)
def test_words_change_the_spec_flags_win_over_it_and_overrides_over_both(template: str) -> None:
    words = [SPEC, template, "evaluation.limit=10", "+vision.fps=2", "generation.max_tokens=64", "--batch-size", "4"]
    loaded = read("evaluate", *words, tail=("max_new_tokens=16",))
    settings = loaded.tree
    assert (settings.limit, settings.batch_size, settings.max_new_tokens) == (10, 4, 16)
    assert (settings.processor.media.fps, settings.processor.media.nframes) == (2.0, None)
    assert type(settings.dataset).__module__.endswith("datasets.llava")
    assert settings.dataset.path == "data/val/annotations.json"
    assert loaded.places["seed",].file == template


@pytest.mark.parametrize(("template", "command"), [("evaluate", "evaluate"), ("infer", "infer")], indirect=["template"])
def test_an_adapter_is_asked_with_its_base(template: str, command: str) -> None:
    section = "model." if command == "evaluate" else ""
    settings = read(command, SPEC, template, f"{section}enable_lora=true", f"{section}base_model_path=base").tree
    assert (settings.model, settings.adapter) == ("base", "results/train/safetensors/final")


@pytest.mark.parametrize("policy", ["off", "auto"])
@pytest.mark.parametrize(("command", "template"), [(name, name) for name in COMMANDS], indirect=["template"])
def test_a_search_policy_changes_nothing_and_is_reported_once(command: str, template: str, policy: str) -> None:
    loaded = read(command, SPEC, template, f"automl_policy={policy}")
    assert loaded.tree == read(command, SPEC, template).tree
    assert len([text for text in loaded.warnings if text.startswith("automl_policy is unneeded")]) == 1
    with pytest.raises(UserError, match="expected auto or off, found 'of'; did you mean 'off'"):
        read(command, SPEC, template, "automl_policy=of")


@pytest.mark.parametrize("template", ["evaluate"], indirect=True)
def test_what_is_approximated_is_a_warning(template: str) -> None:
    told = "\n".join(read("evaluate", SPEC, template, "model.tp_size=2").warnings)
    assert "model.tp_size is approximated: tensor parallelism over 2 GPUs is not supported" in told


@pytest.mark.parametrize("template", ["evaluate"], indirect=True)
def test_a_mistake_is_shown_where_it_stands(template: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read("evaluate", SPEC, template, "evaluation.shard_id=7")
    assert "the spec" in str(caught.value)
    assert "evaluation.shard_id" in str(caught.value)
    text = Path(template).read_text(encoding="utf-8")
    Path(template).write_text(text.replace("batch_size = 50", 'batch_size = "50"', 1), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"spec\.toml:\d+:\d+: evaluation\.batch_size"):
        read("evaluate", SPEC, template)


@pytest.mark.parametrize("template", ["quantize"], indirect=True)
def test_a_parent_stands_for_the_model(template: str) -> None:
    """In place of the one that the file names, with a warning; next to one that a word names it is an error."""
    text = Path(template).read_text(encoding="utf-8")
    for content in (text, text.replace("\nmodel_path =", "\n#model_path =")):
        Path(template).write_text(content, encoding="utf-8")
        for words in (["--parent", "runs/a"], ["parent_job_id=runs/a"]):
            sorted_words = sort_action_words([SPEC, template, *words], list(command_classes("quantize").values()))
            read_spec_words("quantize", sorted_words, settings=SETTINGS)
            assert sorted_words.own["--parent"] == "runs/a"
            assert sorted_words.spec is not None
            assert "model" not in sorted_words.spec.data
            told = [line for line in sorted_words.spec.get_warnings() if "model_path" in line]
            assert ["instead of results/train/" in line for line in told] == [True] * (content == text)
    for name in ("model_path", "model.model_path"):
        with pytest.raises(UserError, match="both name the model"):
            read("quantize", SPEC, template, f"{name}=x", "--parent", "runs/a")
    with pytest.raises(ConfigError, match=r"model\.model_path"):
        read("quantize", SPEC, template)


@pytest.mark.parametrize("enable_lora", ["true", "false"])
def test_a_parent_shows_pictures_as_it_saw_them_where_the_spec_is_silent(tmp_path: Path, enable_lora: str) -> None:
    checkpoint = tmp_path / "run/checkpoints/iter_000000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text('{"files": {}}')
    media = "dataloader_train: {processor: {media: {fps: 2.0, total_pixels: 4096}}}"
    (tmp_path / "run/config.yaml").write_text(f"trainer: {{max_iter: 1}}\n{media}\n")
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        f"parent_job_id: {tmp_path / 'run'}\nprompt: Why?\nmedia: a.mp4\nresults_dir: r\nenable_lora: {enable_lora}\n"
    )
    (kind,) = command_classes("infer").values()

    def settings(*more: str) -> Any:
        words = sort_action_words([SPEC, str(spec), *more], [kind])
        read_spec_words("infer", words, settings=SETTINGS)
        adopt_parent(words.own["--parent"], words, [kind], None)
        return load_settings("worldsmith infer", kind, words, []).tree

    assert settings().model == str(checkpoint)
    shown = settings().processor.media
    assert (shown.fps, shown.nframes, shown.total_pixels) == (2.0, None, 4096)
    shown = settings("num_frames=4").processor.media
    assert (shown.fps, shown.nframes, shown.total_pixels) == (None, 4, 4096)


@pytest.mark.parametrize("template", ["evaluate"], indirect=True)
def test_a_model_with_an_equals_sign_in_its_path_is_no_dotted_word(template: str) -> None:
    words = sort_action_words([SPEC, template, "runs/lr=1e-5", "~vision"], list(command_classes("evaluate").values()))
    read_spec_words("evaluate", words, settings=SETTINGS)
    assert words.loose == ["runs/lr=1e-5"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["export", SPEC, "x.toml"], "worldsmith export does not read specs; these commands do: "),
        (["evaluate", SPEC, "x.toml", SETTINGS, "y.toml"], "both set the settings"),
        (["evaluate", SPEC, "missing.toml"], "missing.toml"),
        (["evaluate", SPEC, "spec.txt"], "a spec must be a .toml, .yaml or .json file"),
        (["evaluate", SPEC], "--spec needs a value"),
    ],
)
def test_a_wrong_command_line_is_said(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert told in capsys.readouterr().err


def test_every_command_with_specs_is_known() -> None:
    assert {command.replace("infer", "inference") for command in COMMANDS} <= set(MODULES)
