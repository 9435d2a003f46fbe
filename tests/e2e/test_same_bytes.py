"""Two processes write the same bytes for every recipe, whatever seed their hashes have."""

from __future__ import annotations

import os
import subprocess
import sys

DUMP = """
import json
from worldsmith.config import get_recipe, recipe_names
from worldsmith.config.tree.plain import to_dict, to_yaml
for name in recipe_names():
    print(name, json.dumps(to_dict(get_recipe(name), custom=True)), to_yaml(get_recipe(name)), sep="\\n")
"""


def dump(seed: str) -> bytes:
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    return subprocess.run([sys.executable, "-c", DUMP], env=environment, capture_output=True, check=True).stdout


def test_every_recipe_dumps_to_the_same_bytes_in_every_process() -> None:
    first = dump("0")
    assert b"moving_shapes" in first
    assert dump("1") == dump("4242") == first
