"""targets.cuda.numbering: a plan -> counters, words in shared memory, values, time stamps and copies, by number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ...model.subkernel import SubKernel
from ...plan import Plan
from ...plan.steps import Barrier, Cores, Mark, Record, StageWeights, Wait
from .task_layout import COUNTER_BYTES, WORD, NeedKind, counters_offset, shared_words_offset

COPY_ALIGNMENT = 256  # bytes
# a mark, or the number of a barrier's step; the cores that arrive; whether each SM counts those of its own alone
CounterKey = tuple[Mark | int, Cores, bool]


@dataclass(frozen=True)
class SlotGrid:
    """The cores of a launch: core c is slot c // sms of SM c % sms."""

    cores: int
    sms: int  # physical blocks
    slots: int  # of each
    cluster: int = 1  # SMs of a cluster, which follow each other; they raise words in each other's shared memory

    def sm(self, core: int) -> int:
        return core % self.sms

    def cores_of(self, sm: int) -> int:
        """How many cores an SM has."""
        return -(-(self.cores - sm) // self.sms)


ONE_CORE = SlotGrid(1, 1, 1)


@dataclass(frozen=True)
class CodeOfKernel:
    """The section of a sub-kernel in the super kernel, and what its PTX takes beside the declared parameters."""

    section: int
    parameters: int  # of the PTX entry
    scratch_parameter: int | None = None  # its number
    scratch_bytes: int = 0  # per block
    waits_inside: bool = False


@dataclass(frozen=True)
class CopiesArea:
    """Copies 1, 2, ... of a replicated buffer; copy 0 is the buffer itself."""

    op: int
    offset: int
    stride: int


@dataclass(frozen=True)
class CudaNumbering:
    """How a plan is written down for one launch shape."""

    plan: Plan
    shape: SlotGrid
    codes: Mapping[SubKernel, CodeOfKernel]
    shared_room: int  # words of shared memory that counters may take
    pace_ns: int = 0  # between two requests of an SM for inputs of later ops

    # values

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """What the values of a launch are; the areas of copies and of scratch memory follow, then zeros."""
        return (*self.plan.graph.buffers, *(event.label for event in self.plan.graph.events))

    @cached_property
    def buffer_place(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.plan.graph.buffers)}

    @cached_property
    def event_place(self) -> dict[str, int]:
        first = len(self.plan.graph.buffers)
        return {event.label: first + place for place, event in enumerate(self.plan.graph.events)}

    @cached_property
    def staged_flags(self) -> dict[int, int]:
        """Op whose weights lie in the ring of its core -> the number of the parameter that says so."""
        found = {}
        for step in self.plan.steps:
            if isinstance(step, StageWeights):
                kernel = self.plan.graph.nodes[step.op].kernel
                staged = kernel.staged_input
                names = [param.name for param in kernel.params]
                assert staged is not None, "the plan is valid (P24)"
                found[step.op] = names.index(staged.flag)
        return found

    @property
    def copies_place(self) -> int:
        return len(self.sources)

    @property
    def scratch_place(self) -> int:
        return len(self.sources) + 1

    @property
    def zero_place(self) -> int:
        return len(self.sources) + 2

    @property
    def value_count(self) -> int:
        return self.zero_place + 1

    # copies of replicated buffers, and scratch memory

    @cached_property
    def copies(self) -> dict[str, CopiesArea]:
        return self._copy_areas[0]

    @property
    def copies_bytes(self) -> int:
        return self._copy_areas[1]

    @cached_property
    def _copy_areas(self) -> tuple[dict[str, CopiesArea], int]:
        areas: dict[str, CopiesArea] = {}
        end = 0
        for op, copy_of in self.copy_of.items():
            for param, name in self.plan.graph.nodes[op].arguments():
                if param.kind.writes and name not in areas:
                    stride = _rounded(self.plan.graph.buffers[name].nbytes or 0, COPY_ALIGNMENT)
                    areas[name] = CopiesArea(op, end, stride)
                    end += stride * max(copy_of.values())
        return areas, end

    @cached_property
    def copy_of(self) -> dict[int, dict[int, int]]:
        """Replicated op -> core -> the copy that it computes or reads; 0 is the buffer itself."""
        found = {
            op: {core: number for number, copy in enumerate(copies) for core in copy.readers}
            for op, copies in self.plan.copies.items()
        }
        return found

    @cached_property
    def scratch(self) -> dict[int, CopiesArea]:
        """Op -> its scratch memory, one part per copy."""
        return self._scratch_areas[0]

    @property
    def scratch_bytes(self) -> int:
        return self._scratch_areas[1]

    @cached_property
    def _scratch_areas(self) -> tuple[dict[int, CopiesArea], int]:
        areas: dict[int, CopiesArea] = {}
        end = 0
        for node in self.plan.graph.nodes:
            size = self.codes[node.kernel].scratch_bytes * node.blocks
            if size:
                stride = _rounded(size, COPY_ALIGNMENT)
                areas[node.index] = CopiesArea(node.index, end, stride)
                end += stride * (1 + max(self.copy_of.get(node.index, {0: 0}).values()))
        return areas, end

    # counters

    @cached_property
    def waiters(self) -> dict[CounterKey, Cores]:
        """Every counter, with the cores that wait for it, in the order of the plan."""
        found: dict[CounterKey, Cores] = {}
        for number, step in enumerate(self.plan.steps):
            if isinstance(step, Wait):
                for need in step.needs:
                    key: CounterKey = (need.mark, need.cores, need.near)
                    found[key] = (*found.get(key, ()), *step.cores)
            elif isinstance(step, Barrier):
                found[number, step.cores, False] = step.cores
        return found

    @cached_property
    def keys_of_mark(self) -> dict[Mark, list[CounterKey]]:
        found: dict[Mark, list[CounterKey]] = {}
        for key in self.waiters:
            if isinstance(key[0], Mark):
                found.setdefault(key[0], []).append(key)
        return found

    @cached_property
    def members(self) -> dict[Cores, frozenset[int]]:
        """The cores of every step and need, as sets."""
        tuples = dict.fromkeys(step.cores for step in self.plan.steps)
        tuples |= dict.fromkeys(key[1] for key in self.waiters)
        return {cores: frozenset(cores) for cores in tuples}

    @cached_property
    def programs(self) -> list[list[int]]:
        """Per core, the numbers of its steps."""
        found: list[list[int]] = [[] for _ in range(self.shape.cores)]
        for number, step in enumerate(self.plan.steps):
            for core in step.cores:
                found[core].append(number)
        return found

    @cached_property
    def shares(self) -> dict[Cores, Counter[int]]:
        """The cores that arrive at a counter -> SM -> how many of them it has."""
        return {cores: Counter(map(self.shape.sm, cores)) for cores in dict.fromkeys(key[1] for key in self.waiters)}

    @cached_property
    def shared_words(self) -> dict[CounterKey, int]:
        """Counters with a word in shared memory -> its offset; near counters, those of a cluster, and those at which
        the cores of an SM arrive together. Where there is no room, every core raises the counter in device memory.
        """
        first, room = shared_words_offset(self.shape.slots), self.shared_room
        words = {key: first + WORD * number for number, key in enumerate(key for key in self.waiters if key[2])}
        for key in self.cluster_ranks:
            if len(words) < room:
                words[key] = first + WORD * len(words)
        for key in self.waiters:
            if (
                key not in words
                and key not in self._near
                and max(self.shares[key[1]].values()) > 1
                and len(words) < room
            ):
                words[key] = first + WORD * len(words)
        together = len(words)
        used: Counter[int] = Counter()  # SM -> words of its near counters, which need not differ between SMs
        for key, sm in self._near.items():
            if together + used[sm] < room:
                words[key] = first + WORD * (together + used[sm])
                used[sm] += 1
        return words

    @cached_property
    def _counter_words(self) -> int:
        """Shared words of counters, before those that say which counters have been reached."""
        if not self.shared_words:
            return 0
        return (max(self.shared_words.values()) - shared_words_offset(self.shape.slots)) // WORD + 1

    @cached_property
    def shares_polls(self) -> bool:
        """Whether one core of an SM polls for all: there are several, and room for a shared word per counter."""
        return self.shape.slots > 1 and self._counter_words + len(self.counters) <= self.shared_room

    @property
    def shared_word_count(self) -> int:
        return self._counter_words + (len(self.counters) if self.shares_polls else 0)

    @property
    def seen_words(self) -> int:
        """What is added to an eighth of the offset of a counter to find the word that says it has been reached."""
        if not self.shares_polls:
            return 0
        first = shared_words_offset(self.shape.slots) + WORD * self._counter_words
        return first - counters_offset(self.shape.cores) // (COUNTER_BYTES // WORD)

    def need_kind(self, key: CounterKey, core: int) -> NeedKind:
        """How a core waits for a counter."""
        if self.is_near(key):
            return NeedKind.NEAR
        if self.in_cluster(key):
            return NeedKind.CLUSTER
        alone = self.waiters_by_sm[key][self.shape.sm(core)] < 2
        return NeedKind.FAR if alone or not self.shares_polls else NeedKind.SHARED

    @cached_property
    def waiters_by_sm(self) -> dict[CounterKey, Counter[int]]:
        known: dict[Cores, Counter[int]] = {}
        for waiting in self.waiters.values():
            if waiting not in known:
                known[waiting] = Counter(map(self.shape.sm, waiting))
        return {key: known[waiting] for key, waiting in self.waiters.items()}

    @cached_property
    def _near(self) -> dict[CounterKey, int]:
        """Counters whose cores and waiters are all on one SM -> that SM; but those that every SM has."""
        found = {}
        for key, waiting in self.waiters.items():
            if key[2]:
                continue
            sms = {*self.shares[key[1]], *map(self.shape.sm, waiting)}
            if len(sms) == 1:
                found[key] = sms.pop()
        return found

    def is_near(self, key: CounterKey) -> bool:
        return key[2] or (key in self._near and key in self.shared_words)

    @cached_property
    def cluster_ranks(self) -> dict[CounterKey, int]:
        """Counters whose cores and waiters are on several SMs of one cluster -> a bit for each SM there that waits."""
        found: dict[CounterKey, int] = {}
        size = self.shape.cluster
        for key in self.waiters if size > 1 else ():
            waiting_sms = self.waiters_by_sm[key]
            clusters = {sm // size for sm in (*self.shares[key[1]], *waiting_sms)}
            if len(clusters) == 1 and not key[2] and key not in self._near:
                found[key] = sum(1 << sm % size for sm in waiting_sms)
        return found

    def in_cluster(self, key: CounterKey) -> bool:
        return key in self.cluster_ranks and key in self.shared_words

    def arrivals(self, key: CounterKey, core: int) -> int:
        """How many cores arrive at a counter in a launch, as one that waits for it sees it."""
        return self.shares[key[1]][self.shape.sm(core)] if key[2] else len(key[1])

    @cached_property
    def counters(self) -> dict[CounterKey, int]:
        """Counters in device memory -> their offset in the sync state."""
        first = counters_offset(self.shape.cores)
        far = [key for key in self.waiters if not self.is_near(key) and not self.in_cluster(key)]
        return {key: first + COUNTER_BYTES * number for number, key in enumerate(far)}

    @property
    def state_bytes(self) -> int:
        return counters_offset(self.shape.cores) + COUNTER_BYTES * len(self.counters)

    # time stamps

    def stamped_steps(self, core: int) -> Iterator[int]:
        """The steps at which a core takes its time stamps, in order; a wait inside a call takes two."""
        if not self.plan.options.profiling:
            return
        for number in self.programs[core]:
            step = self.plan.steps[number]
            if isinstance(step, Record):
                yield number
            elif isinstance(step, Wait) and step.inside:
                yield from (number, number)

    @cached_property
    def stamp_room(self) -> int:
        """Time stamps that a core takes at most."""
        taken: Counter[int] = Counter()
        for step in self.plan.steps if self.plan.options.profiling else ():
            if isinstance(step, Record):
                taken.update(step.cores)
            elif isinstance(step, Wait) and step.inside:
                taken.update([*step.cores, *step.cores])
        return max(taken.values(), default=0)


def _rounded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
