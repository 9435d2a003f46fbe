"""`ChatDataset`: interface of all chat datasets."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, Self

from worldsmith.config import Configurable
from worldsmith.data.conversations.conversation import Turn, say
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.stream.sample_maker import StreamDataset


class ChatDataset(Configurable, StreamDataset):
    """Base class of chat datasets, which return conversations by index. Images and videos are paths, not opened."""

    class Config(Configurable.Config):
        usual_media: ClassVar[Literal["image", "video"]] = "image"
        """Usual type of media in the conversations, assumed by plans whose data cannot be read."""

        system_prompt: str = ""
        """System prompt that is added to conversations without one; "" = no system prompt."""

        def check_files(self) -> None:
            """Raises DataError if the dataset cannot be read; opens no image or video."""
            self.build()

        def with_optional_rates(self) -> Self:
            """Returns a copy of the config that accepts videos without a frame rate in their record (`video_fps`)."""
            return self

    rejections: list[Rejection]

    @abstractmethod
    def place(self, index: int) -> tuple[str, str, int | None]:
        """Returns (key, path of the dataset, line number or None) of a conversation, for messages."""

    @abstractmethod
    def turns(self, index: int) -> tuple[Turn, ...]:
        """Returns the turns of a conversation; raises SampleError if its record is not usable."""

    def fields(self, index: int) -> Mapping[str, Any]:
        """Returns the record of conversation `index` by key, as read from the dataset; empty if it is not stored."""
        return {}

    def in_order(self) -> Iterator[int | Rejection]:
        """Yields for each record, in dataset order, the index of its conversation, or the rejection of the record."""
        yield from self.rejections
        yield from range(len(self))

    def number(self, index: int) -> int:
        """Returns the 0-based index of the record of conversation `index` among all records of the dataset file."""
        return index

    def require_rates(self) -> None:
        """Raises DataError if the config requires `video_fps` and the record of a video has no `video_fps`."""
        return


def record_name(record: Any) -> str:
    """Returns the `id` of a record as a string; "" if the record has no valid `id`."""
    found = record.get("id") if isinstance(record, dict) else None
    return str(found) if isinstance(found, (str, int)) and not isinstance(found, bool) else ""


def unique(key: str, seen: dict[str, int]) -> str:
    """Returns a unique key: `key` at its first use, `key#2`, `key#3`, … at later uses.

    Many datasets use one ID for several records, such as the questions about one image.

    Args:
        key: Key of a record.
        seen: Number of uses of each key so far; updated in place.
    """
    seen[key] = seen.get(key, 0) + 1
    return key if seen[key] == 1 else unique(f"{key}#{seen[key]}", seen)


def with_system(turns: Iterable[Turn], prompt: str) -> list[Turn]:
    """Returns the turns, preceded by the system prompt `prompt` unless it is "" or the first turn is a system turn."""
    turns = list(turns)
    return [say("system", prompt), *turns] if prompt and turns[0].role != "system" else turns
