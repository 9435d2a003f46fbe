"""Evaluation of a world model on robot episodes: held-out loss, inverse dynamics, and forward dynamics."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldsmith.actions.action import make_progress_reporter
from worldsmith.checkpoint.formats.export_folder import robots_of
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.config.errors import UserError
from worldsmith.config.tree.read_config import from_dict
from worldsmith.data.clips.video_sample import VideoSample
from worldsmith.data.robots.augmentation import AugmentationConfig
from worldsmith.data.robots.clip_mix import ClipMix
from worldsmith.data.robots.robot_dataset import RobotDataset
from worldsmith.data.robots.robot_loader import RobotLoader
from worldsmith.data.stream.quarantine import Rejection, Tally
from worldsmith.evaluation.metrics.base import Output
from worldsmith.evaluation.metrics.registry import FORWARD, INVERSE, LOSS, ROBOTS, SHUFFLED, TRUE
from worldsmith.tasks.registry import task_of
from worldsmith.tools.evaluate.answer_records import file_name
from worldsmith.tools.evaluate.held_out import (
    REAL_FOLDER,
    HeldOutClips,
    HeldOutLoss,
    build_task,
    compute_losses,
    training_tree,
)
from worldsmith.tools.generate.generate import load_generator
from worldsmith.tools.generate.sample_order import Order

if TYPE_CHECKING:
    from worldsmith.sampling.generate_videos import GeneratedActions

SAMPLING = ("steps", "guidance", "shift", "scheduler", "dynamic_guidance")
BATCH = 8
"""Number of windows that are generated at once."""


def robot_output(name: str) -> Output:
    """Returns the description of an output of the evaluators of robot episodes, such as "action_mse_3"."""
    outputs = {key: output for of in ROBOTS.values() for key, output in of.items()}
    return outputs.get(name, outputs["action_mse_N"])


def robot_modes(model: StoredModel) -> set[str] | None:
    """Returns the modes in which a model was trained on robot episodes; None for another model."""
    data = robot_data(model)
    if data is None:
        return None
    members = getattr(data.dataset, "datasets", {"": data.dataset}).values()
    return {mode for one in members for mode, weight in getattr(one, "modes", {}).items() if weight}


def robot_data(model: StoredModel) -> RobotLoader.Config | None:
    """Returns the settings of the training data of a run on robot episodes; None for another model.

    Raises UserError for an export of such a run whose run folder is not known.
    """
    tree = training_tree(model)
    if tree is None and robots_of(model):
        raise UserError(f"{model.folder} was trained on robot episodes, and its run is unknown. Specify the run folder")
    section = (tree or {}).get("dataloader_train")
    data = section and from_dict(section, task_of(model.spec.name).loader_class.Config)
    return data if isinstance(data, RobotLoader.Config) else None


class HeldOutEpisodes(HeldOutClips):
    """Dataset of held-out robot episodes, which is read with the data settings of the run that trained a model.

    Args:
        config: Settings of `worldsmith evaluate`: `dataset` is a folder of episodes, the name of a dataset of the run
            if it has several, or None for the held-out episodes of the run.
        model: The model.
        evaluators: Names of the evaluators to compute.
    """

    def __init__(self, config: Any, model: StoredModel, evaluators: Sequence[str]) -> None:
        if config.model_mode is not None:
            raise UserError("--model-mode: does not apply to robot episodes; select tasks with --evaluators")
        self.evaluators, self.sampling = evaluators, {name: getattr(config, name) for name in SAMPLING}
        self.sampling["guidance"] = 1.0 if config.guidance is None else config.guidance
        if model.defaults.sampling(**self.sampling).shift is None and not model.defaults.shift_of_size:
            raise UserError("the run does not define one shift of the noise schedule; set it with --shift")
        super().__init__(config.dataset, model)
        count, total = min(config.max_videos, len(self.dataset)), len(self.dataset)
        self.chosen = [index * total // count for index in range(count)]
        """Indices of the windows for which videos or actions are generated, evenly spaced."""

    def settings(self, model: StoredModel, tree: Mapping[str, Any] | None) -> RobotLoader.Config:
        train = robot_data(model)
        if train is None or tree is None:
            raise UserError(f"{model.folder} was not trained on robot episodes, unlike {self.model.folder}")
        val = tree.get("dataloader_val") and from_dict(tree["dataloader_val"], type(train))
        data, path = val or train, self.path
        dataset: Any = data.dataset
        if isinstance(dataset, ClipMix.Config):
            names = [name for name, one in dataset.datasets.items() if isinstance(one, RobotDataset.Config)]
            if path not in names:
                raise UserError(f"--dataset: {model.folder} has several datasets: name one of {', '.join(names)}")
            dataset, path = dataset.datasets[path], None
        changes: dict[str, Any] = {} if val else {"split": "val", "window_stride": dataset.steps}
        changes["augmentation"] = AugmentationConfig()
        if path is not None:
            changes |= {"path": path, "episodes": "", "split": "all", "val_fraction": 0.0}
            changes |= {"keep_ranges": "", "keep_key": "{episode_index}"}
        elif val is None and dataset.split == "all":
            why = "the run has no held-out episodes: neither dataloader_val nor dataset.val_fraction is set"
            raise UserError(f"--dataset: {why}. Give a folder of episodes")
        changes["cfg_dropout_rate"] = float(dataset.cfg_dropout_rate == 1)  # 1: trained without any text
        return replace(data, latent_cache="", dataset=replace(dataset, **changes))

    def count_trained_on(self) -> int | None:
        train = robot_data(self.model)
        if train is None or self.model.weights == "untrained":
            return None
        trained: Any = train.dataset.build()
        members = trained.members.values() if isinstance(trained, ClipMix) else [trained]
        seen = {one.digest() for member in members if isinstance(member, RobotDataset) for one in member.episodes}
        ends = self.dataset.ends  # numbers of windows up to each episode
        parts = zip(self.dataset.episodes, ends, [0, *ends])
        return sum(end - start for episode, end, start in parts if episode.digest() in seen)

    def signature(self, order: Order, tree: Mapping[str, Any]) -> str:
        facts = [super().signature(order, tree), self.evaluators, self.chosen, self.sampling]
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def compute(
        self, order: Order, objective: Mapping[str, Any], tally: Tally, progress: Callable[[int, int], None]
    ) -> HeldOutLoss:
        generator: Any = load_generator(order.model, order.adapter, order.device)
        found = HeldOutLoss()
        for name in self.evaluators:
            data: Any = self.data
            if name != LOSS:
                dataset: Any = data.dataset
                dataset = replace(dataset, modes={name: 1.0}, history=0, history_of="actions")
                data = replace(data, shuffle=False, dataset=dataset)
            task = build_task(generator, order.model, data, objective, tally)
            loader = task.loader()
            if name == LOSS:
                found.losses = compute_losses(task, loader, progress)
            elif name == INVERSE:
                found.actions |= self.inverse_dynamics(generator, loader)
            else:
                found.actions |= compare_actions(task, loader)
                found.videos = [*self.write_videos(generator, loader, order.out)]
        return found

    def inverse_dynamics(self, generator: Any, loader: RobotLoader) -> dict[str, dict[str, float | str]]:
        """Predicts the actions of the chosen windows from all their frames.

        Returns output name -> window key -> mean squared error: normalized, and of each channel in the units of the
        data.
        """
        normalizer, errors = loader.dataset.normalizer, dict[str, dict[str, float | str]]()
        for index, sample, found in self.generate(generator, loader, INVERSE):
            given = sample.actions.clean_rows
            rows, truth = found.rows.float().cpu()[given:], sample.actions.rows[given:]
            squares = ((normalizer.denormalize(rows).numpy() - window_rows(loader.dataset, index)) ** 2).mean(0)
            own = {f"action_mse_{channel}": square for channel, square in enumerate(squares.tolist())}
            for name, value in {"action_mse": float((rows - truth).square().mean()), **own}.items():
                errors.setdefault(name, {})[sample.key] = value
        return errors

    def write_videos(self, generator: Any, loader: RobotLoader, out: Path) -> Iterator[dict[str, Any]]:
        """Predicts the chosen windows from their first frames and actions; writes these and the real videos.

        The videos are written below the folder `out`, the real ones next to it. Yields the arguments of each video.
        """
        from worldsmith.sampling.write_media import write_mp4

        for seed, (index, sample, found) in enumerate(self.generate(generator, loader, FORWARD)):
            video = generator.decode(found.latents).cpu()
            (_, frames, height, width), name = video.shape, file_name(sample.key)
            files = {"file": f"{FORWARD}/{name}.mp4", "real": f"../{REAL_FOLDER}/{name}.mp4"}
            for file, content in zip(files.values(), (video, sample.video[..., :height, :width])):
                (out / file).parent.mkdir(parents=True, exist_ok=True)
                write_mp4(out / file, content, sample.fps)
            size = {"num_frames": frames, "height": height, "width": width, "fps": sample.fps}
            prompt = loader.dataset.task(*loader.dataset.window(index))
            yield {"name": name, "prompt": prompt, "seed": seed, "model_mode": FORWARD, **size, **files}

    def generate(self, generator: Any, loader: RobotLoader, mode: str) -> Iterator[tuple[int, Any, GeneratedActions]]:
        """Yields (index, sample, generated latents and actions) of the chosen windows.

        Windows that cannot be read are skipped. The seed of the noise is the position of a window in `chosen`.
        """
        from worldsmith.sampling.generate_videos import GenerationRequest, generate_actions

        show, pixels = make_progress_reporter(f"{mode} of {len(self.chosen)} windows"), loader.grid.pixels
        for start in range(0, len(self.chosen), BATCH):
            requests, windows = [], []
            for seed, index in list(enumerate(self.chosen))[start : start + BATCH]:
                sample: Any = loader.maker[index].item
                if isinstance(sample, Rejection):
                    self.add_skipped([sample])
                    continue
                windows.append((index, sample))
                height, width = (side * pixels for side in sample.latent_shape[1:])
                requests.append(GenerationRequest(
                    prompt=sample.caption, height=height, width=width, num_frames=sample.num_frames, fps=sample.fps,
                    seed=seed, condition=sample.video, condition_frames=sample.condition_frames,
                    structured_metadata=False, actions=sample.actions,
                ))  # fmt: skip
            for window, found in zip(windows, generate_actions(generator, requests, **self.sampling)):
                yield *window, found
            show(min(start + BATCH, len(self.chosen)), len(self.chosen))


def compare_actions(task: Any, loader: RobotLoader) -> dict[str, dict[str, float | str]]:
    """Computes the loss of forward dynamics with the true actions and with those of another window.

    Both losses of a window have the same noise, noise level, first frame, state row and text.
    """
    import torch

    others = other_windows(len(loader.dataset), task.data.seed)
    single = "the data have only one window, so there are no other actions" if len(others) == 1 else ""

    def shuffle(sample: VideoSample) -> VideoSample:
        assert sample.actions is not None
        values = torch.from_numpy(window_rows(loader.dataset, others[sample.position]))
        given = sample.actions.rows[: 1 - sample.actions.offset]  # the state of the robot, if the model has it
        rows = torch.cat((given, loader.dataset.normalizer.normalize(values)))
        return replace(sample, actions=replace(sample.actions, rows=rows))

    found = {}
    for name, change in ((TRUE, lambda sample: sample), (SHUFFLED, shuffle)):
        show = make_progress_reporter(f"{name} of {len(others)} windows")
        found[name] = compute_losses(task, loader, show, change)
    return found | ({SHUFFLED: dict.fromkeys(found[TRUE], single)} if single else {})


def other_windows(count: int, seed: int) -> list[int]:
    """Returns the index of another window for each of `count` windows: a random cycle through all of them."""
    order = random.Random(seed).sample(range(count), count)
    return [after for _, after in sorted(zip(order, [*order[1:], order[0]]))]


def window_rows(dataset: RobotDataset, index: int) -> Any:
    """Returns the action rows of a window in the units of the data, float32 [steps, channels]."""
    episode, first = dataset.window(index)
    frames = slice(first, first + dataset.config.steps + 1)
    return dataset.robot.action_rows({name: values[frames] for name, values in episode.columns.items()})
