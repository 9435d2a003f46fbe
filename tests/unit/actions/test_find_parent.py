"""`--parent`: which checkpoint, which base and which processor, by record and fingerprint."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from worldsmith.actions.find_parent import Parent, as_words, find_parent
from worldsmith.config.errors import UserError
from worldsmith.files.checksum_manifest import list_files, summarize_files, write_manifest
from worldsmith.monitor.lineage import Input, write_lineage

CONFIG = """\
job: {project: shapes, group: tests, name: NAME}
model: {name: vision_language, config: {}}
trainer: {max_iter: 30}
checkpoint: {load_path: BASE}
dataloader_train: {processor: {media: {fps: 2.0, nframes: null}, outer_vision_tokens: true}}
"""
PROCESSOR = {"media": {"fps": 2.0, "nframes": None}, "outer_vision_tokens": True}


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The output root, with what the runs start from beside it."""
    monkeypatch.setenv("WORLDSMITH_OUTPUT_ROOT", str(tmp_path / "all" / "runs"))
    monkeypatch.delenv("IMAGINAIRE_OUTPUT_ROOT", raising=False)
    make_model(tmp_path / "all" / "base")
    return tmp_path / "all" / "runs"


def make_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def make_run(
    root: Path,
    name: str = "first",
    *,
    steps: tuple[int, ...] = (10, 20, 30),
    best: int | None = None,
    lora: bool = False,
) -> Path:
    """A run over 30 steps as it is left on the disk, with a record."""
    run, base = root / "shapes" / "tests" / name, root.parent / "base"
    for step in steps:
        add_checkpoint(run, step, lora=lora)
    (run / "config.yaml").write_text(CONFIG.replace("NAME", name).replace("BASE", str(base)), encoding="utf-8")
    (run / "checkpoints" / "latest_checkpoint.txt").write_text(f"iter_{steps[-1]:09d}\n", encoding="utf-8")
    if best is not None:
        (run / "checkpoints" / "best_checkpoint.txt").write_text(f"iter_{best:09d}\n", encoding="utf-8")
    write_lineage(run, action="train", settings={"run": name}, inputs=[Input("base", base)])
    return run


def add_checkpoint(run: Path, step: int, *, lora: bool) -> None:
    folder = run / "checkpoints" / f"iter_{step:09d}"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "__0_0.distcp").write_bytes(f"weights {step}".encode())
    if lora:
        (folder / "frozen_weights.json").write_text("{}", encoding="utf-8")
    write_manifest(folder, summarize_files(folder, list_files(folder)))


def record(folder: Path, action: str, parent: Parent, *, outputs: tuple[str, ...] = ()) -> str:
    """What an action leaves that has read `parent`. Returns its id."""
    folder.mkdir(parents=True, exist_ok=True)
    inputs = [Input("adapter" if parent.is_adapter else "model", parent.model)]
    inputs += [] if parent.base is None else [Input("base", parent.base)]
    return str(write_lineage(folder, action=action, settings={}, inputs=inputs, outputs=outputs)["id"])


def step_of(parent: Parent) -> int:
    return int(parent.model.name.removeprefix("iter_"))


def test_a_finished_run_stands_for_its_last_checkpoint(root: Path) -> None:
    run = make_run(root)
    for file in run.rglob("*"):
        os.utime(file, (1, 1))
    os.utime(run / "checkpoints" / "iter_000000010")  # the newest by time, which means nothing
    for name in (str(run), "first", "shapes/tests/first"):
        parent = find_parent(name)
        assert (step_of(parent), parent.base, parent.is_adapter) == (30, None, False)
        assert parent.processor == PROCESSOR


@pytest.mark.parametrize(("choice", "step"), [("best", 20), ("last", 30), ("iter=10", 10)])
def test_a_checkpoint_is_chosen(root: Path, choice: str, step: int) -> None:
    make_run(root, best=20)
    assert step_of(find_parent(f"first:{choice}")) == step


def test_the_pointer_tells_the_last_one_after_a_run_went_back(root: Path) -> None:
    run = make_run(root)
    (run / "checkpoints" / "latest_checkpoint.txt").write_text("iter_000000020\n", encoding="utf-8")
    assert step_of(find_parent("first:last")) == 20


def test_a_checkpoint_by_its_own_folder(root: Path) -> None:
    run = make_run(root, best=20)
    assert step_of(find_parent(str(run / "checkpoints" / "iter_000000010"))) == 10
    assert step_of(find_parent(str(run / "checkpoints" / "best"))) == 20


