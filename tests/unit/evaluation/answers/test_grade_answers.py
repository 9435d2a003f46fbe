"""Figures of answers against scikit-learn, sacrebleu, rouge-score and scipy, on answers of every odd form."""

from __future__ import annotations

import random
from typing import Any

import pytest
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu import corpus_bleu
from scipy.stats import binomtest
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    confusion_matrix,
    precision_recall_fscore_support,
)

from worldsmith.config.errors import UserError
from worldsmith.evaluation.answers.answer_tasks import AnswerTasks, detect
from worldsmith.evaluation.answers.grade_answers import (
    OTHERS,
    compare_accuracy,
    grade_row,
    mcnemar,
    measure,
    measure_slices,
)
from worldsmith.evaluation.answers.results import Row
from worldsmith.evaluation.answers.text_metrics import measure_texts

SAID = (
    "yes", "Yes.", "No", "no, it does not", "**YES**", "yes or no", "", "maybe",
    "<think>no</think><answer>yes</answer>", "<think>yes, but", "Yes, there is no doubt", "the answer is no",
)  # fmt: skip
READ = ("yes", "yes", "no", "no", "yes", None, None, None, "yes", None, "yes", "no")
TASKS = AnswerTasks(metrics=["bleu", "rouge"], soft_threshold=0.8)


def rows_of(said: list[str], true: list[str]) -> list[Row]:
    return [Row(f"r{index:03d}", gt=truth, status="ok", full_response=text)
            for index, (text, truth) in enumerate(zip(said, true))]  # fmt: skip


def judged(rows: list[Row], name: str, kinds: dict[str, str] | None = None) -> tuple[list[Row], dict[str, Any]]:
    tasks = TASKS.choose(name, {row.id: row.gt for row in rows}, kinds or {})
    for row in rows:
        grade_row(row, tasks[row.id], row.full_response)
    return rows, measure(rows, tasks, name)


@pytest.fixture(scope="module")
def drawn() -> tuple[list[int], list[str]]:
    """Which of SAID, and the true answer, of 200 questions."""
    stream = random.Random(5)
    return [stream.randrange(len(SAID)) for _ in range(200)], [stream.choice(("yes", "no")) for _ in range(200)]


def test_yes_and_no_as_scikit_learn_counts_them(drawn: tuple[list[int], list[str]]) -> None:
    said, true = drawn
    read = [READ[index] or "unparsed" for index in said]
    rows, found = judged(rows_of([SAID[index] for index in said], true), "auto")
    labels = ["yes", "no"]
    assert found["task"] == "binary"
    assert found["accuracy"] == accuracy_score(true, read)
    precision, recall, f1, _ = (values[0] for values in precision_recall_fscore_support(true, read, labels=labels))
    assert (found["precision"], found["recall"]) == (precision, recall)
    assert found["f1"] == pytest.approx(f1, abs=1e-12)
    with pytest.warns(UserWarning, match="not in y_true"):
        assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(true, read), abs=1e-12)
    table = confusion_matrix(true, read, labels=[*labels, "unparsed"])
    assert found["confusion"] == {"labels": labels, "rows": table[:2].tolist()}
    assert found["true_negatives"] == table[1, 1]
    assert found["unparsed"] == sum(row.status == "unparsed" for row in rows) == read.count("unparsed")
    for name in ("accuracy", "balanced_accuracy", "precision", "recall", "f1"):
        low, high = found[f"{name}_interval"]
        assert low < found[name] < high < low + 0.25, name


def test_a_figure_without_a_denominator_is_zero() -> None:
    _, found = judged(rows_of(["no", "no"], ["yes", "no"]), "binary")
    assert (found["precision"], found["recall"], found["f1"]) == (0, 0, 0)
    _, found = judged(rows_of(["no", "no"], ["no", "no"]), "binary")
    assert found["balanced_accuracy"] is None  # one class tells nothing of the other


def test_the_order_of_records_changes_no_figure(drawn: tuple[list[int], list[str]]) -> None:
    said, true = drawn
    texts = [f"{SAID[index]} {index % 5 + 1}" for index in said]
    for name, truths in (("binary", true), ("text", true), ("scores", [str(len(text) % 5 + 1) for text in texts])):
        rows, found = judged(rows_of(texts, truths), name)
        mixed = random.Random(3).sample(rows, len(rows))
        assert judged(mixed, name)[1] == found, name


def test_letters_and_directions() -> None:
    _, found = judged(rows_of(["A", "b)", "the answer is C", "car"], ["A", "B", "D", "C"]), "auto")
    assert (found["task"], found["accuracy"], found["unparsed"]) == ("mcq", 0.5, 1)
    assert found["confusion"]["labels"] == list("ABCD")
    said = ["<think>left?</think><answer>Turning right</answer>", "goes straight", "unclear", "turns left"]
    true = ["turning right", "turning left", "going straight", "Turning Left"]
    rows, found = judged(rows_of(said, true), "its_directionality")
    assert (found["total"], found["correct"], found["unparsed"]) == (4, 2, 1)
    assert sum(map(sum, found["confusion"]["rows"])) == 4
    assert sum(row[-1] for row in found["confusion"]["rows"]) == 1  # beside the table of labels
    assert [row.status for row in rows] == ["ok", "ok", "unparsed", "ok"]


def test_the_kind_is_that_of_all_true_answers() -> None:
    assert detect(["yes", "No."]) == "binary"
    assert detect(["A", "b"]) == "mcq"  # two options are no yes and no
    assert detect(["1", "5."]) == "scores"
    for other in (["yes", "it does"], ["A", "A red car"], ["6"], ["3 balls"], ["yes", "A"]):
        assert detect(other) == "text", other
    assert judged(rows_of(["a", "B"], ["A", "a"]), "binary")[1]["precision"] == 1


