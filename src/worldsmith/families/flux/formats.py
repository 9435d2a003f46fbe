"""`FluxFormats`: reads and exports checkpoints of FLUX.1."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worldsmith.checkpoint.formats.lora_names import LoraNames
from worldsmith.checkpoint.run.generation_defaults import clip_defaults
from worldsmith.families.diffusers_pipeline.formats import PipelineFormats
from worldsmith.families.diffusers_pipeline.sampling import read_schedule
from worldsmith.families.flux.model import FluxDefaults, FluxGenerator
from worldsmith.families.flux.text_encoder import CLIP_TOKENS

SIZE: Mapping[str, Any] = {"height": 1024, "width": 1024, "fps": 24.0}
"""Default image size in pixels of the released models; `fps` has no meaning for images."""
SCHNELL: Mapping[str, Any] = {"steps": 4, "guidance": 1.0, "shift": 1.0}

ORIGINAL = {
    "transformer_blocks.N.norm1.linear": "double_blocks.N.img_mod.lin",
    "transformer_blocks.N.norm1_context.linear": "double_blocks.N.txt_mod.lin",
    "transformer_blocks.N.attn.to_out.0": "double_blocks.N.img_attn.proj",
    "transformer_blocks.N.attn.to_add_out": "double_blocks.N.txt_attn.proj",
    "transformer_blocks.N.ff.net.0.proj": "double_blocks.N.img_mlp.0",
    "transformer_blocks.N.ff.net.2": "double_blocks.N.img_mlp.2",
    "transformer_blocks.N.ff_context.net.0.proj": "double_blocks.N.txt_mlp.0",
    "transformer_blocks.N.ff_context.net.2": "double_blocks.N.txt_mlp.2",
    "single_transformer_blocks.N.norm.linear": "single_blocks.N.modulation.lin",
    "single_transformer_blocks.N.proj_out": "single_blocks.N.linear2",
    "x_embedder": "img_in",
    "context_embedder": "txt_in",
    "proj_out": "final_layer.linear",
    "norm_out.linear": "norm_out.linear",  # the original layer has shift and scale in the other order
    **{
        f"time_text_embed.{ours}_embedder.linear_{index}": f"{theirs}_in.{layer}_layer"
        for ours, theirs in {"timestep": "time", "text": "vector", "guidance": "guidance"}.items()
        for index, layer in ((1, "in"), (2, "out"))
    },
}
"""Path of a layer in diffusers → path in FLUX's own code; `N` stands for the number of a block."""
JOINED = {
    "double_blocks.N.img_attn.qkv": [f"transformer_blocks.N.attn.to_{name}" for name in "qkv"],
    "double_blocks.N.txt_attn.qkv": [f"transformer_blocks.N.attn.add_{name}_proj" for name in "qkv"],
    "single_blocks.N.linear1": [
        *(f"single_transformer_blocks.N.attn.to_{name}" for name in "qkv"),
        "single_transformer_blocks.N.proj_mlp",
    ],
}
"""Path in FLUX's own code of a layer that diffusers splits → paths in diffusers, in the order of the output rows."""


class FluxFormats(PipelineFormats):
    """Reads weights of FLUX.1 models in diffusers' format, and exports them as pipelines."""

    model = FluxGenerator
    marks = ("time_text_embed.text_embedder.linear_1.weight", "single_transformer_blocks.0.proj_mlp.weight",
             "single_transformer_blocks.0.norm.linear.weight")  # fmt: skip
    meanings = ("num_attention_heads", "attention_head_dim", "axes_dims_rope")
    lora_names = LoraNames(ORIGINAL, JOINED, reads_diffusers=True)

    def defaults_of_run(self, tree: Mapping[str, Any]) -> FluxDefaults:
        """Returns the generation defaults of a trained model; the noise schedule is that of the released weights.

        Args:
            tree: Config of the run as plain data.
        """
        has_guidance = tree["model"]["config"]["network"]["guidance_embeds"]
        return FluxDefaults(captions_as_given=False, **{**clip_defaults(tree), **({} if has_guidance else SCHNELL)})

    def published_defaults(self, config: Any, folder: Path) -> FluxDefaults:
        """Returns the generation defaults of released weights.

        Args:
            config: Model config.
            folder: Pipeline folder, whose scheduler config determines the noise schedule.
        """
        has_guidance = config.network.guidance_embeds
        max_tokens = CLIP_TOKENS + config.text_encoder.max_length
        own = {**({} if has_guidance else SCHNELL), **read_schedule(folder)}
        return FluxDefaults(**SIZE, max_caption_tokens=max_tokens, **own)

    def pipeline_class(self, config: Any) -> str:
        return "FluxPipeline"
