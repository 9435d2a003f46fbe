"""Answers of a reasoner to the same questions, generated during training."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from worldsmith.config.declare.ranges import Count
from worldsmith.data.conversations.conversation import Turn, question
from worldsmith.data.conversations.datasets.chat_dataset import ChatDataset
from worldsmith.data.shards.addresses import absolute_path, open_clip
from worldsmith.data.stream.errors import DataError, SampleError
from worldsmith.files.atomic import replacing
from worldsmith.files.remote import file_size, is_remote
from worldsmith.training.callbacks.samples.draw_samples import DrawingSize, DrawnSample, DrawSamples, Weights

if TYPE_CHECKING:
    from worldsmith.sampling.generate_answers import Answerer
    from worldsmith.training.callbacks.base import TrainingRun

logger = logging.getLogger(__name__)

BATCH = 8
"""Max number of questions per batch."""
GOOD_TOKENS, LEAST_TOKENS = 16, 8
"""Max new tokens per answer below which the number of questions is reduced instead, and their minimum."""
TOKEN = 0.25
"""Assumed cost of generating one token, as a multiple of the forward pass of one training sample."""
TRAINING, HELD_OUT = "training question", "held-out question"
"""Labels of questions from the training and from the validation data."""
MEDIA, LARGEST = "media", 64 * 2**20
"""Folder of copies of the images and videos that questions are about, and the max size in bytes of a copied file."""


class DrawAnswers(DrawSamples):
    """Generates greedy answers to a fixed set of questions while the run trains, to show its progress.

    Each question is the last one of a conversation in the data. The record of an answer also has the ground truth.
    Without `every`, all answers take at most `max_time_fraction` (3 %) of the run's time.
    """

    class Config(DrawSamples.Config):
        makes: ClassVar[str] = "answers"

        dataset: ChatDataset.Config | None = None
        """Dataset of the conversations; `samples` of them are used, evenly spaced over the dataset. None: the
        validation data if the run validates, otherwise the training data."""
        max_new_tokens: Count = 64
        """Max number of tokens of an answer; reduced to fit `max_time_fraction` if `every` is None."""

        def fit(self, passes: float) -> DrawingSize:
            counts = range(self.samples, 0, -1)
            return self.choose(passes, counts, self.max_new_tokens, good=GOOD_TOKENS, least=LEAST_TOKENS)

        def cost(self, size: DrawingSize) -> float:
            return size.prompts * (1 + TOKEN * size.steps)

    config: Config
    answerer: Answerer | None = None

    def obstacle(self, run: Any) -> str:
        data: Any = run.dataloader_train
        if self.config.dataset or run.trainer.run_validation or data.num_workers or not is_streamed(data.dataset):
            return ""
        return "the training data is streamed by this process, and reading the first questions restarts the stream"

    def prepare(self, trainer: TrainingRun) -> None:
        if self.answerer is not None:
            return
        from worldsmith.sampling.generate_answers import Answerer

        loader: Any = trainer.config.dataloader_train
        model: Any = trainer.model
        answerer = Answerer(model, loader.processor)
        dataset: ChatDataset = (trainer.state if trainer.validator is None else trainer.validator).loader.dataset
        if self.config.dataset is not None:
            dataset = self.config.dataset.build()
        self.questions = choose_questions(dataset, self.num_prompts, answerer)
        self.answerer = answerer  # what fails before is tried again

    def draw(self, trainer: TrainingRun) -> Iterator[list[DrawnSample]]:
        assert self.answerer is not None
        self.questions = trainer.world.broadcast(self.questions)  # whatever the other ranks can read
        chosen = self.questions[: self.decision.prompts or None]
        source = None
        if self.config.dataset is None:
            source = TRAINING if trainer.validator is None else HELD_OUT
        prompts = [(key, question(turns)) for key, turns in chosen]
        max_tokens = self.config.max_new_tokens if self.size is None else self.size.steps
        answers = self.answerer.answers(prompts, batch_size=BATCH, max_new_tokens=max_tokens)
        for number, ((_, turns), answer) in enumerate(zip(chosen, answers), start=1):
            if answer.error:
                raise DataError(f"{answer.key} cannot be answered: {answer.error}")
            self.end_if_stopped(trainer, number / len(chosen))
            last = question(turns)[-1]
            truth = turns[len(question(turns))].text.strip()
            prompt, media = last.text.strip(), media_of(turns)
            yield [DrawnSample(prompt=prompt, answer=answer.text, expected=truth, media=media, source=source)]

    def write(
        self, trainer: TrainingRun, folder: Path, samples: Mapping[Weights, Sequence[DrawnSample]]
    ) -> Iterator[dict[str, Any]]:
        run = folder.parents[1]
        for weights, drawn in samples.items():
            for sample in drawn:
                yield {
                    "weights": weights,
                    "guidance": None,
                    "kind": "answer",
                    "prompt": sample.prompt,
                    **({} if sample.source is None else {"source": sample.source}),
                    "file": None,
                    "answer": sample.answer,
                    "expected": sample.expected,
                    "media": None if sample.media is None else copy_media(sample.media, folder.parent, run),
                }


def choose_questions(dataset: ChatDataset, count: int, answerer: Answerer) -> list[tuple[str, tuple[Turn, ...]]]:
    """Chooses conversations whose last question is answered during training.

    Args:
        dataset: Dataset of the conversations.
        count: Number of conversations, evenly spaced over the dataset; of a streamed dataset, the first ones.
        answerer: Generates the answers; conversations that its processor rejects are skipped.

    Returns:
        (conversation key, all turns of the conversation) of each chosen conversation.

    Raises:
        DataError: If no conversation can be used.
    """
    distance = 1 if is_streamed(getattr(dataset, "config", None)) else max(1, len(dataset) // count)
    found: list[tuple[str, tuple[Turn, ...]]] = []
    for index in range(0, len(dataset), distance):
        key = dataset.place(index)[0]
        try:
            turns = dataset.turns(index)
            answerer.processor.prompt(question(turns), key=key)
        except SampleError as error:
            logger.warning("%s is not among the sampled questions: %s", key, error)
            continue
        found.append((key, turns))
        if len(found) == count:
            break
    if not found:
        raise DataError(f"{dataset.name} has no conversation with a question")
    return found


def is_streamed(dataset: Any) -> bool:
    """Returns whether the dataset config `dataset` reads its data as a stream."""
    return bool(getattr(dataset, "streaming", False))


def media_of(turns: Sequence[Turn]) -> str | None:
    """Returns the path or address of the last image or video in the question; None without one."""
    parts = [part for turn in question(turns) for part in turn.parts if part.kind != "text"]
    sources = [part.source for part in parts if isinstance(part.source, str)]
    # A remote file exists: the question has been answered.
    return next((source for source in reversed(sources) if is_remote(source) or os.path.isfile(source)), None)


def copy_media(source: str, folder: Path, run: Path) -> str:
    """Copies the image or video `source` below `folder`, if it is not there yet.

    The report shows only files in the run folder.

    Returns:
        Path of the copy relative to the folder `run`. A file larger than `LARGEST` is not copied; its own path, or its
        address, is returned.
    """
    file = absolute_path(source)
    copy = folder / MEDIA / hashlib.blake2b(os.fsencode(file), digest_size=4).hexdigest() / Path(source).name
    if not copy.exists():
        if file_size(source) > LARGEST:
            return source if is_remote(source) else os.path.relpath(file, run)
        with open_clip(source) as original:
            copy.parent.mkdir(parents=True, exist_ok=True)
            with replacing(copy) as aside, open(aside, "wb") as target:
                shutil.copyfileobj(original, target)
    return os.path.relpath(copy, run)