def test_a_true_answer_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(UserError, match="r001: the ground truth 'perhaps' is not yes or no"):
        judged(rows_of(["yes", "no"], ["yes", "perhaps"]), "binary")
    with pytest.raises(UserError, match=r"choose another --task \(in a spec: task\.type\)"):
        judged(rows_of(["yes"], ["yes"]), "its_directionality")
    rows, found = judged(rows_of(["1", "2"], ["1", "?"]), "scores")  # as VideoPhy-2 counts
    assert (found["total"], found["truths_unread"], rows[1].correct) == (1, 1, None)


def test_texts_as_the_libraries_measure_them() -> None:
    said = ["The red ball falls down.", "it rises", "", "A blue ball, rolls to the left\nand stops"]
    true = ["the red ball falls", "It rises!", "it falls", "a blue ball rolls left\nand then stops"]
    found = measure_texts([text or None for text in said], true, metrics=["bleu", "rouge"], soft_threshold=0.8)
    assert found["bleu"] == corpus_bleu(said, [true]).score
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"])
    for name in ("rouge1", "rouge2", "rougeL", "rougeLsum"):
        expected = sum(scorer.score(truth, text)[name].fmeasure for truth, text in zip(true, said)) / 4
        assert found[name] == pytest.approx(expected, abs=1e-12)
    assert (found["accuracy"], found["soft_accuracy"], found["unparsed"]) == (0.25, 0.75, 1)
    few = measure_texts(said, true, metrics=[], soft_threshold=0.95)
    assert few["soft_accuracy"] == 0.25
    assert "bleu" not in few
    assert "rouge1" not in few


def test_records_that_state_their_kind() -> None:
    rows = rows_of(["yes", "B", "it falls", "it rises", "no"], ["yes", "A", "it falls", "3.5 s", "no"])
    names = ("bcq", "mcq", "bcq_openended", "temporal_localization", "bcq")
    rows, found = judged(rows, "by_record", {row.id: name for row, name in zip(rows, names)})
    assert (found["total"], found["correct"]) == (3, 2)
    assert found["per_task"]["binary"]["accuracy"] == 1
    assert set(found["excluded_tasks"]) == {"bcq_openended", "temporal_localization"}
    assert found["per_task"]["bcq_openended"]["accuracy"] is None
    assert found["per_task"]["bcq_openended"]["rouge1"] == 1
    assert [row.correct for row in rows] == [True, False, None, None, True]
    with pytest.raises(UserError, match="r000: unknown task type 'quiz'; known: bcq, mcq"):
        judged(rows[:1], "by_record", {"r000": "quiz"})


def test_spatial_kinds_have_a_quarter_each() -> None:
    rows = rows_of(["30", "31", "10.9 m", "11.1", "left", "B"], ["30", "30", "10", "10", "right", "B"])
    kinds = ("count", "count", "distance", "distance", "left_right", "mcq")
    _, found = judged(rows, "metropolis_sgd", {row.id: kind for row, kind in zip(rows, kinds)})
    assert found["final_weighted_score"] == pytest.approx((0.5 + 0.5 + 0 + 1) / 4)
    assert found["error_rates"] == {"count": 0.5, "distance": 0.5, "left_right": 1, "mcq": 0}
    assert found["per_task"]["distance"]["relative_error"] == pytest.approx(0.1)
    _, found = judged(rows[:4], "metropolis_sgd", {row.id: kind for row, kind in zip(rows, kinds)})
    assert found["final_weighted_score"] is None  # a kind is missing


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (1, 0), (3, 9), (9, 3), (5, 5), (40, 90), (700, 800)])
def test_mcnemar_is_a_binomial_test(gained: int, lost: int) -> None:
    expected = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert mcnemar(gained, lost) == pytest.approx(expected, rel=1e-9)


def test_two_models_are_compared_by_record() -> None:
    rows, _ = judged(rows_of(["yes", "yes", "no", "no"], ["yes", "yes", "no", "yes"]), "binary")
    rows[3].status, rows[3].correct = "gen_error", None
    others = [{"id": f"r{index:03d}", "gt": row.gt, "response": text, "status": "ok"}
              for index, (row, text) in enumerate(zip(rows, ["no", "no.", "yes", "yes"]))]  # fmt: skip
    right = lambda row, response: response.startswith(row.gt)  # noqa: E731
    found = compare_accuracy(rows, others[::-1], right)
    assert found == {"shared": 3, "accuracy": 1, "other_accuracy": 0, "gained": 3, "lost": 0, "p_value": 0.25}
    with pytest.raises(UserError, match="no record in common"):
        compare_accuracy(rows, [{**other, "id": "x"} for other in others], right)
    with pytest.raises(UserError, match="r000: the ground truth is 'yes' here and 'no' in the other"):
        compare_accuracy(rows, [{**other, "gt": "no"} for other in others], right)


def test_parts_of_the_data() -> None:
    rows, _ = judged(rows_of(["yes"] * 70, ["yes", "no"] * 35), "binary")
    for index, row in enumerate(rows):
        row.slice = {"even": str(index % 2 == 0), "many": f"{index // 2:02d}"}
    found = measure_slices(rows)
    assert found["even"]["True"] == {
        "total": 35, "correct": 35, "accuracy": 1, "accuracy_interval": pytest.approx((0.901, 1.0), abs=1e-3),
    }  # fmt: skip
    assert found["even"]["False"]["accuracy"] == 0
    assert len(found["many"]) == 30
    assert found["many"][OTHERS]["total"] == 12
