"""What is advised has the values of the run, in words that work, and nothing that does not concern it."""

from typing import Any

import pytest

from worldsmith.tools.explain.explanation import render_remedy
from worldsmith.tools.explain.facts import Run

CONFIG: dict[str, Any] = {
    "job": {"task": "vlm"},
    "optimizer": {"lr": 1e-5},
    "trainer": {"grad_accum_iter": 1},
    "data_setting": {"max_tokens": 16000},
    "loader": {"pixels": None, "workers": 1, "folder": "a b"},
    "lora": False,
}
RUN = Run(CONFIG)


@pytest.mark.parametrize(
    ("sentence", "groups", "text"),
    [
        ("{half data_setting.max_tokens} now", {}, "data_setting.max_tokens=8000 (now 16000) now"),
        ("{double trainer.grad_accum_iter}", {}, "trainer.grad_accum_iter=2 (now 1)"),
        ("{tenth optimizer.lr}", {}, "optimizer.lr=1e-06 (now 1e-05)"),
        ("{half optimizer.lr}", {}, "optimizer.lr=5e-06 (now 1e-05)"),
        ("{set lora=true}", {}, "lora=true (now false)"),
        ("{set lora=false}", {}, None),
        ("{see optimizer.lr}", {}, "optimizer.lr (now 1e-05)"),
        ("{see loader.folder}", {}, "loader.folder (now 'a b')"),
        ("{half loader.workers}", {}, None),
        ("{half loader.pixels}", {}, None),
        ("{less loader.pixels}", {}, "loader.pixels (not set now)"),
        ("{half loader.nothing}", {}, None),
        ("{half data_setting.max_tokens}, {half loader.nothing}", {}, None),
        ("{fit data_setting.max_tokens}", {"need": "51234"}, "data_setting.max_tokens=51264 (now 16000)"),
        ("{fit data_setting.max_tokens}", {"need": "64000"}, "data_setting.max_tokens=64064 (now 16000)"),
        ("{fit trainer.grad_accum_iter}", {"tokens": "7", "features": "99"}, "trainer.grad_accum_iter=128 (now 1)"),
        ("{fit data_setting.max_tokens}", {"need": "12"}, None),
        ("reasoner: {see lora}", {}, "lora (now false)"),
        ("generator: anything", {}, None),
        ("see {run}/STOP", {}, "see RUN/STOP"),
    ],
)  # fmt: skip
def test_with_the_values_of_a_run(sentence: str, groups: dict[str, str], text: str | None) -> None:
    remedy = render_remedy(sentence, RUN, groups)
    assert (remedy and remedy.text) == text
    if remedy and "(now" in remedy.text and "{see" not in sentence:
        assert remedy.words == (remedy.text.split()[0],)


@pytest.mark.parametrize(
    ("operation", "sample", "pack"),
    [("half", 500, 2001), ("double", 2000, 8001), ("fit", 1536, 6145)],
)
def test_a_run_with_a_limit_of_each_sample_gets_both_limits(operation: str, sample: int, pack: int) -> None:
    """A run from a spec: policy.model_max_length is the limit of each sample, and packs have room for four."""
    caps = {"max_sample_tokens": 1000, "max_sequence_length": 4001}
    remedy = render_remedy(
        f"{{{operation} data_setting.max_tokens}}", Run({**CONFIG, "dataloader_train": caps}), {"need": "1500"}
    )
    assert remedy is not None
    words = (f"dataloader_train.max_sample_tokens={sample}", f"dataloader_train.max_sequence_length={pack}")
    assert remedy.words == words
    assert remedy.text == f"{words[0]} (now 1000) and {words[1]} (now 4001), in a spec policy.model_max_length"


@pytest.mark.parametrize(
    ("sentence", "text"),
    [
        ("{half data_setting.max_tokens}", "a lower data_setting.max_tokens"),
        ("{fit data_setting.max_tokens}", "a higher data_setting.max_tokens"),
        ("{set lora=true} helps", "lora=true helps"),
        ("{see lora}", "lora"),
        ("generator: {see lora}", "generator: lora"),
    ],
)
def test_without_a_run(sentence: str, text: str) -> None:
    remedy = render_remedy(sentence, None, {})
    assert remedy is not None
    assert remedy.text == text
