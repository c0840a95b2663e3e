"""targets.ascend.prelude: what stands before the entry: constants, and small functions over the primitives."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .chips import Chip
from .toolkit import Toolkit, toolkit_fields
from .workspace_layout import CONTROL_STRIDE, DUMP_HEADER, DUMP_MAGIC, OP_STRIDE

# in the order in which they build on each other: the word whose use asks for a text -> the text
_PARTS: dict[str, str] = {
    "sk_load": """\
#ifndef SK_EMULATED
static inline __aicore__ uint64_t sk_load(__gm__ uint64_t* word) { return *(volatile __gm__ uint64_t*)word; }
#endif
""",
    "sk_store": """\
#ifndef SK_EMULATED
static inline __aicore__ void sk_store(__gm__ uint64_t* word, uint64_t value) {
    *(volatile __gm__ uint64_t*)word = value;
}
#endif
""",
    "word": """\
// the word whose address a slot holds
static inline __aicore__ __gm__ uint64_t* word(__gm__ uint64_t* slots, uint64_t slot) {
    return (__gm__ uint64_t*)sk_load(slots + slot);
}
""",
    "pointer": """\
// the pointer that a slot holds, for sub-kernels that take pointers
static inline __aicore__ __gm__ uint8_t* pointer(uint64_t slot) {
    return (__gm__ uint8_t*)sk_load((__gm__ uint64_t*)get_para_base() + slot);
}
""",
    "sk_line_out": """\
static inline __aicore__ void sk_line_out(__gm__ uint64_t* word) {
    dcci((__gm__ void*)word, cache_line_t::SINGLE_CACHE_LINE, dcci_dst_t::CACHELINE_OUT);
}
""",
    "sk_fetch": """\
// what memory holds, not what this core's cache remembers
static inline __aicore__ uint64_t sk_fetch(__gm__ uint64_t* word) {
    sk_line_out(word);
    return sk_load(word);
}
""",
    "sk_await": """\
static inline __aicore__ void sk_await(__gm__ uint64_t* word, uint64_t value) {
    while (sk_fetch(word) != value) {
    }
}
""",
    "sk_publish": """\
static inline __aicore__ void sk_publish(__gm__ uint64_t* word, uint64_t value) {
    sk_store(word, value);
    sk_line_out(word);
}
""",
    "sk_call_context": """\
// What the next call is told: its block count, the pair code that it waits for itself (-1: none), whether it arrives
// itself, and the control word in which block 0 publishes its barriers (0: no core joins them).
#ifndef SK_EMULATED
#ifndef SK_CORE_LOCAL
#define SK_CORE_LOCAL [[block_local]]
#endif
extern "C" {
SK_CORE_LOCAL uint64_t SK_OWN(sk_early_start) = 15;
SK_CORE_LOCAL uint64_t SK_OWN(sk_feed) = 0;
}
static inline __aicore__ void sk_call_context(uint32_t blocks, int32_t wait_pair, int32_t arrives, uint64_t feed_word) {
    (void)blocks;
    SK_OWN(sk_early_start) = (wait_pair < 0 ? 15 : (uint64_t)wait_pair) | (arrives ? 16 : 0);
    SK_OWN(sk_feed) = feed_word;
}
#endif
""",
    "sk_cann_context": """\
// The same for objects that CANN built: they read these variables, and arrive of their own accord.
#ifndef SK_EMULATED
#ifndef SK_CORE_LOCAL
#define SK_CORE_LOCAL [[block_local]]
#endif
extern "C" {
SK_CORE_LOCAL __attribute__((weak)) uint64_t {pair_variable} = {no_pair};
SK_CORE_LOCAL __attribute__((weak)) uint64_t {block_count_variable} = 0;
SK_CORE_LOCAL __attribute__((weak)) uint64_t {feed_variable} = 0;
}
static inline __aicore__ void sk_cann_context(uint32_t blocks, int32_t wait_pair, int32_t arrives, uint64_t feed_word) {
    (void)arrives;
    {pair_variable} = wait_pair < 0 ? {no_pair} : (uint64_t)wait_pair;
    {block_count_variable} = blocks;
    {feed_variable} = feed_word;
}
#endif
""",
    "sk_control": f"""\
// the control word of an op for the cores of this class
static inline __aicore__ uint64_t sk_control(uint64_t workspace, uint64_t op) {{
    return workspace + {OP_STRIDE} * op + (on_cube ? 0 : {CONTROL_STRIDE});
}}
""",
    "sk_arrive_and_wait": """\
// a barrier over the cores of this class, or over all: then vectors meet through their cubes
template <bool mixed>
static inline __aicore__ void sk_arrive_and_wait() {
    if constexpr (on_cube) {
        if constexpr (mixed) wait_flag_dev(vectors_to_cube_flag);
        ffts_cross_core_sync(PIPE_FIX, arrive_cubes);
        wait_flag_dev(cube_flag);
        if constexpr (mixed) ffts_cross_core_sync(PIPE_FIX, cube_to_vectors);
    } else if constexpr (mixed) {
        ffts_cross_core_sync(PIPE_MTE3, vectors_to_cube);
        wait_flag_dev(cube_to_vectors_flag);
    } else {
        ffts_cross_core_sync(PIPE_MTE3, arrive_vectors);
        wait_flag_dev(vector_flag);
    }
}
""",
    "sk_join_barriers": """\
