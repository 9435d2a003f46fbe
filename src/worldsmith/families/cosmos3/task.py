"""`Cosmos3Task`: trains the video generator with rectified flow on packed clips."""

from __future__ import annotations

import copy
import logging
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worldsmith.assets import is_shipped
from worldsmith.data.clips.resolution import RESOLUTIONS
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.families.cosmos3.attention.modes import describe_modes
from worldsmith.families.cosmos3.model import Cosmos3Generator
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.video_model import SampleLayout
from worldsmith.models.weights.step_flops import MatmulCounter, StepFlops
from worldsmith.objectives.objective import BatchLoss
from worldsmith.objectives.rectified_flow import RectifiedFlow, SigmaDraws
from worldsmith.tasks.clip_task import ClipEncoder, ClipTask, cached_latents_of, with_latents
from worldsmith.tasks.task import Preview

if TYPE_CHECKING:
    from torch import Tensor, nn

    from worldsmith.data.clips.video_sample import VideoSample
    from worldsmith.families.cosmos3.network.sequence import PackedSequence

logger = logging.getLogger(__name__)

LAYER = "language_model.model.layers.{}."
"""Name prefix of a decoder layer's parameters."""


@dataclass(frozen=True, slots=True)
class Cosmos3Inputs:
    """Inputs of the loss of a batch of clips that need no weights."""

    latents: list[Tensor | None]
    """Cached latents of each clip, float32 [C, t, h, w]; None: they are not cached."""
    pack: PackedSequence
    draws: SigmaDraws


class Cosmos3Encoder(ClipEncoder):
    """Encodes clips into the latent cache; `compile` compiles the VAE encoder for the sizes of resolution buckets."""

    task: Cosmos3Task

    def compile(self, tiers: Sequence[str]) -> None:
        model = self.task.model
        model.vae.compile_encoder()
        for tier in tiers:
            for width, height in RESOLUTIONS[tier].values():
                model.encode(self.black_clip(width, height))

    def black_clip(self, width: int, height: int) -> Tensor:
        """Returns a black clip, uint8 [3, T, height, width], for compiling the encoder.

        T is the clip length of the run if that is fixed, otherwise 1 + two temporal tiles of the VAE, in frames.
        """
        import torch

        task, frames = self.task, self.task.data.dataset.num_video_frames
        length = task.grid.usable_frames(frames) if frames > 0 else 1 + 2 * task.model.vae.window(height, width)
        return torch.zeros(3, length, height, width, dtype=torch.uint8)


