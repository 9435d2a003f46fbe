"""`worldsmith config`: what it prints and its exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from worldsmith.cli.main import main
from worldsmith.config.load import load
from worldsmith.config.tree.plain import to_yaml
from worldsmith.config.tree.read_config import from_yaml

SHAPES = str(Path(__file__).parents[3] / "examples/toml/sft_config/moving_shapes.toml")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATASET_PATH", "/data")
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["config", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_show_prints_the_resolved_tree_with_origins(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("show", SHAPES, "--optimizer.eps", "1e-6", "--", "trainer.max_iter=700")
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    told = {line.split(":")[0].strip(): line.split("  # ")[-1] for line in out.splitlines() if "  # " in line}
    line = Path(SHAPES).read_text().splitlines().index("lr = 2.0e-3") + 1
    assert told["lr"] == f"moving_shapes.toml:{line}"
    assert told["max_iter"] == "override trainer.max_iter=700"
    assert told["eps"] == "flag --optimizer.eps 1e-6"
    assert told["weight_decay"] == "default"
    assert told["resolution"].startswith("recipe ")
    assert "DATASET_PATH" in told["path"]
    tree = load(SHAPES, ["optimizer.eps=1e-6", "trainer.max_iter=700"]).tree
    assert from_yaml(out) == tree
    assert run(capsys, words[0], "--plain", *words[1:])[1] == to_yaml(tree)


def test_show_changed_prints_only_what_differs_from_the_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", "--changed", SHAPES, "--", "model.ema.rate=0.3")
    assert code == 0
    assert out == "model:\n  config:\n    ema:\n      rate: 0.3  # override model.ema.rate=0.3\n"


def test_show_changed_names_what_is_removed_and_shows_custom_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A local time, which YAML does not have, is text."""
    path = tmp_path / "run.toml"
    path.write_text(Path(SHAPES).read_text() + "\n[custom]\nt = 07:32:00\n")
    code, out, _ = run(capsys, "show", "--changed", str(path), "--", "~trainer.callbacks.metrics")
    assert code == 0
    assert "custom:\n  t: '07:32:00'" in out
    assert out.endswith("# removed: trainer.callbacks.metrics\n")
    code, out, _ = run(capsys, "show", "--custom", "--plain", str(path))
    assert (code, from_yaml(out).custom) == (0, {"t": "07:32:00"})
    code, out, _ = run(capsys, "show", "--changed", "--plain", SHAPES, "--", "trainer.callbacks={}")
    assert "trainer:\n  callbacks: {}\n" in out
    assert "# removed" not in out


def test_a_cap_of_the_other_task_is_remarked(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "check", SHAPES, "--", "data_setting.max_tokens=5")
    assert code == 0
    assert "data_setting has no effect for task 'vfm'" in err


def test_a_rule_about_a_derived_value_names_what_was_written(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "check", "vision_sft_tiny", "--", "model.config.max_num_tokens_after_packing=0")
    assert code == 2
    assert "override: dataloader_train: max_sequence_length must be at least 1, found 0" in err
    assert err.count("| model.config.max_num_tokens_after_packing=0\n") == 2
    assert "-> dataloader_train.max_sequence_length is ${model.config.max_num_tokens_after_packing}" in err


def test_check_says_ok_or_all_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "check", SHAPES) == (0, f"OK: {SHAPES}\n", "")
    path = tmp_path / "bad.toml"
    path.write_text('[job]\nexperiment = "moving_shapes"\n[trainer]\nmax_itr = 3\n[optimizer]\nlr = "x"\n')
    code, out, err = run(capsys, "check", str(path))
    assert (code, out) == (2, "")
    assert "2 mistakes" in err
    assert "did you mean 'trainer.max_iter'?" in err
    assert "Traceback" not in err


def test_warnings_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "check", SHAPES, "--", "trainer.max_iter=2000")
    assert (code, out) == (0, f"OK: {SHAPES}\n")
    assert err.startswith("warning: scheduler.cycle_lengths end after 800 steps")
    assert "the last 1200 steps run at learning rate 0 and train no weights. Set scheduler.cycle_lengths=[2000]" in err


