"""What a run writes down about its launch, and that no secret is in it."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys

import pytest
import torch
import yaml

from worldsmith.monitor.redaction import redact_arguments, redact_environment, redact_urls
from worldsmith.monitor.run_record import git_state, write_run_record

SECRETS = {
    "WANDB_API_KEY": "s3cr3t-one",
    "hf_token": "s3cr3t-two",
    "MY_SECRET_THING": "s3cr3t-three",
    "DB_PASSWORD": "s3cr3t-four",
    "AWS_CREDENTIALS_FILE": "s3cr3t-five",
    **dict.fromkeys(
        ("GH_PAT", "SSHPASS", "MYSQL_PWD", "JWT", "COOKIE", "CREDS", "NETRC", "SAS", "SLACK_WEBHOOK"), "s3cr3t-nine"
    ),
    "AZURE_STORAGE_CONNECTION_STRING": "s3cr3t-ten",
    "WORLDSMITH_LAUNCHER": "12 34567 s3cr3t-eleven",
    "SOMETHING_NEW": "s3cr3t-twelve",
    "HTTPS_PROXY": "http://user:s3cr3t-six@proxy.example:8080",
}


def record(folder, **fields):
    values = {
        "command": ["worldsmith", "train", "recipe.toml", "--hf-token", "s3cr3t-seven", "--", "a.api_key=s3cr3t-eight"],
        "config_path": "recipe.toml",
        "overrides": ["trainer.max_iter=5", "a.api_key=s3cr3t-eight", "optimizer.keys_to_select=[moe_gen]"],
        "environment": {**SECRETS, "LANG": "C.UTF-8", "RANK": "0"},
    }
    write_run_record(folder, **{**values, **fields})
    return [yaml.safe_load((folder / name).read_text()) for name in ("launch_info.yaml", "job_env.yaml")]


def test_both_files_say_how_and_where_the_run_was_started(tmp_path):
    launch, environment = record(tmp_path / "run", world_size=2, seed=42)
    assert launch["cmd"].startswith("worldsmith train recipe.toml --hf-token")
    assert launch["args_cfg_path"] == "recipe.toml"
    assert launch["args_override"][0] == "trainer.max_iter=5"
    assert launch["args_override"][2] == "optimizer.keys_to_select=[moe_gen]"
    assert (environment["world_size"], environment["seed"]) == (2, 42)
    assert environment["distributed"] == {"RANK": "0"}
    assert environment["packages"]["torch"] == importlib.metadata.version("torch")
    assert environment["torch"]["version"] == torch.__version__
    assert environment["torch"]["threads"] == torch.get_num_threads()
    assert environment["environment"]["LANG"] == "C.UTF-8"


def test_no_secret_reaches_the_files(tmp_path):
    record(tmp_path)
    text = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "s3cr3t" not in text
    assert "proxy.example:8080" in text
    assert all(name in text for name in SECRETS)


def test_a_second_launch_keeps_the_first_one(tmp_path):
    record(tmp_path)
    record(tmp_path, overrides=["trainer.max_iter=9"])
    launch, _ = record(tmp_path, overrides=["trainer.max_iter=10"])
    assert launch["args_override"] == ["trainer.max_iter=10"]
    assert [earlier["args_override"][0] for earlier in launch["earlier_launches"]] == [
        "trainer.max_iter=5",
        "trainer.max_iter=9",
    ]


def test_the_git_state_names_the_commit_and_the_changed_files(tmp_path):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert git_state(tmp_path) is None
    git("init", "-b", "main")
    (tmp_path / "file.txt").write_text("one")
    git("add", ".")
    git("commit", "-m", "one")
    git("remote", "add", "origin", "https://me:s3cr3t@example.org/r.git")
    (tmp_path / "file.txt").write_text("two")
    state = git_state(tmp_path)
    assert state == {
        "commit": git("rev-parse", "HEAD"),
        "branch": "main",
        "remote": "https://<redacted>@example.org/r.git",
        "changed_files": ["file.txt"],
    }


@pytest.mark.parametrize(
    ("arguments", "redacted"),
    [
        (["--hf-token", "x", "y"], ["--hf-token", "<redacted>", "y"]),
        (["--api-key=x"], ["--api-key=<redacted>"]),
        (["logger.token=x"], ["logger.token=<redacted>"]),
        (["model.config.max_num_tokens_after_packing=5"], ["model.config.max_num_tokens_after_packing=5"]),
        (["checkpoint.keys_to_skip_loading=[a]"], ["checkpoint.keys_to_skip_loading=[a]"]),
        (["a.path=s3://k:v@bucket/x"], ["a.path=s3://<redacted>@bucket/x"]),
    ],
)
def test_arguments_lose_secrets_and_nothing_else(arguments, redacted):
    assert redact_arguments(arguments) == redacted


def test_urls_without_credentials_and_empty_values_stay():
    assert (
        redact_urls("https://example.org/a@b?x=1 and me@example.org")
        == "https://example.org/a@b?x=1 and me@example.org"
    )
    assert redact_environment({"API_KEY": ""}) == {"API_KEY": ""}


def test_what_changes_a_run_can_be_read():
    kept = ("NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "SLURM_JOB_ID", "HF_HOME", "DATASET_PATH", "PATH")
    kept = {*kept, "WORLDSMITH_OUTPUT_ROOT", "TOKENIZERS_PARALLELISM", "TOKENIZER_PATH", "PWD", "MASTER_ADDR", "LC_ALL"}
    assert redact_environment(dict.fromkeys(kept, "x")) == dict.fromkeys(sorted(kept), "x")


MODULES = (
    *("monitor.metrics_log", "monitor.sinks", "monitor.terminal_view", "monitor.throughput"),
    *("monitor.run_record", "objectives.rectified_flow", "models.ema", "training.optimizer", "training.scheduler"),
)
HEAVY = ("torch", "numpy", "transformers", "diffusers")


def test_configs_and_the_monitor_are_imported_without_torch_and_numpy():
    imports = "; ".join(f"import worldsmith.{module}" for module in MODULES)
    check = f"import sys; sys.exit(', '.join(m for m in {HEAVY} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", f"{imports}; {check}"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.strip() == ""
