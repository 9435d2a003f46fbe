"""The script of a SLURM job: every option stays one directive, whatever its value."""

from __future__ import annotations

import shlex

import pytest

from worldsmith.cli.launch import count_processes, read_launch_words
from worldsmith.cli.slurm import script
from worldsmith.config.errors import UserError


def make_script(*words: str) -> str:
    head = ["--slurm", *words]
    args, parser = read_launch_words([*head, "train", "toy"])
    return script(args, parser, head, ["train", "toy"])


def directives(text: str) -> list[str]:
    """Options as sbatch reads them: the lines before the first command, split and unquoted as in a shell."""
    found = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            break
        if line.startswith("#SBATCH "):
            found += shlex.split(line.removeprefix("#SBATCH "))
    return found


@pytest.mark.parametrize(
    "option", ["time", "partition", "account", "qos", "gpus-per-node", "cpus-per-task", "job-name", "sbatch"]
)
@pytest.mark.parametrize(
    "value", ["\ntouch /tmp/ran", "4\n#SBATCH --uid=0", "4\rx", "4\x1b[2J", "4\x85x", "4\u2028x", ""]
)
def test_a_value_does_not_become_a_line_of_the_script(option: str, value: str) -> None:
    given = f"--{option}=--comment={value}" if option == "sbatch" and value else f"--{option}={value}"
    with pytest.raises(UserError, match=rf"--{option}: expected .*, found") as caught:
        make_script(given)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["two words", "it's", 'a "quoted" one', "# no comment", "$(touch ran)", "back\\slash", "größer"]
)
def test_names_with_spaces_and_quotes_stay_one_option(name: str) -> None:
    text = make_script("--job-name", name, "--partition", name, f"--sbatch=--comment={name}")
    found = directives(text)
    assert [option for option in found if option.startswith(("--job-name", "--partition", "--comment"))] == [
        f"--job-name={name}",
        f"--partition={name}",
        f"--comment={name}",
    ]
    assert len(found) == len([line for line in text.splitlines() if line.startswith("#SBATCH")])


def test_usual_options_are_written_plainly() -> None:
    text = make_script(
        "--nnodes", "2", "--nproc-per-node", "8", "--time", "1-04:00:00", "--sbatch=--mem=0", "--sbatch=--exclusive"
    )
    lines = text.splitlines()
    assert {"#SBATCH --nodes=2", "#SBATCH --gpus-per-node=8", "#SBATCH --time=1-04:00:00"} <= set(lines)
    assert {"#SBATCH --mem=0", "#SBATCH --exclusive", "#SBATCH --job-name=worldsmith"} <= set(lines)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--time", "soon"], "--time: expected"),
        (["--cpus-per-task", "0"], "--cpus-per-task: expected"),
        (["--cpus-per-task", "many"], "--cpus-per-task: expected"),
        (["--gpus-per-node", "²"], "--gpus-per-node"),
        (["--gpus-per-node", "9" * 5000], "--gpus-per-node"),
        (["--job-name", "a/../../b"], "--job-name: expected"),
        (["--sbatch=echo no"], "--sbatch: expected"),
        (["--nnodes", "0"], "--nnodes"),
        (["--nnodes", "٣"], "--nnodes"),
        (["--nnodes", "1000000"], "--nnodes"),
        (["--nnodes", "9" * 5000], "--nnodes"),
    ],
)
def test_values_that_cannot_work_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        make_script(*words)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("nnodes", ["0", "-1", "1000000", "2:1", "0:2"])
def test_a_launch_has_at_least_one_machine(nnodes: str) -> None:
    with pytest.raises(UserError, match="--nnodes"):
        count_processes(read_launch_words([f"--nnodes={nnodes}", "train", "toy"])[0])
