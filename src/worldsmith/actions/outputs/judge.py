"""`worldsmith evaluate` for reasoners: answers to the questions of a data set, compared with its own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from worldsmith.actions.action import Result, share_done
from worldsmith.actions.model_action import WritingAction
from worldsmith.actions.outputs.answering import AnswerAction
from worldsmith.config.declare.ranges import Count
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.data.conversations.conversation import Turn, question
from worldsmith.data.conversations.datasets import llava, llava_onevision, messages  # noqa: F401 (can be chosen)
from worldsmith.data.conversations.datasets.chat_dataset import ChatDataset
from worldsmith.data.conversations.datasets.manifest import ManifestDataset
from worldsmith.data.stream.errors import SampleError
from worldsmith.evaluation.plausibility import measure_scores, parse_score
from worldsmith.evaluation.yes_no import measure_yes_no, parse_word
from worldsmith.files.atomic import write_text
from worldsmith.files.writable import require_writable

ANSWERS, SUMMARY = "answers.jsonl", "summary.json"


class JudgeAnswers(AnswerAction, WritingAction):
    """Asks a reasoner the questions of a data set and compares its answers with the data set's last ones.

    Scores from 1 to 5 are read and counted as VideoPhy-2 does it; other answers must be yes or no. --dataset names the
    kind: ManifestDataset (VideoPhy-2), LlavaDataset, MessagesDataset or LlavaOneVision; --dataset.path its file or
    folder.
    """

    class Config(AnswerAction.Config, WritingAction.Config):
        dataset: ChatDataset.Config = field(default_factory=ManifestDataset.Config)
        """The questions, each with its true answer."""
        out: str
        """Folder of answers.jsonl and summary.json."""
        answers: Literal["auto", "scores", "yes_no"] = "auto"
        """What is asked for; auto: what all true answers are."""
        limit: Count | None = None
        """Only the first so many conversations are asked."""
        batch_size: Count = 8
        """Conversations that are asked at once."""

    config: Config

    def plan(self) -> Iterator[str]:
        model = self.find()
        dataset, asked, left_out = self.read()
        yield f"model    {model.folder} ({model.weights_in_words})"
        yield f"asked    {len(asked)} of {dataset.num_records} conversations of {dataset.name}: {self.kind(asked)}"
        yield from (f"left out {reason} {count}" for reason, count in sorted(left_out.items()))
        yield f"folder   {self.config.out}"

    def run(self) -> Result:
        config, out = self.config, Path(self.config.out)
        require_writable(out)
        if (out / SUMMARY).exists() and not config.force:
            raise FileExistsError(f"{out} has answers already; choose another folder, or give --force")
        model = self.find()
        dataset, asked, left_out = self.read()
        kind = self.kind(asked)
        questions = [(key, question(turns)) for key, turns in asked]
        answers, show = [], share_done("answering")
        answerer = self.answerer(model)
        for answer in answerer.answers(questions, batch_size=config.batch_size, max_new_tokens=config.max_new_tokens):
            answers.append(answer)
            if show is not None:
                show(len(answers), len(questions))
        records = [
            {
                "id": key,
                "question": question(turns)[-1].text.strip(),
                "model_response": answer.text,
                "ground_truth": truth(turns),
            }
            for (key, turns), answer in zip(asked, answers)
            if not answer.error
        ]
        left_out.update(answer.error.partition(":")[0] for answer in answers if answer.error)
        measure = measure_scores if kind == "scores" else measure_yes_no
        figures = measure([r["model_response"] for r in records], [r["ground_truth"] for r in records])
        facts = {
            **figures,
            "left_out": dict(sorted(left_out.items())),
            "answers": kind,
            "dataset": dataset.name,
            "model": str(model.folder),
            "weights": model.weights,
            "iteration": model.iteration,
            "processor": to_dict(answerer.processor.config),
        }
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / ANSWERS, "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records))
        write_text(out / SUMMARY, json.dumps(facts, indent=2) + "\n")
        return Result(summary(facts, out), facts)

    def read(self) -> tuple[ChatDataset, list[tuple[str, Sequence[Turn]]], Counter[str]]:
        """The data set, its conversations by key, and how many are left out for which reason.

        Raises UserError when there is none to ask.
        """
        dataset: ChatDataset = self.config.dataset.build()
        left_out = Counter(rejection.reason for rejection in dataset.rejections)
        asked: list[tuple[str, Sequence[Turn]]] = []
        for index in islice(range(len(dataset)), self.config.limit):
            try:
                turns = dataset.turns(index)
            except SampleError as error:
                left_out[error.reason] += 1
                continue
            asked.append((dataset.place(index)[0], turns))
        if not asked:
            raise UserError(f"{dataset.name} has no conversation that can be asked; left out: {dict(left_out)}")
        return dataset, asked, left_out

    def kind(self, asked: Sequence[tuple[str, Sequence[Turn]]]) -> str:
        """Raises UserError when the true answers are of no kind that can be compared, or not of the one asked for."""
        truths = [truth(turns) for _, turns in asked]
        kinds = {"scores": parse_score, "yes_no": parse_word}
        fits = {name: sum(parse(text) is not None for text in truths) for name, parse in kinds.items()}
        wanted = [self.config.answers] if self.config.answers != "auto" else list(kinds)
        best = max(wanted, key=lambda name: fits[name])
        if fits[best] == 0 or (self.config.answers == "auto" and fits[best] < len(truths)):
            example = next(text for text in truths if kinds[best](text) is None)
            raise UserError(
                f"the true answers are not all scores from 1 to 5, and not all yes or no (such as {example[:60]!r}); "
                "ask another data set, or give --answers scores or yes_no to leave such conversations out of the count"
            )
        return best


def truth(turns: Sequence[Turn]) -> str:
    return turns[len(question(turns))].text.strip()


def summary(facts: Mapping[str, Any], out: Path) -> list[str]:
    """The figures for people; the last line has those that count."""
    lines = [
        f"answers       {out / ANSWERS}",
        f"figures       {out / SUMMARY}",
        f"asked         {facts['num_samples']}; without an answer that can be read: "
        f"{facts['num_pred_parse_failures']}; without a true one: {facts['num_gt_parse_failures']}; left out: "
        f"{', '.join(f'{reason} {count}' for reason, count in facts['left_out'].items()) or 'none'}",
        f"baseline      {number(facts['majority_baseline'])}, the most frequent true answer alone",
    ]
    if facts["answers"] == "yes_no":
        apart = ", ".join(f"{name} {number(facts[name])}" for name in ("precision", "recall", "f1"))
        return [*lines, f"of yes        {apart}", f"yes/no accuracy {with_interval(facts, 'accuracy')}"]
    return [
        *lines,
        f"errors        mean {number(facts['mean_absolute_error'])}, Spearman {number(facts['spearman_correlation'])}",
        f"accuracy {with_interval(facts, 'accuracy')} · within one {with_interval(facts, 'within_one')} · Pearson "
        f"{number(facts['pearson_correlation'])}{interval(facts['pearson_interval'])}",
    ]


def number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def interval(bounds: tuple[float, float] | None) -> str:
    return "" if bounds is None else f" [{bounds[0]:.2f}, {bounds[1]:.2f}]"


def with_interval(facts: Mapping[str, Any], name: str) -> str:
    return f"{number(facts[name])}{interval(facts[f'{name}_interval'])}"
