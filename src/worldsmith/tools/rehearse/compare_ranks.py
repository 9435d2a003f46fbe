"""Checks whether the simulated ranks agree on weights, collectives and the save of a checkpoint."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, zip_longest
from typing import NamedTuple

import torch
from torch.distributed.checkpoint._dedup_save_plans import dedup_save_plans
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan

from worldsmith.checkpoint.dcp.dcp_folder import planner_of
from worldsmith.planning.simulation.traffic import Sent
from worldsmith.tools.rehearse.rank_run import Finding, RankRecord, format_names, format_tensor

OWN = "rng_state_"
"""Name prefix of tensors that differ per rank; the rank index follows."""
Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Rectangular part of a tensor: (offsets, sizes), one entry per dimension."""


def compare_weights(records: Sequence[RankRecord], shares: int) -> Iterator[Finding]:
    """Yields a finding if trained weights are not sharded over `shares` ranks, or if the weights of ranks differ.

    Names, full shapes, dtypes and sharding are compared, not values. Frozen weights may be replicated: they have no
    gradients, and small norms are cheaper that way.
    """
    first = records[0]
    whole = [f"{name} {list(w.shape)}" for name, w in first.weights.items() if w.whole and w.trained]
    if whole and shares > 1:
        yield Finding(
            "first step",
            f"{len(whole)} trained weight{'s are' if len(whole) != 1 else ' is'} not sharded: {format_names(whole)}. "
            f"Each of the {shares} ranks stores {'them' if len(whole) != 1 else 'it'} completely, and the gradients "
            "are not reduced",
        )
    for other in records[1:]:
        for one, two in ((first, other), (other, first)):
            lacking = [name for name in one.weights if name not in two.weights]
            if lacking:
                yield Finding("first step", f"rank {two.rank} lacks {format_names(lacking)}, which rank {one.rank} has")
            trained = [name for name, weight in one.weights.items() if weight.trained and name in two.weights]
            frozen = [name for name in trained if not two.weights[name].trained]
            if frozen:
                names = f"{format_names(frozen)} trained on rank {one.rank} but frozen on rank {two.rank}"
                yield Finding("first step", names)
        for name, weight in first.weights.items():
            own = other.weights.get(name)
            if own is None or (own.shape, own.dtype, own.whole) == (weight.shape, weight.dtype, weight.whole):
                continue
            forms = " and ".join(
                f"{format_tensor(w.shape, w.dtype)}{', unsharded' * w.whole} on rank {r.rank}"
                for r, w in ((first, weight), (other, own))
            )
            yield Finding("first step", f"{name} is {forms}")
            break


def compare_traces(records: Sequence[RankRecord]) -> list[Finding]:
    """Returns a finding for each rank whose collectives or their order differ from other ranks of a process group.

    Such a run would hang or exchange wrong tensors. Each rank is compared with the first rank of each of its process
    groups. A rank that calls a collective of a process group to which it does not belong is a finding as well.
    """
    found: dict[int, Finding] = {}
    firsts: dict[tuple[int, ...], RankRecord] = {}
    for record in records:
        groups = {sent.ranks for sent in record.trace}
        for group in groups:
            firsts.setdefault(group, record)
        # Also compare with earlier ranks that call a collective of a group with this rank, which it never calls.
        others = [firsts[group] for group in groups] + [o for g, o in firsts.items() if record.rank in g]
        for first in {other.rank: other for other in others if other is not record}.values():
            finding = compare_two(first, record)
            if finding is not None:
                found.setdefault(record.rank, finding)
    return [*found.values(), *find_outsiders(records)]


def compare_two(first: RankRecord, other: RankRecord) -> Finding | None:
    """Compares the collectives of two ranks in the process groups that contain both.

    Returns a finding for the first difference; None if there is no difference.
    """
    expected, called = ([s for s in r.trace if {first.rank, other.rank} <= set(s.ranks)] for r in (first, other))
    if expected == called:
        return None
    place = next(number for number, (one, two) in enumerate(zip_longest(expected, called)) if one != two)
    wanted, instead = (
        describe_collective(of[place]) if place < len(of) else "no further one" for of in (expected, called)
    )
    if Counter(expected) == Counter(called):
        verdict = f"calls its collectives in a different order from rank {first.rank}"
    elif len(called) < len(expected):
        verdict = f"skips {format_collectives(len(expected) - len(called))} that rank {first.rank} calls"
    elif len(called) > len(expected):
        verdict = f"calls {format_collectives(len(called) - len(expected))} more than rank {first.rank}"
    else:
        verdict = f"calls another collective than rank {first.rank}"
    return Finding(
        "first step",
        f"rank {other.rank} {verdict}: collective {place + 1} of the step is {instead}, but {wanted} on rank "
        f"{first.rank}. The ranks would wait for each other forever, or exchange the wrong tensors",
    )


