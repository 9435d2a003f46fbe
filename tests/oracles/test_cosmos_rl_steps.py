"""Steps of a training spec against the loop that Cosmos-RL runs: torch's DistributedSampler and DataLoader, counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from worldsmith.dialects.cosmos_rl.spec_file import read_spec
from worldsmith.dialects.cosmos_rl.train import steps
from worldsmith.dialects.cosmos_rl.train.key_rules import FORM
from worldsmith.dialects.translation import translate


def loader(samples: int, ranks: int, batch: int, rank: int, *, drop_last: bool) -> Any:
    """The loader of one rank, as Cosmos-RL builds it without pipeline parallelism."""
    data: Any = range(samples)
    sampler: Any = DistributedSampler(data, num_replicas=ranks, rank=rank, shuffle=True, drop_last=False)
    return DataLoader(data, batch_size=batch, sampler=sampler, drop_last=drop_last, collate_fn=list)


def steps_taken(batches: Any, epochs: int, most: int | None) -> int:
    """Optimizer steps of the loop over epochs, which stops at `most`."""
    done = 0
    for epoch in range(epochs):
        batches.sampler.set_epoch(epoch)
        for _ in batches:
            if most is not None and done >= most:
                return done
            done += 1
    return done


def read(file: Path, samples: int, monkeypatch: pytest.MonkeyPatch, **words: Any) -> Any:
    monkeypatch.setattr(steps, "count_records", lambda dataset: (samples, samples))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    file.write_text("train: {train_policy: {type: sft, mini_batch: 1}, ckpt: {enable_checkpoint: true}}\n")
    given = {"custom.train_dataset.annotation_path": "annotations.json"} | {
        key.replace("__", "."): value for key, value in words.items()
    }
    return translate(read_spec(FORM, str(file), [f"{key}={value}".lower() for key, value in given.items()]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    samples=st.integers(1, 120),
    batch=st.integers(1, 20),
    ranks=st.integers(1, 9),
    epochs=st.integers(1, 5),
    most=st.none() | st.integers(1, 30),
    drop_last=st.booleans(),
)
def test_a_run_has_the_steps_that_its_epochs_have_there(
    samples: int,
    batch: int,
    ranks: int,
    epochs: int,
    most: int | None,
    drop_last: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    per_rank = [loader(samples, ranks, batch, rank, drop_last=drop_last) for rank in range(ranks)]
    assert len({len(batches) for batches in per_rank}) == 1
    expected = steps_taken(per_rank[-1], epochs, most)
    found = read(
        tmp_path / "spec.yaml",
        samples,
        monkeypatch,
        train__epoch=epochs,
        train__train_batch_per_replica=batch,
        dp_shard_size=ranks,
        train__ckpt__save_freq_in_epoch=1,
        train__train_policy__dataloader_drop_last=drop_last,
        **({} if most is None else {"train__max_num_steps": most}),
    )
    if not expected:  # there the first save fails
        assert [problem.path for problem in found.problems] == ["train.train_batch_per_replica"]
        return
    assert not found.problems
    assert found.data["trainer"]["max_iter"] == expected
    assert sum(found.data["scheduler"]["cycle_lengths"]) == expected
    assert found.data["checkpoint"]["save_iter"] == len(per_rank[0])


@pytest.mark.parametrize(
    ("samples", "batch", "ranks", "epochs", "expected"),
    [(31, 16, 1, 10, 10), (31, 4, 8, 10, 10), (32, 4, 8, 10, 10), (33, 4, 8, 10, 10), (112, 32, 1, 3, 9)],
)
def test_an_incomplete_step_is_dropped_in_each_epoch(
    samples: int, batch: int, ranks: int, epochs: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"train__epoch": epochs, "train__train_batch_per_replica": batch, "dp_shard_size": ranks}
    found = read(tmp_path / "spec.yaml", samples, monkeypatch, **words)
    assert found.data["trainer"]["max_iter"] == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"train__optm_warmup_epochs": "1"}, 4),
        ({"train__optm_warmup_epochs": "1.0"}, 20),
        ({"train__optm_warmup_epochs": "0.25"}, 5),
        ({"train__optm_warmup_epochs": "1.5"}, 6),
        ({"train__optm_warmup_epochs": "0"}, 0),
        ({"train__optm_warmup_epochs": "9"}, 20),
        ({"train__optm_warmup_epochs": "2", "train__max_num_steps": "11"}, 4),
        ({"train__optm_warmup_steps": "0.25"}, 5),
        ({"train__optm_warmup_steps": "7"}, 7),
    ],
)
def test_warm_up_is_counted_in_the_steps_of_whole_epochs(
    words: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5 epochs of 4 steps each. An integer number of epochs is one of epochs, a fraction is one of the run."""
    found = read(tmp_path / "spec.yaml", 70, monkeypatch, train__epoch=5, train__train_batch_per_replica=16, **words)
    assert not found.problems
    assert found.data["scheduler"]["warm_up_steps"][0] == max(0, expected - 1)
