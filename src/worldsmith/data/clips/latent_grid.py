"""Grid sizes of a clip: from frames and pixels to latents (VAE), from latents to tokens (patches of the network)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LatentGrid:
    """Compression factors of a video VAE and patch size of a network; computes latent shapes and token counts."""

    frames: int
    """Temporal compression: video frames per latent frame; the first latent frame covers a single frame."""
    pixels: int
    """Spatial compression: pixels per latent, in height and in width."""
    patch: int
    """Patch size: latents per token, in height and in width."""
    decoded: int = 1
    """Number of latent frames that the VAE decodes together; the number of latent frames after the first one is a
    multiple of this."""
    patch_frames: int = 1
    """Temporal patch size: latent frames per token; the latent frames are padded to a multiple of it."""

    @property
    def step(self) -> int:
        """Number of frames by which two consecutive valid clip lengths differ."""
        return self.frames * self.decoded

    def usable_frames(self, num_frames: int) -> int:
        """Returns the largest k·step + 1 up to `num_frames`: a length that a causal video VAE can encode."""
        return (num_frames - 1) // self.step * self.step + 1

    def latent_frames(self, num_frames: int) -> int:
        """Returns the number of latent frames of a clip with `num_frames` frames, rounded up."""
        return 1 + -(-(num_frames - 1) // self.step) * self.decoded

    def pixel_frames(self, latent_frames: int) -> int:
        """Returns the number of frames that `latent_frames` latent frames are decoded to."""
        return 1 + (latent_frames - 1) * self.frames

    def latent_shape(self, num_frames: int, height: int, width: int) -> tuple[int, int, int]:
        """Returns the latent shape (t, h, w) of a clip.

        Args:
            num_frames: Number of frames that the VAE can encode, see `usable_frames`.
            height: Height in pixels, a multiple of `pixels`.
            width: Width in pixels, a multiple of `pixels`.
        """
        return self.latent_frames(num_frames), height // self.pixels, width // self.pixels

    def vision_tokens(self, shape: tuple[int, int, int]) -> int:
        """Returns the number of tokens of latents (t, h, w); sides are padded to multiples of the patch size."""
        t, h, w = shape
        return -(-t // self.patch_frames) * -(-h // self.patch) * -(-w // self.patch)

    def sample_tokens(self, num_text_ids: int, shape: tuple[int, int, int]) -> int:
        """Returns the number of tokens of a sample for the token limit of a pack (batch): text + 1 + (vision + 2).

        The packed sequence has one token less than this number. `cosmos_framework` counts in the same way.

        Args:
            num_text_ids: Number of token IDs of the caption.
            shape: Latent shape (t, h, w).
        """
        return num_text_ids + 1 + self.vision_tokens(shape) + 2
