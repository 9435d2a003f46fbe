"""`Fitting`: settings with which a run fits into its GPUs, found by carrying out its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from worldsmith.config.errors import ConfigError, UserError
from worldsmith.config.tree.paths import format_path
from worldsmith.distributed.gpus import GPUS, Gpu, holding
from worldsmith.planning.fitting.knobs import Setting, as_it_is, settings
from worldsmith.planning.fitting.packs import Limits
from worldsmith.planning.fitting.search import Search, Tried
from worldsmith.planning.memory_verdict import MemoryVerdict, worst_moment
from worldsmith.planning.quick import quick_plan
from worldsmith.planning.quiet import quietly
from worldsmith.planning.seconds import step_seconds
from worldsmith.planning.work import BESIDE
from worldsmith.training.preflight import check_tree

if TYPE_CHECKING:
    from worldsmith.config.tree.draft import Loaded
    from worldsmith.planning.batches import PlannedBatches

MOST_RANKS = 4096


@dataclass(frozen=True, slots=True)
class Fits:
    """What was found."""

    now: Tried | None
    """The run as it is; None where its degrees are not for so many GPUs."""
    best: Sequence[Tried]
    """At most three."""
    others: Mapping[str, Sequence[Tried]]
    """What differs from the best in one knob, by that knob."""
    nearest: Tried | None
    """Where nothing fits, what is nearest."""
    enough: int | None
    """Where nothing fits, a number of GPUs with which it would."""
    pace: Gpu
    """Whose speed the seconds are of."""
    data: str
    longest: int
    """Tokens of the longest sample in it."""
    tried: int
    settings: int


class Fitting:
    """Tries settings of the run that `read` gives for override words, on `ranks` GPUs.

    Of a step it takes the samples of the run as it is, whatever the setting: packs are divided or joined.
    """

    def __init__(
        self,
        read: Callable[[Sequence[str]], Loaded],
        *,
        ranks: int,
        gpu: Gpu,
        batches: Sequence[Any] | None = None,
        told: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`batches`: what a rank works on; None: as for a plan. `told` is called with what is being tried."""
        self.read, self.ranks, self.gpu, self.given, self.told = read, ranks, gpu, batches, told
        self.loaded = read(())
        self.config: Any = self.loaded.tree
        self.done = 0

    def find(self) -> Fits:
        batches, limits = self.data.batches, limits_of(self.loaded)
        plain = next((setting for setting in self.settings if not setting.words), None)
        plain = plain or as_it_is(self.config, ranks=self.ranks, batches=batches, limits=limits)
        among = [setting for setting in self.settings if setting.words]
        search = Search(among if plain is None else [plain, *among], self.evaluate)
        if plain is not None:
            search.try_(plain)
        best = search.best()
        others = self.neighbours(search, best[0].setting) if best else {}
        nearest = None if best else search.nearest()
        return Fits(
            now=None if plain is None else search.known[plain],
            best=best,
            others=others,
            nearest=nearest,
            enough=None if nearest is None else self.enough(nearest.setting),
            pace=self.pace,
            data=self.data.described,
            longest=max(sample.num_tokens for pack in batches for sample in pack),
            tried=len(search.known),
            settings=len(self.settings),
        )

    @cached_property
    def data(self) -> PlannedBatches:
        from worldsmith.planning.batches import PlannedBatches, plan_batches

        if self.given is not None:
            return PlannedBatches(self.given, "those that were given", 0, 0)
        with self.stated(self.config) as stated:
            return plan_batches(stated, ranks=self.ranks)

    @cached_property
    def settings(self) -> list[Setting]:
        return settings(
            self.config,
            ranks=self.ranks,
            batches=self.data.batches,
            limits=limits_of(self.loaded),
            additive=self.weighs_samples,
            per_machine=self.gpu.per_machine,
        )

    @cached_property
    def weighs_samples(self) -> bool:
        """Whether a step learns the same from its samples however they are packed."""
        from worldsmith.planning.batches import task_for

        with self.stated(self.config) as stated:
            task = task_for(stated.config, self.ranks)
            pack = [sample for batch in self.data.batches for sample in batch]
            return bool(abs(task.weigh(pack * 2) - 2 * task.weigh(pack)) < 1e-6 * task.weigh(pack))

    @cached_property
    def pace(self) -> Gpu:
        """The GPU; one of which the memory alone is known has the speed of the smallest with as much."""
        if self.gpu.peak_flops:
            return self.gpu
        return (holding(self.gpu.memory) or list(GPUS.values()))[0]

    def evaluate(self, setting: Setting, whole: bool) -> Tried:
        """Carries a setting out, all layers of the network or as few as tell of all."""
        from worldsmith.planning.simulation.short_run import short_work

        self.done += 1
        self.told(f"{self.done}: {', '.join(setting.words) or 'as it is'}")
        try:
            config = self.read(setting.words).tree
            check_tree(config)
            with self.stated(config) as stated, quietly():
                states = sum(quick_plan(stated.config, self.ranks).states.values())
                memory = MemoryVerdict(self.gpu, states, self.ranks)
                if memory.spare < 0:
                    return Tried(setting, memory)
                batches = setting.packs.batches
                work, _ = short_work(
                    stated.config, batches, ranks=self.ranks, all_layers=whole, phases=BESIDE if whole else ()
                )
        except (ConfigError, UserError, ValueError, NotImplementedError) as error:
            return Tried(setting, refused=first_line(error))
        seconds = step_seconds(work, self.pace, compiled=config.model.config.compile.enabled)
        assert seconds is not None
        worst, encoders = worst_moment(work)
        memory = MemoryVerdict(self.gpu, worst.peak, self.ranks, encoders)
        return Tried(setting, memory, work, seconds.total, whole=whole)

    @contextmanager
    def stated(self, config: Any) -> Iterator[Any]:
        from worldsmith.planning.published_parts import with_published_parts

        with with_published_parts(config) as stated:
            yield stated

    def neighbours(self, search: Search, best: Setting) -> dict[str, list[Tried]]:
        """What becomes of the best where one knob is turned."""
        found: dict[str, list[Tried]] = {}
        for setting in self.settings:
            turned = [name for name, value in best.knobs.items() if setting.knobs[name] != value]
            if setting.learned == best.learned and len(turned) == 1:
                tried = search.known.get(setting) or search.try_(setting)
                found.setdefault(turned[0], []).append(tried)
        return found

    def enough(self, setting: Setting) -> int | None:
        """The fewest GPUs, doubled again and again, with which the nearest setting fits; None: none of them."""
        ranks = self.ranks
        while (ranks := 2 * ranks) <= MOST_RANKS:
            more = Fitting(self.read, ranks=ranks, gpu=self.gpu, batches=self.data.batches, told=self.told)
            same = [other for other in more.settings if more.same_choice(other, setting)]
            if same and more.evaluate(same[0], False).fits:
                return ranks
        return None

    def same_choice(self, mine: Setting, other: Setting) -> bool:
        """Whether it is the setting of fewer ranks, with a larger share of the weights for none of them."""
        same = (other.learned, other.slower)
        return (mine.learned, mine.slower) == same and mine.replicas == other.replicas


def limits_of(loaded: Loaded) -> Limits:
    """What ends a pack, and the paths at which that is written."""
    data: Any = loaded.tree.dataloader_train

    def written(name: str) -> str:
        path = ("dataloader_train", name)
        steps = [step for step in loaded.sources.get(path, []) if isinstance(step, tuple)]
        return format_path(steps[-1] if steps else path)

    names = ("max_sequence_length", "max_samples_per_batch")
    tokens, samples = (getattr(data, name, None) for name in names)
    tokens_path, samples_path = map(written, names)
    return Limits(tokens, samples, tokens_path, samples_path, getattr(data, "max_sample_tokens", None) or 0)


def first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " ".join(line.strip() for line in lines[1:3] if line.strip()) if "mistake" in lines[0] else lines[0]
