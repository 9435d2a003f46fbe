"""The guide to families shows the toy family as it is, and names what there is."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from toy_family import DummyRows, ToyTask

from worldsmith.data.stream.loader import PackingDataLoader
from worldsmith.data.stream.sample_maker import SampleMaker, StreamDataset
from worldsmith.models.families import GROUP
from worldsmith.tasks.task import DummyData, SampleEncoder, Task

ROOT = Path(__file__).parents[3]


def test_the_task_in_the_guide_is_the_one_that_trains() -> None:
    text = (ROOT / "docs/families.md").read_text()
    _, block, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert block == f"{inspect.getsource(DummyRows)}\n\n{inspect.getsource(ToyTask)}"


def test_the_guide_names_the_entry_points_and_methods_that_there_are() -> None:
    text = (ROOT / "docs/families.md").read_text()
    assert re.findall(r'entry-points\."([\w.]+)"', text) == [GROUP, "worldsmith.actions"]
    last = text[text.index("Further methods") :].partition("\n## ")[0]
    owners = (Task, SampleEncoder, DummyData, SampleMaker, StreamDataset, PackingDataLoader, PackingDataLoader.Config)
    names = [name for name in re.findall(r"`(\w+)`", last) if name not in {owner.__name__ for owner in owners}]
    assert not [name for name in names if not any(hasattr(owner, name) for owner in owners)]