class Cosmos3Task(ClipTask):
    """Training task of Cosmos3: text-, image- and video-to-video.

    A batch is a list of `VideoSample`, which are packed into one sequence.
    """

    encoder_class = Cosmos3Encoder
    objective_class = RectifiedFlow
    small_recipe = "vision_sft_tiny"

    model: Cosmos3Generator
    objective: RectifiedFlow

    @classmethod
    def check(cls, run: Any) -> None:
        super().check(run)
        for data in (run.dataloader_train, run.dataloader_val):
            if data is not None:
                run.objective.check_tier(data.dataset.resolution)

    @property
    def tokenize(self) -> Callable[[str], list[int]]:
        return self.model.text_tokenizer.encode

    @property
    def encoded_channels(self) -> int:
        return self.model.latent_channels

    def identify(self, batch: Sequence[VideoSample]) -> Any:
        return [[sample.position, layout_of(sample)] for sample in batch]

    def weigh(self, batch: Sequence[VideoSample]) -> float:
        return self.objective.weigh(batch)

    def prepare(self, batch: Sequence[VideoSample], *, seed: int) -> Cosmos3Inputs:
        shapes = [(self.encoded_channels, *sample.latent_shape) for sample in batch]
        draws = self.objective.draw(batch, shapes, seed=seed)
        pack = self.model.plan_pack([layout_of(sample) for sample in batch])
        return Cosmos3Inputs(cached_latents_of(batch), pack, draws)

    def loss(self, batch: Sequence[VideoSample], *, seed: int, inputs: Cosmos3Inputs | None = None) -> BatchLoss:
        inputs = self.prepare_on_device(batch, seed=seed) if inputs is None else inputs
        latents, draws = self.latents(with_latents(batch, inputs.latents)), inputs.draws
        velocities = self.model.network(inputs.pack, *self.objective.inputs(latents, draws))
        losses = self.objective.losses(velocities, latents, draws)
        return self.objective.add_up(losses, draws, tokens=inputs.pack.num_tokens)

    def count_flops(self, batch: Sequence[VideoSample]) -> int:
        """Returns the FLOPs of the network for a training step on `batch`, without the VAE."""
        from worldsmith.families.cosmos3.network.sequence import ADDED_TOKENS, token_grid

        texts = [len(sample.text_ids) + ADDED_TOKENS for sample in batch]
        latents = [math.prod(token_grid(sample.latent_shape, self.model.config.network)) for sample in batch]
        return StepCounter(self.model.network, texts, latents).count().total

    def describe_weights(self, run: Any, rates: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        is_random = run.checkpoint.load_path is None
        is_tiny = is_shipped(self.model.config.tokenizer.vae_path)
        if not is_random and not is_tiny:
            return
        found = [*["random weights"] * is_random, *["a tiny VAE"] * is_tiny]
        wanted = [
            *["released weights (checkpoint.load_path)"] * is_random,
            *["the released VAE (model.config.tokenizer.vae_path)"] * is_tiny,
        ]
        why = f"{' and '.join(found)}; realistic videos need {' and '.join(wanted)}"
        yield "expect", f"only blurry videos with shapes and motion: {why}"

    def remarks(self) -> Iterator[tuple[str, str]]:
        yield "attention", describe_modes(self.model.network.attention)

    def preview(self, loader: VideoLoader) -> Preview:
        """Returns a summary of the first batch of a loader: size; key, latent shape and caption of the first sample.

        To determine the latent shape, the VAE encodes up to five frames on the CPU.
        """
        pack = next(iter(loader))
        video = pack[0].video
        assert video is not None  # the loader of a dry run has no latent cache
        tokenizer = copy.deepcopy(self.model.config.tokenizer)
        tokenizer.precision = "float32"  # on many CPUs much faster than bfloat16
        latents = tokenizer.build(device="cpu").encode(video[:, :5])
        shape = [latents.shape[0], pack[0].latent_shape[0], *latents.shape[2:]]
        return Preview(*self.size(pack), first=f"{pack[0].key} has latents {shape}, {shorten_caption(pack[0].caption)}")


class StepCounter(MatmulCounter):
    """Counts the FLOPs of a training step by walking the network and tracking which activations carry gradients.

    With a frozen understanding tower, the text has no FLOPs in the backward pass.

    Args:
        network: The network; it may be on the meta device.
        text_lengths: Text tokens of each sample.
        latent_lengths: Latent tokens of each sample.
    """

    def __init__(self, network: nn.Module, text_lengths: Sequence[int], latent_lengths: Sequence[int]) -> None:
        super().__init__(native_parameters(network))
        self.config: NetworkConfig = network.config  # type: ignore[assignment]
        self.width = self.config.num_attention_heads * self.config.head_dim
        self.text_lengths, self.latent_lengths = list(text_lengths), list(latent_lengths)

    def count(self) -> StepFlops:
        """Returns the FLOPs of a complete training step; call it only once, because the counts accumulate."""
        config, tokens, samples = self.config, sum(self.latent_lengths), len(self.latent_lengths)
        text = self.is_trained("language_model.model.embed_tokens")
        time = self.linear("time_embedder.mlp.0", samples, False)
        latent = self.linear("vae2llm", tokens, False) | self.linear("time_embedder.mlp.2", samples, time)
        for index in range(config.num_hidden_layers):
            last = index == config.num_hidden_layers - 1
            text, seen = self.read(LAYER.format(index), text, last=last)
            latent = self.write(LAYER.format(index), latent, seen)
        self.linear("llm2vae", tokens, latent | self.is_trained("language_model.model.norm_moe_gen"))
        return self.flops

    def read(self, layer: str, stream: bool, *, last: bool) -> tuple[bool, tuple[bool, bool]]:
        """Adds the forward and backward FLOPs of the text half of a decoder layer to `self.flops`.

        The text half has the attention and MLP of the text tokens, computed with the understanding weights. Only the
        gradients that are needed are counted for the backward pass.

        Args:
            layer: Name prefix of the layer's parameters, such as "language_model.model.layers.0.".
            stream: Whether the text input of the layer carries gradients.
            last: Whether this is the last layer of the network, whose text output is not used.

        Returns:
            (output, (keys, values)): whether the text output, and the text keys and values to which latents attend,
            carry gradients.
        """
        tokens, attention = sum(self.text_lengths), f"{layer}self_attn."
        normed = stream | self.is_trained(f"{layer}input_layernorm")
        k = self.linear(f"{attention}k_proj", tokens, normed) | self.is_trained(f"{attention}k_norm")
        v = self.linear(f"{attention}v_proj", tokens, normed)
        seen = k | self.is_trained(f"{attention}k_norm_und_for_gen"), v
        if last:  # no later layer uses the text
            return False, seen
        q = self.linear(f"{attention}q_proj", tokens, normed) | self.is_trained(f"{attention}q_norm")
        pairs = sum(length * (length + 1) // 2 for length in self.text_lengths)
        self.attention(self.width, pairs, 0, q, (k, v), (False, False))
        stream |= self.linear(f"{attention}o_proj", tokens, q | k | v)
        return self.mlp(f"{layer}mlp", f"{layer}post_attention_layernorm", tokens, stream), seen

    def write(self, layer: str, stream: bool, seen: tuple[bool, bool]) -> bool:
        """Adds the FLOPs of the latent half of a layer to `flops`; returns whether the output carries gradients.

        Args:
            layer: Name prefix of the layer.
            stream: Whether the latent input of the layer carries gradients.
            seen: (whether the text keys carry gradients, whether the text values do), from `read`.
        """
        tokens, attention = sum(self.latent_lengths), f"{layer}self_attn."
        normed = stream | self.is_trained(f"{layer}input_layernorm_moe_gen")
        q = self.linear(f"{attention}q_proj_moe_gen", tokens, normed) | self.is_trained(f"{attention}q_norm_moe_gen")
        k = self.linear(f"{attention}k_proj_moe_gen", tokens, normed) | self.is_trained(f"{attention}k_norm_moe_gen")
        v = self.linear(f"{attention}v_proj_moe_gen", tokens, normed)
        own = sum(length * length for length in self.latent_lengths)
        text = sum(g * t for g, t in zip(self.latent_lengths, self.text_lengths, strict=True))
        self.attention(self.width, own, text, q, (k, v), seen)
        attended = q | k | v | seen[0] | seen[1]
        stream |= self.linear(f"{attention}o_proj_moe_gen", tokens, attended)
        norm = f"{layer}post_attention_layernorm_moe_gen"
        return self.mlp(f"{layer}mlp_moe_gen", norm, tokens, stream)

    def mlp(self, path: str, norm: str, tokens: int, stream: bool) -> bool:
        normed = stream | self.is_trained(norm)
        inner = self.linear(f"{path}.up_proj", tokens, normed)
        if f"{path}.gate_proj.weight" in self.shapes:
            inner |= self.linear(f"{path}.gate_proj", tokens, normed)
        return stream | self.linear(f"{path}.down_proj", tokens, inner)


def shorten_caption(caption: str) -> str:
    """Returns a clause for messages that quotes a caption, shortened to 80 characters, or states that it is empty."""
    return f'its caption is "{textwrap.shorten(caption, 80, placeholder=" …")}"' if caption else "its caption is empty"


def layout_of(sample: VideoSample) -> SampleLayout:
    return SampleLayout(
        text_ids=sample.text_ids,
        latent_shape=sample.latent_shape,
        fps=sample.fps,
        condition_frames=sample.condition_frames,
    )
