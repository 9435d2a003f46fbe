"""1,000 damaged inputs end in a valid tree or a ConfigError, never in another exception, and run nothing."""

from __future__ import annotations

import builtins
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from worldsmith.config import ConfigError, get_recipe
from worldsmith.config.load import Loaded, load
from worldsmith.config.tree.plain import to_dict, to_yaml
from worldsmith.config.tree.read_config import from_dict

COUNTS = {"toml": 500, "yaml": 200, "stack and words": 300}  # 1,000; YAML takes longest to read

TOML = """[job]
experiment = "small"
name = "${now:%Y}_${trainer.max_iter}"
[model]
precision = "float32"
lora_rank = 4
[model.ema]
rate = 0.2
[model.parallelism]
data_parallel_shard_degree = 2
[optimizer]
lr = 1e-4
betas = [0.9, 0.95]
keys_to_select = ["a", 'b']
lr_multipliers = { "a.b" = 5.0, c = 1 }
[scheduler]
cycle_lengths = [10]
warm_up_steps = [1]
[trainer.callbacks.grad_clip]
clip_norm = 1.0
[checkpoint]
load_path = "${oc.env:HOME,x}"
[dataloader_train]
max_samples_per_batch = 2
[custom]
day = 1979-05-27
x = [{ y = 1 }]
"""
WORDS = [
    "optimizer.lr=1e-4",
    "+optimizer.lr_multipliers.x=2",
    "++optimizer.lr_multipliers.head=3",
    "~optimizer.lr_multipliers.head",
    "job.name='a b'",
    "optimizer.betas=[0.1,0.2]",
    "optimizer.betas[0]=0.5",
    "scheduler={f_min: [0.5], type: tests.x.Y}",
    "scheduler={type: trap_package.Trap}",
    "+trainer.callbacks.x={type: trap_package.Trap}",
    "model.ema.rate=${optimizer.lr}",
    "experiment=small_vlm",
    'optimizer.lr_multipliers."a.b"=1',
    "checkpoint.load_path=null",
    "trainer.callbacks.grad_clip.clip_norm=0.5",
]
PIECES = [
    *"[]{}\"'=,.#$\\\n\t é~+:-0123456789!&*|>%@`",
    *(
        "${",
        "}",
        "???",
        "null",
        "true",
        "inf",
        "nan",
        '"""',
        "[[",
        "1e999",
        "0x1F",
        "1_000",
        "\x00",
        "\u2028",
        "\ud800",
    ),
    *("${optimizer.lr}", "${oc.env:", "${oc.env:TRAP}", "${asset:../../etc}", "${custom.x}", "${now:%}", "1979-05-27"),
    *("type", "type: trap_package.Trap", "type = 'trap_package.Trap'", "target: trap_package.Trap", "custom", "params"),
    *(
        "!!python/object/apply:os.system ['touch trap']",
        "!!python/name:trap_package.Trap",
        "&a [*a, *a]",
        "<<: *a",
        "? ",
    ),
    *("__class__", "__import__('trap_package')", "${eval:1}", "worldsmith.config.load.load", "9" * 400, "a." * 50),
]
TRAPS = [
    "type: trap_package.Trap",
    "target: trap_package.Trap",
    "type = 'trap_package.Trap'",
    "x: !!python/object/new:trap_package.Trap []",
]


