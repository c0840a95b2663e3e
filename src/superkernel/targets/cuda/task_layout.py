"""targets.cuda.task_layout: where things lie: words of a task, of the sync state, and of shared memory."""

from __future__ import annotations

from enum import IntEnum, IntFlag

WORD = 4  # bytes


class HeaderWord(IntEnum):
    """The first words of a task table.

    Behind them: one word per core, the offset of its first task; further needs; staged inputs; arguments; the parts of
    SMs; lists of tasks; lists of inputs to ask for. What lies before the parts is the same for all SMs.
    """

    CORES = 0
    SHARED_WORDS = 1  # in shared memory behind the control words: counters, zeroed when a launch begins
    STAMP_ROOM = 2  # time stamps per core
    TABLE_BYTES = 3
    SEEN_WORDS = 4  # of a counter at offset c of the sync state: the shared word at (c >> 3) + this
    ARGUMENTS = 5  # where the arguments of the tasks begin
    PARTS = 6  # where they end, and the parts of SMs begin
    PACE = 7  # nanoseconds between two requests of STREAM_BYTES by an SM
    STAGED = 8  # the offset of the inputs that go into the rings of all SMs; 0: none


HEADER_BYTES = 48


class PartWord(IntEnum):
    """What of the table belongs to one SM: offsets of the lists of its cores, and of the inputs that it asks for."""

    LISTS = 0
    LISTS_END = 1
    INPUTS = 2
    INPUTS_END = 3


PART_BYTES = WORD * len(PartWord)


class TaskWord(IntEnum):
    """The words of one task."""

    KIND = 0  # the section of code that runs, and flags
    WAIT_COUNTER = 1  # offset in the sync state, or of a shared word
    WAIT_ARRIVALS = 2  # per launch; 0: no wait
    SIGNAL_COUNTER = 3
    SIGNAL_SHARE = 4  # how many cores of this SM arrive together; 0: all. Of a signal to a cluster: bit r for its SM r
    SIGNAL_WORD = 5  # shared word where they meet
    STAMP = 6  # the place of a time stamp among those of its core
    FIRST_BLOCK = 7  # plus the number of the core where the task is RANKED
    BLOCKS = 8  # of a wait for ranks: how many there are
    WIDTH = 9  # the next block of a core is so many further
    ARGUMENTS = 10  # offset of its arguments in the table
    GRID_X = 11
    GRID_Y = 12
    NUMBER = 13  # of the task in its list
    MORE_NEEDS = 14  # offset in the table: what else the task waits for
    MORE_NEEDS_COUNT = 15


TASK_BYTES = WORD * len(TaskWord)


class TaskFlag(IntFlag):
    """Bits of TaskWord.KIND above the number of the section."""

    WAITS = 1 << 16  # before the section
    WAITS_INSIDE = 1 << 17  # at the wait point of the sub-kernel
    NEAR_WAIT = 1 << 18  # the counter is a shared word
    SIGNALS = 1 << 19  # after the section
    NEAR_SIGNAL = 1 << 20  # only to the cores of the same SM
    SHARED_SIGNAL = 1 << 21  # the cores of an SM meet at a shared word, the last of them raises the counter
    RECORDS_WAIT = 1 << 22  # two time stamps around the wait inside
    RANKED = 1 << 23  # the first block of a core depends on its number
    SHARED_WAIT = 1 << 24  # one core of the SM polls the counter, the others a shared word
    SINGLE = 1 << 25  # no core has a second block
    WHOLE_SM = 1 << 26  # all cores of the SM arrive together
    CLUSTER_WAIT = 1 << 27  # the counter is a shared word that SMs of the same cluster raise
    CLUSTER_SIGNAL = 1 << 28  # to the shared words of SMs of the same cluster


NO_FLAGS = TaskFlag(0)
SECTION_MASK = 0xFFFF


class CodeSection(IntEnum):
    """Sections of code that every super kernel has; the bodies of sub-kernels follow."""

    END = 0
    SYNC = 1  # only a wait and a signal
    AWAIT_EVENT = 2
    NOTIFY = 3
    RESET_EVENT = 4
    FENCE = 5
    STAMP = 6
    AWAIT_RANKS = 7
    NOTIFY_RANKS = 8


