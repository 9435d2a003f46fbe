"""`ChatDataset`: interface of all chat datasets."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, Self

from worldsmith.config import Configurable
from worldsmith.data.conversations.conversation import Turn, say
from worldsmith.data.stream.errors import DataError
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.stream.sample_maker import StreamDataset


class ChatDataset(Configurable, StreamDataset):
    """Base class of chat datasets: conversations by index. Images and videos are named, not opened."""

    class Config(Configurable.Config):
        usual_media: ClassVar[Literal["image", "video"]] = "image"
        """Type of media in its conversations, for plans without data."""

        system_prompt: str = ""
        """System prompt of conversations without one; "" = none."""

        def check_files(self) -> None:
            """Raises DataError if the dataset cannot be read; opens no image or video."""
            self.build()

        def with_optional_rates(self) -> Self:
            """Returns the config that accepts records without a required `video_fps`."""
            return self

    rejections: list[Rejection]

    @abstractmethod
    def place(self, index: int) -> tuple[str, str, int | None]:
        """Returns (key, path, line number or None) of a conversation, for messages."""

    @abstractmethod
    def turns(self, index: int) -> tuple[Turn, ...]:
        """Returns the turns of a conversation; raises SampleError if its record is not usable."""

    def fields(self, index: int) -> Mapping[str, Any]:
        """Returns the original record of a conversation; empty if it is not stored."""
        return {}

    def in_order(self) -> Iterator[int | Rejection]:
        """Yields, for each record in dataset order, the index of its conversation or its rejection."""
        yield from self.rejections
        yield from range(len(self))

    def number(self, index: int) -> int:
        """Returns the 0-based index of a conversation's record in its file."""
        return index

    def require_rates(self) -> None:
        """Raises DataError if the config requires `video_fps` and a record has none."""
        return


def record_name(record: Any) -> str:
    """Returns the `id` of a record as text; "" if it has none."""
    found = record.get("id") if isinstance(record, dict) else None
    return str(found) if isinstance(found, (str, int)) and not isinstance(found, bool) else ""


def unique(key: str, seen: dict[str, int]) -> str:
    """Returns the key, with an appended number from its second use on.

    Many datasets ask several questions under one ID.

    Args:
        key: Key of a record.
        seen: Number of uses of each key so far; updated.
    """
    seen[key] = seen.get(key, 0) + 1
    return key if seen[key] == 1 else unique(f"{key}#{seen[key]}", seen)


def with_system(turns: Iterable[Turn], prompt: str) -> list[Turn]:
    """Returns the turns, preceded by the system prompt if it is not empty and the turns have none."""
    turns = list(turns)
    return [say("system", prompt), *turns] if prompt and turns[0].role != "system" else turns


def import_datasets(path: str) -> Any:
    """Imports and returns the library `datasets`; raises DataError with the dataset's `path` if it is missing."""
    try:
        import datasets
    except ImportError:
        raise DataError(
            f"{path} needs the library 'datasets', which is not installed: `pip install 'worldsmith[datasets]'`"
        ) from None
    return datasets