def damage(text: str, rng: random.Random) -> str:
    """One to four edits: a piece put in, letters cut, a line doubled, dropped or moved, two words swapped."""
    for _ in range(rng.choice([1, 1, 1, 2, 2, 4])):
        at, lines = rng.randrange(len(text) + 1), text.split("\n")
        line = rng.randrange(len(lines))
        edit = rng.randrange(7)
        if edit <= 1:
            text = text[:at] + rng.choice(PIECES) + text[at + rng.choice([0, 0, 1, 3]) :]
        elif edit == 2:
            text = text[:at] + text[at + rng.randint(1, 8) :]
        elif edit == 3:
            text = "\n".join([*lines[:line], rng.choice(lines), *lines[line:]])
        elif edit == 4:
            text = "\n".join(lines[:line] + lines[line + 1 :])
        elif edit == 5:
            indent = lines[line][: len(lines[line]) - len(lines[line].lstrip())]
            lines[line] = indent + rng.choice(TRAPS)
            text = "\n".join(lines)
        else:
            value = rng.choice(["true", "3", "-1", "0.5", '"x"', "[]", "{}", "[1, 2]", "null", rng.choice(PIECES)])
            lines[line] = (
                lines[line].partition("=" if "=" in lines[line] else ":")[0] + ("= " if "=" in text else ": ") + value
            )
            text = "\n".join(lines)
    return text


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose import leaves a trace, and calls of code from text that fail the test."""
    (tmp_path / "trap_package.py").write_text("import os\nos.environ['TRAPPED'] = '1'\nclass Trap: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("TRAPPED", raising=False)

    def forbidden(*args: Any, **keywords: Any) -> Any:
        raise AssertionError(f"called with {args[:1]!r}")

    for module, name in ((os, "system"), (os, "popen"), (subprocess, "Popen")):
        monkeypatch.setattr(module, name, forbidden)
    real = builtins.eval

    def code_only(code: Any, *spaces: Any) -> Any:
        """The standard library evaluates the code objects of annotations; text must not be evaluated."""
        return forbidden(code) if isinstance(code, str) else real(code, *spaces)

    monkeypatch.setattr(builtins, "eval", code_only)
    return tmp_path


def judge(outcomes: Counter[str], front_door: Callable[..., Loaded], *arguments: Any) -> None:
    """Runs one input: a tree must survive its own dump, an error must have something to say."""
    try:
        loaded = front_door(*arguments)
    except ConfigError as refused:
        outcomes["refused"] += 1
        problems, report = refused.problems, str(refused)
    else:
        outcomes["loaded"] += 1
        assert from_dict(to_dict(loaded.tree, custom=True)) == loaded.tree
        if outcomes["loaded"] % 10 == 0:
            assert all(str(origin) for origin in loaded.provenance.values())
            assert loaded.changed is not None
        return
    assert problems
    assert all(problem.message or problem.expected for problem in problems)
    report.encode("utf-8")


@pytest.mark.parametrize("kind", COUNTS)
def test_damaged_inputs(kind: str, trap: Path) -> None:
    rng = random.Random(f"worldsmith {kind}")
    whole = to_yaml(get_recipe("small"))
    layer = "recipe: small\noptimizer:\n  lr: 1e-4\n  betas: [0.9, 0.95]\nscheduler:\n  cycle_lengths: [10]\n"
    outcomes: Counter[str] = Counter()
    path = trap / f"run.{'toml' if kind == 'toml' else 'yaml'}"
    for _ in range(COUNTS[kind]):
        words = [damage(word, rng) for word in rng.sample(WORDS, rng.choice([0, 0, 1, 2]))]
        if kind == "toml":
            path.write_bytes(damage(TOML, rng).encode("utf-8", "surrogatepass"))
            judge(outcomes, load, str(path), words)
        elif kind == "yaml":
            path.write_bytes(damage(whole, rng).encode("utf-8", "surrogatepass"))
            judge(outcomes, load, str(path), words)
        else:
            words = words or [damage(rng.choice(WORDS), rng)]
            path.write_bytes((damage(layer, rng) if rng.random() < 0.5 else layer).encode("utf-8", "surrogatepass"))
            judge(outcomes, load, [str(path)], words)
    assert outcomes.total() == COUNTS[kind]
    assert min(outcomes["loaded"], outcomes["refused"]) > COUNTS[kind] / 50, outcomes  # both ends are really tried
    assert "TRAPPED" not in os.environ
    assert "trap_package" not in sys.modules
    assert not (trap / "trap").exists()