@pytest.mark.parametrize("other", ["recipe", "yaml", "folder"])
def test_diff_of_equal_runs_is_empty(other: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text(to_yaml(load(SHAPES).tree))
    names = {"recipe": "moving_shapes", "yaml": str(tmp_path / "config.yaml"), "folder": str(tmp_path)}
    assert run(capsys, "diff", SHAPES, names[other]) == (0, "", "")


def test_diff_prints_each_path_and_marks_what_one_side_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATASET_PATH")  # not needed to compare
    path = tmp_path / "other.toml"
    text = Path(SHAPES).read_text().replace("clip_norm = 1.0", "clip_norm = 0.5")
    path.write_text(text + '\n[optimizer.lr_multipliers]\n"a.b" = 2.0\n[custom]\nx = 1\n')
    code, out, _ = run(capsys, "diff", SHAPES, str(path))
    assert code == 1
    assert "trainer.callbacks.grad_clip.clip_norm: 1.0 -> 0.5" in out.splitlines()
    assert 'optimizer.lr_multipliers."a.b": (only in the second) -> 2.0' in out.splitlines()
    assert "custom" not in out
    code, out, _ = run(capsys, "diff", "--custom", str(path), SHAPES)
    assert code == 1
    assert "custom.x: 1 -> (only in the first)" in out.splitlines()
    assert 'optimizer.lr_multipliers."a.b": 2.0 -> (only in the first)' in out.splitlines()


def test_diff_with_a_source_that_is_none_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "diff", SHAPES, "moving_shaps")
    assert (code, out) == (2, "")
    assert "did you mean 'moving_shapes'?" in err


def test_help_and_unknown_actions(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(action in out for action in ("show", "check", "diff", "convert", "new"))
    assert run(capsys, "shwo", SHAPES)[0] == 2
    assert run(capsys)[0] == 0
    assert run(capsys, "show")[0] == 2


@pytest.mark.parametrize(
    ("word", "words"),
    [
        (f"trainer.seed={10**26}", "seed must be at least 0 and below 9.22337e+18"),
        ("checkpoint.load_path=''", 'load_path = "": an empty name'),
        ("checkpoint.upload_to=/tmp/x", 'upload_to = "/tmp/x": checkpoints cannot be uploaded there'),
        ("model.config.parallelism.context_parallel_shard_degree=2", "3 attention heads"),
        ("job.project=''", 'job.project = "": it is a folder name'),
        ("job.group=''", 'job.group = "": it is a folder name'),
    ],
)
def test_check_refuses_what_a_dry_run_would_refuse(
    word: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATASET_PATH", "clips")
    code, _, err = run(capsys, "check", "moving_shapes", "--", word)
    assert code == 2
    assert words in err
    assert word in err


def test_a_remedy_can_be_written_in_the_file_that_it_is_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The VAE is compiled for clips that are encoded in every step."""
    path = tmp_path / "run.toml"
    text = '[job]\nexperiment = "moving_shapes"\n[trainer.callbacks.compile_tokenizer]\nenabled = true\n'
    path.write_text(text)
    code, _, err = run(capsys, "check", str(path))
    assert code == 2
    assert 'latent_cache = ""' in err
    path.write_text(f'{text}[dataloader_train]\nlatent_cache = ""\n')
    assert run(capsys, "check", str(path))[0] == 0


def test_check_of_files_tells_all_that_is_missing_in_one_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    path = tmp_path / "run.toml"
    path.write_text(
        '[job]\nexperiment = "vision_sft_tiny"\n[model.tokenizer]\nvae_path = "no/vae"\n'
        '[checkpoint]\nload_path = "no/base"\n'
    )
    assert run(capsys, "check", str(path))[0] == 0
    code, out, err = run(capsys, "check", "--files", str(path))
    assert (code, out) == (2, "")
    assert "4 mistakes in the config" in err
    for found in (
        f"{path}:4:12: model.config.tokenizer: ",
        f"{path}:6:13: checkpoint: ",
        "/data",
        str(tmp_path / "file"),
    ):
        assert found in err
    assert {file.name for file in tmp_path.iterdir()} == {"file", "run.toml"}
    path.write_text(path.read_text() + "keys_to_skip_loading = 1\n[optimizer]\nlrr = 1\n")
    words = ["dataloader_train.dataset.path=${oc.env:WS_NONE}", "model.config.tokenizer.encode_window=5"]
    code, _, err = run(capsys, "check", "--files", str(path), "--", *words)
    assert code == 2
    assert "7 mistakes in the config" in err  # the data set's name is not known, and nothing is said of its file
    assert "'no/vae'" in err or "no/vae: no such folder" in err
    for found in ("'lrr'", "keys_to_skip_loading", "encode_window", "WS_NONE", "checkpoint: ", str(tmp_path / "file")):
        assert found in err
    assert "/data" not in err


@pytest.mark.parametrize(
    "words",
    [
        ["config", "check", "moving_shapes", "--files"],
        ["check", "moving_shapes"],
        ["train", "moving_shapes", "--dryrun"],
        ["train", "moving_shapes"],
    ],
    ids=" ".join,
)
def test_a_path_that_does_not_exist_is_reported_with_the_variable_that_gave_it(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATASET_PATH", "gone")
    assert main(words) == 2
    said = " ".join("".join(capsys.readouterr()).split())
    assert "gone does not exist" in said
    assert "dataloader_train.dataset.path is the value of the environment variable DATASET_PATH" in said
    assert main([*words, "--", "dataloader_train.dataset.path=away"]) == 2
    said = "".join(capsys.readouterr())
    assert "away does not exist" in said
    assert "DATASET_PATH" not in said
