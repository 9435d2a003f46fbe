"""How many records a data set of conversations has."""

from __future__ import annotations

from typing import Any

from worldsmith.config import ConfigError
from worldsmith.config.tree.reader import from_dict
from worldsmith.config.tree.references import resolve
from worldsmith.data.conversations.datasets.chat_dataset import ChatDataset
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.data.stream.errors import DataError
from worldsmith.dialects.translation import name_class


def count_records(dataset: dict[str, Any]) -> tuple[int, int]:
    """(records, those that can be used as far as their file tells, whether videos state their rate or not).

    Args:
        dataset: The settings of the data set as plain data.

    Raises:
        ValueError: The settings or the file are wrong, or no record can be used.
        OSError: The file cannot be read.
    """
    try:
        settings = {"type": LlavaDataset.__name__, **dataset, "video_fps": "optional"}
        name_class(settings, ChatDataset.Config, None)
        found = resolve(from_dict(settings)).build()
    except ConfigError as error:
        raise ValueError("; ".join(problem.message for problem in error.problems)) from error
    except DataError as error:
        raise ValueError(str(error)) from error
    if not len(found):
        why = f", the first: {found.rejections[0].detail}" if found.rejections else ""
        raise ValueError(f"{found.name} has {found.num_records} records and none that can be used{why}")
    return found.num_records, len(found)
