"""YAML stacks: what merging does, where each value comes from, and all mistakes of all files in one report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldsmith.config import ConfigError, get_recipe
from worldsmith.config.load import load
from worldsmith.config.tree.plain import to_dict, to_yaml
from worldsmith.config.tree.read_config import from_yaml
from worldsmith.config.tree.references import resolve
from worldsmith.config.yaml.yaml_stack import read_stack

Write = Callable[..., list[str]]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def files(*texts: str) -> list[str]:
        names = [f"{chr(ord('a') + index)}.yaml" for index in range(len(texts))]
        for name, text in zip(names, texts):
            Path(name).write_text(text, encoding="utf-8")
        return names

    return files


def problems_of(paths: list[str], words: list[str] | None = None) -> list[tuple[str | None, int | None, str]]:
    with pytest.raises(ConfigError) as caught:
        load(paths, words or [])
    return [(problem.file, problem.line, problem.path) for problem in caught.value.problems]


def tag(cls: type) -> str:
    return str(to_dict(cls.Config())["type"])  # type: ignore[attr-defined]


def test_later_files_win_mappings_merge_and_lists_are_replaced(write: Write) -> None:
    paths = write(
        "recipe: small\noptimizer: {lr: 1e-3, betas: [0.1, 0.2], lr_multipliers: {a: 1.0}}\n",
        "optimizer:\n  lr: 1e-4\n  betas: [0.5]\n  lr_multipliers: {b: 2}\ntrainer: {max_iter: 7}\n",
    )
    tree = load(paths, ["trainer.max_iter=9"]).tree
    assert tree.optimizer.lr == 1e-4
    assert tree.optimizer.betas == [0.5]
    assert tree.optimizer.lr_multipliers == {"head": 2.0, "a": 1.0, "b": 2.0}
    assert tree.trainer.max_iter == 9
    assert tree.scheduler.cycle_lengths == [9], "references are resolved last"


def test_a_recipe_alone_is_that_recipe_and_any_file_may_name_it(write: Write) -> None:
    assert load(write("recipe: small\n")).tree == resolve(get_recipe("small"))
    loaded = load(write("recipe: small\n", "recipe: small_vlm\n"))
    assert loaded.tree == resolve(get_recipe("small_vlm"))
    assert any("the last one, 'small_vlm', replaces 'small'" in warning for warning in loaded.warnings)


def test_a_whole_tree_needs_no_recipe(t: ModuleType, write: Write) -> None:
    text = to_yaml(get_recipe("small"))
    head, _, rest = text.partition("optimizer:")
    assert load(write(head, f"optimizer:{rest}")).tree == resolve(get_recipe("small"))
    missing = load(write(f"type: {tag(t.Trainer)}\nscheduler: {{f_min: [0.5]}}\n")).tree
    assert missing.scheduler == t.Cosine.Config(f_min=[0.5]), "the field's default class"


def test_what_a_file_leaves_out_or_marks_as_missing_keeps_its_value(write: Write) -> None:
    tree = load(write("recipe: small\noptimizer:\n  lr: 0.5\n  eps: ???\n", "optimizer: {lr: '???'}\n")).tree
    assert (tree.optimizer.lr, tree.optimizer.eps) == (0.5, 1e-8)


def test_another_class_keeps_what_both_inherit_and_one_warning_names_the_rest(t: ModuleType, write: Write) -> None:
    paths = write(
        f"recipe: small\nscheduler: {{type: {tag(t.Cosine)}, power: 2.0, f_min: [0.1]}}\n",
        f"scheduler:\n  type: {tag(t.Linear)}\n  f_start: [0.5]\n",
        f"scheduler: {{type: {tag(t.Linear)}, verbosity_interval: 3}}\n",
    )
    loaded = load(paths)
    kept = {"cycle_lengths": [500], "f_min": [0.1]}
    assert loaded.tree.scheduler == t.Linear.Config(f_start=[0.5], verbosity_interval=3, **kept)
    assert len(loaded.warnings) == 1
    assert loaded.warnings[0].startswith("b.yaml:2: scheduler changes from ")
    assert loaded.warnings[0].endswith("are dropped: power")
    assert ("scheduler", "power") not in loaded.places


def test_target_and_params_are_another_spelling_of_type_and_fields(t: ModuleType, write: Write) -> None:
    node = f"{{target: {tag(t.Cosine)}, params: {{power: 3.0}}}}"
    plain = load(write(f"recipe: small\nscheduler: {{type: {tag(t.Cosine)}, power: 3.0}}\n")).tree
    assert load(write(f"recipe: small\nscheduler: {node}\n")).tree == plain
    layered = load(write(f"recipe: small\nscheduler: {node}\n", "scheduler: {params: {f_min: [0.25]}}\n")).tree
    assert (layered.scheduler.power, layered.scheduler.f_min) == (3.0, [0.25])
    callbacks = f"trainer: {{callbacks: {{new: {{target: {tag(t.GradClip)}, params: {{clip_norm: 2}}}}}}}}"
    assert load(write(f"recipe: small\n{callbacks}\n")).tree.trainer.callbacks["new"].clip_norm == 2.0


@pytest.mark.parametrize(
    ("node", "path", "words"),
    [
        ("{target: os.system, params: {command: id}}", "scheduler.type", "cannot be trusted"),
        ("{target: torch.nn.Identity}", "scheduler.type", "--trust torch"),
        ("{target: worldsmith.config.load.load}", "scheduler.type", "neither a component"),
        ("{target: worldsmith.config.sections.JobConfig}", "scheduler.type", "is not allowed here"),
        ("{target: LINEAR, f_min: [1]}", "scheduler.f_min", "can have no keys except target and params"),
        ("{target: LINEAR, params: [1]}", "scheduler.params", "expected a table"),
        ("{target: LINEAR, params: {f_mn: [1]}}", "scheduler.f_mn", "did you mean 'scheduler.f_min'"),
        ("{target: LINEAR, params: {f_min: x}}", "scheduler.f_min", "expected a list"),
        ("{type: 3}", "scheduler.type", "not a class name"),
    ],
)
def test_nodes_that_cannot_stand_there(t: ModuleType, write: Write, node: str, path: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load(write("recipe: small\n", f"scheduler: {node.replace('LINEAR', tag(t.Linear))}\n"))
    assert [(problem.file, problem.line, problem.path) for problem in caught.value.problems] == [("b.yaml", 1, path)]


def test_every_mistake_of_every_file_and_word_is_in_one_report(write: Write) -> None:
    paths = write(
        "recipe: small\noptimizer:\n  lrr: 1\n  betas: [0.9, x]\n  fused: on\n",
        "trainer: {max_iter: 010}\njbo: {name: x}\nmodel: {ema: {rate: 0.5}}\noptimizer: {lr: -1}\n",
    )
    found = problems_of(paths, ["optimizer.epss=1", "nonsense"])
    assert found[:-2] == [
        ("a.yaml", 3, "optimizer.lrr"),
        ("a.yaml", 4, "optimizer.betas[1]"),
        ("a.yaml", 5, "optimizer.fused"),
        ("b.yaml", 1, "trainer.max_iter"),
        ("b.yaml", 2, "jbo"),
        ("b.yaml", 3, "model.ema"),
        ("b.yaml", 4, "optimizer"),
    ]
    assert {file for file, _, _ in found[-2:]} == {"override"}
    with pytest.raises(ConfigError) as caught:
        load(paths)
    text = str(caught.value)
    assert "a.yaml:5:10: optimizer.fused: expected true or false, found 'on' (text)\n" in text
    assert "       |          ^^\n    -> on is parsed as text; write true or false" in text
    assert "b.yaml:1:21: trainer.max_iter: expected an integer, found '010' (text)" in text
    for advice in ("optimizer.lr", "job", "model.config.ema"):
        assert f"did you mean '{advice}'?" in text


def test_contradictions_are_shown_where_the_value_was_written(write: Write) -> None:
    assert problems_of(write("recipe: small\n", "optimizer:\n  lr: -1\n")) == [("b.yaml", 2, "optimizer")]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["recipe: smal\n"], ("a.yaml", 1, "recipe")),
        (["recipe: [small]\n"], ("a.yaml", 1, "recipe")),
        (["recipe: small\n", "a: [1\n"], ("b.yaml", 2, "")),
        (["recipe: small\n", "- 1\n"], ("b.yaml", None, "")),
        (["recipe: [small\n", "optimizr: {lr: 1}\n"], ("a.yaml", 2, "")),
        (["optimizr: {lr: 1}\n"], ("a.yaml", None, "")),
        (["type: os.system\n"], ("a.yaml", 1, "type")),
        (["dialect: klingon\nrecipe: small\n"], ("a.yaml", 1, "dialect")),
    ],
)
def test_stacks_that_lead_nowhere(write: Write, texts: list[str], expected: tuple[Any, ...]) -> None:
    assert problems_of(write(*texts)) == [expected]


def test_sections_without_a_class_of_their_own_are_asked_for(write: Write) -> None:
    absent = [("a.yaml", None, section) for section in ("model", "objective", "dataloader_train")]
    assert problems_of(write("optimizer: {lr: 1}\n")) == absent


def test_files_that_cannot_be_read_are_all_named(write: Write, tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    paths = [*write("recipe: small\noptimizer: {lrr: 1}\n"), "missing.yaml", "folder.yaml", "x.toml"]
    assert [file for file, _, _ in problems_of(paths)] == ["a.yaml", "folder.yaml", "missing.yaml", "x.toml"]
    with pytest.raises(ConfigError, match="no file was given"):
        load([])


def test_an_empty_file_changes_nothing_and_is_mentioned(write: Write) -> None:
    loaded = load(write("recipe: small\n", "# nothing yet\n"))
    assert loaded.tree == resolve(get_recipe("small"))
    assert loaded.warnings == ["b.yaml: the file is empty"]


def test_each_value_keeps_the_line_of_the_file_that_wrote_it_last(write: Write) -> None:
    paths = write("recipe: small\noptimizer:\n  lr: 1e-3\n  eps: 1e-7\n", "optimizer: {lr: 1e-4}\n")
    origins = {".".join(map(str, path)): str(o) for path, o in load(paths, ["job.name=x"]).provenance.items()}
    assert origins["optimizer.lr"] == "b.yaml:1"
    assert origins["optimizer.eps"] == "a.yaml:4"
    assert origins["job.name"] == "override job.name=x"
    assert origins["job.group"] == "recipe small"
    assert origins["optimizer.fused"] == "default"


def test_custom_data_is_merged_and_otherwise_left_alone(write: Write) -> None:
    paths = write("recipe: small\ncustom: {a: {x: 1}, text: '${no.reference}'}\n", "custom: {a: {target: os.system}}\n")
    expected = {"a": {"x": 1, "target": "os.system"}, "text": "${no.reference}"}
    assert load(paths).tree.custom == expected


PIECES = st.sampled_from(
    ["type", "target", "params", "???", "[", "]", "{", "}", ":", "\n", "  ", "&a ", "*a", "!!x", "-"]
)
EDITS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 5), PIECES | st.text(max_size=3)), max_size=4)


@given(EDITS, EDITS)
@settings(max_examples=80)
def test_damaged_stacks_end_in_a_tree_or_a_config_error(t: ModuleType, write: Write, one: Any, two: Any) -> None:
    model = f"model:\n  config:\n    type: {tag(t.Generator)}\n    ema: {{rate: 0.2}}\n"
    base = f"recipe: small\n{model}optimizer: {{lr: 1}}\n"
    node = f"scheduler:\n  target: {tag(t.Linear)}\n  params: {{f_min: [0.5]}}\n"
    over = f"{node}model:\n  config: {{ema: {{rate: 1}}}}\n"
    texts = []
    for text, edits in ((base, one), (over, two)):
        for at, length, piece in edits:
            at %= len(text) + 1
            text = text[:at] + piece + text[at + length :]
        texts.append(text.encode("utf-8", "replace").decode())
    try:
        tree = load(write(*texts)).tree
    except ConfigError as error:
        complaint = str(error)
    else:
        complaint = "" if from_yaml(to_yaml(tree, custom=True)) == tree else "not the same tree"
    assert complaint == "" or "in the config" in complaint


def test_reading_a_stack_raises_nothing_and_resolves_nothing(write: Write) -> None:
    draft, _ = read_stack(write("recipe: small\n"))
    assert draft.tree.scheduler.cycle_lengths == ["${trainer.max_iter}"]
    assert (draft.problems, draft.warnings) == ([], [])


def test_a_file_without_a_class_at_its_top_is_a_stack_of_one(write: Write) -> None:
    """`worldsmith train overlay.yaml` works like `--base overlay.yaml`."""
    paths = write("recipe: small\noptimizer: {lr: 0.25}\n")
    assert load(paths[0], ["job.name=x"]).tree == load(paths, ["job.name=x"]).tree
