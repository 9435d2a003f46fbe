"""Seeded mutations of config documents. Each changes a document in place and says whether it is still valid.

True or False is the right verdict; None means that this draw changed nothing of use. `kind` is "toml" or "tree".
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from worldsmith.config.toml.toml_schema import remap

Doc = dict[str, Any]

OUT_OF_RANGE: dict[str, list[Any]] = {
    "model.max_num_tokens_after_packing": [0, -1],
    "model.lora_rank": [0],
    "model.ema.rate": [0.0, -0.5, 0.48, 1],
    "model.ema.iteration_shift": [-1],
    "model.parallelism.data_parallel_shard_degree": [0, -2],
    "model.parallelism.data_parallel_replicate_degree": [0, -2],
    "model.parallelism.context_parallel_shard_degree": [0],
    "model.parallelism.cfg_parallel_shard_degree": [-3],
    "optimizer.betas": [[], [0.9], [0.9, 0.9, 0.9], [0.9, 1.0], [-0.1, 0.9], [1.5, "${trainer.max_iter}"]],
    "optimizer.eps": [-1e-8, float("inf")],
    "optimizer.lr": [-1, float("inf")],
    "optimizer.lr_multipliers": [{"lm": -1.0}],
    "optimizer.weight_decay": [-0.1],
    "scheduler.cycle_lengths": [[], [0], [-5]],
    "scheduler.warm_up_steps": [[], [-1]],
    "scheduler.f_start": [[], [-1e-6]],
    "scheduler.f_max": [[], [-1.0], [float("inf")]],
    "scheduler.f_min": [[], [-1]],
    "scheduler.verbosity_interval": [-1],
    "trainer.grad_accum_iter": [0],
    "trainer.logging_iter": [0, -1],
    "trainer.max_iter": [0, -500],
    "trainer.callbacks.grad_clip.clip_norm": [0, -1.0],
    "checkpoint.save_iter": [0],
    "dataloader_train.max_samples_per_batch": [0],
    "dataloader_train.max_caption_tokens": [0, -1],
}
CHOICES = {
    "job.task": ["VFM", "llm", ""],
    "job.wandb_mode": ["on", "Offline"],
    "model.joint_attn_implementation": ["two-way", "one_way"],
    "model.precision": ["float8", "bf16"],
    "model.activation_checkpointing.mode": ["partial", "Full"],
    "model.activation_checkpointing.determinism_check": ["none"],
    "trainer.distributed_parallelism": ["ddp", "FSDP"],
}


def leaves(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of single values and lists; tags are none."""
    for key, value in document.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        elif key != "type":
            yield (*path, key)


def sections(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of the tables that have fixed keys."""
    yield path
    for key, value in document.items():
        if isinstance(value, dict) and key not in ("lr_multipliers", "shift", "conditioning_config", "callbacks"):
            yield from sections(value, (*path, key))
        elif key == "callbacks":
            for name, section in value.items():
                yield from sections(section, (*path, key, name))


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        document = document[part]
    return document


def put(document: Doc, path: tuple[Any, ...], value: Any) -> None:
    node = document
    for part in path[:-1]:
        node = node.setdefault(part, {})
    node[path[-1]] = value


def place(kind: str, key: str) -> tuple[str, ...]:
    parts = tuple(key.split("."))
    target = parts if kind == "toml" else remap(parts, "vfm")
    assert target is not None
    return tuple(str(part) for part in target)


def unknown_key(kind: str, document: Doc, dice: random.Random) -> bool | None:
    section = at(document, dice.choice(list(sections(document))))
    known = dice.choice([key for key in section if key != "type"] or ["key"])
    typo = dice.choice([f"{known}x", known[:-1], known.upper(), f"{known[1:]}{known[0]}", "__class__", ""])
    if typo in section or typo in ("custom", "type"):
        return None
    section[typo] = section.get(known, 1)
    return False


def wrong_type(kind: str, document: Doc, dice: random.Random) -> bool | None:
    path = dice.choice(list(leaves(document)))
    old = at(document, path)
    pool: list[Any] = [
        True,
        7,
        2.5,
        "text",
        "3",
        "False",
        [["a"]],
        {"a": {"b": True}},
        *([None] if kind == "tree" else []),
    ]
    value = dice.choice(pool)
    spoiled = {
        bool: not isinstance(value, bool),
        int: isinstance(value, (bool, float, str, list, dict)),
        float: isinstance(value, (bool, str, list, dict)) or value is None,
        str: not isinstance(value, str),
        list: not isinstance(value, list) or value == [["a"]],
        dict: not isinstance(value, dict) or value == {"a": {"b": True}},
    }
    if old is None or not spoiled[type(old)] or old == "???" or str(old).startswith("${"):
        return None
    if isinstance(value, str) and path[-1] in ("resolution", "path"):
        return None
    if path[0] == "objective" and path[1] == "shift":  # one number, or a table of numbers
        return None
    if value is None and path[-1] in ("max_samples_per_batch", "keep_latest_k", "load_path", "cpu_threads"):
        return None
    put(document, path, value)
    return False


def out_of_range(kind: str, document: Doc, dice: random.Random) -> bool | None:
    key = dice.choice(list(OUT_OF_RANGE))
    put(document, place(kind, key), copy.deepcopy(dice.choice(OUT_OF_RANGE[key])))
    return False


def no_such_choice(kind: str, document: Doc, dice: random.Random) -> bool | None:
    key = dice.choice(list(CHOICES))
    put(document, place(kind, key), dice.choice(CHOICES[key]))
    return False


def missing(kind: str, document: Doc, dice: random.Random) -> bool | None:
    """What a file must have; or, of a recipe TOML, anything else, which then keeps the recipe's value."""
    if kind == "tree":
        path = dice.choice([("model",), ("model", "name"), ("model", "config"), ("model", "config", "type"), ("type",)])
        if path == ("type",):
            return None  # a YAML file without a type is a stack, which is another format
        del at(document, path[:-1])[path[-1]]
        return False
    path = dice.choice([("job",), ("job", "experiment"), ("job", "task"), *((name,) for name in document)])
    if path in (("custom",),):
        return None
    at(document, path[:-1]).pop(path[-1], None)
    return path not in (("job",), ("job", "experiment"))


def not_a_section(kind: str, document: Doc, dice: random.Random) -> bool | None:
    path = dice.choice([path for path in sections(document) if path])
    put(document, path, dice.choice([3, True, [], "text", [{}]]))
    return False


def left_out(kind: str, document: Doc, dice: random.Random) -> bool | None:
    path = dice.choice(list(leaves(document)))
    if kind == "tree":
        return None
    put(document, path, "???")
    return path != ("job", "experiment") and "lr_multipliers" not in path


def a_reference(kind: str, document: Doc, dice: random.Random) -> bool | None:
    path = dice.choice(list(leaves(document)))
    old = at(document, path)
    if not isinstance(old, (bool, int, float, str)) or old in ("", "???") or "${" in str(old):
        return None
    put(document, path, f"${{oc.env:WORLDSMITH_NOT_SET,{json.dumps(old) if not isinstance(old, str) else old}}}")
    return kind == "tree" or path not in (("job", "experiment"), ("job", "task"))


MUTATIONS: list[Callable[[str, Doc, random.Random], bool | None]] = [
    unknown_key,
    wrong_type,
    out_of_range,
    no_such_choice,
    missing,
    not_a_section,
    left_out,
    a_reference,
]
