"""`LTXVideoFormats`: reads and writes diffusers pipelines of LTX-Video."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worldsmith.checkpoint.run.generation_defaults import clip_defaults
from worldsmith.families.diffusers_pipeline.formats import PipelineFormats
from worldsmith.families.diffusers_pipeline.sampling import read_schedule
from worldsmith.families.ltx_video.model import FPS, LTXVideoDefaults, LTXVideoGenerator


class LTXVideoFormats(PipelineFormats):
    """Reads weights of LTX-Video models in diffusers' format, and exports them as pipelines."""

    model = LTXVideoGenerator
    marks = ("caption_projection.linear_1.weight", "time_embed.emb.timestep_embedder.linear_1.weight",
             "transformer_blocks.0.attn2.norm_k.weight")  # fmt: skip
    meanings = ("num_attention_heads", "attention_head_dim")

    def defaults_of_run(self, tree: Mapping[str, Any]) -> LTXVideoDefaults:
        """Returns the generation defaults of a trained model; the noise schedule is that of the released weights.

        Args:
            tree: Config of the run as plain data.
        """
        return LTXVideoDefaults(captions_as_given=False, **clip_defaults(tree))

    def published_defaults(self, config: Any, folder: Path) -> LTXVideoDefaults:
        """Returns the generation defaults of released weights, with the default size of diffusers' pipeline.

        Args:
            config: Model config.
            folder: Pipeline folder, whose scheduler config determines the noise schedule.
        """
        size: Any = {"height": 512, "width": 704, "num_frames": 161, "fps": FPS}
        return LTXVideoDefaults(**size, max_caption_tokens=config.text_encoder.max_length, **read_schedule(folder))

    def pipeline_class(self, config: Any) -> str:
        return "LTXPipeline"
