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
from worldsmith.config.errors import UserError, WrongValueError
from worldsmith.data.clips.resolution import RESOLUTIONS
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.data.robots.robot_loader import RobotLoader
from worldsmith.data.stream.errors import DataError
from worldsmith.families.cosmos3.attention.modes import describe_modes
from worldsmith.families.cosmos3.model import Cosmos3Generator, read_attention
from worldsmith.families.cosmos3.network.architecture import NetworkConfig
from worldsmith.families.cosmos3.robot_actions import ActionDraws, ActionFlow
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.video_model import ActionLayout, SampleLayout
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
    actions: ActionDraws | None
    """Noisy robot actions; None: no clip has any."""


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

        task, frames = self.task, getattr(self.task.data.dataset, "num_video_frames", -1)
        length = task.grid.usable_frames(frames) if frames > 0 else 1 + 2 * task.model.vae.window(height, width)
        return torch.zeros(3, length, height, width, dtype=torch.uint8)


class Cosmos3Task(ClipTask):
    """Training task of Cosmos3: text-, image- and video-to-video, and videos with robot actions.

    A batch is a list of `VideoSample`, which are packed into one sequence. Robot actions require the objective
    `ActionFlow`.
    """

    encoder_class = Cosmos3Encoder
    objective_class = RectifiedFlow
    small_recipe = "vision_sft_tiny"

    model: Cosmos3Generator
    objective: RectifiedFlow

    @classmethod
    def check(cls, run: Any) -> None:
        super().check(run)
        if isinstance(run.objective, ActionFlow.Config):
            require_action_model(run.model.config)
        for section in ("dataloader_train", "dataloader_val"):
            data = getattr(run, section)
            if isinstance(data, RobotLoader.Config) and not isinstance(run.objective, ActionFlow.Config):
                found = {"objective.type": type(run.objective).__qualname__, f"{section}.type": "RobotLoader"}
                why = "the objective has no loss for the actions of robot episodes"
                raise WrongValueError(found, why=why, remedy=f"set objective.type = {ActionFlow.__module__}.ActionFlow")
            if data is not None:
                for resolution in data.dataset.resolutions():
                    run.objective.check_tier(resolution)

    @classmethod
    def accepts_robots(cls, run: Any) -> bool:
        return bool(run.model.config.network.action_gen)

    def loader(self, *, dry: bool = False) -> VideoLoader:
        loader, (channels, domains) = super().loader(dry=dry), self.model.config.action_limits or (0, 0)
        for dataset in loader.robots if isinstance(loader, RobotLoader) else ():
            width, domain = dataset.robot.width, dataset.config.robot.domain
            if width > channels or domain >= domains:
                raise DataError(
                    f"{dataset.name}: actions have {width} channels and domain {domain}: the network has action heads "
                    f"for {channels} channels and {domains} domains"
                )
        return loader

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
        return Cosmos3Inputs(cached_latents_of(batch), pack, draws, self.draw_actions(batch, draws, seed=seed))

    def draw_actions(self, batch: Sequence[VideoSample], draws: SigmaDraws, *, seed: int) -> ActionDraws | None:
        """Adds noise to the robot actions of a batch; None: there are none."""
        if isinstance(self.objective, ActionFlow):
            return self.objective.draw_actions(batch, draws, self.model.config.network.max_action_dim, seed=seed)
        found = next((sample.key for sample in batch if sample.actions is not None), None)
        if found is not None:
            raise UserError(
                f"sample {found} has robot actions, for which {type(self.objective).__name__} has no loss; set "
                f"objective.type to {ActionFlow.__module__}.ActionFlow"
            )
        return None

    def loss(self, batch: Sequence[VideoSample], *, seed: int, inputs: Cosmos3Inputs | None = None) -> BatchLoss:
        inputs = self.prepare_on_device(batch, seed=seed) if inputs is None else inputs
        latents, draws = self.latents(with_latents(batch, inputs.latents)), inputs.draws
        actions, noisy = inputs.actions, None if inputs.actions is None else inputs.actions.noisy
        answers = self.model.network(inputs.pack, *self.objective.inputs(latents, draws), actions=noisy)
        losses, tokens = self.objective.losses(answers[: len(batch)], latents, draws), inputs.pack.num_tokens
        if not isinstance(self.objective, ActionFlow):
            return self.objective.add_up(losses, draws, tokens=tokens)
        action_losses = None if actions is None else actions.losses(answers[-1])
        return self.objective.add_up_parts(losses, action_losses, draws, actions, tokens=tokens)

    def encode_part(self, part: VideoSample) -> Tensor:
        """Returns the latents [C, t, h, w] of a clip, without those of pixels that only pad it to its bucket's size."""
        return self.cached_latents(part, lambda video: crop_latents(self.model.encode(video), part))

    def count_flops(self, batch: Sequence[VideoSample]) -> int:
        """Returns the FLOPs of the network for a training step on `batch`, without the VAE."""
        from worldsmith.families.cosmos3.network.sequence import ADDED_TOKENS, token_grid

        texts = [len(sample.text_ids) + ADDED_TOKENS for sample in batch]
        actions = [layout.actions for layout in map(layout_of, batch)]
        rows = [0 if own is None else own.rows for own in actions]
        latents = [
            math.prod(token_grid(sample.latent_shape, self.model.config.network)) + own
            for sample, own in zip(batch, rows)
        ]
        domains = {own.domain for own in actions if own is not None}
        return StepCounter(self.model.network, texts, latents, sum(rows) * len(domains)).count().total

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
        latents = crop_latents(tokenizer.build(device="cpu").encode(video[:, :5]), pack[0])
        shape = [latents.shape[0], pack[0].latent_shape[0], *latents.shape[2:]]
        return Preview(*self.size(pack), first=f"{pack[0].key} has latents {shape}, {shorten_caption(pack[0].caption)}")


