"""The public Python API: lazy, typed, the same components as the command line, and one clear error for mistakes."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import pkgutil
import subprocess
import sys
import typing
from pathlib import Path

import pytest
import torch
from reasoner_runs import make_world

import worldsmith
from worldsmith.config.tree.plain import class_defaults
from worldsmith.config.tree.references import resolve
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.planning.plan import Plan
from worldsmith.tools.evaluate.evaluate_answers import EvaluateAnswers
from worldsmith.tools.evaluate.evaluate_videos import EvaluateVideos
from worldsmith.tools.export.export import Export
from worldsmith.tools.generate.generate import GenerateVideos
from worldsmith.tools.plan.plan import PlanRun
from worldsmith.training.trainer import Trainer

CONFIGS = {
    "plan": [PlanRun.Config],
    "generate": [GenerateVideos.Config],
    "export": [Export.Config],
    "evaluate": [EvaluateVideos.Config, EvaluateAnswers.Config],
}
"""The components behind the functions."""
NAMED_OTHERWISE = {"run": "run", "prompts": "prompt"}
"""Parameters whose type or name differs from that of the field."""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_neither_the_import_nor_a_mistake_in_a_config_imports_torch() -> None:
    code = (
        "import sys; before = set(sys.modules); import worldsmith\n"
        "assert set(sys.modules) - before == {'worldsmith'}, set(sys.modules) - before\n"
        "for name in worldsmith.__all__: getattr(worldsmith, name)\n"
        "try: worldsmith.load_config('moving_shapes', ['optimizer.lr=fast'])\n"
        "except worldsmith.UserError: pass\n"
        "assert not {'torch', 'transformers', 'diffusers'} & set(sys.modules)"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_type_checkers_see_each_name_where_it_is_defined() -> None:
    """The statements that they read lead to the same objects as the names that are imported on first use."""
    tree = ast.parse(Path(worldsmith.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {
        alias.name: getattr(importlib.import_module(str(node.module)), alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(seen) == sorted(worldsmith.__all__)
    assert {name: getattr(worldsmith, name) for name in worldsmith.__all__} == seen
    assert set(worldsmith.__all__) <= set(dir(worldsmith))
    assert (Path(worldsmith.__file__).parent / "py.typed").is_file()


@pytest.mark.slow
def test_mypy_infers_the_types(tmp_path: Path) -> None:
    """The tests above check the same without a type checker, which reads the package for seconds."""
    lines = {
        'config = worldsmith.load_config("moving_shapes")': None,
        "reveal_type(config.trainer.max_iter)": 'Revealed type is "int"',
        "reveal_type(worldsmith.plan(config).ranks)": 'Revealed type is "int"',
        "reveal_type(worldsmith.Trainer(config).train())": 'type is "worldsmith.training.callbacks.base.Outcome"',
        'reveal_type(worldsmith.export("run").facts)': 'Mapping[str, Any] | (def () -> typing.Mapping[str, Any])"',
        'worldsmith.generate("run", num_frames="many")': 'has incompatible type "str"; expected "int | None"',
        "worldsmith.generat": 'Module has no attribute "generat"',
    }
    (tmp_path / "program.py").write_text("\n".join(["import worldsmith", *lines]) + "\n")
    settings = ["[mypy]", "follow_imports = silent", "ignore_missing_imports = True"]
    others = ",".join(f"{name}.*" for name in ("torch", "transformers", "diffusers", "numpy", "bokeh"))
    (tmp_path / "mypy.ini").write_text("\n".join([*settings, f"[mypy-{others}]", "follow_imports = skip"]))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "program.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(Path(worldsmith.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    found = dict(line.removeprefix("program.py:").split(": ", 1) for line in done.stdout.splitlines()[:-1])
    expected = {str(number): text for number, text in enumerate(lines.values(), 2) if text}
    assert set(found) == set(expected), done.stdout + done.stderr
    for number, text in expected.items():
        assert text in found[number]


def test_no_name_is_that_of_a_module_of_the_package() -> None:
    modules = {module.name for module in pkgutil.iter_modules(worldsmith.__path__)}
    assert not modules & set(worldsmith.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'worldsmith' has no attribute 'generat'"):
        worldsmith.generat  # type: ignore[attr-defined]  # noqa: B018


def test_functions_have_types_and_google_docstrings() -> None:
    names = {**vars(importlib.import_module("worldsmith.api"))}
    results = {"load_config": Trainer.Config, "plan": Plan}
    for name in ("load_config", "plan", "generate", "export", "evaluate"):
        function = getattr(worldsmith, name)
        hints = typing.get_type_hints(function, {**names, "Trainer": Trainer, "Plan": Plan})
        assert set(hints) == {*inspect.signature(function).parameters, "return"}
        assert hints["return"] is results.get(name, worldsmith.Result)
        text = inspect.getdoc(function)
        assert text is not None
        for section in ("\n\nArgs:\n", "\n\nReturns:\n", "\n\nRaises:\n"):
            assert section in text, (name, section)
        for parameter in inspect.signature(function).parameters:
            assert f"\n    {parameter}: " in text, (name, parameter)


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_fields_of_the_command_with_the_same_defaults(name: str) -> None:
    parameters = inspect.signature(getattr(worldsmith, name)).parameters.values()
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD or parameter.name in NAMED_OTHERWISE:
            continue
        for config in CONFIGS[name]:
            assert parameter.name in config.__dataclass_fields__, (config, parameter)
            if parameter.default is not parameter.empty and parameter.name != "dataset":
                default = class_defaults(config)[parameter.name]
                assert parameter.default == (tuple(default) if isinstance(default, list) else default), parameter


def test_a_config_is_loaded_and_changed_and_what_refers_to_the_change_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATASET_PATH", str(tmp_path))
    config = worldsmith.load_config("moving_shapes", ["optimizer.lr=1e-3", "trainer.max_iter=30"])
    assert type(config) is Trainer.Config
    assert (config.optimizer.lr, config.trainer.max_iter) == (1e-3, 30)
    config.trainer.max_iter = 60
    assert resolve(config).scheduler.cycle_lengths == [60]
    file = tmp_path / "run.yaml"
    file.write_text("type: worldsmith.training.trainer.Trainer\n")
    with pytest.raises(worldsmith.UserError, match=r"run\.yaml"):
        worldsmith.load_config(file)


def test_all_mistakes_of_a_config_are_one_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATASET_PATH", raising=False)
    with pytest.raises(worldsmith.UserError) as caught:
        worldsmith.load_config("moving_shapes", ["optimizer.lr=fast", "trainer.max_itr=3"])
    for text in ("3 mistakes in the config", "optimizer.lr", "max_iter", "DATASET_PATH"):
        assert text in str(caught.value)
    with pytest.raises(worldsmith.UserError, match="moving_shapes"):
        worldsmith.load_config("moving_shape")


def test_warnings_of_a_config_are_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("DATASET_PATH", "clips")
    worldsmith.load_config("moving_shapes", ["dataloader_train.max_sequence_length=900"])
    assert "max_samples_per_batch = 32 is dropped" in caplog.text


def test_a_plan_needs_no_data_and_takes_a_changed_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATASET_PATH", raising=False)
    config = worldsmith.load_config("moving_shapes", keep_unset=True)
    config.dataloader_train.max_samples_per_batch = 4
    plan = worldsmith.plan(config, gpu="24GB")
    assert isinstance(plan, Plan)
    assert (plan.ranks, plan.samples) == (1, 4)
    assert "DATASET_PATH" in str(plan.assumptions)


def test_mistakes_in_settings_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(worldsmith.UserError, match="no_gpu"):
        worldsmith.plan("moving_shapes", gpu="no_gpu")
    with pytest.raises(FileNotFoundError, match="nowhere: no such folder"):
        worldsmith.generate(tmp_path / "nowhere", "A red circle.")
    with pytest.raises(FileNotFoundError, match="nowhere: no such folder"):
        worldsmith.evaluate(tmp_path / "nowhere", out=tmp_path)
    with pytest.raises(worldsmith.UserError, match="did you mean 'dtype'"):
        worldsmith.export(tmp_path, dtyp="float32")
    with pytest.raises(worldsmith.UserError, match=r"2 mistakes in the arguments of export\(\)"):
        worldsmith.export(tmp_path, shift=-1.0, weights="mean")  # type: ignore[arg-type]


def test_paths_are_text_for_every_flag(tmp_path: Path) -> None:
    with pytest.raises(worldsmith.UserError, match=r"^1 mistake in the arguments of export\(\)\n\ndtype: "):
        worldsmith.export(tmp_path, base=tmp_path, dtype="int8")  # type: ignore[arg-type]


def test_a_recipe_of_ones_own_is_loaded_by_its_name() -> None:
    from worldsmith.config.recipes.packages import registered

    @worldsmith.recipe("my_shapes", starts_from="moving_shapes")
    def my_shapes(config: Trainer.Config) -> Trainer.Config:
        config.optimizer.lr = 5e-4
        return config

    try:
        config = worldsmith.load_config("my_shapes", keep_unset=True)
    finally:
        del registered()["my_shapes"]
    assert config.optimizer.lr == 5e-4


def test_a_reasoner_is_evaluated_on_a_config_of_its_questions(tmp_path: Path) -> None:
    torch.manual_seed(0)
    world = make_world(tmp_path, samples=3)
    questions = LlavaDataset.Config(path=str(world / "data"), media_root=str(world / "data"))
    with pytest.raises(worldsmith.UserError, match=r"dataset: expected a ChatDataset.Config section, found .*data"):
        worldsmith.evaluate(world / "model", out=tmp_path / "out", dataset=world / "data")
    result = worldsmith.evaluate(
        world / "model", out=tmp_path / "out", dataset=questions, max_new_tokens=2, dtype="float32", metrics=("bleu",)
    )
    assert result.facts["total"] == 3
    assert json.loads((tmp_path / "out/metrics.json").read_text())["total"] == 3
    assert list(result.lines)
