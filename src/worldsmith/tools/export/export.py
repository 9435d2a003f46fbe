"""`worldsmith export RUN`: writes a trained model as a folder that other libraries load."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from worldsmith.actions.action import Result
from worldsmith.actions.model_action import WritingAction
from worldsmith.checkpoint.formats.export_folder import read_about, require_place, robots_of
from worldsmith.checkpoint.formats.export_weights import exports_of
from worldsmith.checkpoint.formats.family_formats import ExportFormat as Format
from worldsmith.checkpoint.formats.family_formats import ExportOptions, formats_of
from worldsmith.checkpoint.formats.find_model import find_family, find_model
from worldsmith.checkpoint.formats.stored_model import WEIGHTS_NAMES, StoredModel
from worldsmith.checkpoint.run.checkpoint_store import PROBE, require_access
from worldsmith.checkpoint.sources.checkpoint_weights import ABOUT
from worldsmith.checkpoint.sources.remote_model import fetched
from worldsmith.config.declare.class_tags import tag_of
from worldsmith.config.declare.ranges import PositiveFactor
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.files.fingerprint import LINEAGE
from worldsmith.files.remote import cache_folder, in_store, join_address
from worldsmith.files.remote_folder import list_remote, read_remote_text, remove_remote, upload_files, write_remote
from worldsmith.files.write_checks import files_in, require_only
from worldsmith.models.video_model import GenerationDefaults
from worldsmith.monitor.lineage import Input, read_lineage, record_of, write_lineage
from worldsmith.monitor.terminal_text import command_lines
from worldsmith.sampling.training_data import with_clip_size

NEXT = {
    "diffusers": ["generate", "{folder}", "--prompt", "{caption}", "-o", "videos"],
    "hf": ["infer", "{folder}", "--prompt", "…", "--video", "VIDEO.mp4"],
}
"""Format -> arguments of the `worldsmith` command that uses the exported folder, for the output."""
ROBOT_NEXT = ["serve", "policy", "{folder}"]
"""The same arguments for a model that was trained on robot episodes."""


@dataclass(frozen=True, slots=True)
class PreparedExport:
    """Model to export with the resolved settings of the command: format and output folder."""

    name: str
    """Name of the format, as `--format` has it."""
    form: Format
    out: Path
    model: StoredModel


def caption_of(folder: Path) -> str:
    """Returns a caption from the training data of the run in `folder`, as an example prompt; "" if it is unknown."""
    from worldsmith.monitor.page.next_steps import trained_prompt
    from worldsmith.monitor.page.run_files import read_run

    with suppress(UserError, OSError):  # the export has succeeded
        return trained_prompt(read_run(folder)) or ""
    return ""


class Export(WritingAction):
    """Exports a trained model for diffusers, transformers, PEFT, ComfyUI or SAT, or as native safetensors."""

    writes_to_stores = True

    class Config(WritingAction.Config):
        out: str | None = None
        """Output folder, which may be the address of a folder in an object store; null: a folder inside the run
        folder."""
        format: str | None = None
        """Format of the export. diffusers: complete pipeline of a video generator; hf: complete transformers folder of
        a reasoner; native: sharded safetensors with internal parameter names and config.json; adapter: only the LoRA
        adapter, in PEFT format; comfyui: only the adapter, as a LoRA file for ComfyUI; sat: checkpoint for CogVideo's
        SAT; null: the complete model, as diffusers or hf."""
        dtype: Literal["bfloat16", "float32"] = "bfloat16"
        """Number format of the weights."""
        weights: Literal["auto", "ema", "live"] = "auto"
        """auto: the EMA weights (ema) if they exist, otherwise the raw weights (live)."""
        merge: bool = True
        """Merge the LoRA adapter of a run into the weights; --no-merge stores it next to them (native, sat)."""
        vision_tower: str | None = None
        """Add a vision tower to the weights of a generator (native only): a folder that contains one, or `own` for the
        vision tower of the initial weights; null: no vision tower."""
        shift: PositiveFactor | None = None
        """Shift of the exported noise schedule; null: as in training."""
        config_file: str | None = None
        """config.yaml of the run, which is always read; the flag exists only for compatibility."""

    config: Config

    def plan(self) -> Iterator[str]:
        found = self.prepare()
        yield f"{found.form.what} would be written to {self.config.out or found.out} ({self.describe(found.model)})"
        if read_about(found.out, found.form.index) is not None:
            yield "the folder already has an export: it is kept if it is identical, else only replaced with --force"

    def run(self) -> Result:
        found = self.prepare()
        config, name, form, out, model = self.config, found.name, found.form, found.out, found.model
        written = form.write(model, out, self.options(form))
        if written or not (out / LINEAGE).is_file():
            adapter = [] if model.adapter is None else [Input("adapter", model.adapter)]
            inputs = [Input("base" if adapter else "model", model.folder), *bases_of(model), *adapter]
            write_lineage(out, action="export", settings=to_dict(config), inputs=inputs, outputs=["."])
        what, place = f"({self.describe(model)})", str(out)
        if config.out is not None and in_store(config.out):
            upload_export(out, place := config.out)
        done = f"exported {form.what}: {place} {what}" if written else f"{place} is already complete {what}"
        lines = [done, *formats_of(model.spec.name).left_out(name, model.config)]
        if model.config.converters and name != "native":
            names = ", ".join(tag_of(type(converter)) for converter in model.config.converters)
            lines.append(
                f"trained with {names}, which this format does not support: the network is exported without it"
            )
        if not form.has_weights and model.tree is not None:
            start = "the random weights of the run" if model.start is None else model.start.lasting
            lines.append(f"it belongs to {start}")
        if name in NEXT:
            known = {"folder": place, "caption": caption_of(Path(config.model)) or "…"}
            words = ROBOT_NEXT if robots_of(model) else NEXT[name]
            lines += ["next:", *command_lines(["worldsmith", *(word.format(**known) for word in words)])]
        facts = {"folder": place, "written": written, "format": name, "dtype": config.dtype}
        return Result(lines, {**facts, "weights": model.weights, "iteration": model.iteration})

    def options(self, form: Format) -> ExportOptions:
        """Returns the settings of the command that the exporter of the format `form` needs."""
        config = self.config
        caption = caption_of(Path(config.model)) if form.has_caption else ""
        return ExportOptions(config.dtype, config.merge, config.force, config.vision_tower, caption)

    def describe(self, model: StoredModel) -> str:
        """Returns text with the kind of weights, such as EMA weights, their training step and the export dtype."""
        return f"{WEIGHTS_NAMES[model.weights]} after {model.iteration} steps, {self.config.dtype}"

    def prepare(self) -> PreparedExport:
        """Checks the settings without loading weights, and returns the model, the format and the output folder.

        Raises UserError if the settings do not fit the model or the format.
        """
        given = self.config.model
        self.config = config = replace(self.config, model=fetched(self.config.model, field="model"))
        path = Path(config.model)
        family = find_family(path, base=config.base)
        formats = exports_of(family)
        name = next(iter(formats)) if config.format is None else config.format
        if name not in formats:
            reason = ", because ComfyUI does not have its network" if name == "comfyui" else ""
            raise UserError(f"--format {name}: expected {' or '.join(formats)} for this model{reason}")
        form = formats[name]
        self.require_effective_flags(name, formats)
        if config.vision_tower is not None and not (form.keeps_tower and formats_of(family).tower):
            raise UserError(
                f"--vision-tower: models of the family '{family}' cannot be exported as {name} with a vision tower; "
                "omit it"
            )
        if not config.out and config.model != given:
            raise UserError(f"{given} is not on this machine: set the output folder with -o")
        out = Path(config.out) if config.out else in_run(path, form.folder)
        if config.out and in_store(config.out):
            out = local_copy(config.out, force=config.force)
        require_place(out, form.index)
        model = find_model(path, weights=config.weights, base=config.base)
        if not config.merge and not model.has_adapters:
            raise UserError(f"--no-merge keeps adapters separate, but {path} has none; omit it")
        if isinstance(model.defaults, GenerationDefaults):
            model.defaults.refuse({"shift": config.shift})
            defaults = with_clip_size(model.defaults, model.tree, model.config.latent_grid)
            shift = defaults.shift if config.shift is None else config.shift
            model = replace(model, defaults=replace(defaults, shift=shift))
        elif config.shift is not None:
            raise UserError(f"--shift: models of the family '{family}' have no noise schedule with a shift; omit it")
        return PreparedExport(name, form, out, model)

    def require_effective_flags(self, name: str, formats: Mapping[str, Format]) -> None:
        """Raises UserError for a flag that has no effect in the format `name`, or for the config file of another run.

        `formats` are the export formats of the model, by name.
        """
        config, form = self.config, formats[name]
        own = in_run(Path(config.model), "config.yaml")
        if config.config_file is not None and Path(config.config_file).resolve() != own.resolve():
            raise UserError(
                f"--config-file {config.config_file}: a run is exported with its own config, {own}; omit it"
            )
        if not config.merge and not form.keeps_adapters:
            keeping = "".join(f", or use --format {other}" for other in formats if formats[other].keeps_adapters)
            raise UserError(
                f"--no-merge stores adapters next to the weights, which --format {name} does not support; omit "
                f"it{keeping}"
            )
        if config.shift is not None and not form.has_schedule:
            raise UserError(f"--shift sets the noise schedule, which --format {name} does not have; omit it")
        if config.base is not None and not form.has_weights:
            raise UserError(f"--base has no effect: --format {name} reads only the adapters; omit it")


def local_copy(address: str, *, force: bool) -> Path:
    """Returns the local folder of an export that is uploaded to `address`, after a check of the address.

    Raises:
        UserError: If the storage denies access.
        FileExistsError: If the address has an export and `force` is False, or files that do not belong to an export.
    """
    require_access(address, deletes=force)
    folder = cache_folder("exports") / hashlib.sha256(address.encode()).hexdigest()[:16] / Path(address).name
    about = read_remote_text(join_address(address, ABOUT))
    if about is not None and not force:
        raise FileExistsError(f"{address} already has an export: replace it with --force, or choose another folder")
    # After an interrupted upload, its files are in the store without `worldsmith.json`, and the local copy remains.
    own = files_in(folder) if about is None else (ABOUT, LINEAGE, *json.loads(about)["files"])
    require_only(address, {PROBE, *own}, found=list_remote(address))
    return folder


def upload_export(out: Path, address: str) -> None:
    """Uploads an export, `worldsmith.json` last, and removes the local copy; files of a replaced export are deleted."""
    names = files_in(out)
    if (about := read_remote_text(join_address(address, ABOUT))) is not None:
        remove_remote(address, [ABOUT])
        remove_remote(address, set(json.loads(about)["files"]) - set(names))
    upload_files(out, [name for name in names if name != ABOUT], address)
    write_remote(join_address(address, ABOUT), (out / ABOUT).read_bytes())
    shutil.rmtree(out)


def bases_of(model: StoredModel) -> list[Input | dict[str, Any]]:
    """Returns the lineage inputs for the base weights of a model's adapters; empty without adapters.

    The base weights are those given by the user, else those in the lineage record of the run, else those in its config.
    """
    if not model.has_adapters or model.tree is None:
        return []
    if model.base is not None:
        return [Input("base", model.base)]
    record = record_of(model.folder.resolve())
    if record is not None:
        return [entry for entry in read_lineage(record).inputs if entry["role"] == "base"]
    return [] if model.start is None else [Input("base", model.start.lasting)]


def in_run(model: Path, name: str) -> Path:
    """Returns the path of the file `name` in a run folder; `model` is the run folder or one of its checkpoints."""
    run = model.resolve().parent.parent if (model / "model").is_dir() else model
    return run / name
