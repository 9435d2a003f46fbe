"""`CogVideoXTask`: trains CogVideoX with v-prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from worldsmith.config import WrongValueError
from worldsmith.data.clips.resolution import RESOLUTIONS, exact_size
from worldsmith.families.cogvideox.model import CogVideoXGenerator
from worldsmith.families.diffusers_pipeline.task import PipelineInputs, PipelineTask
from worldsmith.models.video_vae.cogvideox import SPATIAL_FACTOR
from worldsmith.objectives.v_prediction import VPrediction

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.data.clips.video_sample import FirstFrames, VideoSample
    from worldsmith.families.cogvideox.architecture import ImageConfig

DROPOUT_STREAM, LEVEL_STREAM, PIXEL_STREAM, IMAGE_STREAM = 16, 17, 18, 19
"""Numbers of the random streams for image dropout, noise level, pixel noise and VAE posterior."""
HALF_RANGE = 127.5
"""Number of pixel values per unit in [-1, 1]."""


class CogVideoXTask(PipelineTask):
    """Training task of CogVideoX: text to video and image to video, with v-prediction.

    The loss is over all latent frames. In CogVideoX 1.5 this includes the padding in front, which sampling generates
    and removes, as in CogVideo's SAT trainer. Images are dropped per sample; SAT drops them for a complete batch.
    """

    objective_class = VPrediction

    model: CogVideoXGenerator

    @classmethod
    def check_data(cls, section: str, data: Any, model: Any) -> None:
        super().check_data(section, data, model)
        check_clip_sizes(section, data.dataset, model.network)

    @property
    def first_frames(self) -> FirstFrames:
        """Source of the latents of a clip's first frame: "none" (text-to-video), "cached" or "encoded in every epoch".

        "cached": latents are read from the latent cache. "encoded in every epoch": noise is added to the pixels of the
        frame, which the VAE then encodes.
        """
        image = self.model.config.image
        return "none" if image is None else "encoded in every epoch" if image.noise else "cached"

    @property
    def required_latent_shape(self) -> tuple[int, int, int] | None:
        return self.model.config.network.required_latent_shape

    def padded_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[0], shape[1] + self.model.padding(shape[1]), *shape[2:]

    def clean_latents(self, batch: Sequence[VideoSample], posterior_noise: Sequence[Tensor]) -> list[Tensor]:
        """Returns the clean latents [C, t, h, w] of each sample, padded to full temporal patches.

        The padding repeats the first latent frame in front.

        Args:
            batch: Samples of one shape.
            posterior_noise: Noise for sampling the latents of each sample from the VAE's posterior.
        """
        import torch

        found = super().clean_latents(batch, posterior_noise)
        missing = self.model.padding(found[0].shape[1])
        return [torch.cat([x0[:, :1]] * missing + [x0], dim=1) for x0 in found]

    def prepare_others(self, batch: Sequence[VideoSample], *, seed: int) -> dict[str, Any]:
        """Returns for image-to-video the random values of each first frame that is not dropped, by name.

        - "kept": index of the sample in the batch.
        - "frames": the first frame as a sample, with noise on its pixels if the config enables it.
        - "noise": noise for sampling its latents from the VAE's posterior, float32 [C, 1, h, w].

        Args:
            batch: Samples with their first frames.
            seed: Seed of the run; random values depend only on it and on the positions of the samples.
        """
        from worldsmith.objectives.noise_schedule import random_noise, random_stream

        config = self.model.config.image
        if config is None:
            return {}
        shape = (self.model.latent_channels, 1, *batch[0].latent_shape[1:])
        kept = [
            n
            for n, sample in enumerate(batch)
            if random_stream(seed, sample.position, DROPOUT_STREAM).random() >= config.dropout
        ]
        noise = (random_noise(shape, seed=seed, position=batch[n].position, stream=IMAGE_STREAM) for n in kept)
        frames = [add_image_noise(batch[n], config, seed=seed) for n in kept]
        return {"kept": kept, "frames": frames, "noise": list(noise)}

    def extra_inputs(self, batch: Sequence[VideoSample], inputs: PipelineInputs) -> dict[str, Any]:
        config = self.model.config.image
        if config is None:
            return {}
        images = self.draw_images(batch, config, inputs.others)
        return {"image": config.extend(images, inputs.draws.noise[0].shape[1])}

    def draw_images(self, batch: Sequence[VideoSample], config: ImageConfig, prepared: dict[str, Any]) -> Tensor:
        """Returns the latents [n, C, 1, h, w] of each clip's first frame, with noise; zeros where the image is dropped.

        Args:
            batch: Samples with their first frames.
            config: Config of the image conditioning.
            prepared: Result of `prepare_others`, with the tensors on the device.
        """
        import torch

        vae = self.model.vae
        shape = (self.model.latent_channels, 1, *batch[0].latent_shape[1:])
        images = torch.zeros(len(batch), *shape, device=self.model.device)
        encoded = self.latents(prepared["frames"])
        for n, moments, noise in zip(prepared["kept"], encoded, prepared["noise"], strict=True):
            images[n] = vae.image_latents(moments, noise, config.latent_scale)
        return images


def add_image_noise(sample: VideoSample, config: ImageConfig, *, seed: int) -> VideoSample:
    """Returns the first frame of a clip as a sample, with Gaussian noise on its pixels if the config enables it.

    Args:
        sample: A clip, whose field `image` is its first frame.
        config: Config of the image conditioning.
        seed: Seed of the run; the noise depends only on it and on the position of the sample.

    Raises:
        ValueError: If the sample has no first frame.
    """
    from worldsmith.objectives.noise_schedule import random_noise, random_stream

    image = sample.image
    if image is None:
        raise ValueError(f"sample {sample.key} has no first frame, which the network needs as conditioning")
    if not config.noise or image.video is None:
        return image
    level = random_stream(seed, sample.position, LEVEL_STREAM).normal(config.noise_log_mean, config.noise_log_std)
    noise = random_noise(image.video.shape, seed=seed, position=sample.position, stream=PIXEL_STREAM)
    return replace(image, video=image.video + HALF_RANGE * math.exp(level) * noise)


def check_clip_sizes(section: str, dataset: Any, network: Any) -> None:
    """Raises WrongValueError if a network has no position embeddings for the clip sizes of a dataset.

    Args:
        section: Config section of the loader, such as "dataloader_train".
        dataset: Config of the dataset.
        network: Config of the network.
    """
    width, height = SPATIAL_FACTOR * network.sample_width, SPATIAL_FACTOR * network.sample_height
    sizes = {"resolution": f"{width}x{height}", "num_video_frames": network.sample_frames}
    given = {f"{section}.dataset.{name}": getattr(dataset, name) for name in sizes}
    if network.use_learned_positional_embeddings and list(given.values()) != list(sizes.values()):
        why = f"the learned position table is for clips of {width}x{height} and {network.sample_frames} frames"
        remedy = " and ".join(f"{name} = {value!r}" for name, value in sizes.items())
        drop = "train without it: model.config.network.use_learned_positional_embeddings = false"
        raise WrongValueError(given, why=why, remedy=f"write {remedy}, or {drop}")
    exact = exact_size(dataset.resolution)
    clips = [exact] if exact else list(RESOLUTIONS[dataset.resolution].values())
    if network.patch_size_t and any(size[0] > width or size[1] > height for size in clips):
        why = (
            f"the network has position embeddings for clips of up to {width}x{height} (its sample_width and "
            "sample_height)"
        )
        raise WrongValueError(given, why=why, remedy="train at smaller sizes")
