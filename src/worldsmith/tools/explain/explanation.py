"""Explains causes that were found: in detail, as data, or in a few lines after a crash.

The sentences of a pattern are templates. `{set PATH=VALUE}`, `{half PATH}`, `{double PATH}` and `{tenth PATH}` become
the override that changes a setting of the run. `{less PATH}` is like half, and only the name if the run has no value.
`{fit PATH}` is large enough for the count in the message. `{see PATH}` is the present setting, `{run}` the run folder.
A sentence that begins with `generator:` or `reasoner:` applies to those only.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from worldsmith.config.write.values import WORD, write
from worldsmith.tools.explain.causes import Cause, find_causes
from worldsmith.tools.explain.facts import FACTS, Run
from worldsmith.tools.explain.logs import split

OPERATION = re.compile(r"\{(set|half|double|tenth|less|fit|see) ([^{}]+)\}")
KINDS = {"generator: ": "vfm", "reasoner: ": "vlm"}
ROUND = 64
"""Suggested token limits are rounded up to a multiple of this number of tokens."""
TOKENS = "data_setting.max_tokens"
SAMPLE_CAP, PACK_CAP = "dataloader_train.max_sample_tokens", "dataloader_train.max_sequence_length"
"""Token limits of a sample and of a pack; they replace `TOKENS` in runs that limit each sample, for example those of a
Cosmos-RL spec."""
SPEC_KEYS = {
    TOKENS: "policy.model_max_length",
    "dataloader_train.max_samples_per_batch": "train.train_policy.mini_batch",
    "model.config.parallelism.data_parallel_shard_degree": "policy.parallelism.dp_shard_size",
    "model.config.parallelism.data_parallel_replicate_degree": "policy.parallelism.dp_replicate_size",
    "optimizer.lr": "train.optm_lr",
}
"""Config path → key of a Cosmos-RL spec that sets it; suggested fixes name both if the run limits each sample."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """Suggested fix: one sentence, and the overrides (PATH=VALUE) that it contains."""

    text: str
    words: tuple[str, ...] = ()


class NotHereError(Exception):
    """Raised if a fix does not apply to this run: the setting does not exist or already has the value."""


def render_remedy(sentence: str, run: Run | None, groups: Mapping[str, str]) -> Remedy | None:
    """Returns a suggested fix with the values of a run; None if it does not apply to the run.

    Args:
        sentence: Template of the fix, such as "Set {half optimizer.lr}".
        run: The run; None: unknown, so the fix names settings without values.
        groups: Named groups of the pattern that matched the error message.
    """
    for start, task in KINDS.items():
        if run is not None and run.task is not None and sentence.startswith(start):
            if run.task != task:
                return None
            sentence = sentence.removeprefix(start)
    words: list[str] = []

    def operate(match: re.Match[str]) -> str:
        text, word = value_for(match[1], match[2], run, groups)
        words.extend([word] if word else [])
        if run is None or not has_sample_cap(run):
            return text
        if match[2] == TOKENS and word is not None:
            words.append(f"{PACK_CAP}={scale_pack_limit(run, word)}")
            text = f"{text} and {words[-1]} (now {format_value(run.value(PACK_CAP))})"
        key = SPEC_KEYS.get(match[2].partition("=")[0])
        return f"{text}, in a spec {key}" if key else text

    try:
        text = OPERATION.sub(operate, sentence)
    except NotHereError:
        return None
    folder = shlex.quote(str(run.folder)) if run is not None and run.folder is not None else "RUN"
    return Remedy(text.replace("{run}", folder), tuple(words))


def value_for(operation: str, path: str, run: Run | None, groups: Mapping[str, str]) -> tuple[str, str | None]:
    """Computes the new value of a setting that an explanation proposes.

    Args:
        operation: Change: set (to VALUE), half, double, tenth, less (half, if the setting has a value), fit (increase
            to the tokens in the message) or see (only show the value).
        path: The setting, such as trainer.max_iter, with "=VALUE" for set.
        run: The run to fix; None: unknown, so the description has no current values.
        groups: Named groups of the pattern that matched the error message.

    Returns:
        The description of the change, and its override PATH=VALUE (None: no new value).

    Raises:
        NotHereError: The change does not apply to the run.
    """
    path, _, wanted = path.partition("=")
    if run is None or not run.config:
        names = {"set": f"{path}={wanted}", "see": path, "double": f"a higher {path}", "fit": f"a higher {path}"}
        return names.get(operation, f"a lower {path}"), f"{path}={wanted}" if wanted else None
    if path == TOKENS and has_sample_cap(run):
        path = SAMPLE_CAP
    if not run.has(path):
        raise NotHereError
    now = run.value(path)
    if operation == "see":
        return f"{path} (now {format_value(now)})", None
    if operation == "less" and now is None:
        return f"{path} (not set now)", None
    new = wanted if operation == "set" else format_value(compute_change(operation, now, groups))
    if new == format_value(now):
        raise NotHereError
    return f"{path}={new} (now {format_value(now)})", f"{path}={new}"


def has_sample_cap(run: Run) -> bool:
    """Returns whether the run limits the tokens of each sample and also the tokens of a packed batch."""
    return all(isinstance(run.value(path), int) for path in (SAMPLE_CAP, PACK_CAP))


def scale_pack_limit(run: Run, word: str) -> int:
    """Returns a token limit of packed batches for a new token limit of samples.

    A packed batch can then contain as many samples of maximum length as with the present limits.

    Args:
        run: The run, for its present limits.
        word: Override PATH=VALUE that sets the token limit of a sample.
    """
    cap, pack = run.value(SAMPLE_CAP), run.value(PACK_CAP)
    return max(1, pack // cap) * int(word.partition("=")[2]) + 1


def compute_change(operation: str, now: Any, groups: Mapping[str, str]) -> Any:
    """Returns the number that an explanation suggests instead of the present value of a setting.

    Args:
        operation: "double"; "half"; "less" (computed as half: `value_for` handles the difference, a setting without a
            value); "tenth" (divide by 10); or "fit" (a token limit that is large enough for the sample in the message).
        now: The present value.
        groups: Named groups of the pattern that matched the error message; only "fit" uses them: `need` (tokens of the
            sample), or `tokens` and `features` (their difference is added to `now`). Without them, "fit" doubles `now`.

    Returns:
        For an int, an int rounded toward 0; for a float, a float with 6 significant digits; for "fit", an int rounded
        up to a multiple of `ROUND` tokens.

    Raises:
        NotHereError: If `now` is not a number, the result would be 0, or the present limit is large enough for "fit".
    """
    if isinstance(now, bool) or not isinstance(now, (int, float)):
        raise NotHereError
    if operation == "fit":
        return compute_fit(now, groups)
    new = now * 2 if operation == "double" else now / (10 if operation == "tenth" else 2)
    if isinstance(now, int):
        new = int(new)
    if not new:
        raise NotHereError
    return float(f"{new:.6g}") if isinstance(new, float) else new


def compute_fit(now: float, groups: Mapping[str, str]) -> int:
    """Returns the smallest suitable token limit, rounded up to a multiple of `ROUND`, for the sample in a message.

    Args:
        now: The present token limit.
        groups: Named groups of the pattern that matched the message. Without numbers of tokens, the limit is doubled.

    Raises:
        NotHereError: If the present limit is large enough.
    """
    if "need" in groups:
        need = int(groups["need"]) + 1  # the cap is exclusive
    elif "tokens" in groups and "features" in groups:
        need = int(now) + max(0, int(groups["features"]) - int(groups["tokens"]))
    else:
        need = 2 * int(now)
    if need <= now:
        raise NotHereError
    return -(-need // ROUND) * ROUND


def format_value(value: Any) -> str:
    """Returns a value formatted as in an override."""
    return write(value, WORD)


LONGEST = 240
"""Max characters of a log line."""
AFTER_CRASH = 2
"""Max fixes that are printed right after a crash."""


def remedies_for(cause: Cause, run: Run | None) -> list[Remedy]:
    """Returns the suggested fixes of a known error that apply to a run; if `run` is None, the fixes for any run."""
    found = (render_remedy(sentence, run, cause.groups) for sentence in cause.pattern.remedies)
    return [remedy for remedy in found if remedy is not None]


def facts_for(cause: Cause, run: Run | None) -> list[str]:
    """Returns facts about a run that help to understand an error, as sentences; empty for an unknown run (None)."""
    if run is None:
        return []
    return [fact for name in cause.pattern.facts if (fact := FACTS[name](run))]


def explain_in_detail(cause: Cause, run: Run | None) -> Iterator[str]:
    """Yields the output lines of a detailed explanation of a known error.

    They contain name, code, position, log line, meaning, fixes, and facts of the run unless it is unknown (None).
    """
    yield f"{cause.pattern.name} (E{cause.pattern.id})"
    if cause.places:
        yield f"  {describe_position(cause)}: {shorten_line(cause.text)}"
    yield f"  {cause.pattern.means}"
    yield from (f"  - {remedy.text}" for remedy in remedies_for(cause, run))
    if facts := facts_for(cause, run):
        yield f"  here: {'; '.join(facts)}"


def explanation_data(cause: Cause, run: Run | None) -> Mapping[str, Any]:
    """Returns the explanation of a known error as JSON data: pattern, meaning, fixes, and occurrences in the log.

    The entry "words" contains the overrides of the fixes, "run" facts about the run. `run` None: unknown.
    """
    remedies = remedies_for(cause, run)
    place = cause.place if cause.places else None
    return {
        "id": cause.pattern.id,
        "name": cause.pattern.name,
        "consequence": cause.pattern.consequence,
        "means": cause.pattern.means,
        "try": [remedy.text for remedy in remedies],
        "words": [word for remedy in remedies for word in remedy.words],
        "run": facts_for(cause, run),
        "text": cause.text,
        "file": place and place.source,
        "line": place and place.line,
        "count": len(cause.places),
        "ranks": cause.ranks,
    }


def describe_position(cause: Cause) -> str:
    """Returns text with the position of an error in the log, its number of occurrences and their ranks."""
    place, count, ranks = cause.place, len(cause.places), cause.ranks
    rank = "" if place.rank is None else f", rank {place.rank}"
    on = f" on ranks {', '.join(map(str, ranks))}" if len(ranks) > 1 else ""
    return f"{place.source}:{place.line}{rank}{f' ({count} times{on})' if count > 1 else ''}"


def shorten_line(text: str) -> str:
    """Returns a log line shortened to `LONGEST` characters."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def explain_message(text: str, run: Run | None) -> list[str]:
    """Returns a few lines that explain an error message; empty if the error is not known.

    Ambiguous patterns are not used: the user has the error itself, and a wrong explanation is worse than none.

    Args:
        text: The message, possibly with a traceback.
        run: The run, for values in the suggested fixes; None: unknown.
    """
    causes = [cause for cause in find_causes(split(text, "the error")) if not cause.pattern.fallback]
    if not causes:
        return []
    cause = causes[0]
    lines = [f"meaning: {cause.pattern.means}"]
    lines += [f"try: {remedy.text}" for remedy in remedies_for(cause, run)[:AFTER_CRASH]]
    if run is not None and run.folder is not None and run.folder.is_dir():
        lines.append(f"more: worldsmith explain {shlex.quote(str(run.folder))}")
    return lines
