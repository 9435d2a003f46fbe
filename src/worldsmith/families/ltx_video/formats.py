"""`LTXVideoFormats`: reads and writes diffusers pipelines of LTX-Video."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worldsmith.checkpoint.formats.lora_names import LoraNames
from worldsmith.checkpoint.run.generation_defaults import clip_defaults
from worldsmith.families.diffusers_pipeline.formats import PipelineFormats
from worldsmith.families.diffusers_pipeline.sampling import read_schedule
from worldsmith.families.ltx_video.model import FPS, LTXVideoDefaults, LTXVideoGenerator

SAME = (
    *(f"transformer_blocks.N.attn{index}.{name}" for index in (1, 2) for name in ("to_q", "to_k", "to_v", "to_out.0")),
    *("transformer_blocks.N.ff.net.0.proj", "transformer_blocks.N.ff.net.2", "proj_out"),
    *("caption_projection.linear_1", "caption_projection.linear_2"),
)
ORIGINAL = {
    **{path: path for path in SAME},
    "proj_in": "patchify_proj",
    "time_embed.linear": "adaln_single.linear",
    "time_embed.emb.timestep_embedder.linear_1": "adaln_single.emb.timestep_embedder.linear_1",
    "time_embed.emb.timestep_embedder.linear_2": "adaln_single.emb.timestep_embedder.linear_2",
}
"""Path of a layer in diffusers → path in LTX-Video's own code and in ComfyUI; `N` stands for the number of a block."""


class LTXVideoFormats(PipelineFormats):
    """Reads weights of LTX-Video models in diffusers' format, and exports them as pipelines."""

    model = LTXVideoGenerator
    marks = ("caption_projection.linear_1.weight", "time_embed.emb.timestep_embedder.linear_1.weight",
             "transformer_blocks.0.attn2.norm_k.weight")  # fmt: skip
    meanings = ("num_attention_heads", "attention_head_dim")
    lora_names = LoraNames(ORIGINAL)

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
