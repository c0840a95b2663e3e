"""What objects say: the processor they are for, and the barriers that their functions come to call."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from random import Random

import pytest
from elftools.elf.elffile import ELFFile
from targets.ascend.conftest import archive, completed, entry, metadata, read, refused
from targets.ascend.device_lists import DEVICE, archive_of, device_object

import superkernel as sk
from superkernel.targets import find_target
from superkernel.targets.ascend.archive import members
from superkernel.targets.ascend.calling_convention import SyncProtocol
from superkernel.targets.ascend.elf_object import parse_object
from superkernel.targets.ascend.facts import facts_of
from superkernel.targets.ascend.object_references import calls_barrier

Write = Callable[..., Path]
AARCH64, CUDA = 183, 190
FLAGS = 48  # where they stand in the header of a 64-bit object

TEXT = """
namespace AscendC { template <bool vectors> void SyncAll(); template <bool vectors> void NoSyncAll(); }
extern "C" void elsewhere();
extern "C" void SyncAllTheRest();
static __attribute__((noinline)) void by_jump() { AscendC::SyncAll<true>(); asm(""); }
static __attribute__((noinline, section(".text.named"))) void by_name() { AscendC::SyncAll<false>(); asm(""); }
extern "C" {
#define OWN(name) __attribute__((section(".text." #name))) void name
OWN(direct)(unsigned long) { AscendC::SyncAll<true>(); }
OWN(quiet)(unsigned long) { SyncAllTheRest(); AscendC::NoSyncAll<true>(); }
OWN(through)(unsigned long) { by_name(); asm(""); }
OWN(elsewhere_too)(unsigned long) { elsewhere(); asm(""); }
void (*const table[])(unsigned long) = {direct};
OWN(by_table)(unsigned long n) { table[n](n); asm(""); }
void jumping(unsigned long) { by_jump(); asm(""); }
void first_half(unsigned long) { AscendC::SyncAll<true>(); }
OWN(second_half)(unsigned long) { asm("nop"); }
}
"""


@pytest.fixture(scope="module")
def barriers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of two objects: what one calls `elsewhere` is in the other."""
    folder = tmp_path_factory.mktemp("barriers")
    other = 'void SyncAll();\nextern "C" { void elsewhere() { SyncAll(); }\nvoid beside() { asm("nop"); } }\n'
    for name, text in (("kernels", TEXT), ("other", other)):
        (folder / f"{name}.cpp").write_text(text)
        subprocess.run(["g++", "-c", "-O2", f"{name}.cpp"], cwd=folder, check=True)
    return archive(folder, "kernels.a", folder / "kernels.o", folder / "other.o")


@pytest.mark.parametrize(
    ("function", "found"),
    [
        ("direct", True),
        ("quiet", False),  # names that only contain one of a barrier
        ("through", True),
        ("elsewhere_too", True),
        ("by_table", True),
        ("jumping", True),
        ("first_half", True),
        ("second_half", False),
        ("beside", False),  # in one section with a function that calls it
        ("missing", False),
    ],
)
def test_relocations_lead_to_a_barrier(barriers: Path, function: str, found: bool) -> None:
    assert calls_barrier(barriers, (), function, ("SyncAll",)) is found


def test_only_the_objects_of_a_sub_kernel_count(barriers: Path) -> None:
    assert not calls_barrier(barriers, ("kernels.o",), "elsewhere_too", ("SyncAll",))


def test_which_names_count_is_data(barriers: Path) -> None:
    assert not calls_barrier(barriers, (), "direct", ("Meet",))
    assert calls_barrier(barriers, (), "quiet", ("NoSyncAll",))


