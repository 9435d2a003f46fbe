"""`worldsmith train` with typed flags, their help, `recipes`, `--import`, `--module`: quick and free of torch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processor_time import run_timed

from worldsmith.cli import main as cli
from worldsmith.cli import train
from worldsmith.config.recipes.packages import registered
from worldsmith.config.recipes.registry import recipe_names

MY_RUNS = """
from worldsmith.config import recipe
from worldsmith.training.callbacks.base import Callback

class Alarm(Callback):
    '''Rings.'''
    class Config(Callback.Config):
        above: float = 2.0
        '''Loss from which it rings.'''

@recipe("alarmed", starts_from="moving_shapes")
def alarmed(config):
    '''The demo with an alarm.'''
    config.trainer.callbacks["alarm"] = Alarm.Config(above=3.0)
    return config

def quiet():
    from worldsmith.config import get_recipe
    return get_recipe("moving_shapes")
"""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What `train` would plan, instead of planning it."""
    found: list[Any] = []
    monkeypatch.setattr(train, "dryrun", lambda loaded, **_: found.append(loaded.tree) or 0)
    monkeypatch.setattr(train, "train", lambda tree, launch, resume_changed: found.append((tree, launch)) or 0)
    monkeypatch.setenv("DATASET_PATH", "clips")
    monkeypatch.chdir(tmp_path)
    return found


def worldsmith(*words: str, folder: Path) -> tuple[int, str, str, float]:
    """Exit code, output, errors and relative processor time of a new process, which fails if it imports torch."""
    code = (
        "import sys; from worldsmith.cli.main import main; code = main(sys.argv[1:]); "
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules; sys.exit(code)"
    )
    done, time = run_timed([sys.executable, "-c", code, *words], env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=folder)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr, time


QUICK = 12
"""Max processor time of a command that reads a config, relative to imports of the standard library; 5 was measured."""
FLAGS = ["--optimizer.lr", "1e-4", "--no-model.config.ema.enabled", "--scheduler.warm-up-steps", "10", "--scheduler"]


@pytest.mark.parametrize(
    "words",
    [
        ["moving_shapes", *FLAGS, "LambdaLinear", "--dryrun"],
        ["--dryrun", *FLAGS, "LambdaLinear", "moving_shapes"],
        [*FLAGS[:2], "moving_shapes", *FLAGS[2:], "LambdaLinear", "--dryrun"],
        [*FLAGS, "LambdaLinear", "--no-model.config.ema.enabled", "moving_shapes", "--dryrun"],
    ],
)
def test_the_order_of_flags_and_source_does_not_matter(words: list[str], seen: list[Any]) -> None:
    assert cli.main(["train", *words]) == 0
    tree = seen[0]
    assert tree.optimizer.lr == 1e-4
    assert tree.model.config.ema.enabled is False
    assert type(tree.scheduler).__qualname__ == "LambdaLinear.Config"
    assert (tree.scheduler.warm_up_steps, tree.scheduler.cycle_lengths) == ([10], [800])


