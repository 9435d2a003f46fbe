"""Every shipped recipe and example TOML is valid, and checking one is quick and imports nothing heavy."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from recipe_environment import PLACES, expected_warnings

from worldsmith.config import get_recipe, recipe_names
from worldsmith.config.load import load
from worldsmith.config.recipes.registry import find_recipe
from worldsmith.config.tree.plain import to_yaml
from worldsmith.config.tree.read_config import from_yaml
from worldsmith.planning.plan import quick_plan

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import one_gpu

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples/toml/sft_config").glob("*.toml"))
BY_CARD = sorted((ROOT / "examples/toml/one_gpu").glob("*.toml"))
QUICKEST = "ltx_video_2b_24gb"
"""Recipe by card that is planned in the default run."""
ENVIRONMENT = {**{name: name.lower() for name in PLACES}, "WORLD_SIZE": "8"}
"""What the recipes read; the number of processes is that of the recipes for 8 GPUs, and the others take any."""
CHECK = """
import sys
from worldsmith.cli.main import main
code = main(sys.argv[1:])
heavy = {"torch", "numpy", "diffusers", "transformers", "av"} & set(sys.modules)
print("heavy:", sorted(heavy), file=sys.stderr)
sys.exit(code)
"""


def python(program: str, *words: str) -> tuple[int, str, float]:
    """Exit code, what was said, and processor seconds of a program in a fresh process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, **ENVIRONMENT}
    done = subprocess.run([sys.executable, "-c", program, *words], env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.returncode, done.stdout + done.stderr, seconds


def test_there_are_examples() -> None:
    shipped = [name for name in recipe_names() if find_recipe(name).module.startswith("worldsmith.")]
    assert sorted(experiment(path) for path in EXAMPLES) == shipped


@pytest.mark.parametrize("path", BY_CARD, ids=lambda path: path.stem)
def test_a_recipe_by_card_is_valid_and_its_states_fit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the documentation has its plan."""
    for name, value in {**ENVIRONMENT, "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    loaded = load(str(path), [])
    assert loaded.warnings == []
    loaded.tree.check()
    assert (loaded.tree.job.group, loaded.tree.job.name) == ("one_gpu", path.stem)
    assert sum(quick_plan(loaded.tree, 1).states.values()) < one_gpu.card_of(path).memory
    assert from_yaml(to_yaml(loaded.tree), type(loaded.tree)) == loaded.tree
    table = (ROOT / "docs" / "one_gpu.md").read_text()
    assert f"| `{path.stem}` |" in table


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path.stem == QUICKEST else pytest.mark.slow, id=path.stem) for path in BY_CARD],
)
@pytest.mark.timeout(1800)
def test_a_recipe_by_card_fits_and_states_its_plan(path: Path) -> None:
    plan = one_gpu.plan_of(path)
    assert plan.memory.word == "fits"
    assert f"{one_gpu.summary(plan)}.\n" in path.read_text()
    assert one_gpu.row(path, plan) in (ROOT / "docs" / "one_gpu.md").read_text()


def experiment(path: Path) -> str:
    """The recipe of a file; the name of the file is the recipe's, or that of the published file."""
    name: str = tomllib.loads(path.read_text())["job"]["experiment"]
    assert path.stem in (name, name.removeprefix("pre_exp012_"), name.replace("libero_nano", "libero_10_nano"))
    return name


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_its_recipe_and_round_trips(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The TOML repeats its recipe's values, so that both ways to start the run are the same run."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    loaded = load(str(path), [])
    assert loaded.warnings == expected_warnings(loaded.tree)
    assert loaded.tree == load(experiment(path), []).tree
    assert from_yaml(to_yaml(loaded.tree), type(loaded.tree)) == loaded.tree


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_is_the_same_value_each_time(name: str) -> None:
    assert get_recipe(name) == get_recipe(name)
    assert to_yaml(get_recipe(name)) == to_yaml(get_recipe(name))


def test_checking_a_recipe_and_reporting_a_typo_are_quick_and_import_nothing_heavy(tmp_path: Path) -> None:
    """Quick: under half the processor time of `import torch`, each the least of three turns on the same machine."""
    text = EXAMPLES[0].read_text().replace("[optimizer]\nlr", "[optimizer]\nlearning_rat")
    bad = tmp_path / "typo.toml"
    bad.write_text(text)
    turns = [
        (
            python("import torch"),
            python(CHECK, "config", "check", str(EXAMPLES[0])),
            python(CHECK, "train", f"--sft-toml={bad}"),
        )
        for _ in range(3)
    ]
    torch_alone, checked, refused = (min(seconds for _, _, seconds in found) for found in zip(*turns, strict=True))
    assert max(checked, refused) < 0.5 * torch_alone, (torch_alone, checked, refused)
    _, (code, said, _), (code_of_typo, said_of_typo, _) = turns[0]
    assert (code, code_of_typo) == (0, 2), (said, said_of_typo)
    assert "heavy: []" in said
    assert "heavy: []" in said_of_typo
    line = next(n for n, words in enumerate(text.splitlines(), 1) if words.startswith("learning_rat"))
    assert f"typo.toml:{line}:1" in said_of_typo
    assert "Traceback" not in said_of_typo