def test_what_could_be_several_models_is_refused_and_listed(root: Path) -> None:
    run = make_run(root, best=20)
    with pytest.raises(UserError, match="not its last") as refused:
        find_parent("first")
    assert f"{run}:iter=10\n  {run}:iter=20  (best)\n  {run}:iter=30  (last)" in str(refused.value)
    with pytest.raises(UserError, match="no complete checkpoint of that step"):
        find_parent("first:iter=11")
    shutil.copytree(run, root / "shapes" / "others" / "first")
    with pytest.raises(UserError, match="could mean 2 models"):
        find_parent("first:last")


def test_a_run_that_is_not_finished_is_not_guessed_at(root: Path) -> None:
    run = make_run(root, steps=(10, 20))
    with pytest.raises(UserError, match="the run is not finished"):
        find_parent("first")
    assert step_of(find_parent("first:last")) == 20
    (run / "status.json").write_text('{"state": "finished"}', encoding="utf-8")
    assert step_of(find_parent("first")) == 20, "it ended early by itself"
    with pytest.raises(UserError, match="has recorded no best checkpoint"):
        find_parent("first:best")


def test_a_save_that_was_cut_off_is_no_candidate(root: Path) -> None:
    run = make_run(root)
    (run / "checkpoints" / "iter_000000030" / "manifest.json").unlink()
    with pytest.raises(UserError, match="the run is not finished"):
        find_parent("first")
    assert step_of(find_parent("first:last")) == 20


def test_a_run_of_trained_weights_only_needs_its_base(root: Path) -> None:
    run = make_run(root, lora=True)
    assert find_parent("first").base is None, "its config says where that is"
    (root.parent / "base" / "model.safetensors").write_bytes(b"others")
    with pytest.raises(UserError, match=rf"the base .*base has changed since; it was .* when {run} was created"):
        find_parent("first")
    shutil.rmtree(root.parent / "base")
    with pytest.raises(UserError, match="base is missing"):
        find_parent("first")


