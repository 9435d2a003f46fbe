"""`RobotLoader`: packs of robot episodes, also together with plain clips."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from worldsmith.config import wrong
from worldsmith.data.clips.clip_dataset import ClipDataset
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.data.robots.clip_mix import ClipMix
from worldsmith.data.robots.lerobot import INFO
from worldsmith.data.robots.robot_dataset import RobotDataset
from worldsmith.data.stream.errors import DataError
from worldsmith.data.stream.loader import PackingDataLoader
from worldsmith.files.remote import file_exists, join_address

if TYPE_CHECKING:
    from worldsmith.data.data_report import DataReport
    from worldsmith.data.stream.sample_maker import SampleMaker


class RobotLoader(VideoLoader):
    """Data loader that yields windows of robot episodes as packs of `VideoSample` with `actions`.

    Its dataset is a `RobotDataset`, or a `ClipMix` of several, in which there may be plain clips.
    """

    class Config(VideoLoader.Config):
        dataset: ClipDataset.Config = field(default_factory=RobotDataset.Config)  # type: ignore[assignment]
        """The dataset: RobotDataset, or ClipMix for several datasets in one stream."""

        def check(self) -> None:
            super().check()
            members = self.dataset.datasets.values() if isinstance(self.dataset, ClipMix.Config) else [self.dataset]
            for one in members:
                if self.latent_cache and isinstance(one, RobotDataset.Config) and one.augmentation.is_active:
                    why = "each epoch has other images, which a cache cannot hold"
                    raise wrong(self, "latent_cache", why=why, remedy="set it to '', or omit dataset.augmentation")

    @classmethod
    def build_maker(cls, dataset: Any, config: Any, **settings: Any) -> SampleMaker[Any]:
        from worldsmith.data.robots.robot_maker import MixMaker, RobotMaker

        if isinstance(dataset, ClipMix):
            makers = {name: cls.build_maker(member, config, **settings) for name, member in dataset.members.items()}
            return MixMaker(dataset, config, makers)  # type: ignore[arg-type]
        if not isinstance(dataset, RobotDataset):
            return super().build_maker(dataset, config, **settings)
        if settings["first_frames"] != "none":
            raise DataError(f"{dataset.name}: this model family has no conditioning images for robot episodes")
        if dataset.config.steps % settings["grid"].step:
            raise DataError(
                f"{dataset.name}: steps is {dataset.config.steps}: expected a multiple of {settings['grid'].step}, the "
                "frames per latent frame of the VAE"
            )
        return RobotMaker(dataset, config, **settings)

    @property
    def robots(self) -> list[RobotDataset]:
        """Datasets with actions."""
        members = self.dataset.members.values() if isinstance(self.dataset, ClipMix) else [self.dataset]
        return [member for member in members if isinstance(member, RobotDataset)]

    @classmethod
    def dataset_at(cls, path: str) -> Any:
        return RobotDataset.Config(path=path) if file_exists(join_address(path, INFO)) else None

    def describe(self) -> str:
        return PackingDataLoader.describe(self)

    def report(self) -> DataReport:
        return PackingDataLoader.report(self)
