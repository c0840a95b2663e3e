"""Random op lists, with everything that an op may be, for plans that must validate."""

from __future__ import annotations

import random
from pathlib import Path

from superkernel.model.binary import Binary, Form
from superkernel.model.op import Op
from superkernel.model.params import Param
from superkernel.model.subkernel import SubKernel
from superkernel.targets.ascend.calling_convention import SyncProtocol
from superkernel.targets.ascend.core_types import KernelType
from superkernel.targets.ascend.facts import AscendFacts, Code

TYPES = list(KernelType)


def kernel(
    name: str, kind: KernelType, blocks: int, *params: str, path: Path | None = None, **more: object
) -> SubKernel:
    """A sub-kernel as the target would know it, without a file."""
    variants = dict(more.pop("variants", ())) or {0: name}  # type: ignore[call-overload]
    extra = {key: more.pop(key) for key in list(more) if key in AscendFacts.__dataclass_fields__}
    codes = tuple((one, key, Code(symbol)) for one in kind.op_class.classes for key, symbol in variants.items())
    fields = {"sync_all": False, "waits_inside": False, "signals_inside": False, "code_bytes": 3000, **more}
    return SubKernel(
        name,
        Binary(Form.SOURCE, path or Path(f"{name}.cpp")),
        blocks,
        tuple(map(Param.parse, params)),
        variants=tuple(variants.items()) if list(variants) != [0] else (),
        target_facts=AscendFacts(kind, codes, **extra),  # type: ignore[arg-type]
        **fields,  # type: ignore[arg-type]
    )


def random_ops(choose: random.Random, size: int) -> list[Op]:
    """Ops on a few buffers, in a few streams; events always from earlier to later ops, so that every list is legal."""
    kinds = choose.choice([TYPES, [KernelType.AIV_ONLY], [KernelType.AIC_ONLY, KernelType.AIV_ONLY]])
    names = [f"b{i}" for i in range(choose.randint(2, 6))]
    streams = choose.randint(1, 3)
    early, meeting = choose.random() < 0.4, choose.random() < 0.3
    open_events: list[int] = []
    ops, events = [], 0
    for i in range(size):
        kind = choose.choice(kinds)
        blocks = choose.randint(1, 40 if kind.op_class.name == "AIV" else 20)
        part = "@block" if choose.random() < 0.2 else ""
        params = [f"in:x{part}", "in:y", f"{choose.choice(['out', 'inout'])}:z{part}"]
        dynamic = choose.random() < 0.15
        one = kernel(
            f"k{i}",
            kind,
            blocks,
            *params,
            sync_all=meeting and choose.random() < 0.4,
            waits_inside=early and choose.random() < 0.6,
            signals_inside=early and choose.random() < 0.6,
            early_start=("y",) if early and choose.random() < 0.3 else None,
            variants={1: f"k{i}_a", 9: f"k{i}_b"} if dynamic else {},
            protocol=choose.choice(list(SyncProtocol)),
        )
        send, recv = [], []
        if i and open_events and choose.random() < 0.3:
            recv.append(choose.choice(open_events))
        if choose.random() < 0.25:
            events += 1
            send.append(events)
            open_events.append(events)
        if choose.random() < 0.08:
            events += 1
            send.append(1000 + events)
        if i and choose.random() < 0.08:
            events += 1
            recv.append(2000 + events)
        args = [choose.choice(names) for _ in params]
        task = "dynamic" if dynamic else "normal"
        ops.append(Op(one, args, f"op{i}", choose.randrange(streams), send, recv, task))
    return ops


def random_options(choose: random.Random) -> str:
    options = {
        "feed-sync-all": "1",
        "stream-fusion": choose.choice("01"),
        "early-start": choose.choice("012"),
        "preload-code": choose.choice(["per-func", "max", "none"]),
        "split-mode": choose.choice("124"),
        "profiling": choose.choice("01"),
        "prefetch-weights": choose.choice("01"),
        "debug-sync-all": choose.choice("0001"),
        "debug-dcci-all": choose.choice("0001"),
        "dcci-before-kernel-start": choose.choice(["k1", "k2"]),
        "dcci-after-kernel-end": choose.choice(["k1", "k3"]),
    }
    return ":".join(f"{key}={value}" for key, value in options.items() if choose.random() < 0.7 or key[0] == "f")
