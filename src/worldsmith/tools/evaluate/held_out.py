"""Evaluation of a video model on a dataset of clips: the held-out loss, and samples from captions and clips."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from worldsmith.actions.action import left_out_lines
from worldsmith.actions.find_parent import training_tree_of
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.tree.read_config import from_dict
from worldsmith.data.clips.captions import choose_caption
from worldsmith.data.clips.latent_grid import LatentGrid
from worldsmith.data.clips.video_dataset import VideoDataset
from worldsmith.data.clips.video_loader import VideoLoader
from worldsmith.data.clips.window_index import Window
from worldsmith.data.content_fingerprint import file_fingerprint
from worldsmith.data.shards.addresses import absolute_path
from worldsmith.data.stream.errors import SampleError
from worldsmith.data.stream.quarantine import Rejection, Tally
from worldsmith.evaluation.generated_video import GeneratedVideo
from worldsmith.files.atomic import write_text
from worldsmith.files.fingerprint import fingerprint
from worldsmith.files.json_file import read_json_object
from worldsmith.files.lines import read_lines
from worldsmith.models.video_model import Mode
from worldsmith.objectives.objective import Objective
from worldsmith.tasks.registry import task_of
from worldsmith.tools.evaluate.answer_records import file_name
from worldsmith.tools.generate.generate import load_generator
from worldsmith.tools.generate.sample_order import Order

LOSSES = "held_out_loss.json"


@dataclass(slots=True)
class HeldOutLoss:
    """Training loss of a model on each held-out clip, and the skipped clips.

    The noise and timestep of a clip depend only on the seed and the position of the clip in the dataset.
    """

    losses: dict[str, float | str] = field(default_factory=dict)
    """Window key -> loss, or a string with the reason why the loss is missing."""
    left_out: list[dict[str, Any]] = field(default_factory=list)
    actions: dict[str, dict[str, float | str]] = field(default_factory=dict)
    """Measurements with robot actions: output name -> window key -> value, or a string with the reason."""
    videos: list[dict[str, Any]] = field(default_factory=list)
    """Arguments of the videos that were generated from robot actions, and the paths `file` and `real`."""

    def samples(self, out: Path) -> list[GeneratedVideo]:
        """Returns the videos that were generated from robot actions; `out` is the output folder of the model."""
        return [GeneratedVideo(args, out / args["file"], 1, out / args["real"]) for args in self.videos]


class HeldOutClips:
    """Dataset of held-out clips, which is read with the data settings of the run that trained a model."""

    def __init__(self, path: str | None, model: StoredModel) -> None:
        """Reads the list of clips of the dataset at `path` without opening a clip.

        Raises DataError if the dataset cannot be read; UserError if no clip can be used, or if neither the training run
        nor the model states the size of the clips.
        """
        self.model, self.path = model, path
        self.tree = training_tree(model)
        self.data = self.settings(model, self.tree)
        self.dataset: Any = self.data.dataset.build()
        self.left_out: dict[str, dict[str, Any]] = {}
        """Skipped clips with the reason, as JSON data by window key."""
        self.add_skipped(self.dataset.rejections)
        if not self.dataset.num_samples:
            raise self.no_usable_clip_error()

    def settings(self, model: StoredModel, tree: Mapping[str, Any] | None) -> VideoLoader.Config:
        """Returns the settings with which a model reads the dataset; `tree` is the config of its run, if known."""
        assert self.path is not None
        return data_settings(model, tree, self.path)

    @property
    def no_loss_reason(self) -> str:
        """Reason why the loss cannot be computed: the training objective is unknown; "" if it can be computed."""
        if self.tree is not None:
            return ""
        return (
            f"{self.model.folder} does not state its training objective, and no lineage.json leads to its training "
            "run. Specify the run folder instead"
        )

    def add_skipped(self, rejections: Iterable[Rejection]) -> None:
        """Adds rejected clips to the skipped clips (`left_out`)."""
        self.left_out |= {one.key: {k: v for k, v in asdict(one).items() if v is not None} for one in rejections}

    def no_usable_clip_error(self) -> UserError:
        """Returns the error for a dataset in which no clip can be used, with the reasons."""
        return UserError(f"{self.dataset.name} has no usable clip: {'; '.join(self.left_out_lines())}")

    def left_out_lines(self) -> list[str]:
        """Returns output lines with the skipped clips and the reasons."""
        return left_out_lines(f"{one['key']}: {one['reason']}: {one['detail']}" for one in self.left_out.values())

    def count_trained_on(self) -> int | None:
        """Returns the number of windows whose clip is also in the training data of the model, by path or content.

        None if the training data is unknown, or if the model is untrained. Raises DataError if the training data cannot
        be read.
        """
        section = (self.tree or {}).get("dataloader_train")
        if not isinstance(section, dict) or self.model.weights == "untrained":
            return None
        trained = VideoDataset(from_dict(section["dataset"], VideoDataset.Config))
        own = list(clip_identities_by_window(self.dataset))
        # The training data may be far larger than the memory, so only the common clips are kept.
        seen = set(chain.from_iterable(own)).intersection(chain.from_iterable(clip_identities_by_window(trained)))
        return sum(not seen.isdisjoint(identities) for identities in own)

    def measure_loss(self, order: Order, progress: Callable[[int, int], None], *, overwrite: bool) -> HeldOutLoss:
        """Computes the loss of a model on the clips and stores it, or reads the stored loss if no input has changed.

        Args:
            order: Model to measure, with its device and output folder. It can differ from `self.model`, whose data
                settings are used.
            progress: Called with (done, total) after each clip.
            overwrite: Compute the loss even if it is stored.

        Returns:
            The losses. If they cannot be compared with those of `self.model`, the only entry is "" -> reason.
        """
        tree = training_tree(order.model)
        if reason := self.incomparable_reason(order.model, tree):
            return HeldOutLoss({"": reason})
        assert tree is not None  # otherwise the loss is not comparable
        file, signature = order.out / LOSSES, self.signature(order, tree)
        if file.is_file() and not overwrite and (known := read_json_object(file)).pop("signature", "") == signature:
            found = HeldOutLoss(**known)
            if all(path.is_file() for one in found.samples(order.out) for path in (one.file, one.source) if path):
                self.left_out |= {one["key"]: one for one in found.left_out}
                return found
        tally = Tally("val")
        found = self.compute(order, tree["objective"], tally, progress)
        self.add_skipped(tally.rejections)
        found.left_out = [self.left_out[one.key] for one in tally.rejections]
        text = json.dumps({"signature": signature, **asdict(found)}, ensure_ascii=False, indent=1)
        order.out.mkdir(parents=True, exist_ok=True)
        write_text(file, text + "\n")
        return found

    def compute(
        self, order: Order, objective: Mapping[str, Any], tally: Tally, progress: Callable[[int, int], None]
    ) -> HeldOutLoss:
        """Computes the losses of a model; arguments as for `measure_loss` and `build_task`."""
        generator: Any = load_generator(order.model, order.adapter, order.device)
        task = build_task(generator, order.model, self.data, objective, tally)
        return HeldOutLoss(compute_losses(task, task.loader(), progress))

    def incomparable_reason(self, model: StoredModel, tree: Mapping[str, Any] | None) -> str:
        """Returns why the loss of `model` cannot be compared with the loss of `self.model`; "" if it can be compared.

        `tree` is the config of the run that trained `model`; None if it is unknown.
        """
        if self.tree is None:
            return self.no_loss_reason
        if tree is None:
            return f"{model.folder} does not state its training objective. Specify the run folder instead"
        one, other = ([found["objective"], to_dict(self.settings(model, found).dataset)] for found in (self.tree, tree))
        kinds = [[of.spec.name, *of.config.latent_grid] for of in (self.model, model)]
        if kinds[0] != kinds[1] or one != other:
            return f"{model.folder}: model family, latent size, objective or data settings differ from the first model"
        return ""

    def signature(self, order: Order, tree: Mapping[str, Any]) -> str:
        """Returns a fingerprint of all inputs of the loss: weights, training objective, data settings and data.

        `order` names the model to measure and how it is loaded; `tree` is the config of the run that trained it.
        """
        model = order.model
        adapter = None if order.adapter is None else fingerprint(order.adapter)
        facts = [fingerprint(model.folder), adapter, model.weights, model.base, tree["objective"], to_dict(self.data)]
        text = json.dumps([*facts, self.dataset.fingerprint], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


def training_tree(model: StoredModel) -> Mapping[str, Any] | None:
    """Returns the config of the run that trained a model, as plain data; None if it is unknown."""
    return model.tree or training_tree_of(model.adapter or model.folder)


def data_settings(model: StoredModel, tree: Mapping[str, Any] | None, path: str) -> VideoLoader.Config:
    """Returns the settings of a data loader for the dataset at `path`, without caption dropout.

    Args:
        model: Model that is evaluated.
        tree: Config of the run that trained it, whose settings of the validation data (else of the training data) are
            used. None: clips get the size, length and frame rate that the model states.
        path: Dataset of clips.

    Raises:
        UserError: If the model was not trained on clips or does not state their size, length and frame rate.
    """
    if tree is not None:
        section = tree.get("dataloader_val") or tree["dataloader_train"]
        data: Any = from_dict(section, task_of(model.spec.name).loader_class.Config)
        if not isinstance(data, VideoLoader.Config) or not isinstance(data.dataset, VideoDataset.Config):
            raise UserError(f"{model.folder} was not trained on clips and cannot be evaluated on --dataset")
        rate = float(data.dataset.cfg_dropout_rate == 1)  # 1: trained without any text
        return replace(data, latent_cache="", dataset=replace(data.dataset, path=path, cfg_dropout_rate=rate))
    form = {name: getattr(model.defaults, name) for name in ("height", "width", "num_frames", "fps")}
    if missing := [name for name, value in form.items() if value is None]:
        raise UserError(
            f"{model.folder} does not state the {', '.join(missing)} of its clips, and its training run is unknown. "
            "Specify the run folder instead"
        )
    timing = {} if form["num_frames"] == 1 else {"temporal_interval_mode": "target_fps", "target_fps": form["fps"]}
    size = {"resolution": f"{form['width']}x{form['height']}", "num_video_frames": form["num_frames"], "min_frames": 1}
    dataset = VideoDataset.Config(path=path, cfg_dropout_rate=0.0, **size, **timing)
    return VideoLoader.Config(dataset=dataset, max_samples_per_batch=1)


def clip_identities_by_window(dataset: VideoDataset) -> Iterator[tuple[str, str]]:
    """Yields (absolute path, content hash) of the clip of each window; an unknown hash is replaced by the path."""
    for window, (_, facts) in zip(dataset.windows, dataset.contents(), strict=True):
        yield absolute_path(window.path), str(facts[0])


def build_task(
    generator: Any, model: StoredModel, data: VideoLoader.Config, objective: Mapping[str, Any], tally: Tally
) -> Any:
    """Returns the task that computes the training loss of a loaded model.

    Args:
        generator: The model with its weights.
        model: The stored model.
        data: Settings of the data loader.
        objective: Section `objective` of the config of the training run, as plain data.
        tally: Records the skipped clips, in place.
    """
    kind = task_of(model.spec.name)
    task = kind(model=generator, objective=from_dict(dict(objective), Objective.Config), data=data, split="val")
    task.quarantine, task.in_first_step = tally, False
    return task


def compute_losses(
    task: Any,
    loader: Any,
    progress: Callable[[int, int], None],
    change: Callable[[Any], Any] = lambda sample: sample,
) -> dict[str, float | str]:
    """Computes the training loss on each clip as in a validation: in eval mode, with reproducible noise.

    Args:
        task: Task of the model, from `build_task`.
        loader: Data loader of the task.
        progress: Called with (done, total) after each clip.
        change: Returns the sample that replaces a sample of the loader; noise and noise level stay the same.

    Returns:
        Window key -> loss, or a string with the reason why the loss is missing.
    """
    import torch

    from worldsmith.checkpoint.run.rng_state import untouched_rng
    from worldsmith.training.step import reduce_metrics
    from worldsmith.training.validation import evaluating

    losses: dict[str, float | str] = {}
    with untouched_rng(), evaluating(task.model.network), torch.no_grad():
        for sample in map(change, loader.first_samples()):
            loss, weight = task.loss([sample], seed=task.data.seed), float(task.weigh([sample]))
            found = reduce_metrics(task, [loss], [weight]).metrics["loss"]
            losses[sample.key] = found if math.isfinite(found) else "the loss is not finite"
            progress(len(losses), len(loader.dataset))
    progress(len(loader.dataset), len(loader.dataset))
    return losses


SAMPLES, REAL_FOLDER = "held_out_samples.jsonl", "real"
PREFERRED: tuple[Mode, ...] = ("text2video", "image2video", "video2video", "text2image")


def choose_mode(modes: Sequence[Mode], requested: Mode | None) -> Mode:
    """Returns the generation mode `requested`; if it is None, the first mode in `PREFERRED` that the model supports.

    `modes` are the modes that the model supports. Raises UserError if `requested` is not one of them.
    """
    if requested is None:
        return next(mode for mode in PREFERRED if mode in modes)
    if requested not in modes:
        raise UserError(f"--model-mode {requested}: not supported by this model; supported: {', '.join(modes)}")
    return requested


def write_samples(clips: HeldOutClips, out: Path, count: int, mode: Mode, *, overwrite: bool) -> None:
    """Writes the first `count` usable clips, with the size and frame rate of training, and a sample file (`SAMPLES`).

    A sample in the file has the caption of a clip as prompt and the clip as real video.

    Args:
        clips: The dataset; clips that cannot be used are added to its skipped clips.
        out: Output folder of the evaluation.
        count: Maximum number of clips to write.
        mode: Generation mode of the samples.
        overwrite: Also write clips that exist and have not changed.

    Raises:
        UserError: If no clip can be used.
    """
    file, dataset, grid = out / SAMPLES, clips.dataset, LatentGrid(*clips.model.config.latent_grid)
    lines = [json.loads(line) for line in read_lines(file)] if file.is_file() and not overwrite else []
    known = {line["name"]: line for line in lines if isinstance(line, dict) and "name" in line}
    samples: list[dict[str, Any]] = []
    for window in dataset.windows:
        if len(samples) == count:
            break
        try:
            samples.append(write_sample(window, dataset.config, grid, out, mode, len(samples), known))
        except SampleError as error:
            clips.add_skipped([Rejection(window.key, error.reason, error.detail, window.path, window.line)])
    if not samples:
        raise clips.no_usable_clip_error()
    if samples != lines:
        write_text(file, "".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples))


def write_sample(
    window: Window,
    config: VideoDataset.Config,
    grid: LatentGrid,
    out: Path,
    mode: Mode,
    seed: int,
    known: Mapping[str, Any],
) -> dict[str, Any]:
    """Writes a clip window as video and first frame below `out`, and returns the sample for `worldsmith generate`.

    The sample is an entry of a sample file: the caption as prompt, size, frames, frame rate, seed, and `extra` with the
    real video. A clip of one frame is written only as image.

    Args:
        window: Window of a clip.
        config: Settings of the dataset.
        grid: Latent grid of the model, which determines valid frame counts and sizes.
        out: Output folder of the evaluation.
        mode: Generation mode.
        seed: Seed of the sample.
        known: Samples of an existing sample file, by name; the files of an unchanged sample are not written again.

    Raises:
        SampleError: If the clip cannot be used.
    """
    import torch
    from PIL import Image

    from worldsmith.data.clips.clip_frames import Framing, read_frames
    from worldsmith.data.clips.inspect_clips import inspect_window
    from worldsmith.sampling.write_media import write_mp4

    part = inspect_window(window, config, grid, random.Random(0))
    caption = choose_caption(window.captions, config.caption_keys, random.Random(0))
    assert caption is not None  # the dataset skips windows without a caption
    (height, width), frames, name = part.size, part.selection.count, file_name(window.key)
    still, video = f"{REAL_FOLDER}/{name}.png", f"{REAL_FOLDER}/{name}.mp4"
    mode = "text2image" if frames == 1 else mode
    real = still if frames == 1 else video
    given = {"image2video": {"vision_path": still}, "video2video": {"vision_path": video}}.get(mode, {})
    taken = [part.selection.start, part.selection.interval]
    source = {
        "clip": window.path,
        "window": window.key,
        "frames": taken,
        "mark": window.mark or file_fingerprint(window.path),
    }
    sample = {
        **{"name": name, "prompt": caption.text, **given, "height": height, "width": width, "num_frames": frames},
        **{"fps": part.fps, "seed": seed, "extra": {"real": real, **source}},
    }
    if known.get(name) == sample and all((out / path).is_file() for path in (still, real)):
        return sample
    pixels = read_frames(window.path, part.info, part.selection.indices, Framing((width, height), "training"))
    (out / REAL_FOLDER).mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels[:, 0].transpose(1, 2, 0)).save(out / still)
    if frames > 1:
        write_mp4(out / video, torch.from_numpy(pixels), part.fps)
    return sample
