"""Published config files of other projects are read, or refused with the reason in docs/published_files.md."""

from __future__ import annotations

from collections import Counter

import pytest
from published_files import PAGE, PublishedFile, Verdict, all_verdicts, page


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[PublishedFile, Verdict]:
    return all_verdicts(tmp_path_factory.mktemp("published"))


def test_the_page_has_the_verdict_of_every_file(verdicts: dict[PublishedFile, Verdict]) -> None:
    assert PAGE.read_text(encoding="utf-8") == page(verdicts)


def test_recipe_tomls_work_unchanged(verdicts: dict[PublishedFile, Verdict]) -> None:
    found = {file: verdict for file, verdict in verdicts.items() if file.repository == "cosmos-framework"}
    assert Counter(verdict.outcome for verdict in found.values()) == {"works": 20}


def test_a_refusal_is_no_long_list(verdicts: dict[PublishedFile, Verdict]) -> None:
    """Reinforcement learning, or a network that is not here, is one reason and not one for every key."""
    for file, verdict in verdicts.items():
        types = {file.facts.get("train/train_policy/type"), file.facts.get("train/train_policy/trainer_type")}
        if types & {"grpo", "nft", "ddrl"}:
            assert len(verdict.reasons) == 1, (file.path, verdict.reasons)


def test_stacks_of_sat_and_specs_of_tao_work(verdicts: dict[PublishedFile, Verdict]) -> None:
    """The words that are given come from the reports alone: no file needs one that no report has asked for."""
    for file, verdict in verdicts.items():
        if file.repository in ("CogVideo", "tao-skill-bank"):
            assert verdict.outcome != "refused", (file.path, verdict.reasons)
