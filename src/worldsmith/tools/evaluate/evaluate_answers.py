"""`worldsmith evaluate` for reasoners: answers the questions of a dataset and compares them with the ground truth."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from worldsmith.actions.action import Result, left_out_lines, make_progress_reporter
from worldsmith.actions.find_parent import training_data_of
from worldsmith.actions.model_action import AnswerAction, WritingAction, require_outside
from worldsmith.checkpoint.formats.merge_adapter import Merged, merge_adapter
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.config import wrong
from worldsmith.config.declare.ranges import Count, Share
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.tree.read_config import from_dict
from worldsmith.data.content_fingerprint import READERS
from worldsmith.data.conversations.datasets.chat_dataset import ChatDataset
from worldsmith.data.conversations.datasets.manifest import ManifestDataset
from worldsmith.data.stream.errors import DataError
from worldsmith.distributed.world import World, start_world, stop_world
from worldsmith.evaluation.answers.answer_tasks import AnswerTask, AnswerTasks
from worldsmith.evaluation.answers.answer_text import split_answer
from worldsmith.evaluation.answers.bert_score import BertScore
from worldsmith.evaluation.answers.grade_answers import compare_accuracy, grade_row, measure, measure_slices
from worldsmith.evaluation.answers.results import METRICS, RESULTS, Row, read_results
from worldsmith.evaluation.answers.saved_answers import SavedAnswers, question_fingerprint, question_fingerprints
from worldsmith.evaluation.answers.text_metrics import Metric
from worldsmith.files.fingerprint import fingerprint
from worldsmith.files.remote import file_exists
from worldsmith.files.write_checks import require_writable
from worldsmith.monitor.lineage import Input, write_lineage
from worldsmith.tools.evaluate.answer_records import (
    EvaluationRecords,
    count_outcomes,
    count_repeated,
    count_trained_on,
    read_records,
    write_outcome,
)

logger = logging.getLogger(__name__)

MERGED = "merged"
FIELDS = {"by_record": "task", "metropolis_sgd": "category"}
"""Task type of the evaluation -> default record field with the task type of the record."""


class EvaluateAnswers(AnswerAction, WritingAction):
    """Evaluates a reasoner: generates answers to the questions of a dataset and compares them with the ground truth.

    results.json has one row per record, metrics.json has the metrics. --dataset selects the layout: ManifestDataset
    (VideoPhy-2), LlavaDataset, MessagesDataset or LlavaOneVision; --dataset.path its file or folder. Each answer is
    saved at once, so the same command continues after a stop. --processes N, or `worldsmith launch --nnodes M
    --nproc-per-node N evaluate …` on several machines, divides the questions among processes.
    """

    class Config(AnswerAction.Config, WritingAction.Config):
        dataset: ChatDataset.Config = field(default_factory=ManifestDataset.Config)
        """The questions, each with its ground-truth answer."""
        out: str
        """Output folder for results.json, metrics.json and the other result files."""
        task: Literal[
            "auto", "binary", "mcq", "text", "scores", "its_directionality", "metropolis_sgd", "by_record"
        ] = "auto"
        """Task type of the answers. binary: yes or no; mcq: a letter; text: free text; scores: 1 to 5 (VideoPhy-2);
        its_directionality: a direction; metropolis_sgd, by_record: the task type that each record states; auto: the
        type that fits all ground-truth answers, otherwise text."""
        task_field: str = ""
        """Record field with the task type, for by_record (default: task) and metropolis_sgd (default: category)."""
        metrics: list[Metric] = field(default_factory=lambda: ["bleu", "rouge"])
        """Metrics of free-text answers in addition to exact and soft matches. bertscore is skipped with a warning if
        its default model is not on this machine."""
        bertscore: BertScore.Config = field(default_factory=BertScore.Config)
        """The text encoder of bertscore."""
        soft_threshold: Share = 0.8
        """Min token F1 of a soft match."""
        slices: list[str] = field(default_factory=list)
        """Slices of the data whose accuracy is also reported: question (without numbers), duration (of the video), or
        any field of the records."""
        against: str | None = None
        """results.json, or its folder, of another model on the same questions: also compare the accuracy of both
        models."""
        merged: str | None = None
        """Folder in which the model with the merged --adapter is stored, to be reused by later commands; null: merged/
        in --out."""
        limit: Count | None = None
        """Use only the first N records; null: all."""
        processes: Count | None = None
        """Number of processes to start on this machine, among which the questions are divided, each with its own GPU if
        there are GPUs; null: one. Omit it under `worldsmith launch`."""
        shard: str | None = None
        """i/N: use only every N-th record from index i (0 to N-1), to divide the records among several machines. Then
        copy the files of all answers/ folders into one and run the same command without this flag."""
        max_failed: Share = 0.05
        """Max fraction (0 to 1) of records without an answer; if more fail, the exit code is 1."""
        confusion_picture: bool = True
        """Write the confusion matrix as confusion.png if the answers have a fixed set of values."""
        item_files: bool = True
        """With the task its_directionality: also write one JSON file per record into items/."""

        def check(self) -> None:
            super().check()
            if self.shard is not None:
                try:
                    read_shard(self.shard)
                except ValueError:
                    raise wrong(self, "shard", why="expected i/N with 0 <= i < N", remedy="use 0/4 to 3/4") from None
                if self.force:
                    raise wrong(self, "force", "shard", why="the answers of the other machines would also be deleted",
                                remedy="choose another folder")  # fmt: skip
            if self.task_field and self.task not in FIELDS:
                raise wrong(self, "task_field", "task", why=f"it applies to {' and '.join(FIELDS)}")

    config: Config

    def plan(self) -> Iterator[str]:
        exam, model = self.prepare(), self.find()
        if not self.config.force:
            SavedAnswers(Path(self.config.out)).require_same(self.answer_settings(model))
        media = exam.asked.media()
        with ThreadPoolExecutor(READERS) as pool:
            there = sum(pool.map(file_exists, media))
        yield f"model    {model.folder} ({model.weights_description})"
        if model.adapter is not None:
            place = self.config.merged or Path(self.config.out) / MERGED
            yield f"adapter  {model.adapter}, merged into a folder in {place}"
        yield f"records  {len(exam.asked.turns)} of {len(exam.asked.rows)} records of {exam.dataset.name}: {exam.kinds}"
        if self.config.shard is not None:
            number, count = read_shard(self.config.shard)
            yield f"shard    {len(exam.asked.shard(number, count))} of these records, shard {number} of {count}"
        yield from left_out_lines(
            f"{row.id}: {row.reason}" for row in exam.asked.rows if row.id not in exam.asked.turns
        )
        yield from (f"note     {flag}" for flag in exam.dataset.flags())
        yield f"media    {len(media)} files in the records, {there} of them exist; media files are not opened"
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

    def prepare(self) -> Questionnaire:
        """Reads the questions of the dataset and selects the task that grades each of them.

        Raises:
            UserError: If the settings do not fit the data, such as a task type that the ground truth does not fit.
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
        return Questionnaire(dataset, asked, chosen, {"bertscore": skipped} if skipped else {})

    def begin(self, out: Path, saved: SavedAnswers, model: StoredModel) -> tuple[Merged | None, str]:
        """Prepares the folder of saved answers and merges the adapter of `model`; called on the main rank only.

        Returns (merged model, error message). The model is None without an adapter. The message is "" on success; it is
        returned instead of raised, so that the caller can stop all ranks.
        """
        try:
            if not saved.folder.exists() and (out / RESULTS).exists() and not self.config.force:
                raise FileExistsError(
                    f"{out / RESULTS} belongs to another command: choose another folder, or use --force"
                )
            saved.begin(self.answer_settings(model), overwrite=self.config.force)
            if model.adapter is None:
                return None, ""
            return merge_adapter(model, Path(self.config.merged or out / MERGED)), ""
        except (UserError, ValueError, OSError) as error:
            return None, str(error)

    def answer_settings(self, model: StoredModel) -> dict[str, Any]:
        """Returns the settings that affect the answers, as JSON data that is stored with the saved answers.

        They are the type of weights, the fingerprints of the model and the adapter, and the generation settings.

        Raises:
            UserError: If the output folder is inside the model folder.
        """
        require_outside(Path(self.config.out), model)
        adapter = None if model.adapter is None else fingerprint(model.adapter)
        return {"weights": model.weights, "model": fingerprint(model.folder), "adapter": adapter, **self.how(model)}

    def ask(
        self, exam: Questionnaire, model: StoredModel, saved: SavedAnswers, world: World, merged: str | None
    ) -> None:
        """Generates and saves answers to this rank's questions that have no saved answer. All ranks must call it.

        Args:
            exam: Questions of the evaluation.
            model: Model that answers.
            saved: Folder of saved answers.
            world: Ranks among which the questions are divided.
            merged: Folder of the model with the merged adapter; None without an adapter.
        """
        config = self.config
        first, parts = (0, 1) if config.shard is None else read_shard(config.shard)
        number, count = first + parts * world.rank, parts * world.size
        known = saved.read()
        marks = question_fingerprints(exam.asked.shard(number, count))
        earlier = {key for key, _ in known} - {key for key, mark in known if marks.get(key) == mark}
        changed = sum(world.gather(len(earlier & marks.keys())))
        if changed and world.is_main:
            logger.warning(
                "%d records have changed text or media since they were answered: they are answered again", changed
            )
        done = {key for (key, mark), line in known.items() if marks.get(key) == mark and "error" not in line}
        waiting = [(key, turns) for key, turns in exam.asked.shard(number, count) if key not in done]
        if not waiting:
            return
        device = world.device if world.size > 1 and config.device is None else None
        answerer = self.answerer(model, device=device, merged=merged)
        show = make_progress_reporter("answering") if world.is_main else None
        for answer in self.answer_all(answerer, waiting, show, forgiving=True):
            saved.add(answer, marks[answer.key], number=number, count=count)

    def find_overlap(self, exam: Questionnaire, model: StoredModel) -> dict[str, int | None]:
        """Returns the numbers of duplicate records (`repeated`) and of records in the model's training data.

        The second has the key `in_training_data`; it is None if the training data is unknown or cannot be read. Logs a
        warning if one of the numbers is greater than 0.
        """
        asked, trained_on = exam.asked, None
        count, repeated = len(asked.turns), count_repeated(asked)
        if repeated:
            logger.warning(
                ("%d of %d records have the same text and media as an earlier record and count more than once: %d are "
                "distinct"),
                repeated, count, count - repeated,
            )  # fmt: skip
        settings = None if model.weights == "untrained" else training_data_of(model.adapter or model.folder)
        if settings is not None and isinstance(settings.get("dataset"), dict):
            try:
                dataset = from_dict(settings["dataset"], ChatDataset.Config)
                trained_on = count_trained_on(asked, dataset.build())
            except (UserError, DataError, ValueError, OSError) as error:
                logger.warning("cannot compare the records with the model's training data: %s", error)
        if trained_on:
            logger.warning(
                "%d of %d records are in the training data of the model: the metrics do not measure its accuracy on "
                "new data", trained_on, count,
            )  # fmt: skip
        return {"repeated": repeated, "in_training_data": trained_on}

    def finish(
        self,
        exam: Questionnaire,
        model: StoredModel,
        saved: SavedAnswers,
        merged: Merged | None,
        overlap: Mapping[str, int | None],
    ) -> Result:
        """Grades the saved answers and writes the result files; if answers are missing, only reports their number.

        Args:
            exam: Questions of the evaluation; their rows are completed in place.
            model: Model that answered.
            saved: Folder of saved answers.
            merged: The model with the merged adapter; None without an adapter.
            overlap: Numbers from `find_overlap`, the entry `overlap` of metrics.json.
        """
        config, out, known = self.config, Path(self.config.out), saved.read()
        rows, lacking = exam.asked.rows, 0
        for row in rows:
            if row.id not in exam.asked.turns:
                continue
            line = known.get((row.id, question_fingerprint(exam.asked.turns[row.id])))
            if line is None:
                lacking += 1
            elif "error" in line:
                row.status = "gen_error" if line["status"] == "gen_error" else "prep_error"
                row.reason, row.task = line["error"], exam.tasks[row.id].name
            else:
                grade_row(row, exam.tasks[row.id], line["said"])
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
class Questionnaire:
    """Dataset and questions of an evaluation, and the task type of each question, which grades its answer.

    A task type (`AnswerTask`) parses answers, compares them with the ground truth and computes the metrics.
    """

    dataset: ChatDataset
    asked: EvaluationRecords
    tasks: Mapping[str, AnswerTask]
    """Task of each record, by record id."""
    skipped_metrics: Mapping[str, str]
    """Metric that cannot be computed -> reason."""

    @property
    def kinds(self) -> str:
        """Names of the tasks as text, each with its number of records if there are several tasks."""
        counts = Counter(task.name for task in self.tasks.values())
        return ", ".join(name if len(counts) == 1 else f"{name} {count}" for name, count in counts.items())

    def right(self, row: Row, response: str) -> bool:
        """Returns whether `response`, a generated text, is a correct answer to the question of `row`."""
        return bool(self.tasks[row.id].right(split_answer(response)[1], row.gt))


SHOWN = ("max_new_tokens", "temperature", "top_p", "repetition_penalty", "seed")


def read_shard(text: str) -> tuple[int, int]:
    """Parses a shard "i/N" to the integers (i, N). Raises ValueError unless 0 <= i < N."""
    number, count = map(int, text.split("/"))
    if not 0 <= number < count:
        raise ValueError(text)
    return number, count
