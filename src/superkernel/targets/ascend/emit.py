"""targets.ascend.emit: a plan -> the Ascend C source of its super kernel. Steps in, text out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...errors import counted
from ...model.subkernel import SubKernel
from ...plan.steps import Preload
from .core_types import CUBE, VECTOR, CoreClass
from .emit_steps import StepPrinter, indented
from .kernel_description import Variant
from .names import KernelFunctions, entry_name, linked_name
from .plan import AscendPlan
from .prelude import constants, helpers
from .steps import Classes


class AscendEmitter:
    def __init__(self, plan: AscendPlan, named: Mapping[SubKernel, KernelFunctions]) -> None:
        self.plan, self.named = plan, named
        self.launch, self.chip = plan.launch, plan.chip
        self.entry = entry_name(linked_name(plan.chip, plan.graph.name))
        self.printer = StepPrinter(plan, named, self.entry)

    def source(self) -> str:
        entry = "".join(self._entry())
        callers = "".join(self._callers())
        code = callers + entry
        functions = "\n".join(helpers(code, self.chip.toolkit))
        fixed = constants(self.chip, self.launch.mixed, bool(self.launch.cubes), functions + code)
        if profiling := self.plan.workspace.profiling:
            header = profiling.header_bytes // 8
            fixed += f"\nconstexpr uint64_t profiling_header = {header};  // words before the records\n"
        parts = [self._head(), fixed, functions, self._declarations(), callers, entry]
        return "\n".join(part for part in parts if part)

    def _head(self) -> str:
        plan = self.plan
        lines = [
            f"// Super kernel {plan.graph.name}: {counted(len(plan.graph.nodes), 'op')}, {self.launch} "
            f"of chip {self.chip.name}.",
            f"// Options: {plan.options}",
            *(f"// {note}" for note in plan.notes),
            "#include <cstdint>",
            "",
            '#include "kernel_operator.h"',
        ]
        return "\n".join(lines) + "\n"

    # the sub-kernels

    def _declarations(self) -> str:
        lines = ["// the sub-kernels: each takes the index of its op's first slot, or the pointers in its slots"]
        seen: dict[str, str] = {}
        for linked in self.named.values():
            takes = (
                "uint64_t first_slot" if linked.pointers is None else ", ".join(["__gm__ uint8_t*"] * linked.pointers)
            )
            for variants in linked.variants.values():
                seen |= dict.fromkeys((name for variant in variants for name in variant.functions), takes)
        lines += [f'extern "C" __aicore__ void {name}({takes});' for name, takes in seen.items()]
        return "\n".join(lines) + "\n"

    def _callers(self) -> Iterator[str]:
        """A function per sub-kernel that has several bodies: copies, tiling keys, classes."""
        asked = {op for step in self.plan.steps if isinstance(step, Preload) for op in step.ops}
        preloaded = {self.named[self.plan.graph.nodes[op].kernel].label for op in asked}
        # several kernels may share their functions
        of_label = {named.label: kernel for kernel, named in reversed(list(self.named.items()))}
        for kernel, named in self.named.items():
            if not self.printer.has_caller(kernel) or of_label[named.label] is not kernel:
                continue
            per_class = {c: self._caller(kernel, named, c, named.label in preloaded) for c in named.variants}
            if len(per_class) == 1:
                yield from per_class.values()
                continue
            macros = {CUBE: self.chip.cube_macro, VECTOR: self.chip.vector_macro}
            yield f"#if defined({macros[CUBE]})\n{per_class[CUBE]}#elif defined({macros[VECTOR]})\n"
            yield f"{per_class[VECTOR]}#endif\n\n"

    def _caller(self, kernel: SubKernel, named: KernelFunctions, core_class: CoreClass, preloaded: bool) -> str:
        dynamic, variants = self.printer.is_dynamic(kernel), named.variants[core_class]
        takes = "uint64_t core, int64_t key" if dynamic else "uint64_t core"
        texts = []
        if dynamic:
            keys = " && ".join(f"key != {variant.key}" for variant in variants)
            head = f"static inline __aicore__ void check_{named.label}(int64_t key)"
            texts.append(f"{head} {{\n    if ({keys}) trap();\n}}\n")
        head = f"call_{named.label}({takes}, uint64_t first_slot)"
        passed = self.printer.passed(named, "first_slot")
        texts.append(self._switch(head, variants, dynamic, f"{{}}({passed})"))
        if preloaded:
            request = f"preload((const void*){{}}, {self.printer.lines_of(kernel, core_class)})"
            texts.append(self._switch(f"preload_{named.label}({takes})", variants, dynamic, request))
        return f"// {self.printer.comment(str(kernel))}\n" + "".join(texts) + "\n"

    def _switch(self, head: str, variants: Sequence[Variant], dynamic: bool, statement: str) -> str:
        lines = [f"static inline __aicore__ void {head} {{"]
        if not dynamic:
            lines += indented(self._copies(variants[0].functions, statement))
        else:
            lines.append("    switch (key) {")
            for variant in variants:
                lines.append(f"        case {variant.key}:")
                lines += indented(self._copies(variant.functions, statement), 3)
                lines.append("            return;")
            lines += ["        default:", "            trap();", "    }"]
        return "\n".join([*lines, "}"]) + "\n"

    def _copies(self, functions: tuple[str, ...], statement: str) -> list[str]:
        if len(functions) == 1:
            return [f"(void)core;  {statement.format(functions[0])};"]
        lines = [f"switch (core % {len(functions)}) {{"]
        for copy, name in enumerate(functions[:-1]):
            lines.append(f"    case {copy}: {statement.format(name)}; break;")
        return [*lines, f"    default: {statement.format(functions[-1])};", "}"]

    # the entry

    def _entry(self) -> Iterator[str]:
        if self.plan.order.lanes:
            yield f'extern "C" __global__ __aicore__ void {self.entry}();\n\n'
            for classes in self.plan.lanes:
                yield from self._lane(classes)
        align = self.plan.options.func_align
        attribute = f" __attribute__((aligned({align})))" if align else ""
        yield "// the entry: every core of the launch calls it once\n"
        yield f'extern "C" __global__ __aicore__{attribute} void {self.entry}() {{\n'
        yield "#ifdef KERNEL_TASK_TYPE_DEFAULT\n"
        yield f"    KERNEL_TASK_TYPE_DEFAULT({self.launch.type.macro});\n#endif\n"
        if self.plan.order.lanes:
            yield f"#if defined({self.chip.cube_macro})\n    cube_lane();\n#else\n    vector_lane();\n#endif\n"
        else:
            yield from self._body(self.launch.classes)
        yield "}\n"

    def _lane(self, classes: Classes) -> Iterator[str]:
        core_class = classes[0]
        macro = self.chip.cube_macro if core_class is CUBE else self.chip.vector_macro
        yield f"#if defined({macro})\n// what the {core_class.value} cores do, in order\n"
        yield f"static __aicore__ void {core_class.value}_lane() {{\n"
        yield from self._body(classes)
        yield "}\n#endif\n\n"

    def _body(self, classes: Classes) -> Iterator[str]:
        steps = [step for step in self.plan.steps if not set(classes).isdisjoint(step.cores)]
        lines = self.printer.printed(steps, classes)
        opening = self.printer.opening(classes, steps, "\n".join(lines))
        yield from (f"{line}\n" for line in indented([*opening, *lines, *self.printer.closing()]))
