"""What the page of a run says: of whole folders, of old and broken ones, and of text that would break it."""

from __future__ import annotations

import base64
import json
import multiprocessing
import os
import re
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from run_folders import EVIL, add_samples, write_lines, write_run

from worldsmith.config.errors import UserError
from worldsmith.files.locks import LOCK_FILE as LOCK
from worldsmith.monitor.page import evaluations, samples
from worldsmith.monitor.page.run_files import read_run
from worldsmith.monitor.page.run_page import page_of, refresh_page, write_page
from worldsmith.monitor.page.samples import PageBudget
from worldsmith.monitor.page.status import find_status
from worldsmith.tools.reports.report import write_comparison


def text_of(folder: Path, name: str, **more: Any) -> str:
    """The words of a section."""
    page = page_of(read_run(folder), PageBudget(folder), **more)
    html = next(section.html for section in page.sections if section.name == name)
    return " ".join(re.sub(r"<[^>]*>", " ", str(html)).split())


def test_a_finished_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    page = write_page(folder)
    assert page == folder / "report.html"
    assert page.stat().st_size < 2_000_000
    overview = text_of(folder, "overview")
    head = "shapes / tests first finished All steps are complete. step 40 of 40 "
    assert overview.startswith(f"{head}Training loss 1.04 mean of the last 4 logged steps; first 40")
    assert "Best validation loss 1.5 at step 40" in overview
    html = page.read_text()
    (data,) = re.findall(r'<script type="application/json" id="page-data">(.*?)</script>', html, flags=re.S)
    curves = {chart["id"]: chart for chart in json.loads(data)["charts"]}
    assert list(curves) == ["loss", "validation", "learning_rate", "gradient"]
    assert curves["loss"]["lines"][0]["y"][:3] == [40, 20, 13.3333]
    assert [line["label"] for line in curves["validation"]["lines"]] == ["raw weights", "EMA weights"]