// A core without a block joins each barrier that block 0 publishes, until it publishes the op's end. A control word:
// bits 0 to 31 running number of the barrier; bit 32 kind (1: with the other class); bit 62 valid; bit 63 end of op.
template <bool mixed>
static inline __aicore__ void sk_join_barriers(uint64_t control) {
    constexpr uint64_t kind = 1ull << 32, valid = 1ull << 62, end = 1ull << 63;
    uint32_t joined = 0;
    while (true) {
        const uint64_t published = sk_fetch((__gm__ uint64_t*)control);
        if ((published & valid) == 0) continue;
        if ((uint32_t)published == joined) {
            if (published & end) return;
            continue;
        }
        ++joined;
        if constexpr (mixed) {
            if (published & kind) {
                sk_arrive_and_wait<true>();
                continue;
            }
        } else if (published & kind) {
            trap();  // an op on one class has no barrier with the other
        }
        sk_arrive_and_wait<false>();
    }
}
static inline __aicore__ void sk_end_barriers(uint64_t control) {
    sk_publish((__gm__ uint64_t*)control, sk_fetch((__gm__ uint64_t*)control) | 3ull << 62);
}
""",
    "sk_record": """\
static inline __aicore__ void sk_record(__gm__ uint64_t* area, uint64_t& records, uint64_t mark) {
    __gm__ uint64_t* const record = area + profiling_header + 2 * records;
    sk_store(record, mark);
    sk_store(record + 1, get_sys_cnt());
    ++records;
}
""",
    "sk_dump_begin": f"""\
#ifndef SK_EMULATED
#ifndef SK_CORE_LOCAL
#define SK_CORE_LOCAL [[block_local]]
#endif
extern "C" {{
SK_CORE_LOCAL uint64_t SK_OWN(sk_dump) = 0;
}}
static inline __aicore__ void sk_dump_context(uint64_t part) {{ SK_OWN(sk_dump) = part; }}
#endif
// this core's part of the dump area: magic, room, bytes used; text follows
static inline __aicore__ void sk_dump_begin(uint64_t part, uint64_t bytes) {{
    __gm__ uint64_t* const header = (__gm__ uint64_t*)part;
    sk_store(header, 0x{DUMP_MAGIC:x});
    sk_store(header + 1, bytes - {DUMP_HEADER});
    sk_store(header + 2, 0);
    sk_line_out(header);
    sk_dump_context(part);
}}
""",
}


def constants(chip: Chip, mixed: bool, only_cube: bool, code: str) -> str:
    """The flags and class tests that `code` uses; a launch with one class has no test to make."""
    flags = [
        f"constexpr int32_t cube_flag = {chip.cube_flag};  // all cube cores",
        f"constexpr int32_t vector_flag = {chip.vector_flag};  // all vector cores",
        f"constexpr int32_t vectors_to_cube_flag = {chip.vectors_to_cube_flag};  // inside a block",
        f"constexpr int32_t cube_to_vectors_flag = {chip.cube_to_vectors_flag};  // inside a block",
        "constexpr uint64_t arrive_cubes = 1 | 0 << 4 | cube_flag << 8;  // mode 0: the class",
        "constexpr uint64_t arrive_vectors = 1 | 0 << 4 | vector_flag << 8;  // mode 0: the class",
        "constexpr uint64_t vectors_to_cube = 1 | 2 << 4 | vectors_to_cube_flag << 8;  // mode 2: the block",
        "constexpr uint64_t cube_to_vectors = 1 | 2 << 4 | cube_to_vectors_flag << 8;  // mode 2: the block",
    ]
    used = _without_comments(code)
    chosen: list[str] = []
    for line in reversed(flags):
        if _uses(used, line.split()[2]):
            chosen.insert(0, line)
            used += _without_comments(line)
    return "\n".join([*_class_tests(chip, mixed, only_cube, used), *chosen, ""])


def _class_tests(chip: Chip, mixed: bool, only_cube: bool, code: str) -> list[str]:
    owned, both = _uses(code, "SK_OWN"), _uses(code, "on_vector")
    tested = both or _uses(code, "on_cube")

    def of_class(cube: bool) -> list[str]:
        lines = [f"constexpr bool on_cube = {'true' if cube else 'false'};"] if tested else []
        return lines + ([f"#define SK_OWN(name) name##_{'cube' if cube else 'vector'}"] if owned else [])

    negated = ["constexpr bool on_vector = !on_cube;"] if both else []
    if not mixed:
        return of_class(only_cube) + negated
    wrong = f'#error "define {chip.cube_macro} or {chip.vector_macro}: this file is compiled once per core class"'
    cube, vector = f"#if defined({chip.cube_macro})", f"#elif defined({chip.vector_macro})"
    return [cube, *of_class(True), vector, *of_class(False), "#else", wrong, "#endif", *negated]


def helpers(body: str, toolkit: Toolkit) -> Iterable[str]:
    """The functions that `body` uses, directly or through one another."""
    used = _without_comments(body)
    chosen: list[str] = []
    for name, text in reversed(_PARTS.items()):
        if re.search(rf"\b{name}[(<]", used):
            chosen.append(_named(text, toolkit) if name == "sk_cann_context" else text)
            used += _without_comments(text)
    return reversed(chosen)


def _named(text: str, toolkit: Toolkit) -> str:
    """With the names that CANN's objects use."""
    for field, value in toolkit_fields(toolkit).items():
        text = text.replace(f"{{{field}}}", str(value))
    return text


def _without_comments(code: str) -> str:
    return re.sub("//.*", "", code)


def _uses(code: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", code) is not None
