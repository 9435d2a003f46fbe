"""`worldsmith evaluate` for reasoners: answers the questions of a dataset and compares them with the ground truth."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from worldsmith.actions.action import Result, left_out_lines, share_done
from worldsmith.actions.model_action import AnswerAction, WritingAction, require_outside
from worldsmith.actions.parents import training_data_of
from worldsmith.checkpoint.formats.merged_adapter import Merged, merge_adapter
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.config import wrong
from worldsmith.config.declare.ranges import Count, Share
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.tree.reader import from_dict
from worldsmith.data.conversations.datasets.chat_dataset import ChatDataset
from worldsmith.data.conversations.datasets.manifest import ManifestDataset
from worldsmith.data.stream.errors import DataError
from worldsmith.distributed.world import World, start_world, stop_world
from worldsmith.evaluation.answers.answer_tasks import AnswerTask, AnswerTasks
from worldsmith.evaluation.answers.answer_text import split_answer
from worldsmith.evaluation.answers.bert_score import BertScore
from worldsmith.evaluation.answers.judging import compare_accuracy, judge, measure, measure_slices
from worldsmith.evaluation.answers.results import METRICS, RESULTS, Row, read_results
from worldsmith.evaluation.answers.texts import Metric
from worldsmith.files.fingerprint import fingerprint
from worldsmith.files.writable import require_writable
from worldsmith.monitor.lineage import Input, write_lineage
from worldsmith.tools.evaluate.answer_records import (
    Asked,
    SavedAnswers,
    count_outcomes,
    find_repeated,
    find_trained_on,
    mark_of,
    read_records,
    write_outcome,
)

logger = logging.getLogger(__name__)

MERGED = "merged"
FIELDS = {"by_record": "task", "metropolis_sgd": "category"}
"""Default field of the task type in records."""


class EvaluateAnswers(AnswerAction, WritingAction):
    """Evaluates a reasoner: generates answers to the questions of a dataset and compares them with the ground truth.

    results.json has a row for each record, metrics.json the metrics. --dataset selects the layout: ManifestDataset
    (VideoPhy-2), LlavaDataset, MessagesDataset or LlavaOneVision; --dataset.path its file or folder. Answers are
    saved one by one, so the same command continues after a stop. --processes N, and on several machines `worldsmith
    launch --nnodes M --nproc-per-node N evaluate …`, share the questions among processes.
    """

    class Config(AnswerAction.Config, WritingAction.Config):
        dataset: ChatDataset.Config = field(default_factory=ManifestDataset.Config)
        """The questions, each with its ground-truth answer."""
        out: str
        """Folder of results.json, metrics.json and the other outputs."""
        task: Literal[
            "auto", "binary", "mcq", "text", "scores", "its_directionality", "metropolis_sgd", "by_record"
        ] = "auto"
        """Task type of the answers: yes or no, a letter, free text, a score from 1 to 5 (VideoPhy-2), a direction;
        by_record: as each record states; auto: the type that fits all ground-truth answers, otherwise text."""
        task_field: str = ""
        """by_record and metropolis_sgd: record field with the task type; "" = task and category."""
        metrics: list[Metric] = field(default_factory=lambda: ["bleu", "rouge"])
        """Metrics of free text in addition to exact and soft matches. bertscore is skipped with a warning if its
        default model is not on this machine."""
        bertscore: BertScore.Config = field(default_factory=BertScore.Config)
        """The text encoder of bertscore."""
        soft_threshold: Share = 0.8
        """Min token F1 of a soft match."""
        slices: list[str] = field(default_factory=list)
        """Also report metrics of slices of the data: by question (numbers removed), duration (of the video), or any
        field of the records."""
        against: str | None = None
        """Results of another model on the same questions, results.json or its folder: reports which answers were gained
        and lost."""
        merged: str | None = None
        """Folder of the model with --adapter merged in; its name states its inputs, so that it is reused; null: merged/
        in --out."""
        limit: Count | None = None
        """Use only the first N records; null: all."""
        processes: Count | None = None
        """Number of processes on this machine that share the questions, each with its own GPU if there are any; null:
        one. `worldsmith evaluate` starts them; under `worldsmith launch` omit it."""
        shard: str | None = None
        """i/N: use only every N-th record from number i (0 to N-1), so that several machines share the work. Then copy
        all answers/ folders into one and run the same command without this flag."""
        max_failed: Share = 0.05
        """Max fraction of records that may fail; above it the exit code is 1."""
        confusion_picture: bool = True
        """Write confusion.png for answers with a fixed set of values."""
        item_files: bool = True
        """its_directionality: also write one file per record, in items/."""

        def check(self) -> None:
            super().check()
            if self.shard is not None:
                try:
                    read_shard(self.shard)
                except ValueError:
                    raise wrong(self, "shard", why="expected i/N with 0 <= i < N", remedy="use 0/4 to 3/4") from None
                if self.force:
                    raise wrong(self, "force", "shard", why="the answers of the other machines would be lost, too",
                                remedy="choose another folder")  # fmt: skip
            if self.task_field and self.task not in FIELDS:
                raise wrong(self, "task_field", "task", why=f"it applies to {' and '.join(FIELDS)}")

    config: Config

    def plan(self) -> Iterator[str]:
        exam, model = self.prepare(), self.find()
        if not self.config.force:
            SavedAnswers(Path(self.config.out)).require_same(self.asked_with(model))
        media = exam.asked.media()
        there = sum(Path(name).is_file() for name in media)
        yield f"model    {model.folder} ({model.weights_in_words})"
        if model.adapter is not None:
            place = self.config.merged or Path(self.config.out) / MERGED
            yield f"adapter  {model.adapter}, merged into a folder of {place}"
        yield f"records  {len(exam.asked.turns)} of {len(exam.asked.rows)} records of {exam.dataset.name}: {exam.kinds}"
        if self.config.shard is not None:
            number, count = read_shard(self.config.shard)
            yield f"shard    {len(exam.asked.share(number, count))} of them, number {number} of {count}"
        yield from left_out_lines(
            f"{row.id}: {row.reason}" for row in exam.asked.rows if row.id not in exam.asked.turns
        )
        yield from (f"note     {flag}" for flag in exam.dataset.flags())
        yield f"media    {len(media)} files are named, {there} exist; media files are not opened"
        yield f"decoding {', '.join(f'{name} {value:g}' for name, value in self.how(model).items() if name in SHOWN)}"
        yield from (f"skipped  {name}: {reason}" for name, reason in exam.skipped_metrics.items())
        yield f"folder   {self.config.out}"

    def run(self) -> Result:
        out = Path(self.config.out)
        require_writable(out)
        exam, model = self.prepare(), self.find()
        saved = SavedAnswers(out)
        try:
            world = start_world()
            for name, reason in exam.skipped_metrics.items() if world.is_main else ():
                logger.warning("%s is skipped: %s", name, reason)
            merged, mistake = world.broadcast(self.begin(out, saved, model) if world.is_main else None)
            if mistake:
                raise UserError(mistake)
            for flag in exam.dataset.flags() if world.is_main else ():
                logger.warning("%s: %s", flag, flag.named)
            overlap = self.find_overlap(exam, model) if world.is_main else {}
            self.ask(exam, model, saved, world, None if merged is None else merged.folder)
            world.barrier()
            return self.finish(exam, model, saved, merged, overlap) if world.is_main else Result()
        finally:
            stop_world()

    def prepare(self) -> Exam:
        """Reads the questions and selects their grading.

        Raises:
            UserError: If the settings do not fit the data.
            DataError: If the dataset is not readable, or records lack a required `video_fps`.
        """
        config = self.config
        dataset: ChatDataset = config.dataset.build()
        dataset.require_rates()
        name = config.task_field or FIELDS.get(config.task, "")
        asked = read_records(dataset, limit=config.limit, task_field=name, slices=config.slices)
        tasks = AnswerTasks(metrics=config.metrics, soft_threshold=config.soft_threshold)
        chosen = tasks.choose(config.task, asked.truths, asked.kinds)
        skipped = tasks.use(config.bertscore.build(), chosen.values()) if "bertscore" in config.metrics else ""
        if config.against is not None:
            read_results(config.against)
        return Exam(dataset, asked, chosen, {"bertscore": skipped} if skipped else {})

    def begin(self, out: Path, saved: SavedAnswers, model: StoredModel) -> tuple[Merged | None, str]:
        """Runs checks that would fail on all ranks, and merges the adapter; called on the main rank only.

        Returns the merged model (None without an adapter) and an error message ("" on success).
        """
        try:
            if not saved.folder.exists() and (out / RESULTS).exists() and not self.config.force:
                raise FileExistsError(
                    f"{out / RESULTS} belongs to another command: choose another folder, or use --force"
                )
            saved.begin(self.asked_with(model), anew=self.config.force)
            if model.adapter is None:
                return None, ""
            return merge_adapter(model, Path(self.config.merged or out / MERGED)), ""
        except (UserError, ValueError, OSError) as error:
            return None, str(error)

    def asked_with(self, model: StoredModel) -> dict[str, Any]:
        """Returns the settings that all answers in the output folder share.

        Raises:
            UserError: If the output folder is inside the model folder.
        """
        require_outside(Path(self.config.out), model)
        adapter = None if model.adapter is None else fingerprint(model.adapter)
        return {"weights": model.weights, "model": fingerprint(model.folder), "adapter": adapter, **self.how(model)}

    def ask(self, exam: Exam, model: StoredModel, saved: SavedAnswers, world: World, merged: str | None) -> None:
        """Answers this rank's questions that have no saved answer. Collective: all ranks must call it."""
        config = self.config
        first, parts = (0, 1) if config.shard is None else read_shard(config.shard)
        number, count = first + parts * world.rank, parts * world.size
        known = saved.read()
        marks = {key: mark_of(turns) for key, turns in exam.asked.share(number, count)}
        earlier = {key for key, _ in known} - {key for key, mark in known if marks.get(key) == mark}
        changed = sum(world.gather(len(earlier & marks.keys())))
        if changed and world.is_main:
            logger.warning(
                "%d records have changed text or media since they were answered: they are answered again", changed
            )
        done = {key for (key, mark), line in known.items() if marks.get(key) == mark and "error" not in line}
        waiting = [(key, turns) for key, turns in exam.asked.share(number, count) if key not in done]
        if not waiting:
            return
        device = world.device if world.size > 1 and config.device is None else None
        answerer = self.answerer(model, device=device, merged=merged)
        show = share_done("answering") if world.is_main else None
        answers = answerer.answers(
            waiting,
            batch_size=config.batch_size,
            max_new_tokens=config.max_new_tokens,
            decoding=self.decoding,
            forgiving=True,
        )
        for answered, answer in enumerate(answers, start=1):
            saved.add(answer, marks[answer.key], number=number, count=count)
            if show is not None:
                show(answered, len(waiting))

    def find_overlap(self, exam: Exam, model: StoredModel) -> dict[str, int | None]:
        """Counts records that repeat others, and records that are in the model's training data; warns about both.

        The second number is None for training data that is unknown or not on this machine.
        """
        asked, trained_on = exam.asked, None
        count, repeated = len(asked.turns), find_repeated(asked)
        if repeated:
            logger.warning(
                ("%d of %d records have the same text and media as another one and count several times: %d are "
                "distinct"),
                repeated, count, count - repeated,
            )  # fmt: skip
        settings = None if model.weights == "untrained" else training_data_of(model.adapter or model.folder)
        if settings is not None and isinstance(settings.get("dataset"), dict):
            try:
                dataset = from_dict(settings["dataset"], ChatDataset.Config)
                trained_on = find_trained_on(asked, dataset.build())
            except (UserError, DataError, ValueError, OSError) as error:
                logger.warning("cannot compare the records with the model's training data: %s", error)
        if trained_on:
            logger.warning(
                "%d of %d records are in the training data of the model: the metrics do not show how it does on "
                "new data", trained_on, count,
            )  # fmt: skip
        return {"repeated": repeated, "in_training_data": trained_on}

    def finish(
        self,
        exam: Exam,
        model: StoredModel,
        saved: SavedAnswers,
        merged: Merged | None,
        overlap: Mapping[str, int | None],
    ) -> Result:
        """Grades the answers if all are complete, and writes the results; otherwise reports how many are missing."""
        config, out, known = self.config, Path(self.config.out), saved.read()
        rows, lacking = exam.asked.rows, 0
        for row in rows:
            if row.id not in exam.asked.turns:
                continue
            line = known.get((row.id, mark_of(exam.asked.turns[row.id])))
            if line is None:
                lacking += 1
            elif "error" in line:
                row.status = "gen_error" if line["status"] == "gen_error" else "prep_error"
                row.reason, row.task = line["error"], exam.tasks[row.id].name
            else:
                judge(row, exam.tasks[row.id], line["said"])
        if lacking:
            said = (
                f"{len(rows) - lacking} of {len(rows)} records are answered; the results are written after the last one"
            )
            return Result([f"{saved.folder}: {said}"], {"lacking": lacking})
        facts = {
            **measure(rows, exam.tasks, config.task),
            **count_outcomes(rows),
            "overlap": overlap,
            "skipped_metrics": exam.skipped_metrics,
            "slices": measure_slices(rows),
            "dataset": exam.dataset.name,
            "model": str(model.folder),
            "weights": model.weights,
            "iteration": model.iteration,
            "generation": self.how(model),
        }
        if merged is not None:
            facts |= {"adapter": str(model.adapter), "merged": asdict(merged)}
        if config.against is not None:
            facts["against"] = {
                "results": config.against,
                **compare_accuracy(rows, read_results(config.against), exam.right),
            }
        result = write_outcome(out, rows, facts, config)
        inputs = [*self.inputs(model), Input("dataset", exam.dataset.name, {"records": len(rows)})]
        inputs += [] if config.against is None else [Input("results", config.against)]
        write_lineage(out, action="evaluate", settings=to_dict(config), inputs=inputs, outputs=[RESULTS, METRICS])
        return result


@dataclass(frozen=True, slots=True)
class Exam:
    """Questions of an evaluation, and the tasks that grade their answers."""

    dataset: ChatDataset
    asked: Asked
    tasks: Mapping[str, AnswerTask]
    """Tasks by record id."""
    skipped_metrics: Mapping[str, str]
    """Metrics that cannot be computed, with the reason."""

    @property
    def kinds(self) -> str:
        """The tasks, with their numbers of records, as text."""
        counts = Counter(task.name for task in self.tasks.values())
        return ", ".join(name if len(counts) == 1 else f"{name} {count}" for name, count in counts.items())

    def right(self, row: Row, response: str) -> bool:
        """Returns whether a response to the question of a row is correct."""
        return bool(self.tasks[row.id].right(split_answer(response)[1], row.gt))


SHOWN = ("max_new_tokens", "temperature", "top_p", "repetition_penalty", "seed")


def read_shard(text: str) -> tuple[int, int]:
    """Parses "i/N" to (i, N). Raises ValueError if it is invalid."""
    number, count = map(int, text.split("/"))
    if not 0 <= number < count:
        raise ValueError(text)
    return number, count
