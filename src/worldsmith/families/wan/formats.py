"""`WanFormats`: reads and exports checkpoints of Wan.

Tensor names are not converted: the network is diffusers' `WanTransformer3DModel`, and weight files, exports and
adapters have its parameter names. Of the original repository, only the VAE's `.pth` file is supported.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worldsmith.checkpoint.formats.family_formats import DType
from worldsmith.checkpoint.formats.lora_names import LoraNames
from worldsmith.checkpoint.run.generation_defaults import clip_defaults, shift_of
from worldsmith.families.diffusers_pipeline.formats import PIPELINE_INDEX, PipelineFormats
from worldsmith.families.wan.image_encoder import PARTS
from worldsmith.families.wan.model import EXPERTS, WanDefaults, WanGenerator
from worldsmith.files.json_file import read_json_object
from worldsmith.models.spec import ModelSpec

ATTENTION = {"to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "o", "add_k_proj": "k_img", "add_v_proj": "v_img"}
ORIGINAL = {
    **{f"blocks.N.attn1.{ours}": f"blocks.N.self_attn.{theirs}" for ours, theirs in ATTENTION.items()},
    **{f"blocks.N.attn2.{ours}": f"blocks.N.cross_attn.{theirs}" for ours, theirs in ATTENTION.items()},
    "blocks.N.ffn.net.0.proj": "blocks.N.ffn.0",
    "blocks.N.ffn.net.2": "blocks.N.ffn.2",
    "condition_embedder.text_embedder.linear_1": "text_embedding.0",
    "condition_embedder.text_embedder.linear_2": "text_embedding.2",
    "condition_embedder.time_embedder.linear_1": "time_embedding.0",
    "condition_embedder.time_embedder.linear_2": "time_embedding.2",
    "condition_embedder.time_proj": "time_projection.1",
    "condition_embedder.image_embedder.ff.net.0.proj": "img_emb.proj.1",
    "condition_embedder.image_embedder.ff.net.2": "img_emb.proj.3",
    "proj_out": "head.head",
}
"""Path of a layer in diffusers → path in Wan's own code and in ComfyUI; `N` stands for the number of a block."""


class WanFormats(PipelineFormats):
    """Reads weights of Wan models in diffusers' format and exports pipelines, for Wan 2.2 A14B with both experts."""

    model = WanGenerator
    marks = ("condition_embedder.text_embedder.linear_1.weight", "blocks.0.attn2.norm_k.weight", "scale_shift_table")
    meanings = ("patch_size", "num_attention_heads", "attention_head_dim", "freq_dim", "qk_norm", "eps")
    choices = ("rope_max_seq_len",)
    lora_names = LoraNames(ORIGINAL)

    def read_pipeline(self, folder: Path) -> ModelSpec | None:
        spec = super().read_pipeline(folder)
        if spec is not None:
            config: Any = spec.config
            index = read_json_object(folder / PIPELINE_INDEX)
            config.expand_timesteps = bool(index.get("expand_timesteps"))
            config.tokenizer.spatial_factor = read_json_object(folder / "vae/config.json")["scale_factor_spatial"]
            if config.network.image_dim is not None:
                config.image_encoder.path = str(folder)
            if index.get("boundary_ratio") is not None:
                config.expert, config.boundary_ratio = "high_noise", index["boundary_ratio"]
        return spec

    def set_component_folder(self, config: Any, folder: Path) -> None:
        super().set_component_folder(config, folder)
        if config.expert is None:
            config.pipeline = ""
        if config.network.image_dim is None:
            config.image_encoder.path = ""

    def weights_folder(self, config: Any, folder: Path) -> Path:
        own = folder / EXPERTS.get(config.expert or "", "")
        return own if (folder / PIPELINE_INDEX).is_file() else folder

    def defaults_of_run(self, tree: Mapping[str, Any]) -> WanDefaults:
        return WanDefaults(shift=shift_of(tree), captions_as_given=False, **clip_defaults(tree))

    def published_defaults(self, config: Any, folder: Path) -> WanDefaults:
        """Returns the generation defaults of released weights.

        Args:
            config: Model config, which determines the video size and the guidance scales.
            folder: Pipeline folder, whose scheduler config determines the shift of the noise schedule.
        """
        file = folder / "scheduler" / "scheduler_config.json"
        shift = float(read_json_object(file).get("flow_shift", 1.0)) if file.is_file() else 5.0
        if config.expand_timesteps:
            return WanDefaults(height=704, width=1280, num_frames=121, fps=24.0, shift=shift)
        size: dict[str, Any] = {"height": 480, "width": 832, "num_frames": 81, "fps": 16.0, "shift": shift}
        if not config.expert:
            return WanDefaults(**size)
        scales = (3.5, 3.5) if config.network.takes_image else (4.0, 3.0)
        return WanDefaults(**size, steps=40, guidance=scales[0], guidance_2=scales[1])

    # Exporting

    def lora_suffix(self, config: Any) -> str:
        return f"_{config.expert}" if config.expert else ""

    def pipeline_class(self, config: Any) -> str:
        return "WanImageToVideoPipeline" if config.network.takes_image else "WanPipeline"

    def check_exportable(self, config: Any) -> None:
        if config.expert and not config.pipeline:
            raise ValueError("model.config.pipeline is empty: a pipeline needs the other expert; use --format native")

    def arrange(self, model: WanGenerator, parts: dict[str, Any], dtype: DType) -> dict[str, Any]:
        config = model.config
        arranged = {**parts, "expand_timesteps": config.expand_timesteps}
        if config.expert is not None:
            network = arranged.pop("transformer")
            arranged |= {"boundary_ratio": config.boundary_ratio, EXPERTS[config.expert]: network}
        return arranged

    def finish(self, model: WanGenerator, folder: Path) -> None:
        """Copies components that diffusers does not save into the exported `folder`, and adds them to model_index.json.

        For a model with two experts, this is the expert that was not trained. For a network with image encoder (Wan 2.1
        image-to-video), it is the encoder and its image processor.
        """
        index = read_json_object(folder / PIPELINE_INDEX)
        if model.config.expert is not None:
            (other,) = (where for name, where in EXPERTS.items() if name != model.config.expert)
            shutil.copytree(model.other_folder, folder / other)
            index[other] = ["diffusers", model.network_class]
        if model.config.network.image_dim is not None:
            for part, cls in zip(PARTS, ("CLIPVisionModel", "CLIPImageProcessor"), strict=True):
                shutil.copytree(model.image_encoder.folder / part, folder / part)
                index[part] = ["transformers", cls]
        (folder / PIPELINE_INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
