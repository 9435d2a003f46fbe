"""The commands and the Python of the README do what it says, as they stand, in a shell that knows make and Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from worldsmith.cli.main import main

ROOT = Path(__file__).parents[2]
TRAIN = "worldsmith train --sft-toml=examples/toml/sft_config/vision_sft_tiny.toml "
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def clone(tmp_path: Path, programs: str) -> Path:
    """A copy of the clone in which `make` has been: .venv leads to the environment and the commands of this test."""
    clone = tmp_path / "clone"
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(".*", "outputs", "data", "checkpoints", "tests"))
    (clone / "src/worldsmith/data").symlink_to(ROOT / "src/worldsmith/data")
    (clone / ".venv/bin").mkdir(parents=True)
    for path in (*Path(sys.prefix).iterdir(), *Path(sys.prefix, "bin").iterdir()):
        if path.name not in (".ready", "bin", "activate", "worldsmith"):
            (clone / ".venv" / path.relative_to(sys.prefix)).symlink_to(path)
    (clone / ".venv/.ready").touch()
    (clone / ".venv/bin/worldsmith").symlink_to(shutil.which("worldsmith", path=programs) or "")
    activate = Path(sys.prefix, "bin/activate").read_text()
    (clone / ".venv/bin/activate").write_text(activate.replace(sys.prefix, str(clone / ".venv")))
    return clone


def plain_shell(clone: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the script as a newcomer's shell would: no worldsmith on PATH, and nothing of this test's environment."""
    programs = clone.parent / "programs"
    programs.mkdir(exist_ok=True)
    for name in ("make", "python3.11"):
        where = shutil.which(name, path=os.defpath) or shutil.which(name)
        if not (programs / name).exists() and where:
            (programs / name).symlink_to(where)
    # Threads as everywhere in the tests; PYTHONPATH where it, and not what is installed, leads to the source.
    kept = {name: os.environ[name] for name in ("OMP_NUM_THREADS", "PYTHONPATH") if name in os.environ}
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(clone.parent), **kept, **variables}
    assert shutil.which("worldsmith", path=environment["PATH"]) is None
    command = ["bash", "-euo", "pipefail", "-c", script]
    return subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.mark.timeout(900)
def test_every_block_of_the_shell_runs_as_it_stands_and_the_export_loads_in_diffusers(clone: Path) -> None:
    """One shell goes from the first block to the last; "your own" clips are three small ones, trained shortly."""
    words = ["dataset", "moving-shapes", "--clips", "3", "--val-clips", "1", "--num-frames", "5"]
    assert main([*words, str(clone / "my_clips")]) == 0
    script = "\n".join(blocks("bash"))
    assert f"{TRAIN}  " in script
    done = plain_shell(clone, script.replace(f"{TRAIN}  ", f"{TRAIN} -- trainer.max_iter=5  "), DEMO="quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"adherence \d\.\d\d \(untrained \d\.\d\d\) over 32 prompts", done.stdout)
    assert list((clone / "my_videos").glob("*/vision.mp4"))
    assert (clone / "outputs/train/worldsmith/sft/vision_sft_tiny/held_out/evaluation.json").is_file()
    assert (clone / "outputs/train/worldsmith/sft/try/checkpoints/iter_000000005").is_dir(), "has a folder of its own"
    python = blocks("python")[0] + "\nassert pipeline.transformer.config.hidden_size == 256\n"
    done = plain_shell(clone, f"source .venv/bin/activate\npython - <<'END'\n{python}\nEND")
    assert done.returncode == 0, done.stderr


def test_the_launch_scripts_find_the_environment_beside_the_clone(clone: Path) -> None:
    script = "bash examples/launch_sft_vision_nano.sh --dryrun"
    variables = {"NPROC_PER_NODE": "1", "TOML_FILE": "examples/toml/sft_config/vision_sft_tiny.toml"}
    done = plain_shell(clone, script, DATASET_PATH="no_clips", **variables)
    assert done.returncode == 2
    assert "worldsmith: error" in done.stderr
    assert "no_clips" in done.stderr
    shutil.rmtree(clone / ".venv")
    done = plain_shell(clone, script, **variables)
    assert done.returncode == 2
    assert f"worldsmith is neither on PATH nor in {clone}/.venv; run `make install` in {clone}" in done.stderr


def test_what_the_readme_makes_is_ignored_by_git() -> None:
    made = [*set(re.findall(r"\b(?:my_\w+|outputs/\w+)", "".join(blocks("bash"))))]
    assert len(made) >= 4
    command = ["git", "check-ignore", *(f"{name}/file" for name in [*made, "outputs/latent_cache"])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 128:
        pytest.skip("this is no clone")
    assert len(done.stdout.splitlines()) == len(made) + 1, done.stdout


def test_the_make_targets_that_it_names_exist() -> None:
    targets = set(re.findall(r"(?:^|`|quick )make (\w+)", README, flags=re.MULTILINE))
    assert targets >= {"demo", "test", "install"}
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (ROOT / link.partition("#")[0]).exists(), link


def test_the_cpu_build_of_torch_is_named_before_the_first_command_that_installs_it() -> None:
    assert README.index("PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu") < README.index("```bash\nmake demo")