def test_flags_are_recorded_as_words_that_repeat_the_run(seen: list[Any]) -> None:
    words = ["train", "moving_shapes", "--optimizer.betas", "0.8", "0.9", "--", "trainer.max_iter=70"]
    assert cli.main(words) == 0
    tree, launch = seen[0]
    assert (launch.config_path, launch.overrides) == (
        "moving_shapes",
        ["optimizer.betas=[0.8,0.9]", "trainer.max_iter=70"],
    )
    assert cli.main(["train", "moving_shapes", "--dryrun", "--", *launch.overrides]) == 0
    assert seen[1] == tree


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dryrun"], "name one recipe or file"),
        (["moving_shapes", "--sft-toml", "x.toml"], "name one recipe or file"),
        (["--module", "json"], "--module and --config must be used together"),
        (["moving_shapes", "--config", "x"], "--module and --config must be used together"),
        (["moving_shapes", "a.b=1"], "come last, after --"),
        (["moving_shapes", "--optimizer.lrr", "1"], "did you mean --optimizer.lr?"),
        (["--import"], "--import needs a name"),
        (["--import", "no_such_module", "moving_shapes"], "module 'no_such_module' does not exist"),
        (["--trust", "os", "moving_shapes"], "is part of Python's standard library"),
        (["moving_shapes", "--help", "optimiser"], "did you mean 'optimizer'?"),
    ],
)
def test_mistakes_end_in_exit_code_2(
    words: list[str], message: str, seen: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", *words]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert not seen


def test_a_module_of_recipes_on_the_command_line(seen: list[Any], tmp_path: Path) -> None:
    (tmp_path / "flag_runs.py").write_text(MY_RUNS)
    before = dict(registered())
    try:
        assert cli.main(["--import", "flag_runs", "train", "alarmed", "--dryrun"]) == 0
        assert cli.main(["train", "--module", "flag_runs", "--config", "alarmed", "--dryrun"]) == 0
        words = ["--trainer.callbacks.alarm", "Alarm", "--trainer.callbacks.alarm.above", "4"]
        assert cli.main(["train", *words, "--module", "flag_runs", "--config", "quiet", "--dryrun"]) == 0
    finally:
        registered().clear()
        registered().update(before)
    assert [tree.trainer.callbacks["alarm"].above for tree in seen] == [3.0, 3.0, 4.0]


def test_help_lists_every_flag_with_type_value_origin_and_doc(tmp_path: Path) -> None:
    code, out, _, time = worldsmith("train", "moving_shapes", "--help", "--optimizer.eps", "1e-6", folder=tmp_path)
    assert code == 0
    assert time < QUICK
    assert max(len(line) for line in out.splitlines() if " " in line.strip()) <= 100  # a list of classes is a word
    for line in (
        "[optimizer] Optimizer and the parameters that it trains.",
        "  --optimizer.lr NUMBER = 0.002 (recipe vision_sft_tiny)\n      Base learning rate.",
        "  --optimizer.eps NUMBER = 1e-06 (flag --optimizer.eps 1e-6)",
        "  --optimizer.betas NUMBER … = [0.9,0.95] (recipe vision_sft_tiny)",
        "  --optimizer.lr_multipliers.KEY NUMBER = {} (default)",
        "  --job.task vfm|vlm = vfm (default)",
        "  --job.group TEXT = demo (recipe moving_shapes)",
        "  --scheduler LambdaLinear|LambdaCosine|LambdaSqrt = LambdaCosine (recipe vision_sft_tiny)",
        "  --scheduler.cycle_lengths INT … = ['${trainer.max_iter}'] (recipe vision_sft_tiny)",
        "  --trainer.callbacks.grad_clip.clip_norm NUMBER = 1.0",
        "  --checkpoint.keep_latest_k INT or null = 2 (recipe moving_shapes)",
    ):
        assert line in out, line


def test_every_value_of_every_recipe_has_its_flag_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    from worldsmith.config import Config, get_recipe
    from worldsmith.config.declare.configurable import field_hints, walk
    from worldsmith.config.tree.paths import format_path

    for name in recipe_names():
        assert cli.main(["train", name, "--help"]) == 0
        shown = capsys.readouterr().out
        for path, node in walk(get_recipe(name)):
            for field in field_hints(type(node)) if isinstance(node, Config) else ():
                flag = format_path((*path, field))
                assert any(f"--{flag}{end}" in shown for end in " .\n") or field == "custom"


def test_help_of_one_section_and_of_the_command(tmp_path: Path) -> None:
    _, out, _, _ = worldsmith("train", "moving_shapes", "--help", "model.config.ema", folder=tmp_path)
    assert [line for line in out.splitlines() if line.startswith("[")] == ["[model.config.ema]"]
    assert "--model.config.ema.rate" in out
    assert "--optimizer" not in out
    code, out, _, _ = worldsmith("train", "--help", folder=tmp_path)
    assert code == 0
    assert "--sft-toml" in out
    assert "--optimizer.lr 1e-4" in out


def helped(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """The flags that a help lists."""
    assert cli.main(["train", "moving_shapes", "--help", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [line.split()[0] for line in lines if line.startswith("  --")]


def test_help_finds_a_word_in_names_and_descriptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert helped(capsys, "lr") == ["--optimizer.lr", "--optimizer.lr_multipliers.KEY"]
    assert "--optimizer.lr" in helped(capsys, "learning")  # "Base learning rate."
    assert helped(capsys, "Resume-Changed") == ["--resume-changed"]
    assert helped(capsys, "optimizer.lr") == ["--optimizer.lr"]


def test_help_with_a_recipe_has_the_options_of_the_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    flags = helped(capsys)
    assert {"--dryrun", "--resume-changed", "--sft-toml"} <= set(flags)
    assert flags.index("--dryrun") < flags.index("--job.task")


def test_help_lists_the_fields_of_list_items_as_flags_that_work(
    capsys: pytest.CaptureFixture[str], seen: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "near.yaml").write_text(
        "recipe: moving_shapes\nmodel: {config: {joint_attn_implementation: three_way, natten_parameter_list: "
        "[&near {2d: {window_size: [-1, 4]}}, *near, *near, *near]}}\n"
    )
    flag = "--model.config.natten_parameter_list[0].2d.window_size"
    assert cli.main(["train", "near.yaml", "--help", "model.config.natten_parameter_list"]) == 0
    assert f"  {flag} INT … = [-1,4]" in capsys.readouterr().out
    assert cli.main(["train", "near.yaml", flag, "-1", "3", "--dryrun"]) == 0, capsys.readouterr().err
    assert seen[0].model.config.natten_parameter_list[0]["2d"].window_size == [-1, 3]


def test_the_class_of_a_component_has_a_flag_also_where_there_is_only_one(capsys: pytest.CaptureFixture[str]) -> None:
    flags = helped(capsys)
    assert {"--optimizer", "--scheduler", "--checkpoint", "--model.config.ema"} <= set(flags)
    assert "--job" not in flags


def test_recipes_fit_a_terminal_and_have_a_json_form(tmp_path: Path) -> None:
    (tmp_path / "flag_runs.py").write_text(MY_RUNS)
    code, table, _, time = worldsmith("recipes", "--import", "flag_runs", folder=tmp_path)
    assert code == 0
    assert time < QUICK
    assert max(map(len, table.splitlines())) <= 100
    code, out, _, _ = worldsmith("recipes", "--json", "--import", "flag_runs", folder=tmp_path)
    found = {entry["name"]: entry for entry in json.loads(out)}
    assert {"alarmed", "moving_shapes", "vision_sft_tiny"} <= set(found)
    assert all(name in table for name in ("alarmed", "moving_shapes", "vision_sft_tiny"))
    assert found["alarmed"] == {
        "name": "alarmed",
        "task": "vfm",
        "model": "cosmos3",
        "parameters": found["moving_shapes"]["parameters"],
        "data": "VideoDataset ${oc.env:DATASET_PATH}",
        "starts_from": "moving_shapes",
        "doc": "The demo with an alarm.",
        "module": "flag_runs",
    }


@pytest.mark.parametrize("columns", ["20", "60", "80", "100", "200", "300"])
def test_the_list_of_recipes_keeps_names_and_parents_together(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recipe takes a line for its name, size and parent, and one for its description, from 80 columns on."""
    monkeypatch.setenv("COLUMNS", columns)
    assert cli.main(["recipes"]) == 0
    shown = capsys.readouterr().out
    assert all(re.search(rf"^  {name}\b", shown, re.MULTILINE) for name in recipe_names())
    parents = {registered()[name].starts_from for name in recipe_names()} - {None}
    assert all(f"from {parent}\n" in shown for parent in parents)
    listed = shown.partition("next:")[0]
    groups = len(re.findall(r"^\S", listed, re.MULTILINE))
    wrapped = len(listed.splitlines()) - 2 * len(recipe_names()) - 2 * groups
    assert int(columns) < 80 or wrapped < len(recipe_names()) / 2
    assert columns == "20" or max(map(len, shown.splitlines())) <= int(columns)


def test_one_recipe_is_shown_with_its_changes(tmp_path: Path) -> None:
    (tmp_path / "flag_runs.py").write_text(MY_RUNS)
    code, out, _, time = worldsmith("recipes", "alarmed", "--import=flag_runs", folder=tmp_path)
    assert code == 0
    assert time < QUICK
    assert "changes from moving_shapes:\n  job.experiment = alarmed  (was moving_shapes)\n" in out
    assert "  trainer.callbacks.alarm = flag_runs.Alarm  (was absent)\n" in out
    assert "  trainer.callbacks.alarm.above = 3.0  (was absent)\n" in out
    _, out, _, _ = worldsmith("recipes", "moving_shapes", folder=tmp_path)
    assert "  model.config.network.num_hidden_layers = 4  (was 6)\n" in out
    _, out, _, _ = worldsmith("recipes", "vision_sft_tiny", folder=tmp_path)
    assert "type: worldsmith.training.trainer.Trainer" in out
    code, _, err, _ = worldsmith("recipes", "moving_shape", folder=tmp_path)
    assert code == 2
    assert "did you mean 'moving_shapes'?" in err


def test_a_class_that_is_loaded_can_be_named_and_others_need_trust(tmp_path: Path) -> None:
    """A flag may name a class that the recipes' module imported; a file may name it only after `--trust`."""
    (tmp_path / "flag_parts.py").write_text(
        "from worldsmith.training.callbacks.base import Callback\nclass Bell(Callback):\n    pass\n"
    )
    (tmp_path / "flag_runs.py").write_text("import flag_parts\n")
    words = ["config", "check", "moving_shapes", "--", "dataloader_train.dataset.path=x"]
    flag = ["--import", "flag_runs", "--trainer.callbacks.bell", "Bell"]
    assert worldsmith(*words[:3], *flag, *words[3:], folder=tmp_path)[:2] == (0, "OK: moving_shapes\n")
    (tmp_path / "bell.yaml").write_text(
        "recipe: moving_shapes\ntrainer: {callbacks: {bell: {type: flag_parts.Bell}}}\n"
    )
    stack = ["config", "check", "--base", "bell.yaml", *words[3:]]
    code, _, err, _ = worldsmith(*stack, folder=tmp_path)
    assert code == 2
    assert "add --trust flag_parts" in err
    assert worldsmith("--trust=flag_parts", *stack, folder=tmp_path)[0] == 0


@pytest.mark.parametrize("when", ["start", "training"])
def test_a_file_error_is_the_users_mistake_only_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, when: str
) -> None:
    """A file system that fails later is a failure (1), after which the same command may be started again."""
    from worldsmith.config.sections import JobConfig
    from worldsmith.training.run_folder import Launch

    class Failing:
        def __init__(self, *args: object, **settings: object) -> None:
            if when == "start":
                raise PermissionError(13, "Permission denied", "data")

        def train(self) -> None:
            raise OSError(5, "Input/output error", "clip.mp4")

    monkeypatch.setattr(train, "completion", lambda *args: None)
    tree = SimpleNamespace(job=JobConfig(project="a", group="b", name="c"), build=Failing)
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path))
    if when == "training":
        assert train.train(tree, Launch(), resume_changed=False) == 1  # type: ignore[arg-type]
    else:
        with pytest.raises(PermissionError):
            train.train(tree, Launch(), resume_changed=False)  # type: ignore[arg-type]


MY_TRAINER = """
from pathlib import Path
from types import SimpleNamespace

from worldsmith.config import get_recipe, recipe
from worldsmith.config.declare.configurable import children
from worldsmith.distributed.world import World
from worldsmith.training.trainer import Outcome, Trainer

class Patient(Trainer):
    class Config(Trainer.Config):
        wait: float = 1.5
        '''Seconds before the first step.'''

    def __init__(self, config, *, resume_changed=False, launch=None):
        self.config, self.world, self.run_folder, self.state = config, World(), Path(), SimpleNamespace(iteration=0)

    def train(self):
        print("waited", self.config.wait)
        return Outcome.FINISHED

@recipe("patient")
def patient():
    return Patient.Config(**dict(children(get_recipe("moving_shapes"))))
"""


def test_a_subclass_of_the_trainer_is_what_a_recipe_that_names_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "patient_runs.py").write_text(MY_TRAINER)
    monkeypatch.setenv("DATASET_PATH", "clips")
    done = subprocess.run(
        [sys.executable, "-m", "worldsmith.cli.main", "train", "patient", "--import", "patient_runs", "--wait", "2.5"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "waited 2.5"), done.stderr


def test_one_broken_recipe_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "my_runs.py").write_text(f"{MY_RUNS.replace('above=3.0', 'abov=3.0')}")
    code, out, err, _ = worldsmith("recipes", "--import", "my_runs", folder=tmp_path)
    assert code == 0
    assert "moving_shapes" in out
    assert "alarmed" not in out
    assert f"warning: {tmp_path}/my_runs.py:14:1: the recipe 'alarmed' cannot be built: TypeError" in err
    code, _, err, _ = worldsmith("recipes", "alarmed", "--import", "my_runs", folder=tmp_path)
    assert code == 2
    assert "did you mean 'above'" in err
