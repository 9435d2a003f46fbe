"""`worldsmith generate MODEL --prompt TEXT`: generates videos and images with a trained, exported or released model."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from worldsmith.actions.action import Result, make_progress_reporter
from worldsmith.actions.model_action import WritingAction, find_device
from worldsmith.actions.pool_action import POOL_FLAGS, PoolAction
from worldsmith.actions.processes import FailedItem
from worldsmith.checkpoint.formats.export_folder import robots_of
from worldsmith.checkpoint.formats.family_formats import formats_of
from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.checkpoint.formats.merge_adapter import use_adapter
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.checkpoint.sources.checkpoint_weights import ABOUT
from worldsmith.config import wrong
from worldsmith.config.declare.ranges import Count
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.tree.references import resolve
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.dialects.sat.recognize import is_change
from worldsmith.dialects.sat.sampling import translate_sampling
from worldsmith.distributed.world import start_world, stop_world, take_device, world_size
from worldsmith.files.write_checks import require_writable
from worldsmith.models.video_model import ROBOT_MODES, VideoModel
from worldsmith.monitor.terminal_text import print_message
from worldsmith.sampling.sample_files import Layer, SampleEntry, read_files
from worldsmith.sampling.sample_settings import Sample, SampleSettings
from worldsmith.sampling.training_data import with_clip_size
from worldsmith.tools.generate.sample_order import Order, make_order

if TYPE_CHECKING:
    from worldsmith.sampling.sample_args import SampleArgs

logger = logging.getLogger(__name__)

SIZES = ("height", "width", "resolution", "num_frames", "fps")


class GenerateVideos(PoolAction, WritingAction):
    """Generates videos and images with a trained, exported or released generator.

    Each sample gets a folder in --out, with its name, that contains vision.mp4 or vision.jpg, actions.json if it has
    robot actions, sample_args.json and sample_outputs.json. Complete samples are kept: the same command continues after
    a stop. Flags override settings in files. `worldsmith launch --nproc-per-node N generate …` divides the samples
    among N processes, and so does --processes N. On Ray a process that is done with a sample gets another one.
    """

    aliases: ClassVar[Mapping[str, str]] = {
        **WritingAction.aliases,
        "-i": "input_files",
        "--output-dir": "out",
        "--steps": "num_steps",
    }

    class Config(PoolAction.Config, SampleSettings, WritingAction.Config):
        prompt: list[str] = field(default_factory=list)
        """Prompt of a sample; the flag may be repeated."""
        input_files: list[str] = field(default_factory=list)
        """Sample files (.json, .jsonl, .yaml, or .txt with one prompt, or prompt@@image, per line), or glob patterns
        such as "in/*.json"; the flag may be repeated. A sample requires a prompt; its name and the settings that these
        flags set are optional."""
        stack: list[str] = field(default_factory=list)
        """SAT config files that describe the model, and overrides; used by `--spec A.yaml B.yaml`."""
        out: str = "generated"
        """Output folder for the sample folders and a contact sheet."""
        adapter: str | None = None
        """Folder of a PEFT adapter, which is merged into the model."""
        weights: Literal["auto", "ema", "live", "untrained"] = "auto"
        """auto: the EMA weights (ema) if they exist, otherwise the raw weights (live)."""
        max_num_seqs: Count | None = None
        """Max samples per forward pass; null: only max_model_len limits them; with --processes, --on ray or
        --max-failures: 1."""
        max_model_len: Count | None = None
        """Max tokens per forward pass; null: the model's training limit."""
        cfgp_size: Literal[1, 2] = 1
        """2: the forward pass with the prompts and the one with the negative prompts run in two processes in parallel
        (classifier-free guidance parallelism)."""
        device: str | None = None
        """cpu or cuda; null: cuda if available."""

        def check(self) -> None:
            super().check()
            if self.cfgp_size > 1 and self.uses_pool:
                raise wrong(self, "cfgp_size", why="it needs `worldsmith launch`", remedy=f"omit {POOL_FLAGS}")

    config: Config

    def plan(self) -> Iterator[str]:
        order = self.prepare()
        yield f"model    {order.model.weights_description}, on {order.device}"
        for sample in order.samples:
            size = f"{sample.num_frames} frames of {sample.height}×{sample.width}"
            yield f"sample   {sample.name}: {size}, {sample.fps:g} fps, seed {sample.seed}: {sample.prompt}"
        yield from (f"setting  {line}" for line in order.setting_lines())
        yield f"folder   {self.config.out}: {order.count(len(order.made()))}"

    def run(self) -> Result:
        config, order = self.config, self.prepare()
        if config.uses_pool:
            return self.run_in_pool(order)
        try:
            world = start_world(context_parallel=config.cfgp_size)
            if world.is_main:
                print_message("\n".join([f"settings of {order.model.weights_description}:", *order.setting_lines()]))
            made = world.broadcast([] if config.force else order.made())
            if len(made) < len(order.samples):
                device = world.device if world.size > 1 and config.device is None else order.device
                generator = load_generator(order.model, order.adapter, device)
                order.make(generator, world, made, max_num_seqs=config.max_num_seqs, max_model_len=config.max_model_len)
            world.barrier()
            return order.finish(len(made)) if world.is_main else Result()
        finally:
            stop_world()

    def run_in_pool(self, order: Order) -> Result:
        """Generates the samples in processes of this machine or of Ray, and writes the contact sheet.

        A pack has one sample, or `max_num_seqs`, with the same sampling settings. The samples of a pack that fails are
        reported. Raises UserError if more than `max_failures` samples fail, or all of them.
        """
        config = self.config
        if world_size() > 1:
            raise UserError(f"the launch already has several processes: omit {POOL_FLAGS}")
        print_message("\n".join([f"settings of {order.model.weights_description}:", *order.setting_lines()]))
        made, report = [] if config.force else order.made(), make_progress_reporter("generating")
        groups: dict[Any, list[str]] = {}
        for sample in order.samples:
            if sample.name not in made:
                groups.setdefault(sample.sampling, []).append(sample.name)
        size, done, failed = config.max_num_seqs or 1, len(made), list[str]()
        packs = [tuple(names[i : i + size]) for names in groups.values() for i in range(0, len(names), size)]
        for found in self.apply(partial(make_generator, config), packs):
            if isinstance(found, FailedItem):
                failed += found.item
                logger.warning("%s: %s", ", ".join(found.item), found.reason)
                self.require_few_failures(len(failed), "generated")
            done += len(found.item if isinstance(found, FailedItem) else found)
            report(done, len(order.samples))
        complete = replace(order, samples=[sample for sample in order.samples if sample.name not in failed])
        if not complete.samples:
            raise UserError("all samples have failed (see above): fix the cause; the same command continues")
        result = complete.finish(len(made))
        return replace(result, lines=[*result.lines, f"{len(failed)} failed (see above)"]) if failed else result

    def prepare(self) -> Order:
        """Checks the settings without loading weights, and returns the model and the samples to generate.

        Raises UserError for an invalid setting, FileExistsError if a sample exists with other arguments.
        """
        from worldsmith.sampling.robot_samples import decide_robot
        from worldsmith.sampling.sample_args import Chooser, decide

        config, out = self.config, Path(self.config.out)
        entries = [sample_of_prompt(index, text) for index, text in enumerate(config.prompt)]
        entries += read_files(config.input_files)
        if not entries:
            raise UserError("no prompt: use --prompt TEXT or --input-files FILE")
        if world_size() % config.cfgp_size:
            raise UserError(
                f"--cfgp-size 2 requires an even number of processes, found {world_size()}. Change it in the launch "
                "command"
            )
        device = find_device(config.device)
        require_writable(out)
        if config.stack and (config.weights != "auto" or config.base):
            raise UserError(
                "--weights and --base do not apply to a SAT config: its args.load selects the weights. Omit these flags"
            )
        if config.stack:
            model = model_of_stack(config.stack)
        else:
            model = find_model(config.model, weights=config.weights, base=config.base)
        flags = Layer("flag", config, Path())
        if any(is_size_unset([flags, *entry.layers]) for entry in entries):
            model = replace(model, defaults=with_clip_size(model.defaults, model.tree, model.config.latent_grid))
        model = use_adapter(model, config.adapter)
        grid = LatentGrid(*model.config.latent_grid)
        told_by = "as trained" if model.tree is not None else "as published"
        if (model.folder / ABOUT).is_file():
            told_by = "as stated in its export"
        samples: list[SampleArgs] = []
        problems: list[str] = []
        for entry in entries:
            given = entry, flags, model.defaults, grid, told_by
            try:
                if Chooser([flags, *entry.layers]).pick("model_mode") in ROBOT_MODES:
                    decided = decide_robot(*given, model.config.action_limits, robots_of(model))
                else:
                    decided = decide(*given, model.config.modes)
                for sample in decided:
                    sample.request(grid)
                    if config.cfgp_size == 2 and sample.guidance == 1:
                        raise UserError(f"{sample.name}: guidance 1 does not use a negative prompt. Omit --cfgp-size 2")
                samples += decided
            except (ValueError, UserError) as error:
                problems.append(str(error))
        if problems:
            raise UserError("\n".join(problems))
        order = make_order(model, device, samples, out)
        if not config.force:
            order.require_same()
        return order


