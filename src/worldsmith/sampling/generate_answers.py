"""Generates answers to conversations, with the tokenizer, chat template and image settings of the model's folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from worldsmith.data.conversations.chat_processor import ChatProcessor, ChatSample
from worldsmith.data.stream.errors import SampleError
from worldsmith.models.decoding import GREEDY, Decoding

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from worldsmith.data.conversations.conversation import Turn


class AnsweringModel(Protocol):
    """Interface of a loaded vision-language model that generates the tokens of answers."""

    @property
    def folder(self) -> Path:
        """Folder with the files of the model's tokenizer, chat template and image preprocessing."""

    def generate(
        self,
        prompts: Sequence[Any],
        *,
        normalize: Callable[[Tensor, str], Tensor],
        pad_token: int,
        max_new_tokens: int,
        decoding: Decoding,
        seeds: Sequence[int],
    ) -> list[list[int]]: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a model to the conversation `key`, or the reason why it was not generated."""

    key: str
    text: str = ""
    error: str = ""
    """Reason why no answer was generated: the conversation cannot be read, or the model failed; "": no error."""
    was_asked: bool = True
    """Whether the model was called; False if the conversation could not be read."""


class Answerer:
    """Generates answers with a vision-language model: builds prompts, runs the model and decodes its tokens.

    Args:
        model: The loaded model.
        settings: Preprocessing of images and videos; use that of the training.

    Raises:
        DataError: If the model's folder lacks a file.
    """

    def __init__(self, model: AnsweringModel, settings: ChatProcessor.Config) -> None:
        self.model = model
        self.processor: ChatProcessor = settings.build(folder=model.folder)
        tokenizer = self.processor.tokenizer
        self.pad_token: int = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id

    def answers(
        self,
        conversations: Iterable[tuple[str, Sequence[Turn]]],
        *,
        batch_size: int,
        max_new_tokens: int,
        decoding: Decoding = GREEDY,
        forgiving: bool = False,
    ) -> Iterator[Answer]:
        """Generates the next turn of each conversation, batch by batch.

        Args:
            conversations: (key that names the conversation, turns before the answer) of each conversation.
            batch_size: Number of conversations per call of the model.
            max_new_tokens: Max number of generated tokens per answer.
            decoding: Temperature, top-p, repetition penalty and seed.
            forgiving: Whether a RuntimeError of the model, such as out of memory, is tolerated: the conversations of
                the batch are then answered one by one, and one that fails again gets an answer with that error.

        Yields:
            The answers in the order of the conversations, as soon as their batch is complete.
        """
        waiting = iter(conversations)
        while batch := list(islice(waiting, batch_size)):
            read = [self._read(key, turns) for key, turns in batch]
            prompts = [prompt for prompt in read if not isinstance(prompt, Answer)]
            generated = self._answer(prompts, max_new_tokens, decoding, forgiving) if prompts else []
            generated_answers = iter(generated)
            yield from (prompt if isinstance(prompt, Answer) else next(generated_answers) for prompt in read)

    def _read(self, key: str, turns: Sequence[Turn]) -> ChatSample | Answer:
        """Returns the prompt for the model of conversation `key`, or an answer with the error if that fails."""
        try:
            return self.processor.prompt(turns, key=key)
        except SampleError as error:
            return Answer(key, error=str(error), was_asked=False)

    def _answer(
        self, prompts: Sequence[ChatSample], max_new_tokens: int, decoding: Decoding, forgiving: bool
    ) -> list[Answer]:
        try:
            texts = self._generate(prompts, max_new_tokens, decoding)
        except RuntimeError as error:
            if not forgiving:
                raise
            failure = (str(error).splitlines() or [type(error).__name__])[0]
        else:
            return [Answer(prompt.key, text) for prompt, text in zip(prompts, texts)]
        if len(prompts) == 1:
            return [Answer(prompts[0].key, error=f"generation: {failure}")]
        return [answer for prompt in prompts for answer in self._answer([prompt], max_new_tokens, decoding, forgiving)]

    def _generate(self, prompts: Sequence[ChatSample], max_new_tokens: int, decoding: Decoding) -> list[str]:
        media: Any = self.processor.media  # None only where no prompt has patches
        tokens = self.model.generate(
            prompts,
            normalize=lambda patches, kind: media.normalize(patches, kind),
            pad_token=self.pad_token,
            max_new_tokens=max_new_tokens,
            decoding=decoding,
            seeds=[decoding.seed_of(prompt.key) for prompt in prompts],
        )
        texts = self.processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return [text.strip() for text in texts]