def test_a_barrier_is_found_that_metadata_does_not_mention(write: Write, barriers: Path) -> None:
    def listed(function: str) -> Path:
        names = {"AiCore": {"func_name": function, "obj_files": "kernels.o"}}
        fields = metadata(sub_operator_kernel_name=names, sub_op_with_sync_all=False)
        return write([entry("vec", bin_path=str(barriers))], vec=fields)

    assert read(listed("direct")).ops[0].kernel.sync_all and not read(listed("quiet")).ops[0].kernel.sync_all
    chip = {**(find_target("ascend").chip_fields() or {}), "toolkit": {"barrier_functions": ["NoSyncAll"]}}
    assert read(listed("quiet"), chip).ops[0].kernel.sync_all


def kernel(path: Path, name: str) -> sk.SubKernel:
    return sk.SubKernel.from_object(path, name, block_dim=2, params=["in:x"], core="vector")


def test_a_barrier_and_the_protocol_are_found_in_an_object_without_metadata(tmp_path: Path, barriers: Path) -> None:
    assert completed(kernel(barriers, "direct")).sync_all and not completed(kernel(barriers, "quiet")).sync_all
    text = "extern unsigned long sk_early_start_vector; void f(unsigned long) { sk_early_start_vector = 0; }"
    (tmp_path / "early.cpp").write_text(f'extern "C" {{ {text} }}')
    subprocess.run(["g++", "-c", "early.cpp"], cwd=tmp_path, check=True)
    assert facts_of(completed(kernel(tmp_path / "early.o", "f"))).protocol is SyncProtocol.SUBKERNEL_H
    assert facts_of(completed(kernel(barriers, "direct"))).protocol is SyncProtocol.CANN


def test_an_object_without_metadata_must_define_the_function(barriers: Path) -> None:
    with pytest.raises(sk.BuildError, match=r"sub-kernel 'driect'.*no function 'driect' \(did you mean 'direct'\?\)"):
        completed(kernel(barriers, "driect"))


def with_flags(content: bytes, flags: int) -> bytes:
    return content[:FLAGS] + struct.pack("<I", flags) + content[FLAGS + 4 :]


def device(tmp_path: Path, name: str, **objects: bytes) -> None:
    (tmp_path / name).write_bytes(archive_of({f"{key}.o": content for key, content in objects.items()}))


@pytest.mark.parametrize(("machine", "word"), [(AARCH64, "AARCH64"), (CUDA, "CUDA")])
def test_an_object_for_another_processor(write: Write, tmp_path: Path, machine: int, word: str) -> None:
    device(tmp_path, "mine.a", vec=device_object(["vec_func"], machine))
    path = write([entry("vec", bin_path="mine.a")], vec=metadata())
    refused(path, "vec.json", "AiCore.obj_files", "mine.a: vec.o", word, "chip a3", "compile it for the chip")
    with pytest.raises(sk.BuildError, match=rf"sub-kernel 'vec_func': .*mine.a: vec.o is for {word}"):
        completed(kernel(tmp_path / "mine.a", "vec_func"))


def pair(tmp_path: Path, first: bytes, second: bytes) -> dict[str, object]:
    device(tmp_path, "mine.a", vec=first, more=second)
    return metadata(sub_operator_kernel_name={"AiCore": {"func_name": "vec_func", "obj_files": ["vec.o", "more.o"]}})


def test_members_of_an_archive_for_different_chips(write: Write, tmp_path: Path) -> None:
    own, other = device_object(["vec_func"]), device_object(["helper"], DEVICE + 1)
    listed = [entry("vec", bin_path="mine.a")]
    words = ("vec.json", "AiCore.obj_files", "mine.a: more.o")
    refused(write(listed, vec=pair(tmp_path, own, other)), *words, "ELF machine 0x102a", "vec.o has 0x1029")
    other = with_flags(device_object(["helper"]), 3)
    refused(write(listed, vec=pair(tmp_path, own, other)), *words, "ELF flags 0x3", "vec.o has 0x0")
    assert read(write(listed, vec=pair(tmp_path, own, device_object(["helper"])))).ops


