"""What actions have in common that ask a reasoner."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from worldsmith.actions.model_action import ModelAction, find_device
from worldsmith.checkpoint.formats.find_model import find_model
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.config.declare.ranges import Count
from worldsmith.config.tree.reader import from_dict
from worldsmith.data.conversations.chat_processor import ChatProcessor

if TYPE_CHECKING:
    from worldsmith.sampling.answers import Answerer


class AnswerAction(ModelAction):
    """Asks a reasoner, which answers greedily."""

    class Config(ModelAction.Config):
        weights: Literal["auto", "ema", "live", "untrained"] = "auto"
        """auto: averaged (ema) if there are any."""
        processor: ChatProcessor.Config = field(default_factory=ChatProcessor.Config)
        """How pictures are read; unchanged, a run is asked as it was trained, another folder as its files say."""
        max_new_tokens: Count = 256
        """An answer ends after so many tokens at the latest."""
        device: str | None = None
        """cpu or cuda; null: cuda if there is one."""

    config: Config

    def find(self) -> StoredModel:
        config = self.config
        return find_model(config.model, weights=config.weights, base=config.base)

    def settings(self, model: StoredModel) -> ChatProcessor.Config:
        """How pictures are read: as asked, else as in the model's run, else as its folder says."""
        asked, data = self.config.processor, (model.tree or {}).get("dataloader_train", {})
        if asked == ChatProcessor.Config() and "processor" in data:
            trained: ChatProcessor.Config = from_dict(data["processor"], ChatProcessor.Config)
            return trained
        return asked

    def answerer(self, model: StoredModel) -> Answerer:
        """The model with its weights, ready to be asked."""
        from worldsmith.sampling.answers import Answerer

        loaded: Any = model.load(find_device(self.config.device))
        return Answerer(loaded, self.settings(model))