def make_generator(config: GenerateVideos.Config, number: int) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    """Loads the model on GPU `number` if there is one; returns the function that generates samples by their names."""
    order = GenerateVideos(replace(config, device="cpu" if config.device == "cpu" else take_device(number))).prepare()
    generator = load_generator(order.model, order.adapter, order.device)
    samples = {sample.name: sample for sample in order.samples}

    def generate(names: tuple[str, ...]) -> tuple[str, ...]:
        wanted = [samples[name] for name in names]
        for pack in order.packs(generator, wanted, len(names), config.max_model_len, shared=False):
            order.make_pack(generator, pack)
        return names

    return generate


def model_of_stack(stack: Sequence[str]) -> StoredModel:
    """Returns the model that SAT config files describe, with the weights that these files name.

    `stack` has the paths of the files, and overrides. Raises ConfigError if the files are invalid, UserError if the
    weights do not fit the described model.
    """
    files, words = [word for word in stack if not is_change(word)], [word for word in stack if is_change(word)]
    _, found = translate_sampling(files, words)
    spec, objective = resolve(found.tree.model), resolve(found.tree.objective)
    spec.config = spec.config.as_used()
    defaults = formats_of(spec.name).published_defaults(spec.config, Path(found.weights))
    known = {one.name for one in fields(defaults)}
    trained_settings = {**to_dict(objective), **to_dict(spec.config.sampling)}
    trained_settings = {name: value for name, value in trained_settings.items() if name in known and value is not None}
    model = StoredModel(
        folder=Path(found.weights),
        spec=spec,
        defaults=replace(defaults, **trained_settings),
        run="",
        iteration=0,
        weights="live",
        tree=None,
        weights_path=found.weights,
    )
    require_described_adapters(model)
    return model


