"""`worldsmith quantize MODEL`: quantizes the weights of a reasoner, and compares its answers with the original's."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from worldsmith.actions.action import Result, make_progress_reporter
from worldsmith.actions.model_action import AnswerAction, WritingAction, find_device
from worldsmith.checkpoint.formats.export_folder import publish_export, require_free, require_place
from worldsmith.checkpoint.formats.quantizer import Method, Quantizer, Scheme, quantizing
from worldsmith.checkpoint.formats.stored_model import StoredModel
from worldsmith.config import wrong
from worldsmith.config.declare.ranges import Count, Range
from worldsmith.config.errors import UserError
from worldsmith.config.tree.plain import to_dict
from worldsmith.config.tree.read_config import from_dict
from worldsmith.data.conversations.conversation import Turn, question
from worldsmith.data.conversations.datasets.chat_dataset import ChatDataset
from worldsmith.data.stream.errors import SampleError
from worldsmith.evaluation.answers.answer_tasks import AnswerTasks
from worldsmith.evaluation.answers.answer_text import split_answer
from worldsmith.evaluation.answers.grade_answers import mcnemar
from worldsmith.files.atomic import locked_temporary_folder
from worldsmith.monitor.lineage import write_lineage
from worldsmith.training.run_folder import dataset_inputs

if TYPE_CHECKING:
    from worldsmith.data.conversations.chat_processor import ChatSample
    from worldsmith.sampling.generate_answers import Answer, Answerer


Asked = Sequence[tuple[str, Sequence[Turn]]]
"""(key, turns) of conversations; the last answer of each is the ground truth."""


@dataclass(frozen=True, slots=True)
class TimedAnswers:
    """Answers of one model, and the time in seconds to generate all of them."""

    answers: list[Answer]
    seconds: float


def compare_answers(asked: Asked, before: TimedAnswers, after: TimedAnswers) -> dict[str, Any]:
    """Compares the answers of the original and the quantized model with the ground truth and with each other.

    Args:
        asked: The conversations.
        before: Answers of the original model, in the order of the conversations.
        after: Answers of the quantized model, in the same order.

    Returns:
        Values for the entry "check" of quantization.json: accuracy (0 to 1, as in `worldsmith evaluate`) and seconds
        per answer of both models, numbers of questions that became right or wrong, the p-value of this change
        (McNemar's test), and the fraction of equal answers.

    Raises:
        UserError: If there is no question that both models answered. A question that one model failed to answer is
            skipped and counted.
    """
    pairs = {old.key: (old, new) for old, new in zip(before.answers, after.answers) if not old.error and not new.error}
    if not pairs:
        raise UserError(f"none of the {len(asked)} questions could be answered: {before.answers[0].error}")
    truths = {key: turns[len(question(turns))].text for key, turns in asked if key in pairs}
    tasks = AnswerTasks(metrics=[], soft_threshold=1).choose("auto", truths, {})
    said = [(key, *(split_answer(answer.text)[1] for answer in pair)) for key, pair in pairs.items()]
    right = [(tasks[key].right(old, truths[key]), tasks[key].right(new, truths[key])) for key, old, new in said]
    lost, gained = sum(bool(old and not new) for old, new in right), sum(bool(new and not old) for old, new in right)
    count = len(pairs)
    return {
        "task": next(iter(tasks.values())).name,
        "questions": count,
        "left_out": len(asked) - count,
        "accuracy_before": sum(bool(old) for old, _ in right) / count,
        "accuracy_after": sum(bool(new) for _, new in right) / count,
        "became_wrong": lost,
        "became_right": gained,
        "p_value": mcnemar(gained, lost),
        "same_answers": sum(old == new for _, old, new in said) / count,
        "seconds_per_answer_before": before.seconds / count,
        "seconds_per_answer_after": after.seconds / count,
    }


INDEX, FIGURES = "config.json", "quantization.json"


@dataclass(frozen=True, slots=True)
class QuantizationInputs:
    """Inputs of a quantization: the model, its quantizer and the datasets."""

    model: StoredModel
    quantizer: Quantizer
    calibration: ChatDataset | None
    """Calibration conversations; None: neither scheme nor method needs them."""
    questions: ChatDataset | None
    """Questions that the original and the quantized model answer; None: the result is not checked."""


class Quantize(AnswerAction, WritingAction):
    """Quantizes a reasoner for transformers and vLLM (compressed-tensors format), and checks its answers.

    The linear layers of the decoder are quantized; embeddings, head, vision tower and projector stay in bfloat16. The
    original and the quantized model answer the same questions: if the accuracy drops by more than `tolerance`, the
    result is renamed to OUT.rejected and the exit code is 1.
    """

    class Config(AnswerAction.Config, WritingAction.Config):
        out: str
        """The new folder."""
        scheme: Scheme = "FP8_DYNAMIC"
        """Number format of weights and activations, by the names of compressed-tensors. W4A16: 4-bit weights, 16-bit
        activations; FP8 and NVFP4 fix the range of activations in advance, from the calibration data."""
        group_size: Count | None = None
        """Group size: number of weights in a row that share a scale (W4A16, W8A16); null: 128."""
        method: Method = "nearest"
        """Rounding method: nearest; or GPTQ, where later columns compensate for the errors of earlier ones on the
        calibration data."""
        dataset: ChatDataset.Config | None = None
        """Calibration data: conversations on which activations are observed, if the scheme or method requires them;
        null: the run's training data."""
        samples: Count = 512
        """Max number of calibration samples, evenly spaced."""
        max_sequence_length: Count | None = None
        """Conversations with more tokens are skipped and counted, never truncated; null: no limit."""
        questions: ChatDataset.Config | None = None
        """Questions with ground-truth answers for comparing the original and the quantized model; null: the run's
        validation data."""
        max_questions: Count = 512
        """Max number of questions, evenly spaced."""
        judge: bool = True
        """Whether the quantized model is checked with questions; false: no questions are answered."""
        tolerance: Annotated[float, Range(ge=0, le=100)] = 2.0
        """Max allowed drop of the accuracy, in percentage points."""
        batch_size: Count = 8
        """Number of questions per batch."""

        def check(self) -> None:
            super().check()
            if not self.judge and self.questions is not None:
                raise wrong(self, "questions", "judge", why="no questions are answered", remedy="omit one of them")

    config: Config

    def plan(self) -> Iterator[str]:
        found = self.prepare()
        yield f"model     {found.model.folder} ({found.model.weights_description})"
        yield f"scheme    {self.config.scheme}: {describe_quantizer(found.quantizer)}"
        yield f"observe   {describe_selection(found.calibration, self.config.samples)}"
        yield f"check     {describe_selection(found.questions, self.config.max_questions)}"
        yield f"folder    {self.config.out}"

    def run(self) -> Result:
        from worldsmith.sampling.generate_answers import Answerer

        config, out = self.config, Path(self.config.out)
        found = self.prepare()
        model, questions = found.model, found.questions
        asked = [] if questions is None else conversations(questions, config.max_questions)
        device = find_device(config.device)
        facts: dict[str, Any] = {
            "scheme": config.scheme,
            "method": config.method,
            "model": str(model.folder),
            "weights": model.weights,
            **self.how(model),
        }
        before = None
        if found.calibration is not None or asked:
            answerer = self.answerer(model)
            if found.calibration is not None:
                facts["calibration"] = self.observe(found.quantizer, answerer, found.calibration)
            if asked:
                before = self.answer_questions(answerer, asked, "answering with the original model")
            del answerer
        with locked_temporary_folder(out) as aside:
            about = found.quantizer.fill(aside, out.name)
            facts["size"] = sizes_of(found.quantizer, aside)
            passed = True
            if before is not None and questions is not None:
                answerer = Answerer(quantizing(model.spec.name).load_quantized(aside, device), self.settings(model))
                check = compare_answers(
                    asked, before, self.answer_questions(answerer, asked, "answering with the quantized model")
                )
                check["left_out"] += min(config.max_questions, len(questions)) - len(asked)
                passed = accuracy_drop(check) <= config.tolerance / 100 + 1e-9
                facts["check"] = {
                    "dataset": questions.name,
                    **check,
                    "tolerance": config.tolerance / 100,
                    "passed": passed,
                }
            (aside / FIGURES).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
            place = out if passed else out.with_name(f"{out.name}.rejected")
            force = config.force or not passed
            require_free(place, INDEX, force=force)
            publish_export(aside, place, about, force=force)
        read = (("calibration", found.calibration), ("questions", questions))
        used = [entry for split, dataset in read if dataset is not None for entry in dataset_inputs(split, dataset)]
        write_lineage(
            place, action="quantize", settings=to_dict(config), inputs=[*self.inputs(model), *used], outputs=["."]
        )
        return Result(summarize_quantization(facts, place), {**facts, "folder": str(place)}, code=0 if passed else 1)

    def prepare(self) -> QuantizationInputs:
        """Returns the model, the quantizer and the datasets, after all checks that do not run the model.

        Raises UserError if the quantization is not possible or an input is missing.
        """
        config, out = self.config, Path(self.config.out)
        find_device(config.device)
        require_place(out, INDEX)
        require_free(out, INDEX, force=config.force)
        model = self.find()
        quantizer = quantizing(model.spec.name).quantizer(model, config.scheme, config.group_size, config.method)
        data = questions = None
        if quantizer.needs_data:
            data = dataset_of(model, config.dataset, "dataset", "dataloader_train", "observe activations with")
        else:
            for name in ("dataset", "max_sequence_length"):
                if getattr(config, name) is not None:
                    why = f"{config.scheme} needs no calibration without GPTQ"
                    raise wrong(config, name, why=why, remedy=f"omit {name}, or use the method gptq")
        if config.judge:
            purpose = "check the result (or use --no-judge)"
            questions = dataset_of(model, config.questions, "questions", "dataloader_val", purpose)
        return QuantizationInputs(model, quantizer, data, questions)

    def answer_questions(self, answerer: Answerer, asked: Asked, what: str) -> TimedAnswers:
        """Returns a model's answers to all questions, and the time in seconds to generate them after a warm-up.

        Args:
            answerer: The model.
            asked: Conversations with the questions.
            what: Name of this step in the progress output.
        """
        questions = [(key, question(turns)) for key, turns in asked]
        list(answerer.answers(questions[:1], batch_size=1, max_new_tokens=1))
        show, start = make_progress_reporter(what), time.perf_counter()
        answers = list(self.answer_all(answerer, questions, show, forgiving=False))
        return TimedAnswers(answers, time.perf_counter() - start)

    def observe(self, quantizer: Quantizer, answerer: Answerer, data: ChatDataset) -> dict[str, Any]:
        """Runs the model over calibration conversations, so that the quantizer observes its activations.

        Args:
            quantizer: The quantizer.
            answerer: The model.
            data: Dataset of the conversations.

        Returns:
            "dataset" (name), "used" (number of conversations), "left_out" (number of skipped ones by reason) and
            "longest" (tokens of the longest one).

        Raises:
            UserError: If no conversation can be used.
        """
        left_out, longest, used = Counter[str](), 0, 0
        indices, show = spread_indices(data, self.config.samples), make_progress_reporter("calibrating")
        cap = self.config.max_sequence_length

        def samples() -> Iterator[ChatSample]:
            nonlocal longest, used
            for done, index in enumerate(indices, start=1):
                key = data.place(index)[0]
                try:
                    plan = answerer.processor.plan(data.turns(index))
                    longest = max(longest, len(plan))
                    if cap is not None and len(plan) > cap:
                        raise SampleError("too_long", f"{len(plan)} tokens")
                    yield answerer.processor.finish(plan, key=key, position=index)
                    used += 1
                except SampleError as error:
                    left_out[error.reason] += 1
                show(done, len(indices))
            if not used:
                advice = (
                    f"; the longest has {longest} tokens, raise max_sequence_length" if "too_long" in left_out else ""
                )
                raise UserError(f"{data.name} has no conversation for calibration: {reasons(left_out)}{advice}")

        media: Any = answerer.processor.media
        quantizer.observe(answerer.model, samples(), normalize=lambda patches, kind: media.normalize(patches, kind))
        return {"dataset": data.name, "used": used, "left_out": dict(left_out), "longest": longest}


def dataset_of(
    model: StoredModel, given: ChatDataset.Config | None, flag: str, loader: str, purpose: str
) -> ChatDataset:
    """Builds the dataset `given`; if it is None, the dataset in the config of the run that trained the model.

    Args:
        model: The model.
        given: Config from the command line; None: not given.
        flag: Flag that sets `given`, for the error message.
        loader: Section of the run's config with its dataset, such as "dataloader_val".
        purpose: What the dataset is needed for, for the error message.

    Raises:
        UserError: If `given` is None and the run has no such dataset.
        DataError: If the dataset cannot be read.
    """
    stated = ((model.tree or {}).get(loader) or {}).get("dataset")
    if given is None and stated is None:
        raise UserError(f"{model.folder} names no dataset to {purpose}: use --{flag} KIND --{flag}.path PATH")
    config = from_dict(stated, ChatDataset.Config) if given is None else given
    return config.build()


def describe_selection(dataset: ChatDataset | None, count: int) -> str:
    """Returns text with the number of selected conversations and the dataset name; "nothing" without a dataset."""
    return (
        "nothing" if dataset is None else f"{len(spread_indices(dataset, count))} of {len(dataset)} in {dataset.name}"
    )


def conversations(dataset: ChatDataset, count: int) -> Asked:
    """Returns (key, turns) of at most `count` evenly spaced conversations. Raises UserError if none is usable."""
    asked = []
    for index in spread_indices(dataset, count):
        with suppress(SampleError):  # `run` counts them
            asked.append((dataset.place(index)[0], dataset.turns(index)))
    if not asked:
        raise UserError(f"{dataset.name} has no conversation with a question")
    return asked


def spread_indices(dataset: ChatDataset, count: int) -> list[int]:
    """Returns at most `count` evenly spaced indices of the dataset."""
    count = min(count, len(dataset))
    return [index * len(dataset) // count for index in range(count)]


def sizes_of(quantizer: Quantizer, folder: Path) -> dict[str, Any]:
    """Returns sizes for quantization.json, by name.

    They are the numbers of parameters (`numbers`) and of quantized parameters (`quantized`), the sizes in bytes
    `bytes_before` and `bytes_after` quantization, and the `expected_factor` of compression. `folder` contains the
    quantized weights.
    """
    sizes = quantizer.sizes
    return {
        "numbers": sizes.numbers,
        "quantized": sizes.quantized,
        "bytes_before": sizes.bytes_before,
        "bytes_after": sum(file.stat().st_size for file in folder.glob("*.safetensors")),
        "expected_factor": sizes.factor,
    }


def accuracy_drop(check: dict[str, Any]) -> float:
    """Returns by how much the accuracy (0 to 1) is lower after quantization, from a result of `compare_answers`."""
    return float(check["accuracy_before"] - check["accuracy_after"])


def describe_quantizer(quantizer: Quantizer) -> str:
    """Returns text with the quantized fraction of the parameters and the compression factor relative to bfloat16."""
    sizes = quantizer.sizes
    return (
        f"{sizes.quantized / sizes.numbers:.0%} of {sizes.numbers / 1000000.0:.1f} million parameters, "
        f"{sizes.factor:.2f} times smaller than in bfloat16"
    )


def reasons(left_out: Mapping[str, int]) -> str:
    """Returns text with the number of skipped conversations by reason, or "none"."""
    return ", ".join(f"{reason} {count}" for reason, count in sorted(left_out.items())) or "none"


def summarize_quantization(facts: dict[str, Any], place: Path) -> list[str]:
    """Returns output lines for the user; the last one states whether the quantized model passed the check.

    Args:
        facts: Content of quantization.json.
        place: Folder of the quantized model.
    """
    size = facts["size"]
    lines = [
        f"quantized    {place} ({facts['scheme']}): {size['quantized'] / size['numbers']:.0%} of the parameters",
        f"size         {size['bytes_before'] / 1e6:.1f} MB in bfloat16, now {size['bytes_after'] / 1e6:.1f} MB: "
        f"{size['bytes_before'] / size['bytes_after']:.2f} times smaller",
    ]
    if "calibration" in facts:
        data = facts["calibration"]
        lines.append(
            f"calibration  {data['used']} conversations of {data['dataset']}, skipped: {reasons(data['left_out'])}; "
            f"the longest has {data['longest']} tokens"
        )
    if "check" not in facts:
        return [*lines, "not checked: no questions were answered"]
    check = facts["check"]
    fall, allowed = 100 * accuracy_drop(check), 100 * check["tolerance"]
    lines += [
        f"answers      {check['questions']} questions: {check['same_answers']:.0%} unchanged, "
        f"{check['became_wrong']} became wrong, {check['became_right']} became right (p = {check['p_value']:.2g}); "
        f"skipped: {check['left_out']}",
        f"latency      {1000 * check['seconds_per_answer_before']:.0f} ms per answer before, "
        f"{1000 * check['seconds_per_answer_after']:.0f} ms now (here, through transformers)",
    ]
    if check["dataset"] == facts.get("calibration", {}).get("dataset"):
        lines.append("warning      the questions were also used for calibration; other questions are a better check")
    if not check["accuracy_before"]:
        lines.append(
            "warning      the original model answers none of the questions correctly, so this check is meaningless"
        )
    verdict = "passed" if check["passed"] else "REJECTED"
    return [
        *lines,
        f"{verdict}: accuracy {check['accuracy_before']:.3f} before, {check['accuracy_after']:.3f} now: drops by "
        f"{fall:.1f} percentage points, at most {allowed:.1f} allowed",
    ]
