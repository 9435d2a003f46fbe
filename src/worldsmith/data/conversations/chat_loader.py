"""`ChatLoader`: packs of conversations."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from worldsmith.config import wrong
from worldsmith.config.declare.ranges import Count
from worldsmith.data.conversations.chat_processor import ChatProcessor
from worldsmith.data.conversations.datasets.chat_dataset import ChatDataset
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.data.conversations.datasets.llava_onevision import LlavaOneVision
from worldsmith.data.conversations.datasets.manifest import ManifestDataset
from worldsmith.data.conversations.datasets.messages import MessagesDataset
from worldsmith.data.conversations.datasets.saved import SavedDataset
from worldsmith.data.stream.loader import PackingDataLoader

if TYPE_CHECKING:
    from worldsmith.data.stream.quarantine import Quarantine


class ChatLoader(PackingDataLoader):
    """The stream of the conversations of a `ChatDataset`, as packs of `ChatSample`.

    Counts beside those of every loader: single_frame_videos, variable_rate.
    """

    class Config(PackingDataLoader.Config):
        _alternatives: ClassVar[tuple[tuple[str, ...], ...]] = ()

        max_sequence_length: Count | None = None
        """Tokens per pack, an exclusive cap, which is also that of a single sample unless max_sample_tokens is set."""
        max_sample_tokens: Count | None = None
        """Most tokens of a sample, less than max_sequence_length; None = as many as fit into a pack."""
        max_samples_per_batch: Count | None = None
        """Samples per pack. Of both caps a pack ends at the one that it meets first; at least one must be set."""
        dataset: ChatDataset.Config = field(default_factory=ManifestDataset.Config)
        """The data set, of any kind."""
        processor: ChatProcessor.Config = field(default_factory=ChatProcessor.Config)
        """How conversations become tokens and patches."""
        on_overlong: Literal["drop", "error"] = "drop"
        """A sample that is too long is left out and listed with its numbers, or ends the run; it is never cut."""

        @property
        def sample_cap_field(self) -> str:
            return "max_sequence_length" if self.max_sample_tokens is None else "max_sample_tokens"

        @property
        def sample_cap(self) -> int | None:
            return self.max_sequence_length if self.max_sample_tokens is None else self.max_sample_tokens + 1

        def check(self) -> None:
            if isinstance(self.dataset, LlavaOneVision.Config) and self.dataset.streaming and self.shuffle:
                why = "a streamed data set is read in its order"
                raise wrong(self, "dataset.streaming", "shuffle", why=why, remedy="set one of them to false")
            if self.on_overlong == "error" and self.sample_cap is None:
                why = "without a cap no sample is too long"
                raise wrong(self, "on_overlong", "max_sequence_length", why=why, remedy="set max_sequence_length")
            longest, room = self.max_sample_tokens, self.max_sequence_length
            if longest is not None and room is not None and longest >= room:
                why = "a sample that fits into no pack cannot be used"
                remedy = f"lower max_sample_tokens to {room - 1} or less, or raise max_sequence_length"
                raise wrong(self, "max_sample_tokens", "max_sequence_length", why=why, remedy=remedy)
            super().check()

    def __init__(
        self,
        config: Config,
        *,
        processor: ChatProcessor,
        quarantine: Quarantine | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Raises DataError when no conversation can be used."""
        from worldsmith.data.conversations.chat_maker import ChatMaker

        config.check()
        maker = ChatMaker(config.dataset.build(), config, processor=processor)
        super().__init__(config, maker=maker, quarantine=quarantine, rank=rank, world_size=world_size)

    @classmethod
    def dataset_at(cls, path: str) -> ChatDataset.Config | None:
        kinds = (LlavaDataset, ManifestDataset, MessagesDataset, SavedDataset)
        return next((kind.Config(path=path) for kind in kinds if kind.is_at(Path(path))), None)