FIRST_BODY = len(CodeSection)


class NeedKind(IntEnum):
    """Where a core sees that a counter has been reached."""

    FAR = 0  # in device memory
    NEAR = 1  # in a shared word
    SHARED = 2  # in device memory, where one core of the SM polls it for all
    CLUSTER = 3  # in a shared word that SMs of the same cluster raise


class NeedWord(IntEnum):
    """What else a task waits for."""

    COUNTER = 0
    ARRIVALS = 1
    KIND = 2


NEED_BYTES = 16


class StreamWord(IntEnum):
    """A part of an input that an SM asks for; the last of its list has a GATE that no task reaches."""

    GATE = 0  # tasks that the first slot of the SM has begun by then
    LATE = 1  # with more than these the part is no longer needed
    ARGUMENT = 2  # offset in the table: the address of the input
    BEGIN = 3  # bytes from there, of the part of SM 0
    SHARE = 4  # bytes of an SM
    END = 5  # bytes, behind the part of the last SM


STREAM_ENTRY_BYTES = 32
STREAM_BYTES = 4096  # of a request: a line of 128 bytes by each lane of a warp
NO_GATE = 0xFFFFFFFF


class StageWord(IntEnum):
    """An input that goes into the rings: block b has the chunks b, b + BLOCKS, ... The last entry has no ARGUMENT."""

    ARGUMENT = 0  # offset in the table: the address of the input
    FIRST = 1  # the SM that has block 0
    BLOCKS = 2
    CHUNKS = 3  # of all blocks
    BYTES = 4  # of a chunk
    LAST = 5  # bytes of the last one


STAGE_ENTRY_BYTES = 32


class ArgumentWord(IntEnum):
    """An argument is values[SOURCE / 8] + SM * STRIDE + the 64-bit addend; in shared memory it is that sum."""

    SOURCE = 0  # byte offset in the values
    STRIDE = 1  # between the copies of two neighbouring SMs
    ADDEND = 2
    ADDEND_HIGH = 3


ARGUMENT_BYTES = 16
SUM_BYTES = 8  # of an argument in shared memory


class StateOffset(IntEnum):
    """Bytes in the sync state of a launch, which lies in device memory."""

    EPOCH = 0
    FINISHED = 4
    CONTROL = 8
    STAMPS = 16
    FAILURE = 24
    DELAYS = 28  # seed of the delays that tests ask for
    PROGRESS = 64


LONG_WAIT = 1 << 31  # in the progress of a core: it has waited for long
COUNTER_BYTES = 32
COUNTER_ALIGNMENT = 128


class SharedOffset(IntEnum):
    """Bytes behind the shared memory of the slots."""

    LAUNCHES = 0  # completed launches + 1
    FINISHED = 4  # cores of this SM that have finished
    CORES = 8  # of this SM
    TABLE = 12  # where the copy of the task table begins
    STAMPS = 16  # address of the time stamps, or 0
    BEGUN = 24  # tasks that the first slot has begun; NO_GATE: all are over
    ABORTED = 64  # a word per slot
    MBARRIERS = 128  # MOST_MBARRIERS words per slot: barrier objects that a body left valid


TABLE_ALIGNMENT = 16  # of a copy of the table in shared memory
MOST_SLOTS = 15  # named barriers 1 to 15
MOST_MBARRIERS = 16
MOST_CLUSTER = 16  # SMs of a cluster: a lane of a warp signals each
SLOT_ALIGNMENT = 1024
SEEN = 2  # in a shared word: the counter has been reached; 1: a core polls it


def shared_words_offset(slots: int) -> int:
    """Where the counters among the cores of an SM begin, behind the shared memory of the slots."""
    return SharedOffset.MBARRIERS + WORD * MOST_MBARRIERS * slots


def counters_offset(cores: int) -> int:
    """Where the counters begin in the sync state, behind one word of progress per core."""
    end = StateOffset.PROGRESS + WORD * cores
    return -(-end // COUNTER_ALIGNMENT) * COUNTER_ALIGNMENT
