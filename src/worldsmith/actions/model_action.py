"""Base classes of actions on a stored model: actions that write files, generate videos, or query a reasoner."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from worldsmith.actions.action import Action
from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.checkpoint.formats.merge_adapter import use_adapter
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.config import wrong
from worldsmith.config.declare.ranges import Count, Factor, PositiveFactor, Range, Seed
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.tree.read_config import from_dict
from worldsmith.data.conversations.chat_processor import ChatProcessor
from worldsmith.distributed.memory import use_expandable_segments
from worldsmith.models.decoding import Decoding
from worldsmith.models.spec import ModelSpec
from worldsmith.models.video_model import NOISE_LEVELS, DynamicGuidance
from worldsmith.monitor.lineage import Input

if TYPE_CHECKING:
    from worldsmith.data.conversations.conversation import Turn
    from worldsmith.sampling.generate_answers import Answer, Answerer


class ModelAction(Action):
    """Base class of commands that load a trained or released model, which the first argument selects."""

    places: ClassVar[tuple[str, ...]] = ("model",)
    aliases: ClassVar[Mapping[str, str]] = {"--checkpoint-path": "model"}

    class Config(Action.Config):
        model: str
        """Run folder, one of its checkpoints/iter_… folders, an export, the Hub name of a model, or an adapter
        folder."""
        base: str | None = None
        """Base weights of an adapter or of a checkpoint with trained weights only; null: as stated in the adapter or
        checkpoint."""


class WritingAction(ModelAction):
    """Base class of commands that load a model and write results to the path `out`."""

    aliases: ClassVar[Mapping[str, str]] = {"-o": "out", "--output": "out", **ModelAction.aliases}

    class Config(ModelAction.Config):
        force: bool = False
        """Replace results of an earlier command."""


class VideoAction(WritingAction):
    """Base class of commands that generate videos with a stored model."""

    class Config(WritingAction.Config):
        steps: Annotated[int, Range(ge=1, le=NOISE_LEVELS)] | None = None
        """Number of solver steps; null: the model's default, such as 35."""
        guidance: Factor | None = None
        """Scale of classifier-free guidance, 1 = off; null: the scale of the run's samples, otherwise the family's
        default."""
        dynamic_guidance: DynamicGuidance | None = None
        """Schedule of the guidance scale over the solver steps; null: the model's default. Not supported by
        all families."""
        shift: PositiveFactor | None = None
        """Shift of the noise schedule; null: as in training. Not supported by all families."""
        scheduler: str | None = None
        """The solver, if the family has several, such as ddim or dpm; null: the model's default."""
        device: str | None = None
        """cpu or cuda; null: cuda if available."""


