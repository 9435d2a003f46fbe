"""`ChatDataset`: what every kind of chat dataset has."""

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
    """Conversations by their index. Media are named, not opened."""

    class Config(Configurable.Config):
        usual_media: ClassVar[Literal["image", "video"]] = "image"
        """Type of media in its conversations, for plans without data."""

        system_prompt: str = ""
        """System prompt of conversations without one; "" = none."""

        def check_files(self) -> None:
            """Raises DataError when the dataset cannot be read; opens no image or video."""
            self.build()

        def with_optional_rates(self) -> Self:
            """Returns the config that accepts records without the `video_fps` that is required."""
            return self

    rejections: list[Rejection]

    @abstractmethod
    def place(self, index: int) -> tuple[str, str, int | None]:
        """Returns (key, path, line) of a conversation, for messages."""

    @abstractmethod
    def turns(self, index: int) -> tuple[Turn, ...]:
        """Raises SampleError for a record that cannot be used."""

    def fields(self, index: int) -> Mapping[str, Any]:
        """Returns the original record of a conversation; empty if it is not kept."""
        return {}

    def in_order(self) -> Iterator[int | Rejection]:
        """Yields each record of the dataset: the index of its conversation, or the rejection."""
        yield from self.rejections
        yield from range(len(self))

    def number(self, index: int) -> int:
        """Returns the 0-based index of a conversation's record in its file."""
        return index

    def require_rates(self) -> None:
        """Raises DataError when a record lacks the `video_fps` that is required."""
        return


def record_name(record: Any) -> str:
    """Returns the `id` of a record as text; "" if it has none."""
    found = record.get("id") if isinstance(record, dict) else None
    return str(found) if isinstance(found, (str, int)) and not isinstance(found, bool) else ""


def unique(key: str, seen: dict[str, int]) -> str:
    """Returns the key, with a number from its second use on: many sets ask several questions under one id."""
    seen[key] = seen.get(key, 0) + 1
    return key if seen[key] == 1 else unique(f"{key}#{seen[key]}", seen)


def with_system(turns: Iterable[Turn], prompt: str) -> list[Turn]:
    """Returns the turns, opened by the system prompt when there is one and they have none."""
    turns = list(turns)
    return [say("system", prompt), *turns] if prompt and turns[0].role != "system" else turns


def import_datasets(path: str) -> Any:
    """Imports the library `datasets`, which is to read the dataset at `path`. Raises DataError without it."""
    try:
        import datasets
    except ImportError:
        raise DataError(
            f"{path} needs the library 'datasets', which is not installed: `pip install 'worldsmith[datasets]'`"
        ) from None
    return datasets
