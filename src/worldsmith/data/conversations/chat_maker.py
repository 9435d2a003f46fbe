"""From a stream position to a conversation as tokens and patches: the work of a loader process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worldsmith.data.conversations.chat_processor import ChatProcessor
from worldsmith.data.conversations.chat_sample import ChatSample
from worldsmith.data.conversations.datasets.chat_dataset import ChatDataset
from worldsmith.data.conversations.media.frames import rates_differ
from worldsmith.data.conversations.media.media_processor import VideoPlan
from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.data.stream.maker import Features, Made, SampleMaker
from worldsmith.data.stream.quarantine import Rejection
from worldsmith.data.video_file import examine

if TYPE_CHECKING:
    from worldsmith.data.conversations.chat_loader import ChatLoader


class ChatMaker(SampleMaker[ChatSample]):
    """Maps a stream position to a conversation. Its tokens are counted before a picture is decoded."""

    dataset: ChatDataset

    def __init__(self, dataset: ChatDataset, config: ChatLoader.Config, *, processor: ChatProcessor) -> None:
        super().__init__(dataset, config)
        self.processor = processor
        self.on_overlong = config.on_overlong

    def make(self, position: int) -> Made[ChatSample]:
        index = self.index(position)
        key, path, _ = self.dataset.place(index)
        plan = self.processor.plan(self.dataset.turns(index))
        try:
            self.check_size(len(plan), str(plan))
        except SampleError as error:
            if self.on_overlong == "drop":
                raise
            raise DataError(
                f"{key} of {path}: {error.detail}. Raise it, lower processor.media.total_pixels, fps or max_frames, or "
                "set on_overlong = 'drop' to leave such samples out"
            ) from None
        sample = self.processor.finish(plan, key=key, position=position, read=self.decodes)
        if not sample.num_supervised:
            raise SampleError("no_answer", "no token is supervised")
        notes = {}
        for video in (medium for medium in plan.media if isinstance(medium, VideoPlan)):
            if len(video.indices) == 1:
                notes["single_frame_videos"] = f"{key}: {video.source} has a single frame, which is shown twice"
            if video.fps is not None and rates_differ(video.fps, video.info.fps):
                notes["video_fps_disagrees"] = (
                    f"{key} (record {self.dataset.number(index)}) states {video.fps:g} frames a second, {video.source} "
                    f"has {video.info.fps:g}; video_fps = 'probe' takes the file's"
                )
            if video.info.variable_rate:
                notes["variable_rate"] = f"{key}: {video.source} has unevenly spaced frames, whose own times are told"
        return Made(sample, notes)

    def features(self, sample: ChatSample) -> Features:
        """What the conversation shows; sizes of images as they are used, of videos as their files have them."""
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
            "video frames a second": [round(info.fps, 3) for info in videos],
            "video seconds": [round(info.duration, 2) for info in videos],
            "video frames used": [times * temporal for times, _, _ in grids],
        }

    def reject(self, position: int, reason: str, detail: str) -> Rejection:
        index = self.index(position)
        key, path, line = self.dataset.place(index)
        return Rejection(key, reason, detail, path, line, self.dataset.number(index))
