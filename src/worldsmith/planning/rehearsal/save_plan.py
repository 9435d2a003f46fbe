"""Whether the ranks together write every number of a checkpoint exactly once."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from torch.distributed.checkpoint._dedup_save_plans import dedup_save_plans
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan

from worldsmith.checkpoint.dcp.parts import planner_of
from worldsmith.planning.rehearsal.record import Finding, RankRecord
from worldsmith.planning.rehearsal.weights import listed

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata
    from torch.distributed.checkpoint.planner import SavePlan, WriteItem

PART = "save"
OWN = "rng_state_"
"""Each rank has its own of these, with its number after it."""


def check_save(records: Sequence[RankRecord], *, shares: int, all_ranks: bool) -> Iterator[Finding]:
    """`shares`: of the weights, dealt to consecutive ranks. `all_ranks`: every rank of the run is there, so that what
    nobody writes is known; else each must write the share that is its own."""
    for part in records[0].plans:
        plans = {record.rank: record.plans[part] for record in records}
        yield from check_keys(part, plans)
        for name, held in by_name(plans).items():
            finding = check_tensor(part, name, held, all_ranks=all_ranks) or (
                None if all_ranks else check_share(part, name, held, shares)
            )
            if finding is not None:
                yield finding
                break  # the others of a part are wrong in the same way
    positions = sorted({record.data_rank for record in records})
    if all_ranks and positions != list(range(len(positions))):
        yield Finding(PART, f"the positions in the data are those of the shares {positions}, which are not consecutive")


def check_keys(part: str, plans: Mapping[int, SavePlan]) -> Iterator[Finding]:
    """Keys that some ranks have and others do not."""
    keys = {rank: {item.index.fqn for item in plan.items} for rank, plan in plans.items()}
    ranks_of: dict[str, list[int]] = defaultdict(list)
    for rank, own in keys.items():
        for name in own:
            ranks_of[name].append(rank)
    partly: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name, ranks in sorted(ranks_of.items()):
        own_of = name.removeprefix(OWN).partition(".")[0] if name.startswith(OWN) else ""
        if own_of.isdecimal() and ranks == [int(own_of)]:
            continue
        if len(ranks) < len(plans):
            partly[tuple(ranks)].append(name)
    for few, names in partly.items():
        one = len(few) == 1
        yield Finding(
            PART,
            f"{part}: only {'rank' if one else 'ranks'} {', '.join(map(str, few))} of {len(plans)} "
            f"{'has' if one else 'have'} {listed(names)}; the others would look for it in vain, or never write it",
        )


def by_name(plans: Mapping[int, SavePlan]) -> dict[str, list[tuple[int, WriteItem]]]:
    """Who wants to write what of each tensor."""
    found: dict[str, list[tuple[int, WriteItem]]] = defaultdict(list)
    for rank, plan in plans.items():
        for item in plan.items:
            found[item.index.fqn].append((rank, item))
    return found


def check_tensor(part: str, name: str, held: Sequence[tuple[int, WriteItem]], *, all_ranks: bool) -> Finding | None:
    """A tensor whose pieces are of different kinds, overlap, or leave a hole."""
    place, forms, chunks = f"{part}: {name}", dict[tuple[object, ...], int](), dict[Box, int]()
    for rank, item in held:
        assert item.tensor_data is not None
        data = item.tensor_data
        forms.setdefault((tuple(data.size), data.properties.dtype), rank)
        box = box_of(data.chunk)
        if volume(box):
            chunks.setdefault(box, rank)
    if len(forms) > 1:
        said = ", ".join(
            f"{list(size)} {str(dtype).removeprefix('torch.')} on rank {rank}"  # type: ignore[call-overload]
            for (size, dtype), rank in forms.items()
        )
        return Finding(PART, f"{place} is {said}")
    (size, _), ranks = next(iter(forms)), {rank for rank, _ in held}
    for (one, first), (two, second) in combinations(chunks.items(), 2):
        if overlap(one, two):
            return Finding(PART, f"{place}: rank {first} writes {words(one)} and rank {second} {words(two)}, both")
    total, written = math.prod(size), sum(map(volume, chunks))  # type: ignore[call-overload]
    if all_ranks and written < total:
        twice = repeated(held)
        more = f" ranks {twice[0]} and {twice[1]} want to write the same {words(twice[2])}" if twice else ""
        return Finding(
            PART,
            f"{place}: {total - written:,} of {total:,} numbers are written by none of the ranks {in_ranks(ranks)}"
            f"{';' if more else ''}{more}",
        )
    return None


def check_share(part: str, name: str, held: Sequence[tuple[int, WriteItem]], shares: int) -> Finding | None:
    """A rank that writes other rows of a sharded tensor than its own. Rows are dealt as by `torch.chunk`."""
    for rank, item in held:
        assert item.tensor_data is not None
        if not item.tensor_data.size:
            return None
        (start, *_), (rows, *rest), size = *box_of(item.tensor_data.chunk), tuple(item.tensor_data.size)
        if tuple(rest) != size[1:] or (rows == size[0] and start == 0):
            continue
        each = -(-size[0] // shares)
        first = min(rank % shares * each, size[0])
        own = (min(first, size[0]), max(0, min(each, size[0] - first)))
        if (start, rows) != own and (rows or own[1]):
            found, wanted = words(((start,), (rows,))), words(((own[0],), (own[1],)))
            return Finding(PART, f"{part}: {name}: rank {rank} writes rows {found}, and its own are {wanted}")
    return None


Box = tuple[tuple[int, ...], tuple[int, ...]]
"""First corner and size of a piece of a tensor."""


def box_of(chunk: ChunkStorageMetadata) -> Box:
    return tuple(chunk.offsets), tuple(chunk.sizes)


def volume(box: Box) -> int:
    return math.prod(box[1])


def overlap(one: Box, two: Box) -> bool:
    sides = zip(*one, *two, strict=True)
    return all(start < other + length and other < start + size for start, size, other, length in sides)


def repeated(held: Sequence[tuple[int, WriteItem]]) -> tuple[int, int, Box] | None:
    """The first two ranks with the same piece."""
    seen: dict[Box, int] = {}
    for rank, item in held:
        assert item.tensor_data is not None
        box = box_of(item.tensor_data.chunk)
        if volume(box) and box in seen:
            return seen[box], rank, box
        seen[box] = rank
    return None


def words(box: Box) -> str:
    return f"[{', '.join(f'{start}:{start + size}' for start, size in zip(*box, strict=True))}]"


def in_ranks(ranks: set[int]) -> str:
    return f"{min(ranks)}-{max(ranks)}"


def join_plans(records: Sequence[RankRecord], *, all_ranks: bool) -> dict[str, Metadata]:
    """Of each part of a checkpoint the content of `.metadata`, by DCP's own planning.

    Raises ValueError or AssertionError for plans that do not make a checkpoint, where `all_ranks` are there.
    """
    plans = {part: [record.plans[part] for record in records] for part in records[0].plans}
    if all_ranks:
        return {part: planner_of({}).create_global_plan(own)[1] for part, own in plans.items()}
    return {part: create_default_global_save_plan(dedup_save_plans(own))[1] for part, own in plans.items()}
