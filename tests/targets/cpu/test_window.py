"""The layout of a window in C++ (window.h) is that of Python (model/window_layout.py)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import superkernel
from superkernel.model import window_layout as layout

INCLUDE = Path(superkernel.__file__).parent / "targets" / "cpu" / "include"
SHAPES = [(1, 1), (2, 4), (3, 65), (2, 4096), (5, 4097), (8, 1 << 20)]
PROGRAM = """
#include <cstddef>
#include <cstdio>
#include <superkernel/window.h>
int main(int, char**) {
    std::printf("%zu %u", sizeof(sk::RankLine), sk::kRankFailed);
    std::printf(" %zu %zu %zu", offsetof(sk::RankLine, arrived), offsetof(sk::RankLine, sleepers),
                offsetof(sk::RankLine, round));
    std::printf(" %zu %zu %zu %zu\\n", offsetof(sk::RankLine, patience_ms), offsetof(sk::RankLine, global_rank),
                offsetof(sk::RankLine, process), offsetof(sk::RankLine, stride));
    static char window[4096];
    unsigned ranks;
    unsigned long stride;
    while (std::scanf("%u %lu", &ranks, &stride) == 2) {
        for (unsigned round = 5; round < 7; ++round) {
            for (unsigned rank = 0; rank < ranks; ++rank) {
                std::printf("%td ", sk::slot((void*)window, ranks, stride, round, rank) - window);
            }
        }
        std::printf("\\n");
    }
    std::printf("%d%d%d%d%d\\n", sk::has_arrived(4, 5), sk::has_arrived(5, 5), sk::has_arrived(2, 0xfffffffdu),
                sk::has_arrived(0xfffffffdu, 2), sk::has_arrived(sk::kRankFailed, 5));
}
"""


def test_both_languages_agree(tmp_path: Path) -> None:
    program = tmp_path / "layout"
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}", "-x", "c++", "-", "-o", str(program)]
    subprocess.run(command, input=PROGRAM, text=True, check=True)
    windows = [layout.WindowLayout(*shape) for shape in SHAPES]
    given = "\n".join(f"{window.ranks} {window.stride}" for window in windows)
    printed = subprocess.run([program], input=given, capture_output=True, text=True, check=True).stdout.splitlines()
    words = [layout.ARRIVED, layout.SLEEPERS, layout.ROUND, layout.PATIENCE_MS, layout.GLOBAL_RANK, layout.PROCESS]
    words.append(layout.STRIDE)
    assert list(map(int, printed[0].split())) == [layout.RANK_LINE, layout.FAILED, *words]
    for window, line in zip(windows, printed[1:], strict=False):
        expected = [window.slot(parity, rank) for parity in (5, 6) for rank in range(window.ranks)]
        assert list(map(int, line.split())) == expected
    assert printed[-1] == "01100"
