"""Every value of a loaded tree says where it comes from."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import ModuleType

import pytest
from recipe_environment import PLACES

from worldsmith.config import recipe
from worldsmith.config.command_line.overrides import parse_overrides
from worldsmith.config.command_line.typed_flags import TypedFlag, read_flags
from worldsmith.config.declare.configurable import find, walk
from worldsmith.config.load import Loaded, load, read_draft
from worldsmith.config.recipes.packages import registered
from worldsmith.config.recipes.registry import get_recipe, recipe_names
from worldsmith.config.tree.config_draft import finish
from worldsmith.config.tree.paths import Path as TreePath
from worldsmith.config.tree.paths import format_path, parse_path
from worldsmith.config.tree.plain import to_dict, to_yaml
from worldsmith.config.tree.provenance import DEFAULT, Origin
from worldsmith.config.tree.read_config import from_yaml
from worldsmith.config.write.annotate import describe_origins, plain_leaves, show_tree

FILE = """[job]
experiment = "small"
[optimizer]
lr = 1e-4
betas = [0.9,
         0.95]
[optimizer.lr_multipliers]
tail = 3.0
[checkpoint]
load_path = "${oc.env:WS_CHECKPOINT}"
[custom]
mine = 1
"""


def origin(loaded: Loaded, path: str) -> str:
    return str(loaded.provenance[parse_path(path)])


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    monkeypatch.setenv("WS_CHECKPOINT", "/ckpt")
    path = tmp_path / "run.toml"
    path.write_text(FILE)
    words = ["trainer.max_iter=7", "model.ema.rate=0.3", "scheduler={f_min: [0.5]}", "optimizer.betas[1]=0.8"]
    draft, overrides = read_draft(str(path), parse_overrides(words, []))
    typed = read_flags(draft.tree, [TypedFlag("trainer.seed", ("3",))], draft.problems)
    return finish(draft, [*typed, *overrides])


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("optimizer.eps", "default"),
        ("job.project", "recipe small"),
        ("optimizer.lr_multipliers.head", "recipe small"),
        ("optimizer.lr", "run.toml:4"),
        ("optimizer.betas", "run.toml:5"),
        ("optimizer.betas[0]", "run.toml:5"),
        ("optimizer.betas[1]", "override optimizer.betas[1]=0.8"),
        ("optimizer.lr_multipliers.tail", "run.toml:8"),
        ("checkpoint.load_path", "run.toml:10: ${oc.env:WS_CHECKPOINT} <- environment variable WS_CHECKPOINT"),
        ("custom.mine", "run.toml:12"),
        ("trainer.seed", "flag --trainer.seed 3"),
        ("trainer.max_iter", "override trainer.max_iter=7"),
        ("model.config.ema.rate", "override model.ema.rate=0.3"),
        ("scheduler.f_min", "override scheduler={f_min: [0.5]}"),
        ("scheduler.f_max", "default"),
        (
            "scheduler.cycle_lengths[0]",
            "recipe small: ${trainer.max_iter} <- trainer.max_iter (override trainer.max_iter=7)",
        ),
    ],
)
def test_where_a_value_comes_from(loaded: Loaded, path: str, told: str) -> None:
    assert origin(loaded, path) == told


def test_only_what_differs_from_the_recipe_counts_as_changed(loaded: Loaded) -> None:
    """Also values that changed because what they refer to did; not those that were written and are equal."""
    assert loaded.changed == {
        *map(parse_path, ("custom.mine", "optimizer.lr", "optimizer.betas", "optimizer.lr_multipliers.tail")),
        *map(parse_path, ("checkpoint.load_path", "trainer.max_iter", "trainer.seed", "model.config.ema.rate")),
        *map(parse_path, ("scheduler.f_min", "scheduler.cycle_lengths")),
    }
    assert load("small").changed == set()


def test_the_record_of_a_run_says_who_wrote_what_and_what_it_was(loaded: Loaded) -> None:
    found = describe_origins(loaded)
    assert found["optimizer.lr"] == {"origin": "run.toml:4", "changed": True, "was": load("small").tree.optimizer.lr}
    assert found["optimizer.lr_multipliers.tail"] == {"origin": "run.toml:8", "changed": True}
    assert found["job.project"] == {"origin": "recipe small"}
    assert found["optimizer.eps"] == {"origin": "default"}
    assert set(found) == {format_path(path) for path, _ in plain_leaves(to_dict(loaded.tree))}


def test_a_reference_to_an_unset_variable_says_that_its_default_was_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WS_CHECKPOINT", raising=False)
    loaded = load("small", ["checkpoint.load_path=${oc.env:WS_CHECKPOINT,/d}"])
    found = loaded.provenance[("checkpoint", "load_path")]
    assert found.kind == "override"
    assert found.reference == "${oc.env:WS_CHECKPOINT,/d}"
    assert found.leads_to == "its default, WS_CHECKPOINT is not set"
    kept = load("small", ["checkpoint.load_path=${oc.env:WS_CHECKPOINT}"], keep_unset=True)
    assert kept.tree.checkpoint.load_path == "${oc.env:WS_CHECKPOINT}"
    assert kept.provenance[("checkpoint", "load_path")].leads_to == "WS_CHECKPOINT is not set"


def test_each_recipe_of_a_chain_owns_what_it_changed(t: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worldsmith.config.recipes.packages._RECIPES", dict(registered()))

    @recipe("smaller", starts_from="small")
    def smaller(config):  # type: ignore[no-untyped-def]
        config.trainer.max_iter = 9
        config.scheduler = t.Linear.Config(cycle_lengths=[9])
        config.optimizer.lr_multipliers = {}
        return config

    loaded = load("smaller", ["trainer.logging_iter=1"])
    assert origin(loaded, "trainer.max_iter") == "recipe smaller"
    assert origin(loaded, "scheduler") == "recipe smaller"
    assert origin(loaded, "scheduler.cycle_lengths") == "recipe smaller"
    assert origin(loaded, "scheduler.f_max") == "default"
    assert origin(loaded, "job.project") == "recipe small"
    assert origin(loaded, "optimizer.lr_multipliers") == "recipe smaller"
    assert origin(loaded, "trainer.seed") == "default"


def test_the_lines_of_a_yaml_tree_and_a_run_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    text = to_yaml(load("small", ["job.experiment=small", "optimizer.lr=0.5"]).tree)
    (folder / "config.yaml").write_text(text)
    line = text.splitlines().index("  lr: 0.5") + 1
    loaded = load(str(folder))
    assert origin(loaded, "optimizer.lr") == f"config.yaml:{line}"
    assert loaded.changed == {("optimizer", "lr")}


def test_a_class_that_is_chosen_by_an_override_brings_its_defaults(t: ModuleType) -> None:
    tag = f"{t.Linear.__module__}.Linear"
    loaded = load("small", [f"scheduler={{type: {tag}, f_min: [0.25]}}"])
    assert origin(loaded, "scheduler").startswith("override scheduler=")
    assert origin(loaded, "scheduler.f_min").startswith("override scheduler=")
    assert origin(loaded, "scheduler.f_max") == "default"
    assert ("scheduler", "type") in loaded.changed


def leaf_paths(loaded: Loaded) -> set[TreePath]:
    return {path for path, _ in walk(loaded.tree) if path}


class TestShippedRecipes:
    @pytest.fixture
    def only_these_recipes(self) -> None:
        """All shipped recipes, instead of the small ones."""

    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in PLACES:
            monkeypatch.setenv(name, "/data")

    def shipped(self) -> list[str]:
        names = [name for name in recipe_names() if registered()[name].module.startswith("worldsmith.")]
        assert {"moving_shapes", "vision_sft_tiny"} <= set(names)
        return names

    def test_every_value_of_every_recipe_has_an_origin_that_is_true(self) -> None:
        shipped = self.shipped()
        for name in shipped:
            loaded = load(name, ["trainer.max_iter=77"])
            tables = [path for path in loaded.sources if isinstance(find(loaded.tree, path), (dict, list))]
            within = {path for path in leaf_paths(loaded) if path[:-1] in tables}
            assert leaf_paths(loaded) - within == set(loaded.provenance)
            for path, found in loaded.provenance.items():
                if path == ("trainer", "max_iter"):
                    assert found == Origin("override", "trainer.max_iter=77")
                else:
                    assert found.kind in ("default", "recipe")
                if found.kind == "recipe":
                    assert found.where in shipped
            written = [found for found in loaded.provenance.values() if found.kind == "recipe"]
            assert len(written) > 5
            assert DEFAULT in loaded.provenance.values()

    def test_every_file_of_the_examples_has_its_lines(self) -> None:
        for path in sorted((Path(__file__).parents[3] / "examples/toml/sft_config").glob("*.toml")):
            loaded = load(str(path))
            lines = path.read_text().splitlines()
            found = [(path, o) for path, o in loaded.provenance.items() if o.kind == "file"]
            assert len(found) >= 10
            for tree_path, told in found:
                name = [part for part in tree_path if isinstance(part, str)][-1]
                assert told.line is not None
                assert re.search(rf'(^|[\s"]){re.escape(name)}"? = ', lines[told.line - 1]), (tree_path, told)

    def test_the_text_with_origins_is_yaml_of_the_same_tree(self) -> None:
        for name in self.shipped():
            loaded = load(name, ["job.name=" + "long words " * 30, "checkpoint.keys_to_skip_loading=[a,b]"])
            text = show_tree(loaded)
            assert from_yaml(text) == loaded.tree
            assert show_tree(loaded, origins=False) == to_yaml(loaded.tree)
            values = [line for line in text.splitlines() if ": " in line and not line.lstrip().startswith("#")]
            told = [line for line in values if "  # " in line]
            assert len(told) >= 0.95 * len(values)

    def test_only_what_changed_is_shown(self) -> None:
        text = show_tree(load("moving_shapes", ["optimizer.lr=0.5"]), changed=True)
        assert text == "optimizer:\n  lr: 0.5  # override optimizer.lr=0.5\n"
        assert show_tree(load("moving_shapes"), changed=True) == "{}\n"

    def test_keeping_track_costs_next_to_nothing(self) -> None:
        """What a run pays is the bookkeeping inside load(); the origins are worked out only when asked for."""
        load("moving_shapes")
        loading, telling = [], []
        for _ in range(3):
            start = time.process_time()
            loaded = load("moving_shapes", ["optimizer.lr=0.5"])
            loading.append(time.process_time() - start)
            assert "provenance" not in vars(loaded)
            start = time.process_time()
            assert loaded.provenance
            telling.append(time.process_time() - start)
        assert min(telling) < 10 * min(loading)


def test_custom_data_is_shown_only_when_asked_for(loaded: Loaded) -> None:
    assert "custom" not in show_tree(loaded)
    assert "mine: 1" in show_tree(loaded, custom=True)
    assert "# run.toml:12" in show_tree(loaded, custom=True)


def test_the_recipe_itself_is_not_changed_by_loading() -> None:
    load("small", ["optimizer.lr=0.5"])
    assert to_dict(get_recipe("small"))["optimizer"]["lr"] == 2e-4
