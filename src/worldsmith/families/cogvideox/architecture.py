"""Sizes of CogVideoX transformers, named as in diffusers' `CogVideoXTransformer3DModel`, and their image input."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from worldsmith.config import Config, wrong
from worldsmith.config.declare.ranges import Count, Factor, LayerCount, PositiveFactor, Range, Share
from worldsmith.models.weights.shapes import Shapes, linear, norm, repeat_shapes

if TYPE_CHECKING:
    from torch import Tensor


class NetworkConfig(Config):
    """Sizes of the CogVideoX network; the defaults are those of CogVideoX-2B."""

    num_attention_heads: Count = 30
    """Number of attention heads of a block."""
    attention_head_dim: Annotated[int, Range(ge=8)] = 64
    """Channels per attention head, a multiple of 8."""
    in_channels: Count = 16
    """Number of input channels: the channels of a latent, or twice that number with image conditioning."""
    out_channels: Count = 16
    """Number of output channels: the channels of a latent."""
    num_layers: LayerCount = 30
    """Number of transformer blocks."""
    time_embed_dim: Count = 512
    """Channels of the timestep embedding."""
    ofs_embed_dim: Count | None = None
    """Channels of the ofs embedding of CogVideoX-1.5-5B-I2V; None: no such embedding."""
    text_embed_dim: Count = 4096
    """Channels of the text encoder's output."""
    max_text_seq_length: Count = 226
    """Text tokens of every sample, including padding."""
    sample_width: Count = 90
    """Width in latents for which position tables and rotary grids are computed."""
    sample_height: Count = 60
    """Height in latents for which position tables and rotary grids are computed."""
    sample_frames: Count = 49
    """Number of video frames for which position tables are computed."""
    patch_size: Count = 2
    """Spatial patch size: latents per token, in height and in width."""
    patch_size_t: Count | None = None
    """Temporal patch size in latent frames (CogVideoX 1.5); None: 1 latent frame."""
    patch_bias: bool = True
    """Whether the patch projection has a bias."""
    temporal_compression_ratio: Count = 4
    """Temporal compression: video frames per latent frame."""
    spatial_interpolation_scale: PositiveFactor = 1.875
    """Divisor of spatial positions in the sinusoidal position embedding."""
    temporal_interpolation_scale: PositiveFactor = 1.0
    """Divisor of temporal positions in the sinusoidal position embedding."""
    use_rotary_positional_embeddings: bool = False
    """Whether rotary position embeddings replace the sinusoidal table."""
    use_learned_positional_embeddings: bool = False
    """Whether a learned position table is added to the rotary embeddings; it supports only clips of the sample size.
    Weights that have such a table can also be trained without it."""
    attention_bias: bool = True
    """Whether the attention projections have biases."""
    norm_elementwise_affine: bool = True
    """Whether the norms have weights and biases."""
    norm_eps: PositiveFactor = 1e-5
    """Epsilon of the norms."""
    dropout: Share = 0.0
    """Dropout probability in training; only 0 is supported for this family."""

    @property
    def inner_dim(self) -> int:
        """Channels of the residual stream."""
        return self.num_attention_heads * self.attention_head_dim

    def check(self) -> None:
        """Raises WrongValueError if fields contradict each other, such as head size and position embeddings."""
        if self.attention_head_dim % 16 and self.use_rotary_positional_embeddings:
            why = "rotary embeddings use a quarter of the channels for time and 3/8 each for height and width, in pairs"
            raise wrong(self, "attention_head_dim", allowed="a multiple of 16", why=why)
        if self.inner_dim % 16 and not self.use_rotary_positional_embeddings:
            names = "num_attention_heads", "attention_head_dim"
            raise wrong(self, *names, why="the sinusoidal table requires that their product is a multiple of 16")
        if self.use_learned_positional_embeddings and not self.use_rotary_positional_embeddings:
            names = "use_learned_positional_embeddings", "use_rotary_positional_embeddings"
            raise wrong(self, *names, why="a learned position table requires rotary position embeddings")
        if self.patch_size_t and (self.use_learned_positional_embeddings or not self.use_rotary_positional_embeddings):
            why = "a temporal patch size requires rotary embeddings without a learned position table"
            kinds = "use_rotary_positional_embeddings", "use_learned_positional_embeddings"
            raise wrong(self, "patch_size_t", *kinds, why=why)
        for side in ("sample_height", "sample_width"):
            if getattr(self, side) % self.patch_size:
                raise wrong(self, side, "patch_size", why="the first must be a multiple of the second")
        if self.dropout:
            raise wrong(self, "dropout", why="its random state could not be restored on resume", remedy="write 0")

    def check_clip(self, latent_shape: tuple[int, int, int]) -> None:
        """Raises WrongValueError if the network has no position embeddings for latents of the shape (t, h, w)."""
        if self.required_latent_shape not in (None, latent_shape):
            names = "use_learned_positional_embeddings", "sample_frames", "sample_height", "sample_width"
            why = (
                f"the learned position table requires latents {self.required_latent_shape} (frames, height, width), "
                f"found {latent_shape}"
            )
            remedy = "train at this size, or set use_learned_positional_embeddings = false"
            raise wrong(self, *names, why=why, remedy=remedy)
        height, width = latent_shape[1:]
        if self.patch_size_t and (height > self.sample_height or width > self.sample_width):
            why = f"latents of {height} x {width} are larger than the grid of position embeddings"
            remedy = "train at smaller sizes, or increase these settings"
            raise wrong(self, "sample_height", "sample_width", why=why, remedy=remedy)

    @property
    def published_size(self) -> tuple[int, int]:
        """(height, width) of released videos in latents: the sample size, for CogVideoX 1.5 at most (96, 170)."""
        sides = self.sample_height, self.sample_width
        return (min(sides[0], 96), min(sides[1], 170)) if self.patch_size_t else sides

    @property
    def sample_latent_frames(self) -> int:
        return (self.sample_frames - 1) // self.temporal_compression_ratio + 1

    @property
    def required_latent_shape(self) -> tuple[int, int, int] | None:
        """The only latent shape (t, h, w) that a learned position table supports; None: any shape (no such table)."""
        sizes = self.sample_latent_frames, self.sample_height, self.sample_width
        return sizes if self.use_learned_positional_embeddings else None

    @property
    def table_shape(self) -> tuple[int, int, int]:
        """Shape of the learned position table: (1, max text tokens + video tokens, channels).

        The number of video tokens follows from `sample_height`, `sample_width` and `sample_frames`.
        """
        cells = (self.sample_height // self.patch_size) * (self.sample_width // self.patch_size)
        return 1, self.max_text_seq_length + self.sample_latent_frames * cells, self.inner_dim

    def shapes(self) -> Shapes:
        """Returns the shape of every parameter by name, without building the network."""
        d, time, patch, latent = self.inner_dim, self.time_embed_dim, self.patch_size, self.in_channels
        shapes = Shapes()
        if self.use_learned_positional_embeddings:
            shapes |= {"patch_embed.pos_embedding": self.table_shape}
        if self.patch_size_t is None:
            shapes |= {"patch_embed.proj.weight": (d, latent, patch, patch)}
            shapes |= {"patch_embed.proj.bias": (d,)} if self.patch_bias else {}
        else:  # which has a bias regardless of patch_bias
            shapes |= linear("patch_embed.proj", latent * patch**2 * self.patch_size_t, d)
        shapes |= linear("patch_embed.text_proj", self.text_embed_dim, d)
        shapes |= linear("time_embedding.linear_1", d, time) | linear("time_embedding.linear_2", time, time)
        if self.ofs_embed_dim:
            for layer in ("linear_1", "linear_2"):
                shapes |= linear(f"ofs_embedding.{layer}", self.ofs_embed_dim, self.ofs_embed_dim)
        shapes |= repeat_shapes("transformer_blocks", self.num_layers, self._block()) | self._norm("norm_final")
        shapes |= linear("norm_out.linear", time, 2 * d) | self._norm("norm_out.norm")
        return shapes | linear("proj_out", d, patch**2 * (self.patch_size_t or 1) * self.out_channels)

    def _block(self) -> Shapes:
        d, head = self.inner_dim, self.attention_head_dim
        shapes = linear("norm1.linear", self.time_embed_dim, 6 * d) | self._norm("norm1.norm")
        shapes |= norm("attn1.norm_q", head, bias=True) | norm("attn1.norm_k", head, bias=True)
        for layer in ("to_q", "to_k", "to_v"):
            shapes |= linear(f"attn1.{layer}", d, d, bias=self.attention_bias)
        shapes |= linear("attn1.to_out.0", d, d)
        shapes |= linear("norm2.linear", self.time_embed_dim, 6 * d) | self._norm("norm2.norm")
        return shapes | linear("ff.net.0.proj", d, 4 * d) | linear("ff.net.2", 4 * d, d)

    def _norm(self, path: str) -> Shapes:
        return norm(path, self.inner_dim, bias=True) if self.norm_elementwise_affine else {}


class ImageConfig(Config):
    """Config of image conditioning: latents of a clip's first frame are concatenated to the latents of the video."""

    noise: bool = True
    """Whether noise is added to the image before the VAE encodes it, sampled again in every step. Without noise, the
    latents of the image are cached."""
    noise_log_mean: float = -3.0
    """Mean of the logarithm of the noise's standard deviation, for pixels in [-1, 1]."""
    noise_log_std: Factor = 0.5
    """Standard deviation of the logarithm of the noise's standard deviation, which is sampled for each clip."""
    dropout: Share = 0.05
    """Probability of training a sample without its image: the image latents are zeros."""
    repeat: bool = False
    """Whether the image latents are concatenated to every latent frame; false: only to the first, and zeros to the
    others."""
    latent_scale: PositiveFactor | None = None
    """Scaling factor of the image latents; None: as in diffusers' pipeline, the VAE's scaling_factor, or its inverse
    if the VAE's config has invert_scale_latents (CogVideoX 1.5)."""

    def check(self) -> None:
        """Raises WrongValueError if noise settings are given although `noise` is false."""
        idle = [
            name for name in ("noise_log_mean", "noise_log_std") if getattr(self, name) != getattr(ImageConfig, name)
        ]
        if idle and not self.noise:
            raise wrong(self, "noise", *idle, why="they have no effect without noise", remedy="omit these settings")

    def extend(self, image: Tensor, frames: int) -> Tensor:
        """Returns image latents that are extended to all latent frames of a video, [n, C, frames, h, w].

        If `repeat` is set, the image latents are in every frame; otherwise in the first, and the others are zeros.

        Args:
            image: Latents of the images, [n, C, 1, h, w].
            frames: Number of latent frames of the videos.
        """
        from torch.nn.functional import pad

        if self.repeat:
            return image.expand(-1, -1, frames, -1, -1)
        return pad(image, (0, 0, 0, 0, 0, frames - 1))


def cogvideox_2b() -> NetworkConfig:
    """Returns the network config of CogVideoX-2B, with sinusoidal position embeddings (1.69 B parameters)."""
    return NetworkConfig()


def cogvideox_5b() -> NetworkConfig:
    """Returns the network config of CogVideoX-5B, with rotary position embeddings (5.57 B parameters)."""
    return NetworkConfig(num_attention_heads=48, num_layers=42, use_rotary_positional_embeddings=True)


def cogvideox_5b_i2v() -> NetworkConfig:
    """Returns the network config of CogVideoX-5B-I2V (5.57 B parameters), with image input and a position table."""
    return replace(cogvideox_5b(), in_channels=32, use_learned_positional_embeddings=True)


def cogvideox1_5_5b() -> NetworkConfig:
    """Returns the network config of CogVideoX-1.5-5B, with temporal patch size 2 (5.57 B parameters)."""
    sizes = replace(cogvideox_5b(), sample_height=300, sample_width=300, sample_frames=81)
    return replace(sizes, patch_size_t=2, patch_bias=False)


def cogvideox1_5_5b_i2v() -> NetworkConfig:
    """Returns the network config of CogVideoX-1.5-5B-I2V, with image input (5.57 B parameters)."""
    return replace(cogvideox1_5_5b(), in_channels=32, ofs_embed_dim=512)


def tiny() -> NetworkConfig:
    """Returns a tiny network config (38 thousand parameters), for 9 frames of 64x64 px and the package's tiny VAE."""
    return NetworkConfig(
        num_attention_heads=2, attention_head_dim=16, in_channels=8, out_channels=8, num_layers=2, time_embed_dim=8,
        text_embed_dim=64, max_text_seq_length=16, sample_width=8, sample_height=8, sample_frames=9,
    )  # fmt: skip
