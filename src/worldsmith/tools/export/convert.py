"""`worldsmith convert SOURCE`: makes a base checkpoint from weights in another format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

from worldsmith.actions.action import Action, Result
from worldsmith.checkpoint.dcp.parts import whole_checkpoint
from worldsmith.checkpoint.formats.convert import INDEX, convert, convert_adapter
from worldsmith.checkpoint.formats.export_folder import require_place
from worldsmith.checkpoint.formats.family_formats import assembling
from worldsmith.checkpoint.sources.open_weights import open_weights
from worldsmith.config import wrong
from worldsmith.config.declare.ranges import Count, Seed
from worldsmith.config.tree.plain import to_dict
from worldsmith.monitor.lineage import Input, write_lineage


class Convert(Action):
    """Makes a base checkpoint out of weights in another format."""

    places: ClassVar[tuple[str, ...]] = ("source",)
    aliases: ClassVar[dict[str, str]] = {"-o": "out", "--checkpoint-path": "source"}

    class Config(Action.Config):
        source: str
        """Diffusers pipeline or transformer folder, native export, Qwen3-VL or Edge reasoner folder, the hub name
        (org/name) of one of these, a checkpoint, or a folder or file of SAT's."""
        out: str
        """The new folder."""
        to: Literal["dcp", "native", "diffusers", "sat", "adapter", "vlm"] = "dcp"
        """dcp: a checkpoint for checkpoint.load_path; native: safetensors with native names; diffusers: a transformer
        folder; sat: a folder that SAT's args.load reads, adapters included; adapter: the adapters of
        one of SAT's, or of a file for load_lora_weights; vlm: a reasoner for transformers, the source's language model
        on a Qwen3-VL vision tower."""
        vlm_model_name: str | None = None
        """With vlm: the Qwen3-VL folder that gives config, tokenizer, preprocessor settings, and the vision tower of a
        source that has none; null: the released model of the language model's size."""
        vision_tower: str | None = None
        """With vlm: where the vision tower is taken from; null: the source's own, else that of vlm_model_name."""
        dtype: Literal["stored", "bfloat16", "float32"] = "stored"
        """stored: that of each tensor in the source, float32 for what is initialised."""
        action_gen: bool = False
        """Make action heads where the source has none."""
        sound_gen: bool = False
        """Make sound heads where the source has none."""
        seed: Seed = 0
        """Of the initial values."""
        lora_alpha: Count | None = None
        """The alpha of the source's adapters, which are merged (with sat and adapter they stay); null: what the source
        says, 1 for one of SAT's."""
        vae: str | None = None
        """With sat: write this VAE too, as vae/3d-vae.pt; null: none."""
        force: bool = False
        """Replace an earlier conversion."""

        def check(self) -> None:
            made = "action_gen", "sound_gen", "seed", "lora_alpha"
            of_vlm = "vlm_model_name", "vision_tower"
            others: dict[str, tuple[str, ...]] = {
                "vlm": (*made, "vae"),
                "sat": (*of_vlm, "lora_alpha"),
                "adapter": (*of_vlm, *made[:3], "vae"),
            }
            idle = others.get(self.to, (*of_vlm, "vae"))
            for name in idle:
                if getattr(self, name):
                    raise wrong(self, name, "to", why="the former has no effect here", remedy="leave it out")

    config: Config

    def plan(self) -> Iterator[str]:
        config = self.config
        require_place(Path(config.out), INDEX[config.to])
        if config.to == "adapter":
            yield f"the adapters of {config.source} would become {config.out}"
            return
        source = open_weights(config.source, field="SOURCE")
        yield f"{source.describe}, {len(source.shapes)} tensors, would become {config.out} ({config.to})"

    def run(self) -> Result:
        config = self.config
        if config.to == "vlm":
            lines = assembling(config.to).assemble(
                config.source,
                config.out,
                base=config.vlm_model_name,
                tower=config.vision_tower,
                dtype=config.dtype,
                force=config.force,
            )
            self.record(config.source, *filter(None, (config.vlm_model_name, config.vision_tower)))
            done = (
                f"converted: {config.out} (vlm); to train from it: model.config.policy.backbone.model_name={config.out}"
            )
            return Result([*lines, done], {"folder": config.out, "to": config.to, "tensors": lines})
        if config.to == "adapter":
            said = convert_adapter(config.source, config.out, lora_alpha=config.lora_alpha, force=config.force)
            self.record(config.source)
            done = f"converted: {config.out} (adapter); to use it: --adapter {config.out}"
            return Result([said, done], {"folder": config.out, "to": config.to, "tensors": [said]})
        report = convert(
            config.source,
            config.out,
            to=config.to,
            dtype=config.dtype,
            heads=["action"] * config.action_gen + ["sound"] * config.sound_gen,
            seed=config.seed,
            force=config.force,
            lora_alpha=config.lora_alpha,
            vae=config.vae,
        )
        self.record(whole_checkpoint(Path(report.folder)))
        done = f"converted: {config.out} ({config.to}); to train from it: checkpoint.load_path={config.out}"
        return Result([*report.lines(), done], {"folder": config.out, "to": config.to, "tensors": report.lines()})

    def record(self, *parts: str | Path) -> None:
        """Of the weights that were read: of a run whose newest checkpoint is damaged, those of the one before."""
        config, inputs = self.config, [Input("model", place) for place in parts]
        write_lineage(config.out, action="convert", settings=to_dict(config), inputs=inputs, outputs=["."])
