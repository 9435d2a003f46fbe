"""`worldsmith infer`: one question to a reasoner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

from worldsmith.actions.action import Result
from worldsmith.actions.answers.answering import AnswerAction
from worldsmith.config.errors import UserError
from worldsmith.data.conversations.conversation import Part, Turn, say


class AskModel(AnswerAction):
    """Asks a reasoner one question, with images or videos if there are any, and prints its answer."""

    class Config(AnswerAction.Config):
        prompt: str
        """The question."""
        image: list[str] = field(default_factory=list)
        """Image files, in the order in which they are shown before the question."""
        video: list[str] = field(default_factory=list)
        """Video files, shown after the images."""
        system: str = ""
        """What the model is told first; "" = nothing."""

    config: Config

    def plan(self) -> Iterator[str]:
        model = self.find()
        yield f"model    {model.folder} ({model.weights_in_words})"
        yield f"asked    {self.config.prompt}"
        yield from (f"shown    {part.kind} {part.source!s}" for part in self.pictures())

    def run(self) -> Result:
        config = self.config
        turns, model = self.turns(), self.find()
        (answer,) = self.answerer(model).answers(
            [("the question", turns)], batch_size=1, max_new_tokens=config.max_new_tokens
        )
        if answer.error:
            raise UserError(answer.error)
        return Result([answer.text], {"prompt": config.prompt, "answer": answer.text})

    def turns(self) -> list[Turn]:
        system = [say("system", self.config.system)] if self.config.system else []
        return [*system, say("user", *self.pictures(), self.config.prompt)]

    def pictures(self) -> list[Part]:
        """Raises UserError for a file that is not there."""
        config = self.config
        for name in (*config.image, *config.video):
            if not Path(name).is_file():
                raise UserError(f"{name} is no file")
        return [
            *(Part("image", source=name) for name in config.image),
            *(Part("video", source=n) for n in config.video),
        ]