def find_outsiders(records: Sequence[RankRecord]) -> Iterator[Finding]:
    """Yields a finding for each rank that calls a collective of a process group to which it does not belong."""
    for record in records:
        strange = next((sent for sent in record.trace if record.rank not in sent.ranks), None)
        if strange is not None:
            message = f"rank {record.rank} calls {describe_collective(strange)}, but does not belong to these ranks"
            yield Finding("first step", message)


def describe_collective(sent: Sent) -> str:
    """Describes a collective as text: operation, module, size, dtype and ranks."""
    dtype = str(sent.dtype).removeprefix("torch.")
    where = f" of {sent.module}" if sent.module else ""
    return f"{sent.op}{where} ({sent.payload:,} bytes, {dtype}, ranks {format_ranks(sent.ranks)})"


def format_ranks(ranks: Sequence[int]) -> str:
    """Formats sorted rank indices as `0-7`, `0, 2, 4` or `0, 8, … 504`."""
    if len(ranks) > 2 and ranks[-1] - ranks[0] + 1 == len(ranks):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks if len(ranks) <= 4 else [*ranks[:2], f"… {ranks[-1]}"]))


def format_collectives(number: int) -> str:
    return f"{number} collective{'s' * (number != 1)}"


class TensorShard(NamedTuple):
    """Shard of a tensor that a rank would write to a checkpoint."""

    rank: int
    size: tuple[int, ...]
    """Shape of the full tensor."""
    dtype: torch.dtype
    box: Box


def check_save(records: Sequence[RankRecord], *, shares: int, all_ranks: bool) -> Iterator[Finding]:
    """Yields findings unless the ranks together would write every element of a checkpoint exactly once.

    Args:
        records: Records of the simulated ranks, with their save plans.
        shares: Number of consecutive ranks over which the weights are sharded.
        all_ranks: Whether all ranks were simulated, so that missing elements can be found; False: each rank must
            write the rows of its shard.
    """
    for part in records[0].plans:
        plans = {record.rank: record.plans[part] for record in records}
        shards_by_tensor = shards_by_name(plans)
        yield from check_keys(part, shards_by_tensor, list(plans))
        for name, shards in shards_by_tensor.items():
            wrong = find_fault(shards, all_ranks=all_ranks) or ("" if all_ranks else find_foreign_rows(shards, shares))
            if wrong:
                yield Finding("save", f"{part}: {name}{wrong}")
                break  # the other tensors of the part have the same problem
    positions = sorted({record.data_rank for record in records})
    if all_ranks and positions != list(range(len(positions))):
        message = f"the data loader states belong to the shards {positions}, which are not consecutive"
        yield Finding("save", message)


def shards_by_name(plans: Mapping[int, SavePlan]) -> dict[str, list[TensorShard]]:
    """Returns the shards that the ranks would write, by tensor name; `plans` has the save plan of each rank."""
    found: dict[str, list[TensorShard]] = defaultdict(list)
    for rank, plan in plans.items():
        for item in plan.items:
            data = item.tensor_data
            assert data is not None
            box = tuple(data.chunk.offsets), tuple(data.chunk.sizes)
            found[item.index.fqn].append(TensorShard(rank, tuple(data.size), data.properties.dtype, box))
    return found


