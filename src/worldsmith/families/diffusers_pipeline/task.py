"""`PipelineTask`: the training task of models with a diffusers pipeline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from worldsmith.config import WrongValueError
from worldsmith.data.assumed_batches import AssumedTexts
from worldsmith.data.clips.resolution import RESOLUTIONS, exact_size
from worldsmith.data.latent_cache import EncodedCache, TextCache
from worldsmith.families.diffusers_pipeline.model import PipelineModel
from worldsmith.models.parameter_names import native_parameters
from worldsmith.objectives.noise_objective import Draws, NoiseObjective
from worldsmith.objectives.objective import BatchLoss
from worldsmith.tasks.clip_task import ClipEncoder, ClipTask, DummyClips, cached_latents_of, with_latents

if TYPE_CHECKING:
    from torch import Tensor

    from worldsmith.data.clips.video_sample import VideoSample


@dataclass(frozen=True, slots=True)
class PipelineInputs:
    """Inputs of the loss of a batch of clips that need no weights."""

    latents: list[Tensor | None]
    """What the latent cache has of each clip; None: it is not cached."""
    images: list[Tensor | None]
    """The same of each clip's first frame, if the network is conditioned on it."""
    posterior_noise: list[Tensor]
    """Noise for sampling each clip's latents from their posterior, float32; empty if the cache stores latents."""
    draws: Draws
    texts: list[Tensor | None]
    """Cached hidden states of each caption; None: they are not cached."""
    others: dict[str, Any] = field(default_factory=dict)
    """Inputs of a family, by name."""


class PipelineEncoder(ClipEncoder):
    """Encodes the clips and captions of a run into its latent cache and text cache."""

    task: PipelineTask
    deferred: dict[tuple[int, ...] | None, None] | None = None
    """Token ids of captions that `encode` has deferred to `encode_captions`; None: captions are not deferred."""

    def encode(self, sample: VideoSample) -> bool:
        """Encodes a clip into the latent cache, and its caption and the empty caption into the text cache.

        After `defer_captions`, captions are only collected for `encode_captions`. Returns True if latents of the clip
        were encoded, False if all were in the cache already.
        """
        model = self.task.model
        empty = None if model.config.text_encoder.dropped_captions == "zeros" else self.task.tokenize("")
        if self.deferred is None:
            model.read([sample.text_ids, empty], self.task.text_cache)
        else:
            self.deferred |= {None if ids is None else tuple(ids): None for ids in (sample.text_ids, empty)}
        return super().encode(sample)

    def keep_all_samples(self) -> None:
        """Replaces the data config of the task by a copy without caption dropout, so that every caption is encoded."""
        data = self.task.data
        self.task.data = replace(data, dataset=replace(data.dataset, cfg_dropout_rate=0.0))

    def defer_captions(self) -> None:
        self.deferred = {}

    def encode_captions(self) -> None:
        super().encode_captions()
        for ids in self.take_captions():
            self.encode_caption(ids)
        self.deferred = None
        self.task.model.text_encoder.release()

    def take_captions(self) -> list[tuple[int, ...] | None]:
        deferred, self.deferred = self.deferred, {}
        return list(deferred or ())

    def encode_caption(self, caption: tuple[int, ...] | None) -> None:
        self.task.model.read([caption], self.task.text_cache)


class DummyPipelineClips(DummyClips):
    """Dummy clips for simulated runs; `assume_cached` also simulates a text cache that contains every caption."""

    task: PipelineTask

    def load_encoders(self) -> None:
        super().load_encoders()
        self.task.model.text_encoder.load(self.task.model.device)

    def sample_bytes(self, sample: VideoSample) -> tuple[int, int]:
        memory, disk = super().sample_bytes(sample)
        width = 4 if self.task.model.config.text_encoder.precision == "float32" else 2
        return memory, disk + width * math.prod(self.task.model.text_shape)

    def assume_cached(self) -> None:
        """Treats all latents and captions as cached from now on, and frees the weights of VAE and text encoder.

        If the latent cache stores mean and log variance, the VAE is built first, without weights, since sampling
        latents needs its settings.
        """
        model = self.task.model
        self.task.text_cache = AssumedTexts(model.text_shape, model.config.text_encoder.precision)
        if model.config.tokenizer.returns_posterior:
            model.vae  # noqa: B018
        super().assume_cached()

    def forget_cached(self) -> None:
        self.task.text_cache = None