class AnswerAction(ModelAction):
    """Base class of commands that generate answers with a vision-language model."""

    class Config(ModelAction.Config):
        weights: Literal["auto", "ema", "live", "untrained"] = "auto"
        """EMA weights (ema), raw weights (live) or initial weights of the run (untrained); auto: the EMA weights if
        they exist, otherwise the raw weights."""
        adapter: str | None = None
        """PEFT adapter folder to merge into the model, which must be the adapter's base model."""
        processor: ChatProcessor.Config = field(default_factory=ChatProcessor.Config)
        """Preprocessing of images and videos; if not set: that of the run that trained the model, else that of the
        files in the model folder."""
        dtype: Literal["auto", "bfloat16", "float32"] = "auto"
        """Dtype of the computation; auto: that of the model."""
        max_new_tokens: Count = 256
        """Max new tokens per answer."""
        temperature: Factor = 0.0
        """Divisor of the logits before each token is sampled; 0: greedy decoding."""
        top_p: Annotated[float, Range(gt=0, le=1)] = 1.0
        """Nucleus sampling: tokens are sampled from the most likely ones with this total probability; needs a
        temperature."""
        repetition_penalty: PositiveFactor = 1.0
        """Above 1: tokens that already occurred in the question or the answer become less likely."""
        seed: Seed = 0
        """Seed of sampling; each question has its own random stream, independent of the other questions."""
        batch_size: Count = 8
        """Number of conversations in one forward pass."""
        device: str | None = None
        """cpu or cuda; null: cuda if available."""

        def check(self) -> None:
            if self.top_p < 1 and not self.temperature:
                raise wrong(self, "top_p", "temperature", why="at temperature 0 no token is sampled",
                            remedy="set a temperature")  # fmt: skip

    config: Config

    def find(self) -> StoredModel:
        """Finds the model that the config selects, with its adapter and dtype; reads no weights."""
        config = self.config
        model = find_model(config.model, weights=config.weights, base=config.base)
        return self.with_dtype(use_adapter(model, config.adapter))

    def with_dtype(self, model: StoredModel) -> StoredModel:
        """Returns `model` with the computation dtype of the config; with "auto" the model is returned unchanged."""
        if self.config.dtype == "auto":
            return model
        config = replace(model.config, precision=self.config.dtype)
        return replace(model, spec=ModelSpec(name=model.spec.name, config=config))

    @property
    def decoding(self) -> Decoding:
        """Sampling settings of the answers."""
        config = self.config
        return Decoding(config.temperature, config.top_p, config.repetition_penalty, config.seed)

    def settings(self, model: StoredModel) -> ChatProcessor.Config:
        """Returns the preprocessing of images and videos for `model`.

        It is the `processor` section of this command's config, if the user has set a field in it to a value other than
        the default; else the preprocessing in the config of the run that trained the model; else the default
        `ChatProcessor.Config`, with which the preprocessor files in the model folder apply.
        """
        configured, data = self.config.processor, (model.tree or {}).get("dataloader_train", {})
        if configured == ChatProcessor.Config() and "processor" in data:
            return from_dict(data["processor"], ChatProcessor.Config)
        return configured

    def how(self, model: StoredModel) -> dict[str, Any]:
        """Returns the settings on which the answers of `model` depend in addition to its weights, as JSON data.

        The keys are "dtype", "processor", "max_new_tokens" and the fields of `Decoding`.
        """
        return {
            "dtype": model.config.precision,
            "processor": to_dict(self.settings(model)),
            "max_new_tokens": self.config.max_new_tokens,
            **asdict(self.decoding),
        }

    def answerer(self, model: StoredModel, *, device: str | None = None, merged: str | None = None) -> Answerer:
        """Loads the weights of a model and returns an `Answerer`, which generates its answers.

        Args:
            model: The stored model.
            device: "cpu", "cuda" or "cuda:N"; None: that of the config, else CUDA if available.
            merged: Folder with the merged weights of `model` and its adapter, which are loaded instead; None: those of
                `model` are loaded.
        """
        from worldsmith.sampling.generate_answers import Answerer

        stored = model if merged is None else self.with_dtype(find_model(merged))
        loaded: Any = stored.load(device or find_device(self.config.device))
        return Answerer(loaded, self.settings(model))

    def answer_all(
        self,
        answerer: Answerer,
        asked: Sequence[tuple[str, Sequence[Turn]]],
        show: Callable[[int, int], None] | None,
        *,
        forgiving: bool,
    ) -> Iterator[Answer]:
        """Generates the answers to conversations with the settings of the command.

        Args:
            answerer: The loaded model.
            asked: (key, turns before the answer) of each conversation.
            show: Called with (number of answers, number of conversations) after each answer; None: not called.
            forgiving: Whether an error of the model becomes an answer with that error, as for `Answerer.answers`.

        Yields:
            The answers in the order of the conversations.
        """
        sizes = {"batch_size": self.config.batch_size, "max_new_tokens": self.config.max_new_tokens}
        answers = answerer.answers(asked, **sizes, decoding=self.decoding, forgiving=forgiving)
        for number, answer in enumerate(answers, start=1):
            yield answer
            if show is not None:
                show(number, len(asked))

    def inputs(self, model: StoredModel) -> list[Input]:
        """Returns the inputs for a lineage record: the model's folder and, if any, its base weights and adapter."""
        adapter = [] if model.adapter is None else [Input("adapter", model.adapter)]
        base = [] if model.base is None else [Input("base", model.base)]
        return [Input("base" if adapter else "model", model.folder), *base, *adapter]


def find_device(name: str | None) -> str:
    """Returns the name of the torch device to use, such as "cuda:1".

    Args:
        name: "cpu", "cuda" or "cuda:N"; None: "cuda" if available, else "cpu".

    Raises:
        UserError: If the name is invalid, or this machine does not have that GPU.
    """
    import torch

    use_expandable_segments()
    devices = torch.cuda.device_count()
    if name is None:
        return "cuda" if devices else "cpu"
    match = re.fullmatch(r"(?:cpu|cuda(?::(\d+))?)", name)
    if match is None:
        raise UserError(f"device {name}: no such device; use cpu or cuda")
    if name != "cpu" and int(match[1] or 0) >= devices:
        found = f"{devices} CUDA device{'' if devices == 1 else 's'}"
        raise UserError(f"device {name}: this machine has {found}; use {'a lower number or ' * bool(devices)}cpu")
    return name


def require_outside(out: Path, model: StoredModel) -> None:
    """Raises UserError if an output folder is inside a model's folder, so that results would change the model.

    Args:
        out: The output folder.
        model: The model; an untrained one is not checked.
    """
    if model.weights != "untrained" and out.resolve().is_relative_to(model.folder.resolve()):
        raise UserError(
            f"--out {out} lies inside the model folder, which would be modified; choose a folder outside it"
        )
