"""BERTScore (Zhang et al. 2020): similarity of the tokens of two texts in a text encoder."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from worldsmith.config.declare.configurable import Configurable
from worldsmith.config.declare.ranges import Count
from worldsmith.config.errors import UserError
from worldsmith.files.json_file import read_json_object
from worldsmith.files.remote import RemoteError, in_store
from worldsmith.files.untrusted_folder import load_from_folder
from worldsmith.models.model_files import find_local, local_folder

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = ("*.safetensors", "*.bin")
FILES = ("config.json", "*.json", "*.txt", "*.model", *WEIGHTS)
LAYERS = {
    "bert-base-chinese": 8,
    "bert-base-multilingual-cased": 9,
    "bert-base-uncased": 9,
    "bert-large-uncased": 18,
    "deberta-base-mnli": 9,
    "deberta-large-mnli": 18,
    "deberta-v3-base": 9,
    "deberta-v3-large": 12,
    "deberta-xlarge-mnli": 40,
    "distilbert-base-uncased": 5,
    "roberta-base": 10,
    "roberta-large": 17,
    "roberta-large-mnli": 19,
    "xlm-roberta-base": 9,
    "xlm-roberta-large": 17,
}
"""Encoder -> the layer that correlates best with human ratings, as in the library bert-score."""
TOKENS, UNLIMITED = 512, 1_000_000
"""Max tokens of a text if the tokenizer has no limit: its `model_max_length` is then a placeholder >= `UNLIMITED`."""


class BertScores(NamedTuple):
    """BERTScore precision, recall and F1 of one answer against its ground truth, each at most 1."""

    precision: float
    recall: float
    f1: float


class BertScore(Configurable):
    """BERTScore metric: matches each token of one text to the most similar token of the other, by encoder states.

    As in the library bert-score: cosine similarity; special tokens have no weight; neither inverse document frequencies
    nor a baseline.
    """

    class Config(Configurable.Config):
        model: str = "microsoft/deberta-xlarge-mnli"
        """Folder of a text encoder, its address in an object store, or a hub name that is in the Hugging Face cache."""
        layers: Count | None = None
        """Index of the layer whose states are compared; null: the layer that bert-score recommends for the model."""
        device: str = "cpu"
        """Device of the encoder: cpu or cuda."""
        batch_size: Count = 8
        """Batch size of the encoder."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def find_folder(self) -> Path | None:
        """Returns the folder of the encoder; None if the default encoder is not on this machine.

        Downloads files only from an object store.

        Raises:
            UserError: If an encoder other than the default one is not on this machine, or if the layer is unknown or
                does not exist.
        """
        name = self.config.model
        try:
            find = local_folder if in_store(name) else find_local
            found = find(name, file_patterns=FILES, field="bertscore.model")
        except (FileNotFoundError, RemoteError) as error:
            raise UserError(str(error)) from None
        if not isinstance(found, Path) or not any(any(found.glob(pattern)) for pattern in WEIGHTS):
            if name == BertScore.Config().model:
                return None
            where = "in the store" if in_store(name) else f"on this machine. Run `hf download {name}`"
            raise UserError(f"bertscore.model {name}: its weights are not {where}")
        if self.layer is None:
            known = ", ".join(LAYERS)
            raise UserError(f"bertscore.model {name}: the best layer is unknown (known: {known}); set bertscore.layers")
        most = read_json_object(found / "config.json").get("num_hidden_layers", self.layer)
        if self.layer > most:
            raise UserError(
                f"bertscore.layers: expected at most {most}, the number of layers of {name}, found {self.layer}"
            )
        return found

    @property
    def layer(self) -> int | None:
        return self.config.layers or LAYERS.get(self.config.model.rstrip("/").rpartition("/")[2])

    def compare(self, answers: Sequence[str], truths: Sequence[str]) -> list[BertScores]:
        """Returns the scores of each answer against the ground truth at the same index; loads the encoder on first use.

        Scores are 0 if the answer or the ground truth is empty.
        """
        texts = sorted({text.strip() for text in (*answers, *truths)}, key=len, reverse=True)
        size = self.config.batch_size
        states: dict[str, tuple[Tensor, Tensor]] = {}
        for start in range(0, len(texts), size):
            batch = texts[start : start + size]
            states |= dict(zip(batch, self.encode(batch), strict=True))
        return [
            score(*states[answer.strip()], *states[true.strip()]) for answer, true in zip(answers, truths, strict=True)
        ]

    def encode(self, texts: Sequence[str]) -> list[tuple[Tensor, Tensor]]:
        """Returns (unit-length states [tokens, width], weights [tokens]) of each text; special tokens have weight 0."""
        import torch

        tokenizer, model, limit = self.encoder
        given = tokenizer(texts, padding=True, truncation=True, max_length=limit, return_tensors="pt")
        ids, mask = given["input_ids"], given["attention_mask"].bool()
        with torch.inference_mode():
            out = model(ids.to(model.device), attention_mask=mask.to(model.device), output_hidden_states=True)
        states = torch.nn.functional.normalize(out.hidden_states[self.layer].cpu().float(), dim=-1)
        special = torch.tensor([tokenizer.cls_token_id, tokenizer.sep_token_id])
        weights = (mask & ~torch.isin(ids, special)).float()
        return [(states[row, mask[row]], weights[row, mask[row]]) for row in range(len(texts))]

    @functools.cached_property
    def encoder(self) -> tuple[Any, Any, int]:
        """Tokenizer, model, and the max number of tokens of a text; loaded on first use."""
        from transformers import AutoModel, AutoTokenizer

        folder = self.find_folder()
        assert folder is not None  # otherwise no score is requested
        tokenizer = load_from_folder(AutoTokenizer, folder)
        model = load_from_folder(AutoModel, folder).float().eval().to(self.config.device)
        limit = tokenizer.model_max_length
        return tokenizer, model, limit if limit < UNLIMITED else TOKENS


def score(answer: Tensor, answer_weights: Tensor, truth: Tensor, truth_weights: Tensor) -> BertScores:
    """Computes the BERTScore of an answer by greedy matching; 0 if one of the texts only has special tokens.

    Args:
        answer: Encoder states of the answer, of unit length [tokens, width].
        answer_weights: Weights of these tokens [tokens].
        truth: Encoder states of the ground truth, of unit length [tokens, width].
        truth_weights: Weights of these tokens [tokens].
    """
    if not answer_weights.any() or not truth_weights.any():
        return BertScores(0.0, 0.0, 0.0)
    similar = answer @ truth.T
    precision = float((similar.max(1).values * answer_weights).sum() / answer_weights.sum())
    recall = float((similar.max(0).values * truth_weights).sum() / truth_weights.sum())
    both = precision + recall
    return BertScores(precision, recall, 2 * precision * recall / both if both else 0.0)
