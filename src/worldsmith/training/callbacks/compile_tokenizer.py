"""torch.compile of the video VAE, which this version does not do."""

from __future__ import annotations

from dataclasses import field

from worldsmith.training.callbacks.base import Callback


class CompileTokenizer(Callback):
    """Holds the settings of recipes that mention it. Compiling is refused: latents are encoded once and cached."""

    class Config(Callback.Config):
        enabled: bool = False
        """Whether the video VAE is compiled. Only false works."""
        compile_after_iterations: int = 3
        """After how many steps to compile. Read only when enabled."""
        warmup_resolutions: list[str] = field(default_factory=list)
        """Resolution tiers to compile ahead of their first use. Read only when enabled."""

        def check(self) -> None:
            if self.enabled:
                raise ValueError(
                    "enabled = true: the video VAE is not compiled in this version, since "
                    "latents are encoded once and cached; set it to false"
                )
