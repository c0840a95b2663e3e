"""targets.ascend.toolkit: the `toolkit` object of a chip's description -> Toolkit.

It holds names and numbers of CANN that no public document fixes. Each field has a default; docs/ascend.md lists them as
unverified.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from ...errors import OptionError, nearest
from .meta_section import check_meta_fields


class DescriptorForm(Enum):
    """How `SuperkernelInfo.kernelList` is grouped."""

    AICORE = "aicore"  # one group, and blockDim
    ARCHITECTURE = "architecture"  # newer tools: two lanes are a group per architecture; and blockNum


@dataclass(frozen=True)
class Toolkit:
    """What the descriptor, and the objects that CANN's operator compiler writes, look like."""

    magic: str = "RT_DEV_BINARY_MAGIC_ELF"  # of the descriptor
    optional_mode: str = "gen_placeholder"  # optionalInputMode and optionalOutputMode of the descriptor
    descriptor_form: DescriptorForm = DescriptorForm.AICORE
    barrier_functions: tuple[str, ...] = ("SyncAll",)  # a reference to one is an all-core barrier
    elf_machine: int = 0  # e_machine of its objects; 0: any but that of another known processor
    elf_flags: tuple[int, ...] = ()  # e_flags that its objects may have; none: any
    architecture_flag: str = "--cce-aicore-arch={architecture}"  # newer compilers: --npu-arch=dav-2201
    compiler_options: tuple[str, ...] = (  # for LLVM, behind -mllvm
        "-cce-aicore-stack-size=0x8000",
        "-cce-aicore-function-stack-size=0x8000",
        "-cce-aicore-addr-transform",
        "-cce-aicore-dcci-insert-for-scalar=false",
    )
    far_call_options: tuple[str, ...] = ("-cce-aicore-long-call", "-cce-aicore-jump-expand=true")  # with copies
    linker_emulation: str = "aicorelinux"
    pair_variable: str = "sk_cann_pair"  # where a sub-kernel finds the pair code that it waits for
    no_pair: int = 15  # the code for nothing to wait for
    block_count_variable: str = "sk_cann_block_num"  # where a dynamic sub-kernel finds its block count
    feed_variable: str = "sk_cann_feed"  # where block 0 finds the address of its control word
    kernel_name: str = "{name}"  # of a super kernel: te_superkernel_{name} where CANN's own run time looks for it
    meta_section: str = ".ascend.meta.{entry}"  # {entry}: a visible entry symbol of the object
    meta_fields: tuple[str, ...] = ()  # contents of that section, "<bytes>:<value>" each; none: there is no section
    meta_core_types: tuple[str, ...] = ()  # what core_type means in meta_fields: of cube, vector and mixed launches


_TEMPLATES = {"kernel_name": "{name}", "meta_section": "{entry}"}  # field -> the word that it must contain


def read_toolkit(found: object, where: str) -> Toolkit:
    if not isinstance(found, Mapping):
        raise OptionError(f"chip {where}: toolkit is {found!r}; an object is needed")
    known = {field.name: field for field in fields(Toolkit)}
    for key in found:
        if key not in known:
            names = ", ".join(known)
            raise OptionError(f"chip {where}: unknown field toolkit.{key}{nearest(key, known)}; fields are {names}")
    values = {
        key: _checked(value, known[key].default, str(known[key].type), f"chip {where}: toolkit.{key}")
        for key, value in found.items()
    }
    toolkit = Toolkit(**values)
    for key, word in _TEMPLATES.items():
        if word not in (text := getattr(toolkit, key)):
            raise OptionError(f"chip {where}: toolkit.{key} is {text!r}; it must contain {word}")
    check_meta_fields(toolkit.meta_fields, toolkit.meta_core_types, f"chip {where}: toolkit")
    return toolkit


def toolkit_fields(toolkit: Toolkit) -> dict[str, Any]:
    """As a JSON file has them."""

    def plain(value: object) -> Any:
        return value.value if isinstance(value, Enum) else list(value) if isinstance(value, tuple) else value

    return {field.name: plain(getattr(toolkit, field.name)) for field in fields(Toolkit)}


def _checked(value: object, default: object, kind: str, what: str) -> Any:
    """The value, as what its default is; `kind` is the field's annotation."""
    if isinstance(default, Enum):
        forms = [form.value for form in type(default)]
        if value not in forms:
            raise OptionError(f"{what} is {value!r}; it must be one of {', '.join(forms)}")
        return type(default)(value)
    if isinstance(default, tuple):
        if not isinstance(value, list | tuple):
            raise OptionError(f"{what} is {value!r}; a list is needed")
        item_kind = "str" if kind.startswith("tuple[str") else "int"
        item_default = "text" if item_kind == "str" else 0
        return tuple(_checked(item, item_default, item_kind, f"{what}[{i}]") for i, item in enumerate(value))
    if isinstance(default, str):
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise OptionError(f"{what} is {value!r}; a text is needed")
        return value
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**32:
        raise OptionError(f"{what} is {value!r}; a whole number is needed")
    return value
