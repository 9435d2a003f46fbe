"""`worldsmith explain` of logs and of run folders."""

import io
import json
import re
import shlex
from pathlib import Path

import pytest
from run_folders import write_lines, write_run

from worldsmith.cli.main import main

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB."
CONFIG = """\
type: worldsmith.training.trainer.Trainer
job: {task: vfm, project: shapes, group: tests, name: first}
trainer: {max_iter: 40, grad_accum_iter: 1}
dataloader_train: {max_samples_per_batch: 32, max_sequence_length: null, num_workers: 2}
model: {config: {lora_enabled: true, parallelism: {data_parallel_shard_degree: 2, data_parallel_replicate_degree: 1}}}
"""


def explain(capsys: pytest.CaptureFixture, *words: object) -> str:
    capsys.readouterr()
    assert main(["explain", *map(str, words)]) == 0
    return capsys.readouterr().out


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two processes, of which the second ran out of memory in its second start."""
    folder = write_run(tmp_path, status={"state": "failed", "reason": "OutOfMemoryError: CUDA out of memory"})
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "job_env.yaml").write_text("world_size: 2\n")
    with (folder / "launch_info.yaml").open("a") as file:
        file.write("started_at: '2026-03-01T10:00:00+00:00'\n")
    said = [
        ("2026-03-01T09:00:00.000+00:00", "error", "OSError: [Errno 28] No space left on device"),
        ("2026-03-01T10:05:00.000+00:00", "error", OOM),
    ]
    write_lines(
        folder / "messages.jsonl", [{"time": t, "step": 3, "level": kind, "text": text} for t, kind, text in said]
    )
    (folder / "logs").mkdir()
    for rank, text in enumerate(["error: another process of the run has ended or cannot be reached", OOM]):
        head = f"--- started 2026-03-01T10:00:00+00:00 on host, process {rank}, rank {rank} of 2"
        old = f"--- started 2026-03-01T09:00:00+00:00 on host, process 9, rank {rank} of 2\nMemoryError\n"
        (folder / f"logs/rank_{rank:05d}.log").write_text(f"{old}{head}\nstep 1\n{text}\n")
    return folder


def test_of_a_run_it_reads_the_last_start_and_reckons_with_its_values(run: Path, capsys: pytest.CaptureFixture) -> None:
    out = explain(capsys, run)
    first = out.splitlines()
    assert first[0] == "GPU out of memory (E28)"
    assert first[1].strip().startswith(f"{run}/logs/rank_00001.log:5, rank 1 (3 times on ranks 0, 1)")
    assert "dataloader_train.max_samples_per_batch=16 (now 32) with trainer.grad_accum_iter=2 (now 1)" in out
    assert "here: 2 processes (replicate 1, shard 2); packs of at most 32 samples, 1 per step on each process" in out
    assert "lora_enabled" not in out  # which is on already
    assert "data_setting" not in out  # which is a reasoner's
    assert "as a consequence: another process of the run has ended" in out
    assert "No space" not in out
    assert "machine out of memory" not in out


def test_as_json(run: Path, capsys: pytest.CaptureFixture) -> None:
    found = json.loads(explain(capsys, run / "logs/rank_00001.log", "--json"))
    (cause,) = found["causes"]
    assert (cause["id"], cause["line"], cause["ranks"], cause["count"]) == (28, 5, [1], 1)
    assert cause["words"] == ["dataloader_train.max_samples_per_batch=16", "trainer.grad_accum_iter=2"]
    assert cause["text"] == OOM


def test_a_run_that_is_gone_without_a_word(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    old = "2026-03-01T09:00:00.000+00:00"
    folder = write_run(tmp_path, steps=10, status={"state": "running", "updated": old, "started": old})
    assert explain(capsys, folder).startswith("process ended without a message")


def test_through_a_pipe_and_with_the_values_of_a_run(
    run: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words, said in [
        ((), "a lower dataloader_train.num_workers"),
        (("--run", run), "dataloader_train.num_workers=1 (now 2)"),
    ]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"loader worker 9 was killed by SIGKILL\xff\n")))
        assert said in explain(capsys, "-", *words)


def test_what_is_not_known_is_shown_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    log = tmp_path / "a.log"
    log.write_text('Traceback (most recent call last):\n  File "a.py", line 1, in f\n    f()\nmy.OddError: seven\n')
    assert explain(capsys, log).splitlines() == [
        f"{log}:4: my.OddError: seven",
        "This error is not known.",
    ]
    log.write_text("all is well\n")
    assert explain(capsys, log) == "No known error in 1 line.\n"


def test_a_code_is_explained_without_a_log(
    run: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    out = explain(capsys, "E104")
    assert out.startswith("loader worker died (E104)\n  A process that reads samples has ended")
    assert "a lower dataloader_train.num_workers" in out
    assert out == explain(capsys, "[E104]")
    assert "dataloader_train.num_workers=1 (now 2)" in explain(capsys, "E104", "--run", run)
    found = json.loads(explain(capsys, "E104", "--json", "--run", run))
    (cause,) = found["causes"]
    assert (cause["id"], cause["file"], cause["line"], cause["count"]) == (104, None, None, 0)
    assert cause["words"] == ["dataloader_train.num_workers=1"]
    assert main(["explain", "E999"]) == 2
    assert "E999 is not an error code" in capsys.readouterr().err
    (tmp_path / "E104").write_text(f"{OOM}\n")
    assert explain(capsys, "E104").startswith("GPU out of memory")  # a log of that name


def test_the_commands_of_the_guide(
    run: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    guide = (Path(__file__).parents[4] / "docs/explain.md").read_text()
    (script,) = re.findall(r"^```bash\n(.*?)^```", guide, flags=re.M | re.S)
    place = tmp_path / "outputs/train/worldsmith/demo"
    place.mkdir(parents=True)
    run.rename(place / "moving_shapes")
    log = tmp_path / "slurm-812.out"
    log.write_text(f"{OOM}\n")
    monkeypatch.chdir(tmp_path)
    for line in script.splitlines():
        words = shlex.split(line, comments=True)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(log.read_bytes())))
        assert "GPU out of memory" in explain(capsys, *words[words.index("explain") + 1 :])


def test_what_is_no_log(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["explain", str(tmp_path / "nothing")]) == 2
    assert "no such log or run folder" in capsys.readouterr().err
    assert main(["explain", str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err
