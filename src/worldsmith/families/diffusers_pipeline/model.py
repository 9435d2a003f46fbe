"""`PipelineModel`: a model whose network is a diffusers class, with the VAE and the text encoder of its pipeline."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from worldsmith.config import wrong
from worldsmith.config.errors import UserError
from worldsmith.models.fill_parameters import chosen, fill, seed_of
from worldsmith.models.model import Model
from worldsmith.models.network_parts import NetworkParts
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.real_values import in_simulation
from worldsmith.models.weights.shapes import Shapes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from worldsmith.data.latent_cache import TextCache


class PipelineModel(Model):
    """Base class of models whose network is a diffusers class; parameters have diffusers' names.

    VAE and text encoder are loaded on first use and are never saved. A family's Config must also have three sections,
    `network` (the arguments of the class), `tokenizer` (the VAE) and `text_encoder`, and a `latent_grid`.

    Args:
        config: Config of the model family.
        device: Device of the network, such as "cuda:0".
        seed: Seed of the initial weights; None: they stay uninitialized.
        defaults: Generation defaults of earlier training; None: those of `defaults_class`.
    """

    network_class: ClassVar[str]
    """Class name of the network in diffusers."""
    text_channels: ClassVar[str]
    """Field of the network config with the number of channels of text hidden states."""
    defaults_class: ClassVar[type[Any]]
    """Class of the generation defaults."""
    max_tokens: int = 40_000
    """Max tokens per forward pass in sampling: one video of the released model's size, twice for guidance."""
    components: ClassVar[Sequence[str]] = ("tokenizer.vae_path", "text_encoder.path")
    """Config fields with the paths of the components other than the network."""

    class Config(Model.Config):
        task: ClassVar[str] = "vfm"
        makes: ClassVar[str] = "videos"
        layer_lists: ClassVar[Sequence[str]] = ("transformer_blocks",)
        usual_rates: ClassVar[Mapping[bool, tuple[float, float]]] = {True: (2e-5, 2e-3), False: (1e-6, 5e-5)}

        lora_target_modules: str = "to_q,to_k,to_v,to_out.0"
        """Linear layers with LoRA adapters, comma-separated: ends of module paths, such as "to_q" or "attn.to_q"."""

        def check(self) -> None:
            super().check()
            if self.parallelism.cfg_parallel_shard_degree != 1:
                name = "parallelism.cfg_parallel_shard_degree"
                raise wrong(self, name, why="only sampling has two guidance branches", remedy="write 1")

        def shapes(self) -> Shapes:
            return getattr(self, "network").shapes()  # noqa: B009  # a section of each subclass

    config: Any
    network: Any
    text_cache: TextCache | None = None
    """Cache of text encoder states for sampling."""

    def __init__(
        self, config: Config, *, device: str | torch.device = "cpu", seed: int | None = None, defaults: Any = None
    ) -> None:
        self.defaults = defaults or self.defaults_class()
        super().__init__(config, device=device, seed=seed)

    @classmethod
    def library_class(cls) -> Any:
        """Returns the diffusers class of the network."""
        import diffusers

        return getattr(diffusers, cls.network_class)

    def make_network(self) -> Any:
        return self.library_class()(**asdict(self.config.network))

    def parts(self) -> NetworkParts:
        layers = [layer for name in self.config.layer_lists for layer in getattr(self.network, name)]
        kept = self.library_class()._keep_in_fp32_modules or ()
        found = [module for name, module in self.network.named_modules() if name.rpartition(".")[2] in kept]
        return NetworkParts(layers=layers, full_precision=[m for m in found if next(m.parameters(), None) is not None])

    def init_weights(self, seed: int, names: Collection[str] | None = None) -> None:
        """Initializes parameters in place, sharded or not, with the values of `draw_parameter`.

        Args:
            seed: Seed of the run.
            names: Internal names of the parameters to initialize; None: all.

        Raises:
            ValueError: If a name is unknown.
        """
        import torch

        parameters = native_parameters(self.network)
        with torch.no_grad():
            for name, parameter in chosen(parameters, names).items():
                weight = parameters.get(f"{name.rpartition('.')[0]}.weight", parameter)
                fill(parameter, draw_parameter(name, parameter.shape, weight.shape, seed))

    def materialize(self, device: str | torch.device) -> None:
        super().materialize(device)
        if self.device.type != "meta":
            self.restore_buffers()

    def restore_buffers(self) -> None:
        """Fills in place the buffers that weight files do not contain; called after their memory was allocated."""

    @cached_property
    def vae(self) -> Any:
        """The VAE, loaded on first use.

        Raises:
            UserError: If VAE and network have different numbers of latent channels.
        """
        vae = self.config.tokenizer.build(device=self.device)
        if vae.channels != self.latent_channels and not in_simulation():  # plans use the released VAE instead
            raise UserError(
                f"model.config.tokenizer.vae_path: expected a VAE of {self.latent_channels} latent channels, as in "
                f"the network, found {vae.channels} in '{self.config.tokenizer.vae_path}'. Use the pipeline that "
                "the network belongs to"
            )
        return vae

    @cached_property
    def text_encoder(self) -> Any:
        """The text encoder with its tokenizer; its weights are loaded on first use."""
        return self.config.text_encoder.build()

    def encode(self, video: Tensor) -> Tensor:
        """Encodes a uint8 video [3, T, H, W] with the VAE; returns the float32 tensor that a latent cache stores.

        This is the normalized latent [C, t, h, w], or [2C, t, h, w] (mean and log variance of its posterior).
        """
        return self.vae.encode(video)

    def decode(self, latents: Tensor) -> Tensor:
        """Decodes normalized latents [C, t, h, w] to a uint8 video [3, T, H, W]."""
        return self.vae.decode(latents)

    def read(
        self,
        captions: Sequence[Sequence[int] | None],
        cache: TextCache | None = None,
        *,
        known: Sequence[Tensor | None] = (),
    ) -> Tensor:
        """Encodes tokenized captions with the text encoder.

        Args:
            captions: Token ids of each caption; None: a dropped caption, whose hidden states are zeros.
            cache: Cache of hidden states, which is read and filled; None: no cache.
            known: Hidden states of each caption that were read from the cache before; None or (): not read yet.

        Returns:
            Hidden states [n, text tokens, d] on the model's device.
        """
        import torch

        states = self.text_encoder.states([ids or () for ids in captions], self.device, cache, known=known)
        kept = [own if ids is not None else torch.zeros_like(own) for ids, own in zip(captions, states)]
        return torch.stack(kept)

    @abstractmethod
    def predict(self, noisy: Tensor, timesteps: Tensor, text: Tensor, **extra_inputs: Any) -> Tensor:
        """Runs the network on samples of one shape.

        Args:
            noisy: Noisy latents [n, C, t, h, w].
            timesteps: Timesteps [n].
            text: Hidden states of the captions [n, text tokens, d], from `read`.
            extra_inputs: Further inputs of the family: in training from `PipelineTask.extra_inputs`, in sampling from
                `SchedulerSampler.extra_inputs`.

        Returns:
            Network outputs [n, C, t, h, w].
        """

    @property
    def text_shape(self) -> tuple[int, int]:
        """(tokens, channels) of the hidden states of a caption."""
        return self.config.text_encoder.max_length, getattr(self.config.network, self.text_channels)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the network's inputs."""
        import torch

        return getattr(torch, self.config.precision)

    @property
    def attention_heads(self) -> tuple[int, int, int]:
        network = self.config.network
        return network.num_attention_heads, network.num_attention_heads, network.attention_head_dim

    @property
    def latent_grid(self) -> tuple[int, ...]:
        return self.config.latent_grid

    @property
    def latent_channels(self) -> int:
        return int(self.config.network.out_channels)

    @property
    def latent_fingerprint(self) -> str:
        """Hash of everything in the VAE that affects the content of a latent cache, such as weights and precision."""
        return self.vae.fingerprint


def draw_parameter(name: str, shape: torch.Size, weight: torch.Size, seed: int) -> Tensor:
    """Returns the initial float32 value of a parameter.

    Weights and biases are uniform within ±1/sqrt(inputs), as in torch's linear layers and convolutions. Norm weights
    are 1, norm biases and the B matrices of LoRA adapters 0. Other parameters, such as `scale_shift_table`, are normal
    with standard deviation 1/sqrt(channels).

    Args:
        name: Internal parameter name.
        shape: Shape of the parameter.
        weight: Shape of the weight of the parameter's layer.
        seed: Seed of the run; random values depend only on `seed`, `name` and the shapes.
    """
    import torch

    if name.endswith(".lora_B.weight"):
        return torch.zeros(shape)
    if len(weight) == 1:
        return torch.full(shape, float(name.endswith(".weight")))
    stream = torch.Generator().manual_seed(seed_of(seed, name))
    if not name.endswith((".weight", ".bias")):
        return torch.empty(shape).normal_(0.0, shape[-1] ** -0.5, generator=stream)
    limit = weight[1:].numel() ** -0.5
    return torch.empty(shape).uniform_(-limit, limit, generator=stream)
