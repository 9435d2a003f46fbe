"""Settings that cannot go together, all of them in one report, each at the line that is to blame."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from worldsmith.config import Config, ConfigError, Configurable, wrong
from worldsmith.config.load import load
from worldsmith.config.tree.checks import check_sections, contradictions
from worldsmith.config.tree.references import try_resolve


class Caps(Config):
    _alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("fps", "nframes"),)

    fps: float | None = None
    nframes: int | None = None
    size: int = 8

    def check(self) -> None:
        if self.size < 1:
            raise wrong(self, "size", allowed="at least 1")


class Clip(Configurable):
    class Config(Configurable.Config):
        caps: Caps = field(default_factory=Caps)
        length: int = 1
        width: int = 1

        def check(self) -> None:
            if self.length < 1:
                raise wrong(self, "length", allowed="at least 1")
            if self.width < 1:
                raise wrong(self, "width", allowed="at least 1")
            if self.caps.size // self.width > 100:
                raise wrong(self, "caps.size", "width", why="the former is more than 100 × the latter")

    def __init__(self, config: Config) -> None:
        self.config = config


def paths(problems: list[Any]) -> list[str]:
    return [problem.path for problem in problems]


def problems_of(*arguments: Any) -> list[Any]:
    with pytest.raises(ConfigError) as caught:
        load(*arguments)
    return caught.value.problems


def test_two_settings_of_which_one_has_to_go(t: ModuleType) -> None:
    assert contradictions(Caps(fps=8.0)) == contradictions(Caps(nframes=4)) == []
    (problem,) = contradictions(Clip.Config(caps=Caps(fps=8.0, nframes=4)))
    assert (problem.path, problem.concerns) == ("caps", ("caps.fps", "caps.nframes"))
    assert "fps = 8.0 and nframes = 4 cannot both be set" in problem.message
    assert "=null after --" in str(problem.hint)


def test_a_parent_is_checked_although_its_child_complains() -> None:
    found = check_sections(Clip.Config(caps=Caps(size=0), length=0))
    assert sorted(problem.message for problem in found) == [
        "length must be at least 1, found 0",
        "size must be at least 1, found 0",
    ]


def test_one_section_says_all_that_it_has_to_say_and_the_tree_stays_as_it_is() -> None:
    tree = Clip.Config(length=-1, width=0)
    found = check_sections(tree)
    assert [problem.message[:6] for problem in found] == ["width ", "length"]
    assert [problem.concerns for problem in found] == [("width",), ("length",)]
    assert (tree.length, tree.width) == (-1, 0)


def test_no_complaint_follows_from_a_value_that_is_known_to_be_wrong() -> None:
    tree = Clip.Config(caps=Caps(size=1000), length=0)
    assert [problem.message[:9] for problem in check_sections(tree)] == ["length mu", "caps.size"][::-1]
    assert paths(check_sections(tree, [("caps", "size")])) == [""]
    assert check_sections(tree, [("caps", "size"), ("length",)]) == []


def test_a_check_that_cannot_bear_a_wrong_value_is_left_out_but_a_bug_is_a_mistake_with_its_line() -> None:
    class Brittle(Config):
        count: int = 1
        items: list[int] = field(default_factory=list)

        def check(self) -> None:
            _ = self.items[self.count]

    broken = Brittle(count="${oc.env:WS_NONE}")  # type: ignore[arg-type]
    _, problems = try_resolve(broken)
    assert paths(problems) == ["count"]
    (bug,) = check_sections(Brittle())
    assert "Brittle.check() cannot be run: IndexError: list index out of range" in bug.message
    assert bug.file == __file__
    assert bug.place is not None
    assert bug.place.source == "_ = self.items[self.count]"


class TestShippedRecipes:
    @pytest.fixture
    def only_these_recipes(self) -> None:
        """The shipped recipes, whose components refuse what does not work."""

    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DATASET_PATH", "/data")
        monkeypatch.delenv("WORLD_SIZE", raising=False)

    def save(self, folder: Path, text: str) -> str:
        path = folder / "run.toml"
        path.write_text('[job]\nexperiment = "vision_sft_tiny"\n' + text)
        return str(path)

    def test_adapters_with_a_wrong_target_and_a_wrong_filter_are_two_problems(self, tmp_path: Path) -> None:
        text = '[model]\nlora_enabled = true\nlora_target_modules = "q_proj_gen"\n'
        text += '[optimizer]\nkeys_to_select = ["time_embedder"]\n'
        found = problems_of(self.save(tmp_path, text))
        assert [(problem.path, problem.line) for problem in found] == [
            ("model.config", 5),
            ("", 7),
        ]

    def test_settings_of_adapters_without_adapters_are_refused_where_they_are_written(self, tmp_path: Path) -> None:
        text = '[model]\nlora_rank = 7\nlora_target_modules = "q_proj"\n'
        (problem,) = problems_of(self.save(tmp_path, text))
        assert problem.line == 4
        assert 'lora_rank = 7 and lora_target_modules = "q_proj": without adapters' in problem.message
        assert "set lora_enabled = true" in str(problem.hint)
        assert load(self.save(tmp_path, text.replace('"q_proj"', '"q_proj"\nlora_enabled = true'))).warnings == []
        assert load(self.save(tmp_path, "[model]\nlora_enabled = false\nlora_rank = 16\n")).warnings == []

    def test_rules_for_loading_nothing_are_a_warning(self) -> None:
        words = ["checkpoint.keys_to_skip_loading=[net_ema.]", "checkpoint.load_path=null", "checkpoint.init=scratch"]
        (warning,) = load("vision_sft_tiny", words).warnings
        assert warning == (
            "checkpoint.keys_to_skip_loading = ['net_ema.'] has no effect: without load_path no weights are loaded"
        )
        assert load("vision_sft_tiny", words[1:]).warnings == []

    def test_one_cap_takes_the_place_of_the_inherited_other(self, tmp_path: Path) -> None:
        loaded = load(self.save(tmp_path, "[dataloader_train]\nmax_samples_per_batch = 4\n"))
        caps = loaded.tree.dataloader_train
        assert (caps.max_samples_per_batch, caps.max_sequence_length) == (4, None)
        assert any("max_sequence_length = " in w and "is dropped" in w for w in loaded.warnings)
        assert str(loaded.provenance[("dataloader_train", "max_sequence_length")]) == "run.toml:4"

    def test_the_later_of_two_layers_wins_and_one_layer_cannot_set_both(self, tmp_path: Path) -> None:
        path = self.save(tmp_path, "[dataloader_train]\nmax_samples_per_batch = 4\n")
        caps = load(path, ["dataloader_train.max_sequence_length=99"]).tree.dataloader_train
        assert (caps.max_samples_per_batch, caps.max_sequence_length) == (None, 99)
        caps = load(path, ["dataloader_train.max_sequence_length=null"]).tree.dataloader_train
        assert (caps.max_samples_per_batch, caps.max_sequence_length) == (4, None)
        (problem,) = problems_of(
            path, ["dataloader_train.max_sequence_length=9", "dataloader_train.max_samples_per_batch=3"]
        )
        assert "cannot both be set" in problem.message
        both = self.save(tmp_path, "[dataloader_train]\nmax_samples_per_batch = 4\nmax_sequence_length = 9\n")
        assert [problem.path for problem in problems_of(both)] == ["dataloader_train"]

    def test_frames_are_chosen_in_one_way(self) -> None:
        (problem,) = problems_of("vision_sft_tiny", ["dataloader_train.dataset.frame_buckets=[]"])
        assert "the modes have no effect if samples are complete windows" in problem.message

    def test_ranges_types_names_references_and_contradictions_come_in_one_report(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("DATASET_PATH")
        text = """wandb_mode = "Online"