class StepCounter(MatmulCounter):
    """Counts the FLOPs of a training step by walking the network and tracking which activations carry gradients.

    With a frozen understanding tower, the text has no FLOPs in the backward pass.

    Args:
        network: The network; it may be on the meta device.
        text_lengths: Text tokens of each sample.
        latent_lengths: Latent tokens of each sample, including its robot actions.
        action_products: Number of robot actions of all samples, times the number of their different domains.
    """

    def __init__(
        self, network: nn.Module, text_lengths: Sequence[int], latent_lengths: Sequence[int], action_products: int = 0
    ) -> None:
        super().__init__(native_parameters(network))
        self.config: NetworkConfig = network.config  # type: ignore[assignment]
        self.width = self.config.num_attention_heads * self.config.head_dim
        self.text_lengths, self.latent_lengths = list(text_lengths), list(latent_lengths)
        self.action_products = action_products

    def count(self) -> StepFlops:
        """Returns the FLOPs of a complete training step; call it only once, because the counts accumulate."""
        config, tokens, samples = self.config, sum(self.latent_lengths), len(self.latent_lengths)
        text = self.is_trained("language_model.model.embed_tokens")
        time = self.linear("time_embedder.mlp.0", samples, False)
        latent = self.linear("vae2llm", tokens, False) | self.linear("time_embedder.mlp.2", samples, time)
        if self.action_products:
            latent |= self.action_head("action2llm", False) | ("action_modality_embed" in self.trained)
        for index in range(config.num_hidden_layers):
            last = index == config.num_hidden_layers - 1
            text, seen = self.read(LAYER.format(index), text, last=last)
            latent = self.write(LAYER.format(index), latent, seen)
        latent |= self.is_trained("language_model.model.norm_moe_gen")
        self.linear("llm2vae", tokens, latent)
        if self.action_products:
            self.action_head("llm2action", latent)
        return self.flops

    def action_head(self, path: str, needs_input: bool) -> bool:
        """Adds the FLOPs of an action head to `flops`; returns whether its output carries gradients.

        Args:
            path: Path of the head.
            needs_input: Whether its input carries gradients.
        """
        domains = self.config.num_embodiment_domains
        own = self.product(f"{path}.fc.weight", self.action_products, needs_input, share=domains)
        return own | self.is_trained(f"{path}.bias")

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
        actions=ActionLayout.of(sample.actions),
    )


def crop_latents(latents: Tensor, sample: VideoSample) -> Tensor:
    """Returns the latents [C, t, h, w] of a sample without those right of and below its `latent_shape`.

    Clips with robot actions are padded to the size of their resolution bucket before they are encoded.
    """
    _, height, width = sample.latent_shape
    return latents[..., :height, :width]


def require_action_model(model: Cosmos3Generator.Config) -> None:
    """Raises WrongValueError if a model has no action heads, or restricts attention, which excludes robot actions."""
    if not model.network.action_gen:
        why = "the objective predicts robot actions, but the network has no action heads"
        remedy = "set model.config.network.action_gen = true"
        raise WrongValueError({"model.config.network.action_gen": False}, why=why, remedy=remedy)
    if not read_attention(model).is_dense:
        field = "video_temporal_causal" if model.video_temporal_causal else "natten_parameter_list"
        raise WrongValueError(
            {f"model.config.{field}": getattr(model, field)},
            why="robot actions require dense attention, since they have no place in the grid of the latents",
            remedy="set model.config.joint_attn_implementation = 'two_way', and omit the field",
        )