def test_one_process_of_a_launch_reads_for_all(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(root, lora=True)
    (root.parent / "base" / "model.safetensors").write_bytes(b"others")
    monkeypatch.setenv("RANK", "1")
    assert step_of(find_parent("first")) == 30
    shutil.rmtree(root.parent / "base")
    with pytest.raises(UserError, match="base is missing"):
        find_parent("first")


def test_what_moved_together_is_found_again(root: Path, tmp_path: Path) -> None:
    make_run(root, lora=True)
    shutil.move(tmp_path / "all", tmp_path / "elsewhere")
    parent = find_parent(str(tmp_path / "elsewhere" / "runs" / "shapes" / "tests" / "first"))
    assert parent.base == str(tmp_path / "elsewhere" / "base")


def test_adapters_bring_their_base(tmp_path: Path) -> None:
    base, adapter = make_model(tmp_path / "weights"), tmp_path / "adapter"
    adapter.mkdir()
    config: dict[str, Any] = {"peft_type": "LORA", "base_model_name_or_path": None}
    (adapter / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UserError, match="does not state their base weights"):
        find_parent(str(adapter))
    config["base_model_name_or_path"] = "org/name"
    (adapter / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    assert find_parent(str(adapter)).base == "org/name", "written by another program"
    write_lineage(adapter, action="export", settings={}, inputs=[Input("base", base)], outputs=["."])
    parent = find_parent(str(adapter))
    assert (parent.model, parent.base, parent.is_adapter) == (adapter, str(base), True)
    (base / "model.safetensors").write_bytes(b"others")
    with pytest.raises(UserError, match="has changed since"):
        find_parent(str(adapter))


def test_train_quantize_evaluate_by_one_id_each(root: Path) -> None:
    """Each names its parent alone; the processor of the run goes along."""
    make_run(root)
    small = make_model(root / "out" / "w4a16")
    quantized = record(small, "quantize", find_parent("first"), outputs=(".",))
    parent = find_parent(quantized[:8])
    assert (parent.model, parent.processor) == (small, PROCESSOR)
    evaluated = record(root / "out" / "scores", "evaluate", parent)
    assert find_parent(evaluated).model == small, "an evaluation stands for the model that it asked"
    for name in (quantized, evaluated):
        with pytest.raises(UserError, match=r"only a run has several|omit :last"):
            find_parent(f"{name}:last")
    (small / "model.safetensors").write_bytes(b"edited")
    for name in (quantized, evaluated):
        with pytest.raises(UserError, match="has changed since"):
            find_parent(name)


def test_a_result_that_made_a_run_stands_for_it(root: Path, tmp_path: Path) -> None:
    best, other = make_run(root, "trial_1"), make_run(root, "trial_2")
    (tmp_path / "tuned").mkdir()
    write_lineage(tmp_path / "tuned", action="tune", settings={}, inputs=[], outputs=[str(best)])
    assert step_of(find_parent(str(tmp_path / "tuned"))) == 30
    assert step_of(find_parent(f"{tmp_path / 'tuned'}:iter=10")) == 10
    write_lineage(tmp_path / "tuned", action="tune", settings={}, inputs=[], outputs=[str(best), str(other)])
    with pytest.raises(UserError, match="could mean 2 models"):
        find_parent(str(tmp_path / "tuned"))


def test_a_file_that_was_answered_into_stands_for_its_model(root: Path, tmp_path: Path) -> None:
    base, lora = make_model(tmp_path / "weights"), make_model(tmp_path / "lora")
    (root / "out").mkdir(parents=True)
    file = root / "out" / "answers.json"
    file.write_text("[]", encoding="utf-8")
    inputs = [Input("model", base), Input("adapter", lora)]
    made = write_lineage(file, action="infer", settings={}, inputs=inputs)
    for name in (str(file), str(made["id"])):
        parent = find_parent(name)
        assert (parent.model, parent.base, parent.is_adapter) == (lora, str(base), True)


def test_a_folder_of_several_models_is_listed(tmp_path: Path) -> None:
    first = make_model(tmp_path / "exports" / "bf16")
    assert find_parent(str(tmp_path / "exports")).model == first
    make_model(tmp_path / "exports" / "fp8")
    with pytest.raises(UserError, match=rf"could mean 2 models; name one:\n  {first}\n"):
        find_parent(str(tmp_path / "exports"))


def test_names_of_nothing(root: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    run = make_run(root)
    with pytest.raises(UserError, match=r"no such folder, no run of this name below .*runs, and no lineage record"):
        find_parent("0123456789ab")
    with pytest.raises(UserError, match="contains no run"):
        find_parent(str(tmp_path / "empty"))
    with pytest.raises(UserError, match="this is a file"):
        find_parent(str(run / "config.yaml"))
    with pytest.raises(UserError, match="only a run has several checkpoints"):
        find_parent(f"{root.parent / 'base'}:best")


def test_records_that_lead_back_to_themselves(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        for folder in (name, other):
            (tmp_path / folder).mkdir(exist_ok=True)
        write_lineage(tmp_path / name, action="evaluate", settings={}, inputs=[Input("model", tmp_path / other)])
    with pytest.raises(UserError, match="form a cycle"):
        find_parent(str(tmp_path / "a"))


PLAIN = ("model", "base")
MERGING = ("model", "adapter", "processor")


def test_the_flags_that_a_parent_stands_for() -> None:
    """Of the fields that an action has: a checkpoint, adapters with a place of their own, adapters without."""
    trained = Parent(Path("it"), base="base", processor=PROCESSOR)
    assert as_words(trained, PLAIN) == {"model": "it", "base": "base"}
    assert as_words(trained, MERGING) == {
        "model": "it",
        "processor.media.fps": "2.0",
        "processor.outer_vision_tokens": "true",
    }
    adapters = Parent(Path("lora"), base="base", is_adapter=True)
    assert as_words(adapters, MERGING) == {"model": "base", "adapter": "lora"}
    assert as_words(adapters, PLAIN) == {"model": "lora", "base": "base"}


def test_the_results_folder_of_a_spec_stands_for_its_run(root: Path, tmp_path: Path) -> None:
    """A training spec writes its run to results_dir/output_dir/TIME: the folder, or the run's name, finds it."""
    made = make_run(root, "2026-01-02_03-04-05")
    run = root / "results" / "output" / made.name
    run.parent.mkdir(parents=True)
    made.rename(run)
    wanted = run / "checkpoints" / "iter_000000030"
    assert find_parent(str(root / "results")).model == wanted
    assert find_parent("2026-01-02_03-04-05").model == wanted
    shutil.copytree(run, run.with_name("2026-01-02_03-04-06"))
    with pytest.raises(UserError, match=r"(?s)could mean 2 models; name one.*04-05.*04-06"):
        find_parent(str(root / "results"))