def require_described_adapters(model: StoredModel) -> None:
    """Raises UserError if the weights of a SAT model have other LoRA ranks than its config (`lora_config`)."""
    shapes = model.open(merge=False).shapes
    ranks = {shape[0] for name, shape in shapes.items() if name.endswith("lora_A.weight")}
    wanted = {model.config.lora_rank} if model.has_adapters else set()
    if ranks != wanted:
        texts = [
            f"adapters of rank {', '.join(map(str, sorted(found)))}" if found else "none" for found in (wanted, ranks)
        ]
        raise UserError(
            f"args.load {model.weights_path}: expected {texts[0]}, as in lora_config, found {texts[1]}. Use the config "
            "file of the model that these weights belong to"
        )


def sample_of_prompt(index: int, text: str) -> SampleEntry:
    """Returns the sample of the `index`-th ``--prompt`` flag; its name has the first words of the prompt `text`."""
    sample = Sample(prompt=text)
    return SampleEntry(f"{index:03d}_{slug(text)}", sample, [Layer("--prompt", sample, Path())])


def is_size_unset(layers: Sequence[Layer]) -> bool:
    """Returns whether at least one of size, length and frame rate is unset in all layers, so that the model sets it."""
    given = {name for name in SIZES for layer in layers if getattr(layer.settings, name) is not None}
    return not given >= {"num_frames", "fps"} or not ("resolution" in given or given >= {"height", "width"})


def load_generator(model: StoredModel, adapter: str | None, device: str) -> VideoModel:
    """Loads the generator of a stored model.

    Args:
        model: The stored model, without an adapter.
        adapter: Folder of a PEFT adapter to merge into the weights; None: no adapter.
        device: Device of the model.

    Returns:
        The generator with its weights.
    """
    if adapter is None:
        return model.load(device)
    import torch

    from worldsmith.models.lora import merge_adapters

    generator = model.load(device, full_precision=True)
    model.formats.load_adapter(generator.network, Path(adapter))
    merge_adapters(generator.network)
    generator.cast(getattr(torch, generator.config.precision))
    return generator


def slug(prompt: str) -> str:
    """Returns the first six words of a prompt as part of a file name; "video" if it has no ASCII words."""
    return "_".join(re.findall(r"[a-z0-9]+", prompt.lower())[:6])[:48] or "video"