def test_members_for_this_machine_and_for_a_chip(write: Write, tmp_path: Path, binaries: Path) -> None:
    fields = pair(tmp_path, (binaries / "vec.o").read_bytes(), device_object(["helper"]))
    refused(write([entry("vec", bin_path="mine.a")], vec=fields), "mine.a: more.o", "vec.o is for this machine")


def test_sub_kernels_of_a_list_for_different_chips(write: Write, tmp_path: Path) -> None:
    for name, flags in (("one", 1), ("two", 2)):
        device(tmp_path, f"{name}.a", vec=with_flags(device_object(["vec_func"]), flags))
    path = write([entry("vec", bin_path="one.a"), entry("vec", bin_path="two.a")], vec=metadata())
    refused(path, "ops.json", "two.a: vec.o has ELF flags 0x2", "one.a: vec.o has 0x1", "for different chips")


@pytest.mark.parametrize(
    ("toolkit", "words"),
    [
        ({"elf_machine": DEVICE + 1}, "a processor (ELF machine 0x1029), and chip a3 is ELF machine 0x102a"),
        ({"elf_flags": [1, 2]}, "has ELF flags 0x0, and chip a3 takes 0x1, 0x2"),
        ({"elf_machine": DEVICE, "elf_flags": [0]}, ""),
    ],
)
def test_a_chip_may_say_what_its_objects_look_like(
    write: Write, tmp_path: Path, toolkit: dict[str, object], words: str
) -> None:
    device(tmp_path, "mine.a", vec=device_object(["vec_func"]))
    path = write([entry("vec", bin_path="mine.a")], vec=metadata())
    chip = {**(find_target("ascend").chip_fields() or {}), "toolkit": toolkit}
    if words:
        refused(path, "vec.json", words, chip=chip)
    else:
        assert read(path, chip).ops


def test_a_binary_that_is_no_object(write: Write, tmp_path: Path) -> None:
    (tmp_path / "mine.a").write_bytes(archive_of({"vec.o": b"no object"}))
    refused(write([entry("vec", bin_path="mine.a")], vec=metadata()), "mine.a: vec.o is no object file")


def test_what_is_read_of_an_object_is_what_a_general_reader_finds(barriers: Path) -> None:
    for name, content in members(barriers).items():
        general, found = ELFFile(BytesIO(content)), parse_object(content, name)
        table = general.get_section_by_name(".symtab")
        expected = [(symbol.name, symbol["st_value"], symbol["st_size"]) for symbol in table.iter_symbols()]
        assert [(symbol.name, symbol.value, symbol.size) for symbol in found.symbols] == expected
        relocations = [
            (section["sh_info"], relocation["r_offset"], relocation["r_info_sym"])
            for section in general.iter_sections()
            if section["sh_type"] == "SHT_RELA"
            for relocation in section.iter_relocations()
        ]
        assert [(r.section, r.offset, r.symbol) for r in found.relocations] == relocations
        defined = [s.name for s in table.iter_symbols() if s["st_info"]["bind"] != "STB_LOCAL"
                   and s["st_shndx"] != "SHN_UNDEF"]  # fmt: skip
        assert found.functions == defined


def test_a_damaged_object_is_an_error_with_its_name(barriers: Path) -> None:
    content = members(barriers)["kernels.o"]
    random = Random(16)
    for _ in range(300):
        damaged = bytearray(content[: random.randrange(len(content))] if random.random() < 0.3 else content)
        for _ in range(random.randrange(1, 9)):
            if damaged:
                damaged[random.randrange(min(len(damaged), 4000))] = random.randrange(256)
        with suppress(sk.BuildError):
            assert parse_object(bytes(damaged), "kernels.o").processor.bits == 64
    with pytest.raises(sk.BuildError, match=r"kernels\.o is a corrupt object file"):
        parse_object(content[: len(content) // 2], "kernels.o")


def test_an_object_of_32_bits(tmp_path: Path) -> None:
    content = bytearray(device_object(["f"]))
    content[4] = 1
    with pytest.raises(sk.BuildError, match="f is a 32-bit object"):
        parse_object(bytes(content), "f")