class PipelineTask(ClipTask):
    """Training task of a `PipelineModel` with any `NoiseObjective`; each sample of a batch has its own noise level."""

    encoder_class = PipelineEncoder
    dummy_data_class = DummyPipelineClips

    model: PipelineModel
    objective: NoiseObjective

    @classmethod
    def check(cls, run: Any) -> None:
        super().check(run)
        for section in ("dataloader_train", "dataloader_val"):
            data = getattr(run, section)
            if data is not None:
                cls.check_data(section, data, run.model.config)
                run.objective.check_tier(data.dataset.resolution)

    @classmethod
    def check_data(cls, section: str, data: Any, model: Any) -> None:
        """Raises WrongValueError if the settings of a loader do not fit the network.

        The samples of a batch must have one shape, captions one length, and conditioning frames are not supported.
        Height and width must be multiples of the pixels that a token covers.

        Args:
            section: Config section of the loader, such as "dataloader_train".
            data: Config of the loader.
            model: Config of the model.
        """
        if data.packer != "alike":
            why = "the network needs clips of one shape in a batch"
            raise WrongValueError({f"{section}.packer": data.packer}, why=why, remedy="write 'alike'")
        if data.max_caption_tokens != model.text_encoder.caption_ids:
            lengths = {f"{section}.max_caption_tokens": data.max_caption_tokens}
            lengths["model.config.text_encoder.max_length"] = model.text_encoder.max_length
            remedy = f"write {model.text_encoder.caption_ids} for the first"
            raise WrongValueError(lengths, why="captions are truncated to one length", remedy=remedy)
        if any(int(frames) and weight for frames, weight in data.dataset.conditioning_config.items()):
            given = {f"{section}.dataset.conditioning_config": data.dataset.conditioning_config}
            raise WrongValueError(
                given, why="this network does not support conditioning frames", remedy="leave it empty: {}"
            )
        resolution, token = data.dataset.resolution, math.prod(model.latent_grid[1:3])
        exact = exact_size(resolution)
        sizes = [exact] if exact else list(RESOLUTIONS[resolution].values())
        if odd := [f"{width}x{height}" for width, height in sizes if width % token or height % token]:
            why = f"a token covers {token} pixels in height and in width, but {', '.join(odd)} are not multiples of it"
            raise WrongValueError(
                {f"{section}.dataset.resolution": resolution}, why=why, remedy="use another resolution bucket"
            )

    @property
    def tokenize(self) -> Callable[[str], list[int]]:
        return self.model.text_encoder.reader

    @property
    def encoded_channels(self) -> int:
        """Channels of the VAE output: of a latent, or of its mean and log variance."""
        return self.model.latent_channels * (2 if self.model.config.tokenizer.returns_posterior else 1)

    @cached_property
    def work_by_shape(self) -> dict[tuple[int, ...], Any]:
        """Cache of FLOPs per training step by batch shape (n, t, h, w).

        Before the FLOPs of a shape are counted, its value is the arguments of `predict` on the meta device: (positional
        arguments, keyword arguments).
        """
        return {}

    @cached_property
    def text_cache(self) -> TextCache | None:
        return TextCache(self.data.latent_cache) if self.data.latent_cache else None

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Context manager for sample generation with the text cache, so that cached captions need no text encoder."""
        self.model.text_cache = self.text_cache
        try:
            with super().sampling():
                yield
        finally:
            self.model.text_cache = None

    @property
    def caches(self) -> list[EncodedCache]:
        return [*super().caches, *([self.text_cache] if self.text_cache else [])]

    def weigh(self, batch: Sequence[VideoSample]) -> float:
        return self.objective.weigh(batch)

    def prepare(self, batch: Sequence[VideoSample], *, seed: int) -> PipelineInputs:
        from worldsmith.objectives.noise_schedule import POSTERIOR_STREAM, random_noise

        shapes = [(self.model.latent_channels, *sample.latent_shape) for sample in batch]
        drawn = zip(shapes, batch) if self.model.config.tokenizer.returns_posterior else ()
        captions = [ids or () for ids in self.captions(batch)]
        return PipelineInputs(
            latents=cached_latents_of(batch),
            images=cached_latents_of([sample.image for sample in batch]),
            posterior_noise=[
                random_noise(shape, seed=seed, position=sample.position, stream=POSTERIOR_STREAM)
                for shape, sample in drawn
            ],
            draws=self.objective.draw(batch, list(map(self.padded_shape, shapes)), seed=seed),
            texts=self.model.text_encoder.cached_states(captions, self.text_cache),
            others=self.prepare_others(batch, seed=seed),
        )

    def padded_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape (C, t, h, w) of the latents that the network gets for latents of a shape."""
        return shape

    def prepare_others(self, batch: Sequence[VideoSample], *, seed: int) -> dict[str, Any]:
        """Returns what `extra_inputs` needs besides latents, by name; computed on the CPU.

        Args:
            batch: Samples of one shape.
            seed: Seed of the run, for random conditioning inputs.
        """
        return {}

    def loss(self, batch: Sequence[VideoSample], *, seed: int, inputs: PipelineInputs | None = None) -> BatchLoss:
        import torch

        model, objective = self.model, self.objective
        inputs = self.prepare_on_device(batch, seed=seed) if inputs is None else inputs
        batch = with_latents(batch, inputs.latents)
        latents, draws = self.clean_latents(batch, inputs.posterior_noise), inputs.draws
        noisy, timesteps = objective.inputs(latents, draws)
        text = model.read(self.captions(batch), self.text_cache, known=inputs.texts)
        arguments = (torch.stack(noisy), timesteps, text), self.extra_inputs(batch, inputs)
        self.store_predict_arguments(batch, arguments)
        answers = model.predict(*arguments[0], **arguments[1])
        losses = objective.losses(answers, latents, draws)  # type: ignore[arg-type]  # a tensor is its rows
        return objective.add_up(losses, draws, tokens=self.tokens(batch))

    def clean_latents(self, batch: Sequence[VideoSample], posterior_noise: Sequence[Tensor]) -> list[Tensor]:
        """Returns the latents [C, t, h, w] of each sample; all ranks of a context-parallel group must call it.

        If the cache stores mean and log variance, latents are sampled from this posterior.

        Args:
            batch: Samples of one shape.
            posterior_noise: Noise for sampling the latents of each sample; empty if the cache stores latents.
        """
        encoded = self.latents(batch)
        if not posterior_noise:
            return encoded
        return [self.model.vae.latents(*pair) for pair in zip(encoded, posterior_noise, strict=True)]

    def images(self, batch: Sequence[VideoSample], inputs: PipelineInputs) -> list[VideoSample]:
        """Returns the first frames of the clips of a batch, with their cached latents on the device."""
        found = [sample.image for sample in batch if sample.image is not None]
        return with_latents(found, [own for sample, own in zip(batch, inputs.images) if sample.image is not None])

    def extra_inputs(self, batch: Sequence[VideoSample], inputs: PipelineInputs) -> dict[str, Any]:
        """Returns arguments of `predict` by name, in addition to noisy latents, timesteps and text states; default: {}.

        Args:
            batch: Samples of one shape.
            inputs: What was prepared for the batch, with the tensors on the device.
        """
        return {}

    def store_predict_arguments(
        self, batch: Sequence[VideoSample], arguments: tuple[Sequence[Tensor], dict[str, Any]]
    ) -> None:
        """Stores the arguments of `predict` on the meta device, once per batch shape, for `count_flops`.

        Args:
            batch: The batch.
            arguments: Positional and keyword arguments of `predict`.
        """
        import torch
        from torch.utils._pytree import tree_map_only

        if shape_of(batch) not in self.work_by_shape:
            self.work_by_shape[shape_of(batch)] = tree_map_only(
                torch.Tensor, lambda x: x.detach().to("meta"), arguments
            )

    def count_flops(self, batch: Sequence[VideoSample]) -> int | None:
        """Returns the FLOPs of the network in a training step on this batch, without VAE and text encoder.

        Returns None before the first `loss` call on a batch of this shape.
        """
        found = self.work_by_shape.get(shape_of(batch))
        if isinstance(found, tuple):
            found = self.work_by_shape[shape_of(batch)] = count_step_flops(self.model, *found)
        return found

    def captions(self, batch: Sequence[VideoSample]) -> list[list[int] | None]:
        """Returns the token ids of each caption; None for a dropped caption whose hidden states are zeros."""
        zeros = self.model.config.text_encoder.dropped_captions == "zeros"
        return [None if zeros and not sample.caption else sample.text_ids for sample in batch]

    def tokens(self, batch: Sequence[VideoSample]) -> int:
        """Returns the number of text and latent tokens in a batch, including text padding."""
        return len(batch) * (self.model.config.text_encoder.max_length + self.grid.vision_tokens(batch[0].latent_shape))


def count_step_flops(model: PipelineModel, arguments: Sequence[Any], extra_inputs: Mapping[str, Any]) -> int:
    """Returns the FLOPs of the matmuls of `predict` and of its backward pass, without recomputation.

    The FLOPs are counted on a copy of the network on the meta device, in which the same parameters require gradients.

    Args:
        model: The model.
        arguments: Positional arguments of `predict`, on the meta device.
        extra_inputs: Keyword arguments of `predict`, on the meta device.
    """
    from torch.utils.flop_counter import FlopCounterMode

    copy = replace(model.config, precision="float32", converters=[]).build(device="meta")
    trained = {name for name, parameter in native_parameters(model.network).items() if parameter.requires_grad}
    for name, parameter in native_parameters(copy.network).items():
        parameter.requires_grad_(name in trained)
    with FlopCounterMode(display=False) as counter:
        copy.predict(*arguments, **extra_inputs).sum().backward()
    return int(counter.get_total_flops())


def shape_of(batch: Sequence[VideoSample]) -> tuple[int, ...]:
    """Returns (number of samples, t, h, w) of a batch, whose samples have the same latent shape."""
    return len(batch), *batch[0].latent_shape