def test_nothing_is_fetched_from_outside(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    add_samples(folder)
    html = write_page(folder).read_text()
    sources = re.findall(
        r"\b(?:src|href|action|srcset|poster)\s*=\s*[\"']?([^\s\"'>]*)",
        re.sub(r"<script>.*?</script>", "", html, flags=re.S),
    )
    assert sources
    assert all(re.match(r"data:|#", source) for source in sources), sources
    assert "@import" not in html
    assert "url(" not in re.sub(r"<script>.*?</script>", "", html, flags=re.S)


def test_text_of_a_run_stays_text(tmp_path: Path) -> None:
    folder = write_run(tmp_path, status={"state": "failed", "reason": EVIL})
    add_samples(folder, prompt=EVIL)
    write_lines(folder / "messages.jsonl", [{"step": 3, "level": "error", "text": EVIL}])
    write_lines(folder / "quarantine.jsonl", [{"key": EVIL, "reason": EVIL, "detail": EVIL}])
    write_lines(folder / "metrics.jsonl", [{"step": 1, "loss": 1.0, f"lr_groups/{EVIL}": 1.0, EVIL: 2.0}])
    (folder / "config_origins.json").write_text(
        json.dumps({"optimizer.lr": {"origin": EVIL, "changed": True, "was": EVIL}})
    )
    (folder / "launch_info.yaml").write_text(json.dumps({"cmd": EVIL, EVIL: EVIL}))
    html = write_page(folder).read_text()
    assert html.count(EVIL.replace("&", "&amp;")) == 0
    assert html.count("&lt;/script&gt;&lt;script&gt;") >= 8
    assert html.count("\\u003c/script\\u003e") >= 2  # in the data of the charts
    assert len(re.findall(r"<script\b", html)) == len(re.findall(r"</script", html)) == 3


def test_an_old_folder_says_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("trainer: {max_iter: 10}\n")
    write_page(tmp_path)
    assert "metrics.jsonl : no step has been logged, so there are no curves" in text_of(tmp_path, "overview")
    assert text_of(tmp_path, "curves").startswith("Curves No step has been logged, so there are no curves.")
    assert text_of(tmp_path, "samples") == "Samples No samples were generated in this run."
    assert "step 0 of 10" in text_of(tmp_path, "overview")


def test_broken_files_are_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    (folder / "config.yaml").write_text("a: [1\n")
    (folder / "status.json").write_text("{")
    (folder / "job_env.yaml").write_bytes(b"\xff\xfe")
    (folder / "messages.jsonl").write_text('nothing\n{"text": "heard", "level": "warning", "step": 2}\n{"cut')
    overview = text_of(folder, "overview")
    for name in ("config.yaml", "status.json", "job_env.yaml"):
        assert f"{name} cannot be read: " in overview
    assert "messages.jsonl: 1 lines that are not JSON are ignored" in overview
    assert "heard" in text_of(folder, "messages")


@pytest.mark.parametrize("name", ["metrics.jsonl", "messages.jsonl", "status.json", "config.yaml"])
def test_pipes_and_devices_in_the_folder_are_named_and_not_read(tmp_path: Path, name: str) -> None:
    folder = write_run(tmp_path)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert f"{name} cannot be read: " in text_of(folder, "overview")
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    assert f"{name} cannot be read: " in text_of(folder, "overview")


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        write_page(tmp_path)


def hold(folder: Path, ready: Any, done: Any) -> None:
    import fcntl

    with open(folder / LOCK, "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        ready.set()
        done.wait()


def test_a_run_that_nobody_holds_and_that_is_silent_has_died(tmp_path: Path) -> None:
    long_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    folder = write_run(tmp_path, steps=10, status={"state": "running", "updated": long_ago, "remaining_seconds": 5.0})
    (folder / LOCK).touch()
    assert find_status(read_run(folder)).state == "died"
    assert find_status(read_run(folder), {"state": "running"}).state == "running"  # which the run itself says
    processes = multiprocessing.get_context("spawn")
    ready, done = processes.Event(), processes.Event()
    holder = processes.Process(target=hold, args=(folder, ready, done))
    holder.start()
    try:
        assert ready.wait(60)
        status = find_status(read_run(folder))
    finally:
        done.set()
        holder.join()
    assert (status.state, status.remaining_seconds) == ("running", 5.0)
    just_now = datetime.now(UTC).isoformat()
    folder = write_run(tmp_path, "second", steps=10, status={"state": "running", "updated": just_now})
    assert find_status(read_run(folder)).state == "running"


def test_without_a_status_the_steps_tell(tmp_path: Path) -> None:
    assert find_status(read_run(write_run(tmp_path))).state == "finished"
    assert find_status(read_run(write_run(tmp_path, "second", steps=7))).state == "ended"


def test_small_videos_lie_in_the_page_and_large_ones_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path)
    files = add_samples(folder)
    html = write_page(folder).read_text()
    inside = [base64.b64decode(found) for found in re.findall(r'src="data:video/mp4;base64,([^"]+)"', html)]
    assert inside == [file.read_bytes() for file in files]
    assert 'controls loop muted playsinline preload="metadata"' in html
    monkeypatch.setattr(samples, "EMBEDDED_FILE", 10)
    html = write_page(folder).read_text()
    assert 'src="EveryNDrawSample/step_000000020/0%20live%20%231.mp4"' in html
    files[0].unlink()
    assert f"{files[0].relative_to(folder)} does not exist" in text_of(folder, "samples")


def test_many_steps_are_thinned_and_that_is_said(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    add_samples(folder, steps=tuple(range(1, 31)))
    shown = text_of(folder, "samples")
    assert re.findall(r"step (\d+)", shown) == ["1", "5", "9", "13", "18", "22", "26", "30"]
    assert "22 samples of steps in between" in shown


def test_what_the_start_found_in_the_data_is_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    examples = [{"key": "clip3", "path": "x.mp4", "line": 4, "detail": "no such file"}]
    found = {
        "dataset": "my_shapes",
        "records": 12345,
        "looked_at": 40,
        "decoded": False,
        "left_out": {"missing_file": {"count": 7, "examples": examples}},
        "features": {"size": {"labels": ["64x64", "32x32"], "counts": [3, 9]}},
    }
    (folder / "data_report.json").write_text(json.dumps({"train": found, "val": {"records": 2, "features": {}}}))
    shown = text_of(folder, "data")
    assert "data at the start data set my_shapes records 12,345 samples inspected at the start 40" in shown
    assert "missing file 7 clip3: no such file size 64x64 3 32x32 9" in shown
    assert "of the validation data at the start records 2" in shown
    (folder / "data_report.json").write_text('{"train": {"left_out": [1], "features": 3}, "val": []}')
    text_of(folder, "data")


def test_answers_stand_beside_what_was_expected(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    about = {
        "kind": "answer",
        "weights": "live",
        "guidance": None,
        "file": None,
        "media": None,
        "prompt": "Does it fall?",
    }
    answers = [(20, "no"), (40, "Yes ")]
    write_lines(
        folder / "EveryNDrawSample/samples.jsonl",
        [{"step": step, **about, "answer": answer, "expected": "yes"} for step, answer in answers],
    )
    shown = text_of(folder, "samples")
    assert re.search(r"Does it fall\? expected: yes no ✗ step 20 Yes ✓ step 40", shown), shown
    assert "Answers as expected: 0 of 1 at step 20, 1 of 1 at step 40." in shown


def test_one_question_about_several_files_is_several_questions(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    given = {"step": 20, "kind": "answer", "weights": "live", "prompt": "Does it fall?"}
    answers = [{**given, "media": f"{name}.mp4", "answer": name, "expected": "a"} for name in "ab"]
    write_lines(folder / "EveryNDrawSample/samples.jsonl", answers)
    shown = text_of(folder, "samples")
    assert re.search(r"Does it fall\? expected: a a ✓ step 20 expected: a b ✗ step 20", shown), shown


def test_settings_have_their_origin_and_no_secrets(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    with (folder / "config.yaml").open("a") as file:
        file.write('client: {api_key: hush, url: "https://me:hush@host/x"}\n')
    origins = {"optimizer.lr": {"origin": "x.toml:3", "changed": True, "was": 0.1}, "job.name": {"origin": "default"}}
    (folder / "config_origins.json").write_text(json.dumps(origins))
    shown = text_of(folder, "config")
    assert "optimizer. lr 0.001 recipe: 0.1 x.toml:3" in shown
    assert "only differences from the recipe (1)" in shown
    assert "hush" not in write_page(folder).read_text()


@pytest.mark.parametrize(
    ("reason", "state", "sentence"),
    [
        (
            "SIGINT",
            "stopped",
            "Stopped by Ctrl-C and saved after step 12; the command that started the run resumes it.",
        ),
        ("the file /runs/STOP", "stopped", "Stopped by the file /runs/STOP and saved after step 12; the command"),
        (None, "stopped", "The run was asked to stop and saved a checkpoint; the command that started it resumes it."),
        ("KeyboardInterrupt: a second SIGINT", "interrupted", "Stopped by a second Ctrl-C, without a new checkpoint"),
    ],
)
def test_a_stop_is_no_failure(tmp_path: Path, reason: str | None, state: str, sentence: str) -> None:
    ending = "failed" if state == "interrupted" else state
    folder = write_run(tmp_path, steps=12, status={"state": ending, "reason": reason})
    overview = text_of(folder, "overview")
    assert f"first {state} {sentence}" in overview
    assert "Why it ended" not in overview
    assert "SIGINT" not in overview
    titles = list(commands(folder))
    assert titles[0] == "Resume it"
    assert "Explain it" not in titles
    sections = page_of(read_run(folder), PageBudget(folder)).sections
    assert [section.name for section in sections][:2] == ["overview", "next"]
    assert 'class="callout error"' not in str(sections[0].html)


def test_the_counts_of_the_data_say_what_they_count(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    counts = {"loaded/samples": 1570, "loaded/cache_hit": 1500, "rejected/too_short": 2}
    write_lines(folder / "metrics.jsonl", [{"step": 1, "loss": 1.0, **counts}])
    shown = text_of(folder, "data")
    assert "Read since the run was last started samples read 1,570 clips read from the latent cache 1,500" in shown
    assert "Skipped too short 2 A sample counts each time it is read" in shown


def test_earlier_launches_are_a_table(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    earlier: list[Any] = [{"cmd": "worldsmith train x", "started_at": "2026-01-02T03:04:05+00:00"}, {"cmd": EVIL}, 3]
    launch = {"cmd": "worldsmith train x -- a=1", "earlier_launches": [*earlier, {"unreadable": "cut"}]}
    (folder / "launch_info.yaml").write_text(json.dumps(launch))
    shown = text_of(folder, "environment")
    assert "Earlier launches started command 2026-01-02 03:04 UTC worldsmith train x not known &lt;/script" in shown
    assert "not known cut" in shown
    assert "started_at" not in shown
    assert "{" not in shown
    (folder / "launch_info.yaml").write_text("cmd: a\nearlier_launches: {cmd: b}\n")
    assert "Earlier launches" not in text_of(folder, "environment")


def test_metrics_have_no_exponent(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    (folder / "evaluation").mkdir()
    figures = {"sharpness": {"not_measured": {}, "trained": {"mean": 1571.3, "interval": [998.6, 2144.1]}}}
    figures["sharpness"]["not_measured"] = {"trained": 0}
    (folder / "evaluation/evaluation.json").write_text(json.dumps({"figures": figures}))
    assert "sharpness 1,570 [999, 2,140]" in text_of(folder, "evaluation")


def commands(folder: Path) -> dict[str, str]:
    from worldsmith.monitor.page.next_steps import next_steps

    run = read_run(folder)
    return {advice.title: advice.command for advice in next_steps(run, find_status(run))}


def test_a_run_on_robot_episodes_is_served_if_it_predicts_actions(tmp_path: Path) -> None:
    run, there = write_run(tmp_path), shlex.quote(str(tmp_path))
    serve = f"cd {there} && worldsmith serve policy {run}"
    for modes, expected in (({"forward_dynamics": 1.0}, None), ({"wam": 1.0, "inverse_dynamics": 1.0}, serve)):
        (run / "robot_policy.json").write_text(json.dumps({"dataset": {"modes": modes}}))
        found = commands(run)
        assert "Generate" not in found, "frames and a state of the robot are needed, which the user has to choose"
        assert found.get("Serve it") == expected
    (run / "robot_policy.json").rename(run / "arm_robot_policy.json")
    (run / "hand_robot_policy.json").write_text(json.dumps({"dataset": {"modes": {"policy": 1.0}}}))
    assert commands(run)["Serve it"] == f"{serve} --dataset arm"


def test_next_steps_fit_the_state(tmp_path: Path) -> None:
    there = shlex.quote(str(tmp_path))
    resume = f"cd {there} && WORLDSMITH_OUTPUT_ROOT={there} worldsmith train {{}}/config.yaml"
    finished = write_run(tmp_path)
    found = commands(finished)
    assert list(found) == ["Train longer", "Export it", "Generate", "Evaluate"]
    assert found["Train longer"] == f"{resume.format(finished)} -- trainer.max_iter=80"
    with (finished / "config.yaml").open("a") as file:
        file.write("scheduler: {cycle_lengths: [10, 30], f_max: [1, 1], f_min: [0, 0]}\n")
    longer = "--resume-changed -- trainer.max_iter=80 'scheduler.cycle_lengths=[10,70]'"
    assert commands(finished)["Train longer"] == f"{resume.format(finished)} {longer}"
    text = (finished / "config.yaml").read_text()
    (finished / "config.yaml").write_text(text.replace("f_min: [0, 0]", "f_min: [0, 1]"))  # constant at its end
    assert commands(finished)["Train longer"] == found["Train longer"]
    assert found["Export it"] == f"cd {there} && worldsmith export {finished} -o {finished}/export"
    now = datetime.now(UTC).isoformat()
    running = write_run(tmp_path, "second", steps=3, status={"state": "running", "updated": now})
    assert list(commands(running)) == ["Watch it live", "Stop it", "Export it", "Generate", "Evaluate"]
    failed = write_run(tmp_path, "third", steps=3, status={"state": "failed", "reason": "no room"})
    assert list(commands(failed))[:4] == ["Explain it", "Check the start", "Resume it", "Export it"]
    assert commands(failed)["Resume it"] == resume.format(failed)
    sections = [section.name for section in page_of(read_run(failed), PageBudget(failed)).sections]
    assert sections[:2] == ["overview", "next"]
    assert "no room" in text_of(failed, "overview")
    moved = failed.rename(tmp_path / "elsewhere")
    assert "Resume it" not in commands(moved)


def test_the_command_to_generate_has_a_caption_that_was_trained_on(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    file, given = folder / "EveryNDrawSample/samples.jsonl", {"step": 20, "weights": "ema", "kind": "video"}

    def prompt() -> str:
        words = shlex.split(commands(folder)["Generate"])
        return words[words.index("--prompt") + 1]

    held_out = {**given, "prompt": "It is held out.", "source": "held-out caption"}
    write_lines(file, [held_out, {**given, "prompt": "It is trained on.", "source": "training caption"}])
    assert prompt() == "It is trained on."
    write_lines(file, [held_out])
    assert prompt() == "a caption of your training clips"
    write_lines(file, [{**given, "prompt": "It has no label."}])
    assert prompt() == "It has no label."
    config = folder / "config.yaml"  # of an earlier version, which took captions of the validation data
    validating = config.read_text().replace("max_iter: 40", "max_iter: 40, run_validation: true")
    config.write_text(validating)
    assert prompt() == "a caption of your training clips"
    own = "run_validation: true, callbacks: {EveryNDrawSample: {prompts: [It has no label.]}}"
    config.write_text(validating.replace("run_validation: true", own))
    assert prompt() == "It has no label."


def test_a_finished_run_is_evaluated_on_other_data(tmp_path: Path) -> None:
    """On the prompts next to its data, else on its validation clips, else on a placeholder for such clips."""
    folder, clips = write_run(tmp_path), tmp_path / "clips"
    evaluate = f"cd {shlex.quote(str(tmp_path))} && worldsmith evaluate {folder} "
    assert commands(folder)["Evaluate"] == f"{evaluate}--dataset VAL_CLIPS -o {folder}/held_out"
    with (folder / "config.yaml").open("a") as file:
        file.write(f"dataloader_train: {{dataset: {{path: {clips}/train}}}}\n")
        file.write("dataloader_val: {dataset: {path: ''}}\n")
    (clips / "val").mkdir(parents=True)
    assert commands(folder)["Evaluate"] == f"{evaluate}--dataset {clips}/val -o {folder}/held_out"
    (clips / "prompts.jsonl").touch()
    assert f"--prompts {clips}/prompts.jsonl" in commands(folder)["Evaluate"]


def test_a_reasoner_without_validation_data_is_evaluated_on_data_to_name(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    text = (folder / "config.yaml").read_text().replace("task: vfm", "task: vlm")
    data = "dataloader_train: {dataset: {type: worldsmith.data.chats.dataset.LlavaDataset, path: chats}}\n"
    (folder / "config.yaml").write_text(text + data)
    assert f"evaluate {folder} --dataset LlavaDataset --dataset.path VAL_DATA -o" in commands(folder)["Evaluate"]


def test_a_run_of_several_processes_with_packages_resumes_as_such(tmp_path: Path) -> None:
    folder = write_run(tmp_path, steps=3, status={"state": "stopped"})
    (folder / "launch_info.yaml").write_text("cmd: worldsmith --import my_recipes train x -- --import=no\n")
    (folder / "job_env.yaml").write_text("world_size: 2\n")
    words = shlex.split(commands(folder)["Resume it"])
    assert words[1:] == [
        "worldsmith",
        "launch",
        "--nproc-per-node",
        "2",
        "--import",
        "my_recipes",
        "train",
        f"{folder}/config.yaml",
    ]
    assert commands(folder)["Export it"].startswith("worldsmith --import my_recipes export ")


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path)
    write_page(folder).write_text("old")
    monkeypatch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        write_page(folder)
    assert [file.name for file in folder.glob("*report.html*")] == ["report.html"]
    assert (folder / "report.html").read_text() == "old"


def test_evaluations_in_the_run_folder_are_shown_with_their_pictures(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    for name, facts in EVALUATIONS.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(json.dumps(facts))
    Image.new("RGB", (8, 8)).save(folder / "asked/confusion.png")
    shown = text_of(folder, "evaluation")
    assert "12 records: ok 11, unparsed 1 · step 24 · raw weights accuracy 0.25 [0.1, 0.5]" in shown
    assert "f1 – " not in shown
    assert "answers that could not be parsed 1 accuracy of side left (4) 0.5" in shown
    assert "metric trained untrained adherence 0.75 0 colour 1 0.25" in shown
    assert "metric trained real psnr, dB (higher is better) of 2 samples 20 [19, 21] – " in shown
    html = next(s.html for s in page_of(read_run(folder), PageBudget(folder)).sections if s.name == "evaluation")
    assert html.count("<img") == 1
    assert "broken" not in shown
    (folder / "asked/metrics.json").write_text("[1")
    assert any("asked/metrics.json cannot be read" in problem for problem in read_run(folder).problems)


def test_an_evaluation_rebuilds_the_page_of_its_run_and_no_other(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    measured = folder / "deep/asked"
    measured.mkdir(parents=True)
    (measured / "metrics.json").write_text('{"task": "binary", "accuracy": 0.25}')
    refresh_page(measured)
    assert not (folder / "report.html").exists()  # a run without one has not asked for it
    write_page(folder).write_text("old")
    (tmp_path / "report.html").write_text("a page of something else")
    refresh_page(measured)
    assert "<td>0.25</td>" in (folder / "report.html").read_text()
    assert (tmp_path / "report.html").read_text() == "a page of something else"


ROLLOUT: dict[str, Any] = {
    "policy": "http://127.0.0.1:8000",
    "success_rate": 0.25,
    "success_rate_interval": [0.05, 0.7],
    "mean_score": 0.5,
    "mean_score_interval": [0.25, 0.75],
    "mean_steps": 12.5,
    "clipped_actions": 3,
    "failures": {"timeout": 1, "environment": 1},
    "policy_info": {"about": {"run": "shapes/tests/first", "iteration": 40, "weights": "ema", "steps": 4}},
    "settings": {"environment": "PushT-v0", "score": "coverage", "seed": 7, "horizon": None, "max_steps": 300},
    "episodes": [
        {"seed": 7, "success": True, "score": 0.96, "failure": ""},
        {"seed": 8, "success": False, "score": 0.5, "failure": ""},
        {"seed": 9, "success": False, "score": 0.0, "failure": "timeout"},
        {"seed": 10, "success": False, "score": 0.0, "failure": "environment"},
    ],
}


def test_rollouts_in_the_run_folder_are_shown_with_the_videos_of_their_episodes(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    videos = folder / "closed/loop/videos"
    videos.mkdir(parents=True)
    (videos.parent / "rollout.json").write_text(json.dumps(ROLLOUT))
    for seed in (7, 9):
        (videos / f"seed_{seed}.mp4").write_bytes(b"a video")
    (tmp_path / "private.mp4").write_bytes(b"private")
    (videos / "seed_10.mp4").symlink_to(tmp_path / "private.mp4")
    (folder / "broken").mkdir()
    odd = {"success_rate": "x", "episodes": [3, {}], "policy_info": [], "failures": {"a": "b"}, "settings": 1}
    (folder / "broken/rollout.json").write_text(json.dumps(odd))
    shown = text_of(folder, "evaluation")
    assert (
        "closed/loop 4 episodes of PushT-v0 · policy shapes/tests/first · step 40 · weights ema · solver steps 4 · "
        "seed 7 · max steps 300 success rate (higher is better) 0.25 [0.05, 0.7] "
        "mean best coverage (higher is better) 0.5 [0.25, 0.75] failed episodes 2 (timeout 1, environment 1) "
        "mean steps of an episode 12.5 actions outside of the action space 3 "
        "seed 7 · success · best 0.96 seed 9 · timeout · best 0 In brackets"
    ) in shown
    assert "broken 1 episode of" not in shown
    assert "broken success rate (higher is better) – mean best reward" in shown.replace("· ", "")
    html = next(s.html for s in page_of(read_run(folder), PageBudget(folder)).sections if s.name == "evaluation")
    assert html.count("<video") == 2
    assert f'src="data:video/mp4;base64,{base64.b64encode(b"a video").decode()}"' in html
    other = write_run(tmp_path, "second")
    assert "0.25 [0.05, 0.7]" in write_comparison([folder, other], tmp_path / "both.html").read_text()


EVALUATIONS: dict[str, Any] = {
    "asked/metrics.json": {
        "task": "binary",
        "total": 12,
        "unparsed": 1,
        "accuracy": 0.25,
        "accuracy_interval": [0.1, 0.5],
        "f1": None,
        "num_records": 12,
        "status": {"ok": 11, "unparsed": 1},
        "coverage": 1.0,
        "slices": {"side": {"left": {"total": 4, "accuracy": 0.5, "accuracy_interval": None}}, "odd": 3},
        "weights": "live",
        "iteration": 24,
    },
    "shapes/adherence.json": {
        "signature": "x",
        "trained": {"adherence": 0.75, "by_attribute": {"colour": 1.0}},
        "untrained": {"adherence": 0.0, "by_attribute": {"colour": 0.25}},
    },
    "made/videos/evaluation.json": {
        "figures": {
            "psnr": {
                "unit": "dB",
                "better": "higher",
                "trained": {"mean": 20.0, "interval": [19.0, 21.0], "samples": 2},
                "real": {"mean": None, "interval": None, "samples": 0},
                "difference": {},
                "not_measured": {"trained": {}, "real": {}},
            }
        }
    },
    "broken/metrics.json": {"task": "text", "slices": 1, "per_task": [], "accuracy": "no", "status": None},
}


def write_samples(folder: Path, entries: list[dict[str, Any]]) -> None:
    path = folder / "EveryNDrawSample/samples.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        "".join(json.dumps({"step": 1, "prompt": f"p{i}", **entry}) + "\n" for i, entry in enumerate(entries))
    )


def outside_names(folder: Path, secret: Path) -> list[str]:
    """Names by which a run folder could show a picture that is not in it."""
    (folder / "link.png").symlink_to(secret)
    (folder / "linked").symlink_to(secret.parent)
    return [f"../{secret.name}", str(secret), "link.png", f"linked/{secret.name}", f"a/../../{secret.name}"]


@pytest.mark.parametrize("room", [samples.EMBEDDED_FILE, 1])
def test_only_pictures_of_the_run_folder_are_shown(room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "EMBEDDED_FILE", room)
    folder = write_run(tmp_path)
    secret = folder.parent / "private.png"
    secret.write_bytes(b"private picture")
    own = folder / "EveryNDrawSample/own.png"
    own.parent.mkdir()
    own.write_bytes(b"own picture")
    names = outside_names(folder, secret)
    entries = [{"file": name} for name in [*names, "EveryNDrawSample/own.png", "a\0b.png", "x" * 300 + ".png"]]
    write_samples(folder, [*entries, {"kind": "answer", "answer": "a", "media": names[0]}])
    (folder / "evaluation").mkdir()
    (folder / "evaluation/metrics.json").write_text('{"task": "binary", "accuracy": 0.5}')
    for picture in evaluations.PICTURES:
        (folder / "evaluation" / picture).symlink_to(secret)
    html = write_page(folder).read_text()
    assert html.count('<img loading="lazy"') == 1
    assert (base64.b64encode(b"own picture").decode() if room > 1 else 'src="EveryNDrawSample/own.png"') in html
    assert base64.b64encode(secret.read_bytes()).decode() not in html
    assert not re.search(r'src="[^"]*private', html)
    shown = text_of(folder, "samples")
    assert all(f"{name} is outside the run folder" in shown for name in names)
    count = len(names) + len(evaluations.PICTURES)
    assert f"{count} images or videos are outside the run folder and are not shown" in text_of(folder, "overview")


def test_a_comparison_shows_pictures_of_its_run_folders_only(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, "first"), write_run(tmp_path, "second")]
    secret = folders[0].parent / "private.png"
    secret.write_bytes(b"private picture")
    for folder in folders:
        write_samples(folder, [{"file": name} for name in outside_names(folder, secret)])
    html = write_comparison(folders, tmp_path / "compare.html").read_text()
    assert "<img" not in html
    assert base64.b64encode(secret.read_bytes()).decode() not in html
    assert html.count("images or videos are outside the run folder and are not shown") == 2
