"""`ChatLoader`: packs of conversations, built by `ChatMaker` in worker processes."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from worldsmith.config import wrong
from worldsmith.config.declare.ranges import Count
from worldsmith.data.conversations.chat_processor import ChatProcessor, ChatSample
from worldsmith.data.conversations.datasets.chat_dataset import ChatDataset
from worldsmith.data.conversations.datasets.chat_file import ChatFile
from worldsmith.data.conversations.datasets.llava import LlavaDataset
from worldsmith.data.conversations.datasets.llava_onevision import LlavaOneVision
from worldsmith.data.conversations.datasets.manifest import ManifestDataset
from worldsmith.data.conversations.datasets.messages import MessagesDataset
from worldsmith.data.conversations.datasets.mixed import MixedDataset
from worldsmith.data.conversations.datasets.saved import SavedDataset
from worldsmith.data.conversations.media.frames_and_sizes import rates_differ
from worldsmith.data.conversations.media.media_processor import VideoPlan
from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.data.stream.loader import PackingDataLoader
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.stream.sample_maker import Features, SampleMaker, SampleResult

if TYPE_CHECKING:
    from worldsmith.data.stream.quarantine import Quarantine


class ChatLoader(PackingDataLoader):
    """Data loader that yields the conversations of a `ChatDataset` as packs (lists of `ChatSample`).

    `counts` has these counters of videos in addition to those of every loader (samples, workers_died):
    single_frame_videos, video_fps_disagrees (`video_fps` of the record is not the rate of the file), variable_rate
    (frames are unevenly spaced).
    """

    class Config(PackingDataLoader.Config):
        _alternatives: ClassVar[tuple[tuple[str, ...], ...]] = ()

        max_sequence_length: Count | None = None
        """Token limit of a pack (exclusive). It is also the limit of a sample, unless max_sample_tokens is set."""
        max_sample_tokens: Count | None = None
        """Max tokens of a sample, less than max_sequence_length; None = as many as fit into a pack."""
        max_samples_per_batch: Count | None = None
        """Samples per pack. If both limits are set, a pack ends at the first one reached; at least one must be set."""
        dataset: ChatDataset.Config = field(default_factory=ManifestDataset.Config)
        """The dataset, of any type."""
        processor: ChatProcessor.Config = field(default_factory=ChatProcessor.Config)
        """Preprocessing of conversations to tokens and patches."""
        on_overlong: Literal["drop", "error"] = "drop"
        """drop: samples above the token limit are skipped and listed in the quarantine file; error: the run stops at
        such a sample. Samples are never truncated."""

        @property
        def sample_cap_field(self) -> str:
            return "max_sequence_length" if self.max_sample_tokens is None else "max_sample_tokens"

        @property
        def sample_cap(self) -> int | None:
            return self.max_sequence_length if self.max_sample_tokens is None else self.max_sample_tokens + 1

        def relax(self) -> Self:
            """Returns a config that skips overlong conversations and accepts videos without `video_fps`."""
            relaxed = replace(self, on_overlong="drop", dataset=self.dataset.with_optional_rates())
            return self if relaxed == self else relaxed

        def build_records(self) -> ChatDataset | None:
            kinds = (ChatFile.Config, MixedDataset.Config)
            return self.dataset.build() if isinstance(self.dataset, kinds) else None

        def check(self) -> None:
            if isinstance(self.dataset, LlavaOneVision.Config) and self.dataset.streaming and self.shuffle:
                why = "streamed datasets are read in order"
                raise wrong(self, "dataset.streaming", "shuffle", why=why, remedy="set one of them to false")
            if self.on_overlong == "error" and self.sample_cap is None:
                why = "without a limit no sample is too long"
                raise wrong(self, "on_overlong", "max_sequence_length", why=why, remedy="set max_sequence_length")
            longest, room = self.max_sample_tokens, self.max_sequence_length
            if longest is not None and room is not None and longest >= room:
                why = "a sample must have fewer tokens than max_sequence_length to fit into a pack"
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
        """Builds the loader of one rank.

        Args:
            config: Settings of the loader and its dataset.
            processor: Encodes conversations as tokens and patches.
            quarantine: Records skipped samples; None: they are only counted.
            rank: Index of the data-parallel rank.
            world_size: Number of data-parallel ranks.

        Raises:
            DataError: If no conversation is usable.
        """
        config.check()
        maker = ChatMaker(config.dataset.build(), config, processor=processor)
        super().__init__(config, maker=maker, quarantine=quarantine, rank=rank, world_size=world_size)

    @classmethod
    def dataset_at(cls, path: str) -> ChatDataset.Config | None:
        kinds = (LlavaDataset, ManifestDataset, MessagesDataset, SavedDataset)
        return next((kind.Config(path=path) for kind in kinds if kind.is_at(path)), None)


class ChatMaker(SampleMaker[ChatSample]):
    """Builds the `ChatSample` at a position of the data stream.

    Conversations above the token limit are rejected before their images and videos are decoded.
    """

    dataset: ChatDataset

    def __init__(self, dataset: ChatDataset, config: ChatLoader.Config, *, processor: ChatProcessor) -> None:
        super().__init__(dataset, config)
        self.processor = processor
        self.on_overlong = config.on_overlong

    def make(self, position: int) -> SampleResult[ChatSample]:
        index = self.index(position)
        key, path, _ = self.dataset.place(index)
        plan = self.processor.plan(self.dataset.turns(index))
        try:
            self.check_size(len(plan), str(plan))
        except SampleError as error:
            if self.on_overlong == "drop":
                raise
            raise DataError(
                f"[E103] {key} of {path}: {error.detail}. Raise this limit, lower processor.media.total_pixels, fps or "
                "max_frames, or set on_overlong = 'drop' to skip such samples"
            ) from None
        sample = self.processor.finish(plan, key=key, position=position, read=self.decodes)
        if not sample.num_supervised:
            raise SampleError("no_answer", "no token is supervised")
        notes = {}
        for video in (medium for medium in plan.media if isinstance(medium, VideoPlan)):
            if len(video.indices) == 1:
                notes["single_frame_videos"] = f"{key}: {video.source} has a single frame, which is used twice"
            if video.fps is not None and rates_differ(video.fps, video.info.fps):
                notes["video_fps_disagrees"] = (
                    f"{key} (record {self.dataset.number(index)}) states {video.fps:g} fps, but {video.source} has "
                    f"{video.info.fps:g} fps; video_fps = 'probe' uses the frame rate of the file"
                )
            if video.info.variable_rate:
                notes["variable_rate"] = (
                    f"{key}: {video.source} has unevenly spaced frames; their own timestamps are used"
                )
        return SampleResult(sample, notes)

    def features(self, sample: ChatSample) -> Features:
        """Returns properties of a conversation for a data report, as lists of values by name, such as {"turns": [2]}.

        Sizes of images are those after resizing, sizes of videos those of the files.
        """
        from worldsmith.data.video_decoder import examine

        turns = self.dataset.turns(self.index(sample.position))
        sources = [str(part.source) for turn in turns for part in turn.parts if part.kind == "video"]
        videos = [examine(source)[1] for source in sources]
        images = [] if sample.image_grids is None else sample.image_grids.tolist()
        grids = [] if sample.video_grids is None else sample.video_grids.tolist()
        patch, temporal = self.processor.patch
        return {
            "turns": [len(turns)],
            "supervised tokens": [sample.num_supervised],
            "images": [len(images)],
            "videos": [len(videos)],
            "image size used": [f"{columns * patch}x{rows * patch}" for _, rows, columns in images],
            "video size": [f"{info.width}x{info.height}" for info in videos],
            "video fps used": [round(info.fps, 3) for info in videos],
            "video seconds": [round(info.duration, 2) for info in videos],
            "video frames used": [times * temporal for times, _, _ in grids],
        }

    def reject(self, position: int, reason: str, detail: str) -> Rejection:
        index = self.index(position)
        key, path, line = self.dataset.place(index)
        return Rejection(key, reason, detail, path, line, self.dataset.number(index))