def check_keys(
    part: str, shards_by_tensor: Mapping[str, Sequence[TensorShard]], ranks: Sequence[int]
) -> Iterator[Finding]:
    """Yields a finding for tensors of a checkpoint part that only some ranks would write.

    Tensors that are named after a single rank are allowed if that rank writes them.

    Args:
        part: Name of the checkpoint part, such as "model".
        shards_by_tensor: Shards by tensor name.
        ranks: All simulated ranks.
    """
    partly: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name, shards in sorted(shards_by_tensor.items()):
        having = tuple(dict.fromkeys(shard.rank for shard in shards))
        own_of = name.removeprefix(OWN).partition(".")[0] if name.startswith(OWN) else ""
        if len(having) < len(ranks) and not (own_of.isdecimal() and having == (int(own_of),)):
            partly[having].append(name)
    for few, names in partly.items():
        one = len(few) == 1
        yield Finding(
            "save",
            f"{part}: only {'rank' if one else 'ranks'} {', '.join(map(str, few))} of {len(ranks)} "
            f"{'has' if one else 'have'} {format_names(names)}; the others would not find these entries, or never "
            "write them",
        )


def find_fault(shards: Sequence[TensorShard], *, all_ranks: bool) -> str:
    """Returns a message if the shards of a tensor disagree on its shape or dtype, overlap, or have a gap; else "".

    `all_ranks`: the shards of all ranks are known, so that gaps can be found.
    """
    forms, boxes, same = dict[str, int](), dict[Box, int](), list[tuple[int, TensorShard]]()
    for shard in shards:
        forms.setdefault(format_tensor(shard.size, shard.dtype), shard.rank)
        if volume(shard.box):
            if shard.box in boxes:
                same.append((boxes[shard.box], shard))
            boxes.setdefault(shard.box, shard.rank)
    if len(forms) > 1:
        return " is " + ", ".join(f"{words} on rank {rank}" for words, rank in forms.items())
    for (one, first), (two, second) in combinations(boxes.items(), 2):
        if overlap(one, two):
            return f": rank {first} writes {format_box(one)}, and rank {second} {format_box(two)}"
    total, written = math.prod(shards[0].size), sum(map(volume, boxes))
    if not all_ranks or written >= total:
        return ""
    more = ""
    if same:
        earlier, shard = same[0]
        more = f"; ranks {earlier} and {shard.rank} would both write {format_box(shard.box)}"
    ranks = format_ranks(sorted({shard.rank for shard in shards}))
    return f": {total - written:,} of {total:,} elements are written by none of the ranks {ranks}{more}"


def find_foreign_rows(shards: Sequence[TensorShard], shares: int) -> str:
    """Returns a message if a rank would write rows of a tensor that do not belong to its shard; else "".

    The expected shards are those of `torch.chunk` along the first dimension over `shares` consecutive ranks.
    """
    for rank, size, _, box in shards:
        if not size:
            return ""
        (start, *_), (rows, *rest) = box
        if tuple(rest) != size[1:] or (rows == size[0] and start == 0):
            continue
        each = -(-size[0] // shares)
        first = min(rank % shares * each, size[0])
        own = first, max(0, min(each, size[0] - first))
        if (start, rows) != own and (rows or own[1]):
            found, wanted = format_box(((start,), (rows,))), format_box(((own[0],), (own[1],)))
            return f": rank {rank} writes rows {found}, but its shard has {wanted}"
    return ""


def volume(box: Box) -> int:
    """Returns the number of elements in a box (offsets, sizes) of a tensor."""
    return math.prod(box[1])


def overlap(one: Box, two: Box) -> bool:
    """Returns whether two boxes (offsets, sizes) of a tensor have common elements."""
    sides = zip(*one, *two, strict=True)
    return all(start < other + length and other < start + size for start, size, other, length in sides)


def format_box(box: Box) -> str:
    """Formats a box (offsets, sizes) of a tensor as slices, such as [0:4, 0:8]."""
    return f"[{', '.join(f'{start}:{start + size}' for start, size in zip(*box, strict=True))}]"


def join_plans(records: Sequence[RankRecord], *, all_ranks: bool) -> dict[str, Metadata]:
    """Joins the save plans of the ranks to a global plan with the planner of torch.distributed.checkpoint (DCP).

    Args:
        records: Records of the simulated ranks.
        all_ranks: Whether all ranks were simulated, so that the global plan is validated.

    Returns:
        Content of the file `.metadata` by checkpoint part.

    Raises:
        ValueError: If the plans do not form a valid checkpoint; DCP may also raise AssertionError.
    """
    plans = {part: [record.plans[part] for record in records] for part in records[0].plans}
    if all_ranks:
        return {part: planner_of({}).create_global_plan(own)[1] for part, own in plans.items()}
    return {part: create_default_global_save_plan(dedup_save_plans(own))[1] for part, own in plans.items()}
