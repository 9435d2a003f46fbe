"""Uses the setting `amsgrad` that `docs/architecture.md` adds to a copy of the package, in the current folder."""

from __future__ import annotations

import json
from pathlib import Path

import worldsmith
from worldsmith.cli.main import main
from worldsmith.cli.schema import schema_text
from worldsmith.config.load import load
from worldsmith.planning.plan import quick_plan

DOC = "Whether the largest `exp_avg_sq` so far is in the denominator."
RECIPE = "moving_shapes"


def check_files_and_plan() -> None:
    head = f'[job]\nexperiment = "{RECIPE}"\n'
    Path("plain.toml").write_text(head)
    Path("run.toml").write_text(f"{head}[optimizer]\namsgrad = true\n")
    Path("run.yaml").write_text(f"recipe: {RECIPE}\noptimizer: {{amsgrad: true}}\n")
    plain, run = load("plain.toml").tree, load("run.toml").tree
    assert plain.optimizer.amsgrad is False
    assert run.optimizer.amsgrad is load("run.yaml").tree.optimizer.amsgrad is True
    before, after = quick_plan(plain, 1), quick_plan(run, 1)
    added = after.states["moments"] - before.states["moments"]
    steps = before.states["moments"] - 2 * added  # the counters of steps, beside two tensors of that size
    assert 0 < steps < 0.01 * added, (added, steps)
    assert after.checkpoint_tensors - before.checkpoint_tensors == added


def check_texts() -> None:
    row = f"| `amsgrad` | true or false | `false` | {DOC} |"
    assert schema_text("reference", RECIPE).count(row) == 2  # of the TOML and of the tree
    keys = json.loads(schema_text("toml", RECIPE))["properties"]["optimizer"]["properties"]
    assert keys["amsgrad"]["description"] == DOC
    assert f'"description": "{DOC}"' in schema_text("tree", RECIPE)
    assert main(["config", "show", RECIPE, "--", "optimizer.amsgrad=true"]) == 0
    assert main(["train", RECIPE, "--optimizer.amsgrad", "--help", "amsgrad"]) == 0


def check_step() -> None:
    """A run makes a step and saves; memory and checkpoint are those that are planned."""
    import state_ranks

    from worldsmith.checkpoint.dcp.tensor_reader import read_entries
    from worldsmith.training.trainer import Trainer

    original = state_ranks.config_of

    def with_amsgrad(case: str, worlds: Path) -> Trainer.Config:
        config = original(case, worlds)
        config.optimizer.amsgrad = True  # type: ignore[attr-defined]
        return config

    state_ranks.config_of = with_amsgrad
    case, folder = "cosmos3.masters", Path("project/group/run")
    state_ranks.make_world("cosmos3", Path("cosmos3"))
    found = state_ranks.measure(with_amsgrad(case, Path()), folder)
    names = read_entries(folder / "checkpoints" / "iter_000000001" / "optim")
    assert any(name.endswith(".max_exp_avg_sq") for name in names), list(names)[:3]
    state_ranks.require_equal(case, Path(), found)


if __name__ == "__main__":
    assert Path(worldsmith.__file__).is_relative_to(Path.cwd()), worldsmith.__file__
    check_files_and_plan()
    check_texts()
    check_step()
