"""`VisionLanguageTask`: trains a vision-language model on the answers of conversations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from worldsmith.config.errors import UserError
from worldsmith.data.assumed_batches import DummyBatch, assumed_chats, with_patches
from worldsmith.data.conversations.chat_loader import ChatLoader
from worldsmith.distributed.world import World
from worldsmith.families.vision_language.freezing import LANGUAGE, PARTS, backbone_part, describe_parts
from worldsmith.families.vision_language.model import VisionLanguageModel
from worldsmith.models.local_part import local_part
from worldsmith.models.parameter_names import native_parameters
from worldsmith.models.real_values import real_values
from worldsmith.objectives.next_token import NextToken
from worldsmith.objectives.objective import BatchLoss
from worldsmith.tasks.task import DummyData, Task

if TYPE_CHECKING:
    from torch import nn

    from worldsmith.data.conversations.chat_processor import ChatSample
    from worldsmith.data.conversations.media.media_processor import MediaProcessor
    from worldsmith.families.vision_language.network.forward import Inputs


class DummyChats(DummyData):
    """Dummy batches of conversations with images or videos, for `worldsmith plan`."""

    task: VisionLanguageTask

    def make_batch(self, *, fill: float = 1.0, encoded: bool = True) -> DummyBatch:
        model = self.task.model
        media, config = self.task.media if model.has_vision else None, model.network.config
        pads = {kind: getattr(config, f"{kind}_token_id", 0) for kind in ("image", "video")}
        return assumed_chats(self.task.data, media, pads, fill=fill)

    def fill_sample(self, sample: ChatSample, *, encoded: bool = True) -> ChatSample:
        return with_patches(sample, self.task.media) if has_media(sample) else sample

    def sample_bytes(self, sample: ChatSample) -> tuple[int, int]:
        patches = [found for found in (sample.image_patches, sample.video_patches) if found is not None]
        return 3 * 8 * sample.num_tokens + sum(rows.numel() for rows in patches), 0


class VisionLanguageTask(Task):
    """Task that trains a vision-language model on the supervised tokens of conversations with images and videos.

    A batch is a list of `ChatSample`. The loss of a step is the mean over all its supervised tokens, regardless of the
    number of ranks, packing and gradient accumulation.
    """

    objective_class = NextToken
    loader_class = ChatLoader
    dummy_data_class = DummyChats
    small_recipe = "videophy2_nano_tiny"
    terms = "record: one conversation; sample: that conversation with its images and videos"

    model: VisionLanguageModel
    objective: NextToken
    data: ChatLoader.Config

    def loader(self, *, dry: bool = False) -> ChatLoader:
        settings = copy.deepcopy(self.data)
        settings.num_workers = 0 if dry else settings.num_workers
        processor = settings.processor.build(folder=self.model.folder)
        return settings.build(processor=processor, **self.loader_arguments())

    def weigh(self, batch: Sequence[ChatSample]) -> float:
        return sum(sample.num_supervised for sample in batch)

    def prepare(self, batch: Sequence[ChatSample], *, seed: int) -> Inputs:
        from worldsmith.families.vision_language.inputs import collate

        return collate(batch, self.model.network, packed=self.model.packs)

    def loss(self, batch: Sequence[ChatSample], *, seed: int, inputs: Inputs | None = None) -> BatchLoss:
        from worldsmith.families.vision_language.inputs import normalize_patches

        inputs = self.prepare_on_device(batch, seed=seed) if inputs is None else inputs
        inputs = normalize_patches(inputs, lambda patches, kind: self.media.normalize(patches, kind))
        total = self.model.network.loss_of(inputs, self.objective.loss_sum)
        return BatchLoss(sum=total, samples=len(batch), tokens=sum(sample.num_tokens for sample in batch))

    def padding(self, batch: Sequence[ChatSample]) -> int:
        """Returns the number of padding tokens of a batch; 0 if its samples are packed into one row.

        Without packing, each row is padded to the length of the longest sample.
        """
        lengths = [sample.num_tokens for sample in batch]
        return 0 if self.model.packs else len(lengths) * max(lengths) - sum(lengths)

    def count_flops(self, batch: Sequence[ChatSample]) -> int | None:
        """Returns the FLOPs of a training step on `batch`, without padding; None for an unsupported model type."""
        from worldsmith.families.vision_language.network.shapes_and_flops import step_flops

        grids = [grid for sample in batch for grid in (sample.image_grids, sample.video_grids) if grid is not None]
        with real_values():
            frames = [(rows, columns) for grid in grids for t, rows, columns in grid.tolist() for _ in range(t)]
            supervised = sum(sample.num_supervised for sample in batch)
        found = step_flops(self.model.network, [sample.num_tokens for sample in batch], frames, supervised)
        return None if found is None else found.total

    @cached_property
    def media(self) -> MediaProcessor:
        """The processor of images and videos, from the model's folder.

        Raises:
            DataError: If the model folder does not state which images the model accepts.
        """
        return self.data.processor.media.build(folder=self.model.folder)

    def step_counts(self, batches: Sequence[Sequence[ChatSample]]) -> Mapping[str, float]:
        return {"with_media": sum(has_media(sample) for batch in batches for sample in batch)}

    def check_gradients(self, weight: float, sums: Mapping[str, float]) -> None:
        """Checks in the first steps that the trained components receive gradients; all ranks must call it.

        The language model is checked in the first step, vision encoder and projector in the first step in which a rank
        has media.

        Args:
            weight: Number of supervised tokens of the step on all ranks.
            sums: `with_media`: number of samples with images or videos on all ranks.

        Raises:
            UserError: On all ranks, if a gradient is zero or not finite, or no token of the first step is supervised.
        """
        if weight == 0 and self.in_first_step:
            raise UserError(
                "no token of the first step is supervised, so there is nothing to learn: check the labels with "
                "`worldsmith dataset preview`, the roles and the chat template"
            )
        if weight:
            self.first_gradients.check(PARTS if sums["with_media"] else (LANGUAGE,), self.world)

    @cached_property
    def first_gradients(self) -> FirstGradients:
        return FirstGradients(self.model.network, backbone_part)

    def describe_weights(self, run: Any, rates: Mapping[str, float]) -> Iterable[tuple[str, str]]:
        return describe_parts(self.model.network, rates)

    def remarks(self) -> Iterator[tuple[str, str]]:
        yield "attention", self.model.describe_attention()
        yield "batches", self.model.describe_batches()


class FirstGradients:
    """Checks that the first gradient of each trained component of a network is finite and not zero.

    Components are "vision", "projector" and "language" (`backbone_part`); each is checked in the first step that uses
    it.

    Args:
        network: The network.
        part_of: Returns the component of a parameter by its internal name.
    """

    def __init__(self, network: nn.Module, part_of: Callable[[str], str]) -> None:
        self.network, self.part_of = network, part_of
        self.unchecked = {part_of(name) for name, p in native_parameters(network).items() if p.requires_grad}

    def check(self, reached: Collection[str], world: World) -> None:
        """Checks the gradients after the last backward pass of a step; all ranks must call it.

        Args:
            reached: Components that the batches of any rank use; the same on all ranks.
            world: Ranks of the run.

        Raises:
            UserError: On all ranks, if the gradient of a component that some rank uses is zero or not finite.
        """
        parts = sorted(self.unchecked.intersection(reached))
        if not parts:
            return
        import torch

        squares = dict.fromkeys(parts, torch.zeros((), dtype=torch.float64))
        for name, parameter in native_parameters(self.network).items():
            part, gradient = self.part_of(name), parameter.grad
            if gradient is not None and part in squares:
                squares[part] = squares[part] + local_part(gradient).double().square().sum().cpu()
        self.unchecked.difference_update(parts)
        for part, total in zip(parts, world.sum(*map(float, squares.values()))):
            if not 0 < total < float("inf"):
                found = "zero, so no parameter of it would be trained" if total == 0 else "not finite"
                raise UserError(
                    f"the first gradient of the {part} component is {found}: check the initial weights "
                    "(checkpoint.load_path), or freeze that component"
                )


def has_media(sample: ChatSample) -> bool:
    return sample.image_grids is not None or sample.video_grids is not None