[model]
precision = "bfloat61"
lora_enabled = true
[model.ema]
enabled = "False"
rate = -1.0
[optimizer]
keys_to_select = ["time_embedder"]
lr = -1.0
betas = [0.9, 2.0]
eps = "1e-8"
wieght_decay = 0.1
[scheduler]
cycle_lengths = 10
[trainer]
max_iter = 500.0
grad_accum_iter = 0
logging_iter = -1
[checkpoint]
save_iter = "3"
[model.parallelism]
data_parallel_shard_degree = 0
[dataloader_train]
max_sequence_length = 5
max_samples_per_batch = 6
"""
        found = problems_of(self.save(tmp_path, text), ["optimizer.fused=maybe"])
        lines = {problem.line for problem in found if problem.file and problem.file.endswith("run.toml")}
        wrong = {number for number, line in enumerate(text.splitlines(), start=3) if "=" in line}
        assert lines == wrong - {6, 28}  # a good value, and the second of the two caps: they are one problem
        hints = " ".join(problem.hint or "" for problem in found)
        for advice in (
            "did you mean 'online'?",
            "did you mean 'bfloat16'?",
            "did you mean 'optimizer.weight_decay'?",
            "write false, without quotes",
            "write 1e-8, without quotes",
            "write 500",
            "write a list: [10]",
        ):
            assert advice in hints
        assert [p.path for p in found if p.file == "override"] == ["optimizer.fused"]
        (unset,) = [p for p in found if "'DATASET_PATH' is not set" in p.message]
        assert unset.path == "dataloader_train.dataset.path"
        assert "export DATASET_PATH" in str(unset.hint)


def test_a_yaml_tree_with_mistakes_of_every_kind_has_one_report(
    tmp_path: Path, t: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WS_NOT_SET", raising=False)
    path = tmp_path / "run.yaml"
    path.write_text(
        f"type: {t.__name__}.Trainer\n"
        "optimizer:\n  lr: -1.0\n  eps: small\n  lrr: 3\n"
        "job:\n  name: ${oc.env:WS_NOT_SET}\n"
        "model:\n  config:\n    type: "
        f"{t.__name__}.Generator\n    parallelism: {{cfg_parallel_shard_degree: 0}}\n"
    )
    found = problems_of(str(path), ["trainer.max_iter=x"])
    assert {(p.path, p.line) for p in found} == {
        ("optimizer", 3),
        ("optimizer.eps", 4),
        ("optimizer.lrr", 5),
        ("job.name", 7),
        ("model.config.parallelism", 11),
        ("trainer.max_iter", None),
    }


class Reel(Configurable):
    class Config(Configurable.Config):
        clip: Clip.Config | None = None


def test_a_section_that_its_mistake_takes_away_is_not_asked_again() -> None:
    """As where a word cannot remove it: its default is that there is none."""
    tree = Reel.Config(clip=Clip.Config(caps=Caps(size=0)))
    assert check_sections(tree, [("clip",)]) == []
