"""`VideoLoader`: packs of captioned clips."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from worldsmith.config.declare.ranges import Count
from worldsmith.config.tree.read_config import from_dict
from worldsmith.data.clips.clip_records import is_clips
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.stream.loader import PackingDataLoader

if TYPE_CHECKING:
    from worldsmith.data.clips.inspect_clips import DatasetSummary
    from worldsmith.data.clips.latent_grid import LatentGrid
    from worldsmith.data.clips.video_sample import FirstFrames
    from worldsmith.data.data_report import DataReport
    from worldsmith.data.latent_cache import LatentCache
    from worldsmith.data.stream.quarantine import Quarantine
    from worldsmith.data.stream.sample_maker import SampleMaker


class VideoLoader(PackingDataLoader):
    """Data loader that yields the windows of a `VideoDataset` as packs (lists of `VideoSample`).

    `counts` has these counters of samples in addition to those of every loader (samples, workers_died):
    captions_truncated, variable_rate (frames are unevenly spaced), windows_shortened (the window ends after the clip),
    cache_hit, cache_miss, cache_corrupt (damaged latents).
    """

    class Config(PackingDataLoader.Config):
        dataset: VideoDataset.Config = field(default_factory=VideoDataset.Config)
        """The dataset of clips."""
        max_caption_tokens: Count = 2048
        """Max number of caption tokens, including the chat template; longer captions are truncated."""
        latent_cache: str = ""
        """Cache folder for the latents of clips, and for hidden states of captions from a text encoder; it may be
        remote (s3://bucket/latents); "" = no cache."""

    def __init__(
        self,
        config: Config,
        *,
        grid: LatentGrid,
        tokenizer: Callable[[str], list[int]],
        latent_cache: LatentCache | None = None,
        quarantine: Quarantine | None = None,
        rank: int = 0,
        world_size: int = 1,
        first_frames: FirstFrames = "none",
        required_latent_shape: tuple[int, int, int] | None = None,
    ) -> None:
        """Builds the loader of one rank.

        Args:
            config: Settings of the loader and its dataset.
            grid: Latent grid of the model.
            tokenizer: Maps a caption to token IDs, including the chat template; runs in the workers.
            latent_cache: Cache of latents; required if the config names a folder.
            quarantine: Records skipped samples; None: they are only counted.
            rank: Index of the data-parallel rank.
            world_size: Number of data-parallel ranks.
            first_frames: Form of the first frame that each sample contains in addition to its clip.
            required_latent_shape: Required latent shape (t, h, w); clips of another shape are skipped. None: any shape.

        Raises:
            DataError: If no window is usable.
        """
        config.dataset.check()
        config.check()
        if config.latent_cache and latent_cache is None:
            raise ValueError(
                f"the config names the latent_cache '{config.latent_cache}', but the argument latent_cache is None: "
                "pass a LatentCache, or set latent_cache to '' in the config"
            )
        self.grid = grid
        dataset = config.dataset.build()
        maker = self.build_maker(
            dataset,
            config,
            grid=grid,
            tokenizer=tokenizer,
            max_caption_tokens=config.max_caption_tokens,
            latent_cache=latent_cache,
            first_frames=first_frames,
            required_latent_shape=required_latent_shape,
        )
        super().__init__(config, maker=maker, quarantine=quarantine, rank=rank, world_size=world_size)

    @classmethod
    def build_maker(cls, dataset: Any, config: Any, **settings: Any) -> SampleMaker[Any]:
        """Returns the sample builder of a dataset; `settings` are arguments of `ClipMaker`."""
        from worldsmith.data.clips.clip_maker import ClipMaker

        return ClipMaker(dataset, config, **settings)

    @classmethod
    def dataset_at(cls, path: str) -> VideoDataset.Config | None:
        return VideoDataset.Config(path=path) if is_clips(path) else None

    def describe(self) -> str:
        return str(self.summary())

    def report(self) -> DataReport:
        """Returns the data report at the start of a run, including a few inspected clips."""
        report, summary = super().report(), self.summary()
        report.looked_at = summary.probed
        report.leave_out(summary.rejections[len(self.dataset.rejections) :])
        report.count_features(summary.features)
        return report

    def summary(self) -> DatasetSummary:
        """Inspects a few evenly spaced clips of the dataset and returns their properties and rejections."""
        from worldsmith.data.clips.inspect_clips import summarize_dataset

        return summarize_dataset(self.dataset, self.grid, max_tokens=self.config.max_sequence_length)


def clips_of_run(tree: Mapping[str, Any] | None) -> VideoDataset.Config | None:
    """Returns the dataset settings of a run that trains on clips only; None for robot episodes, and for an export.

    `tree` is the config of the run as plain data; None for an export.
    """
    dataset = None if tree is None else from_dict(tree["dataloader_train"], VideoLoader.Config).dataset
    return dataset if isinstance(dataset, VideoDataset.Config) else None
