"""write_benchmarks: results of `superkernel bench SUITE --json` come in, docs/benchmarks.md goes out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"

INTRODUCTION = """\
# Benchmarks

<!-- Written by tools/write_benchmarks.py from benchmarks/results/. Measure again, do not edit. -->

`superkernel bench SUITE` runs one of the suites below. `--json` prints the numbers as JSON, `--quick` uses fewer
repetitions, `--cores N` sets the number of cores for us and for every peer. Targets hold for two cores.

Method: all cases run in one process, in a different order in every round. Tables show the median of the rounds; the
spread is half the interquartile range. Every result is checked before it is timed; a wrong result fails the run.
Figures are ratios from one run, because times on shared machines vary between runs.
"""

# suite -> what one must know of it, before its results
SUITES = {
    "boundary": """\
## boundary: what an op boundary costs

The eager peer is torch with its default settings. *One launch each* means the same sub-kernels, launched one by one
through the same run time.

The gain is smaller in other workloads:

- The gain from removing a barrier depends on the size of the ops. 64 `@block` adds of 4 KB gained 1.7x to 2.05x on an
  idle machine, 256 of 2 KB 1.9x; the suite uses 1024 of 512 B, where boundaries take most of the time.
- Two memory-bound chains gain less than two latency-bound chains, which the suite uses: adds of 64 KB side by side
  gained 1.6x to 2.0x, and 1.2x in a run where the two virtual cores appeared to share one physical core.
- Arrays that begin at the same page offset cause cache conflicts: one run of the 4 KB chain took twice as long, and
  was 7.9x faster than eager instead of 12x. Arrays that the engine or this suite allocates have staggered offsets;
  arrays passed by a caller do not.
- Two-thread figures are meaningless while another process uses the same cores.

What this does not establish: anything about long kernels. A super kernel removes boundaries; if the work between them
takes milliseconds there is little to remove.
""",
    "torch": """\
## torch: compiled models beside eager torch and Inductor

Everything runs with as many threads as the heading says, float32, under `no_grad`, with `fullgraph=True,
dynamic=False`. The peers:

| peer | settings |
| --- | --- |
| eager | the model as it is |
| inductor | `torch.compile(model)` |
| frozen | Inductor with `freezing` and `cpp_wrapper` |
| max-autotune | Inductor with mode `max-autotune-no-cudagraphs`, `freezing` and `cpp_wrapper` |

Each peer gets its own copy of the model and its own code object, so that guards are not shared. Inductor's settings
are set globally while it compiles, not only as `options=`, because Dynamo also reads whether weights are frozen. All
caches are empty when the run begins. Our back end has default options: the profit gate measures during 13 calls before
timing starts; the notes give its choice. Every compiled result is compared with eager's before it is timed, to 1e-4 of
the largest value. *fuse=off* is not a peer: it launches the same sub-kernels one by one. Fusing must not cost more
than 2 % or half the interquartile range, whichever is larger.

A round calls a case for 50 ms after one untimed call, so that the last-level cache holds the data of this case, as in
repeated decoding. Our back end moves weights of 2 MB and more to huge pages at its first call ([torch.md](torch.md)),
which is part of the comparison; the read-only loop uses huge pages as well. Peers use memory as torch allocates it.

- **Host cost of a call**: a function that adds 8 tensors of 64 floats, one super kernel. Two times are subtracted from
  the time of a call: that of the same function with a back end that returns an existing tensor (guards, and the call
  that Dynamo makes), and the launch of this super kernel from a C loop; round by round, then the median. The remainder
  is AOTAutograd's wrapper, the allocation of the output, our Python code and the call into C. For Inductor, the time
  of its kernel, well under a microsecond, is not subtracted.
- **Four blocks** of LayerNorm, Linear 256 to 512, SiLU, Linear 512 to 256 and a residual. *best/ours* is the time of
  the best peer divided by ours. *Reading alone* is the share of our time that two cores need to read as many bytes as
  the model has weights and caches, with a loop that only reads, in the same rounds: 100 % would be the speed of the
  memory.
- **Others**: models where we expect to gain little, or to lose.
- **Compile times**: fresh processes, four blocks of 1 row. The clock starts after `import torch`, so that it includes
  the imports of a back end, and stops at the first result. *Caches empty*: neither our cache folder nor Inductor's
  exists, so Inductor's time includes its precompiled header. *Caches warm*: the process after that. The lines with 12
  results include what the profit gate builds and measures.

What this does not establish: anything about compute-bound batch sizes, other processors, or weights that exceed the
last-level cache.
""",
    "moe": """\
## moe: layers of experts

Six layers of RMSNorm, gate, softmax, the best two of eight experts, two batched matmuls over all experts and SwiGLU,
float32; peers, checks and settings as in the suite torch. *Reading alone* is the share of our time that
two cores need to read as many bytes as the model has weights.

Limits: at 4 tokens every weight is used four times: 9.4 million multiplications per call, which take at least 96 us on
two cores of this EPYC (one 512-bit multiplier each). In some hours every launch takes 217 us instead of 132 us, with
little spread, as if both virtual cores were one physical core. Guards add 40 to 60 us, for every peer. The best peer
takes 312 us when the machine is idle, so 2.5x would be 125 us including guards. At one token the matmuls run at memory
bandwidth. Eager torch reads the weights of hidden 512 at a third to a half of that bandwidth here, and at 60 to 80 %
of it on the Xeon, where 2x is therefore out of reach. With 16 cores every expert is split between two cores, whose
parts of a row are not contiguous.

The two quantised ops are those of `examples/02_scope.py`, at its sizes, compared round by round. The sample is the
model of `examples/03_moe_compare.py`; its launches are profiled seven times fused and unfused, and the fastest profile
of each is compared: on this virtual machine a launch on both cores sometimes takes milliseconds, so single profiles
gave from -35 % to 56 %. By medians a call spends 125 us in launches unfused and 102 us fused: each of the 66 removed
launches cost 0.35 us.
""",
    "decode": """\
## decode: one token of a Llama-like model

Six layers, batch 1, float32, a cache of 256 tokens that the step writes to, 4096 words; hidden sizes 288, 512, 1024;
peers, checks and settings as in the suite torch. Before them the matmuls alone: a linear layer of 1 to 8
rows with 128 MB of weights beside a loop that only reads as much, and large ones beside MKL through torch.

Limits: weights and cache of hidden 288 are 32 MB, the size of the last-level cache of this EPYC, which other virtual
machines share: within one hour the read-only loop took between 0.25 and 0.75 ms. Guards and Python code take 50 us if
their data is cached, and 200 to 450 us after 30 MB and more have passed through the cache, for us and for every peer.
A step of hidden 512 takes 3.3 ms, of which the launch is 2.75 ms (as long as the read-only loop), guards 0.44 ms and
our Python code 0.1 ms. At 8 rows, 128 MB of weights are 268 million multiplications: 2.7 ms at the highest rate
observed here, as long as reading them.
""",
    "quantized": """\
## quantized: a decode step with int8 and int4 weights

The decode step of hidden 1024 with separate weights for the logits; every linear layer is quantised as torchao does it:
int8 with a scale per column, int4 in groups of 128. Each model is checked against itself in eager mode. The figures
compare our times: float32 to int8 and to int4. A step also reads 12.6 MB of float32 caches, whatever the weights:
beside 325 MB of float32 weights, 81 MB of int8 and 46 MB of int4 with scales. How int4 sums are computed, and how exact
they are: [torch.md](torch.md#int8-and-int4-weights).
""",
    "attention": """\
## attention: scaled dot-product attention

Eight heads of 64, float32: one query over a cache, and causal prompts; peers, checks and settings as in the suite
torch. There are no targets: the suite shows where we gain and lose.
""",
    "convolution": """\
## convolution: convolution networks

A depthwise-separable net of four blocks with 32 channels at 28 x 28, ResNet-18 and MobileNet-V3 (large) at 224 x 224,
batch 1, float32, written with `torch.nn`; peers, checks and settings as in the suite torch. The target compares with
eager torch and with Inductor's default settings, in which weights may change between calls as in ours. Freezing makes
them constants: batch norms are folded into the filters, and filters are packed once.
""",
    "loaded": """\
## loaded: small models on a busy machine

Two busy processes per core run during the timed calls. A launch whose cores would have to wait for processors runs on
the calling thread alone; eager torch and Inductor keep their OpenMP teams, whose joins wait for scheduler time slices.
""",
    "package": """\
## package: models compiled ahead of time

`sk.export` and `sk.load_model` beside others that compile ahead of time, and beside torch: the time of a call from
Python with arrays that are there. Peers are used in the way that is fastest from Python. Every runner is timed with
one thread and with all, in the same rounds, and the better of the two counts:

| peer | how |
| --- | --- |
| eager | the model as it is |
| torch.compile | default settings |
| AOTInductor | `aoti_compile_and_package`; the loader's `run`, without the wrapper that sorts arguments |
| AOTInductor frozen | the same with `freezing` |
| ONNX Runtime | `torch.onnx.export(dynamo=True)`, inputs and outputs bound once, `run_with_iobinding` |
| OpenVINO | the same file, hint LATENCY, float32, inputs set once, `infer()` |

ONNX Runtime and OpenVINO are installed by the extra `peers` and left out where they are missing. The decode step keeps
its caches: as a state in our package, as buffers in torch. ONNX has no states: there the caches are inputs, the rows to
be written are outputs, and writing them is not timed. Our call returns new arrays; bound outputs are overwritten.

A table for each way of calling: back to back; at a fixed rate, asleep between calls; and back to back with two busy
processes beside. Back to back are 10,000 calls of ours, and of a peer as many as take three seconds; at a rate 3,000,
beside others up to 2,000. Cells are p50 / p99 / max of single calls in us, and the threads.

A ratio is the median of the ratios of ten rounds, of each round's medians. For seconds or minutes every runner with two
threads takes 1.2 to 1.8 times as long on the virtual machine (ours of the encoder 430 us instead of 285, OpenVINO 600
instead of 360, ONNX Runtime 700 instead of 385), while one thread takes as long as ever; medians of all calls would
compare one runner's slow phase with another's fast one. The cause is not known: threads of arithmetic, timed before
each round of an earlier run, had the full speed of two cores in the slow phases as well.

The four blocks read 4.2 MB of weights a call. One core of that machine reads as much from its L3 cache in 30 us (139
GB/s, a loop of plain loads on huge pages); our call takes 36 to 40 us on one thread, and 27 with a team of two.

Calls at a rate are timed by a loop in C, for every runner: it sleeps until a call is due (`clock_nanosleep`), and calls
the runner's function of Python (`PyObject_CallNoArgs`). A runner that is too slow for 1000 calls a second is measured
at the largest of 100, 10, ... that leaves it idle for half of the time. Our package is also called by its C API
(`sk_run_index`), and both ways with `wait="spin"` as well, where the caller's processor does not idle between calls;
there also with `out=`, which writes into the same arrays each time, as the peers do. Beside them are calls without a
model: an empty function of Python and of C, and a loop in C that reads 256 KB on a huge page. That loop says when the
machine was idle: a round of 500 calls counts for the tail, p99 to p50, where the loop's own was at most 2. Rounds are
repeated, 24 at most, until six count, and their median is the figure; a note says how many counted. The percentiles
below are those of all rounds, counted or not.

What a pause of a millisecond does is to take caches away: a processor that idles sleeps, or runs another virtual
machine. Medians of 300 calls of the policy, each after caches were emptied on purpose, in us:

| | warm | L2 cold | L2 and translations cold | all cold |
| --- | --- | --- | --- | --- |
| 2-core EPYC, from C | 2.9 | 4.6 | 5.5 | 17 |
| 2-core EPYC, from Python | 3.0 | 5.0 | 6.5 | 21 |
| 16-core Xeon, from C | 4.8 | 17 | 18 | 21 |
| 16-core Xeon, from Python | 5.6 | 18 | 21 | 24 |

So a p99 of two medians means that hardly one call in a hundred finds a cold L2 cache. Code and small weights are on
huge pages, which need few translations; prefetching them when a call begins was tried and is no faster. With
`wait="spin"` the caller's processor does not idle. Six runs of 300 calls each, alternating with a library that instead
ran short plans on a thread that spins on another processor, medians of the p50 and p99 of a run on the Xeon: policy
8.0 / 13.8 us instead of 10.5 / 17.5 from C, and 9.4 / 20.3 instead of 13.6 / 35.5 from Python; recommender 6.0 / 10.9
instead of 10.0 / 15.5, and 7.5 / 22 instead of 14.1 / 34. On the EPYC the policy had 3.4 / 7.9 instead of 3.6 / 8.5
from C, and 4.5 / 9.4 instead of 4.5 / 17.9 from Python.

What the machine does without a model stands beside. On the EPYC the loop that reads 256 KB had a tail of 2 at most in
21 of 165 rounds, and ours had one in 29 of the 35 rows below: with `wait="spin"` and `out=` for all seven models, at
most 1.8. The six others have 2.04 to 4.2, and where few rounds count they change: of two runs in quieter hours of the
same day (39 and 25 such rounds) one had 27 of 28 rows within the limit, the other 24, all but those of the two smallest
models from Python. On the 16-core machine the loop itself has 3.5 to 6.4 in the run below: its caches are taken away
more often than once in a hundred calls, so a caller that sleeps there cannot keep the limit where it reads as much, and
all rounds were counted. Its workloads were measured in three calls of `package_short`: four blocks, encoder, decode
step and convolution net after the team of models that spin had been mended.

`python3 -m superkernel.tools.bench.package_short results.json --cores 16 --seconds 200` measures the same figures with
fewer calls, within a given time, and needs no installed package: `PYTHONPATH=src` is enough. All workloads compile at
the same time and are measured one after the other; peers are not called at a rate. `--resume` goes on with the
workloads that are missing.
""",
    "collectives": """\
## collectives: ranks of one machine

Rank processes on one machine, each with its share of the cores: 2 x 1 on two cores, 4 x 4 on sixteen. Every collective
in every size inside a super kernel, and by gloo, the only back end that torch has for CPU tensors: eager, and called by
what Inductor compiled. torch's symmetric memory does not support the CPU. The size is that of a rank's larger tensor.

- *Inside a super kernel*: the time of a launch of 33 dependent collectives less that of one, divided by 32; above 64 KB
  one launch of one collective from Python.
- *Copying and adding*: loops that load, add and store as many bytes as an all_reduce needs where the tensors of a rank
  are memory of its own, all ranks at once, without a wait. For `n` bytes and `r` ranks a rank copies `n (r-1)/r` into
  shared memory, adds its part of all ranks and stores it twice, and copies `n (r-1)/r` out: `4 n` for two ranks. The
  faster of two loops counts, one with plain stores and one with stores past the caches.
- *A boundary between ranks*: an all_reduce of one element per rank: two ops and one sync across ranks. Beside it an op
  boundary between two cores of one launch, while the other ranks are idle.
- *The decode step*: batch 1, six layers, sharded by `parallelize_module`; logits are gathered. Each runner has weights
  and caches of its own; all are compared with the whole model in eager mode.

`--seconds 170` leaves out what does not fit into the time: the figures are measured first, then all_reduce in all
sizes, then the others by size. A workload whose calls are long has fewer rounds, at least five.

What this does not establish: anything about several machines or GPUs, and little about a machine that others keep busy:
ranks wait for each other, and a rank without a processor holds up all.
""",
}


# the same, of the suites that need an NVIDIA GPU
CUDA_SUITES = {
    "cuda boundary": """\
## cuda: super kernels on an NVIDIA GPU

`superkernel bench cuda --suite NAME` runs one of the four suites below, on a machine with an NVIDIA GPU, torch and
Triton. The peers are the same kernels, from the same PTX, launched one by one:

| peer | how |
| --- | --- |
| stream | one `cuLaunchKernelEx` each, in a stream |
| graph | the same launches, captured into a CUDA graph and replayed |
| graph + PDL | a graph with programmatic dependent launch, of kernels that contain `griddepcontrol` |

With programmatic dependent launch a kernel starts while its predecessor runs; ours of this peer ask for their weights
then, and wait before they read what the predecessor writes.

Times are those of the GPU, between two events around many launches. Every way to run a chain is checked before it is
timed: the same bits as single launches, and the value that float64 gives. *Reading alone* is the share of our time in
which a kernel that only reads could read the weights, measured in the same run. Ratios are to the fastest of our super
kernels: of the kernels as they are; of the kernels with a wait point inside, as the peer graph + PDL has; and of these
with `prefetch-weights=1`, where a warp of every SM asks for weights ahead.

### cuda boundary: what an op boundary costs

Tiny dependent kernels, of one block and of one block per SM; the time of the host for a launch from Python; the time to
compile 28 different kernels into one.
""",
    "cuda chain": """\
### cuda chain: small dependent kernels

64 kernels of one block, RMSNorm and add in turn, with two numbers of warps (a ratio compares the best of each way); and
64 layers of a small op between two wide ones, an RMSNorm on one block and a GEMV on all SMs.

Limits: a boundary on one SM, with its tiny kernel, costs 0.25 us, between all SMs 1.4 us; a graph + PDL needs 0.59
and 0.72 us. Kernels on all SMs therefore gain against a graph and lose against a graph + PDL. The layers with a
GEMV are timed with three ways to compile it; a ratio compares the best of each.

A boundary between 132 blocks by hand, without a task table: each block stores 512 bytes, raises a counter
(`red.release`), polls it, and loads what its neighbour stored. In us, on an idle memory, and beside warps that read as
fast as they can:

| how the counter is polled | idle | 2 warps read | 8 warps read |
| --- | --- | --- | --- |
| one `ld.acquire` at a time: what ships | 1.11 | 1.27 | 1.54 |
| one `ld.relaxed` at a time, then a fence | 1.29 | 1.51 | 1.90 |
| four `ld.relaxed` on their way, then a fence | 1.45 | 1.70 | 2.15 |
| one `ld.relaxed`, no acquire (wrong results: the limit) | 0.91 | 1.04 | 1.34 |

More ways, idle: a counter raised by `atom.release`, whose answer is awaited before the first poll, 1.00; polls by
`ld.relaxed`, then one `ld.acquire`, 1.05; both 0.98; the counter in four parts or with four copies 1.08 and 1.05;
a word per block instead of a counter 2.0; the last block publishes a flag 1.6; no release either (the limit) 0.64. In
the emitted kernel, where a boundary costs 1.41, none of it helps: relaxed polls 1.41, `atom.release` 1.63 (the first
thread begins the next task later), the branch to the next body in front of the wait 1.37.

Where a layer of RMSNorm and GEMV goes (two slots, medians of a timeline): the last GEMV ends, 1.5 us later the norm
of an SM sees it, computes for 1.05 us, 0.45 us later the GEMV goes on, and ends after 1.3 to 1.9 us. Tried on these
layers, in us for all 64:

| plan of 8 rows x 2048 columns, 8 warps | us |
| --- | --- |
| two slots; the one that computes the norm asks for its weights behind it | 305 |
| the same with `prefetch-weights=20M`, at 2/3 and 1/2 of the memory's rate | 285, 297 |
| two teams: a third slot for the norm, all weights asked for before; the norm sees the counter 0.8 us later | 324 |
| the same, and weights asked for when the norm begins | 384 |
| two slots, prefetch, and weights asked for when the norm begins | 308 |

What a kernel written by hand for these layers reaches, with two sets of 8 warps per SM that have 8 rows each, without a
task table, in us a layer; a graph + PDL of Triton's kernels takes 3.7:

| by hand | us a layer |
| --- | --- |
| no weights are read: the latency of sync, norm, product and store (a limit) | 2.3 |
| the weights lie in the L2 cache (a limit) | 2.4 |
| weights asked for before the wait, the norm once per SM, its result in shared memory | 4.0 to 4.2 |
| the same, the norm in each set; its result through the L2 cache | 4.3; 4.7 |
| weights ahead in the L2 cache, 4 KB of an SM every 250 cycles, loaded before the wait; behind it | 3.9; 3.7 |
| weights copied to shared memory ahead by a warp, 64 KB on their way; 32 KB | 4.5; 3.9 |
| the same at a pace of 4 KB every 200, 250, 300, 350, 400 cycles | 3.8, 3.5, 3.4, 3.5, 3.9 |

The time beyond 2.3 us is not that of reading (1.8 us, which would overlap). Most of it is the *release* of a signal: a
fence waits for the bulk copies that are on their way to its SM, and somewhat for the loads of other warps. By hand,
with four warps of their own for the norm, one signal per SM, and weights staged two layers ahead:

| by hand | us a layer |
| --- | --- |
| bulk copies, `red.release` | 3.9 to 4.3 |
| bulk copies, the counter raised without release (wrong: the limit) | 2.6 to 2.7 |
| bulk copies, each float stored with the number of the launch beside it, which its readers check; no release | 3.3 |
| plain asynchronous copies by one warp, `red.release`, and without release: limited by the warp | 3.4 |
| weights in registers before the wait, `red.release`; without (wrong) | 3.8; 3.2 |

A lone fence takes 0.31 us, 0.33 beside loads, prefetches or plain asynchronous copies, and 0.40 to 1.8 beside a single
bulk copy of 4 KB at a time.

Our GEMV with staged weights in these layers, a norm on every SM, in us for all 64: with a ring of 128 KB and 16, 32 KB
on their way 275, 282; with rings of 96, 160, 192 KB 276, 280, 275; with 48 KB on their way and a pace of 2 KB every
120, 160, 190, 220 cycles 278, 274, 278, 287; the norm on one SM 299; with the task table in device memory 320. Without
staging 398. The kernel by hand, which needs 3.4 us a layer instead of 4.3, has no task table, keeps the normed vector
in shared memory, and knows all sizes when it is compiled.
""",
    "cuda gemv": """\
### cuda gemv: 64 matrices of 4096 x 4096, bfloat16

The streaming GEMV that ships with the target, with three sizes of its ring, and the fastest of five ways to compile
Triton's: each in a super kernel and in graphs; a ratio compares the best of each. The fastest graph + PDL is of our
GEMV too. In the super kernel its weights are staged across ops: four warps of every SM fill the ring for one op after
the other. The share is that of a kernel that only reads 4 GB of random numbers.

What was tried, in us a layer of 33.5 MB (7.1 to 7.3 at the measured rate), in a graph, a graph + PDL, a super kernel:

| kernel | graph | graph + PDL | super kernel |
| --- | --- | --- | --- |
| activations in shared memory, ring of 6 x 4 KB per warp | 14.3 | 12.1 | 14.1 |
| the same, 3 x 4 KB | 11.8 | 10.2 | 12.0 |
| slices of activations in registers, ring of 6 x 4 KB per warp | 12.5 | 10.3 | 12.4 |
| the same, 3 x 4 KB | 11.6 | 9.7 | 11.3 |
| the same, 2 KB chunks, two blocks of 8 warps per SM | 10.9 | 9.6 | 11.4 |
| no ring: two rows per warp in registers, four blocks of 4 warps per SM | 10.8 | 9.5 | 10.1 |
| one ring of 32 KB groups per block, rows handed out by tickets | | 9.2 to 9.6 | 10.6 to 10.8 |
| the same, 16 KB groups | | 10.1 to 10.4 | 11.7 to 11.9 |

Then chains in one hand-written kernel, without a task table, with one ring per block of 16 KB groups:

| kernel | us a layer |
| --- | --- |
| all of the ring (192 KB) on its way at once | 10.1 to 11.3 |
| 48 KB on their way at a time, 128 KB asked for before the wait, two sets of four warps take turns: what ships | 8.6 |
| the same, rows handed out by tickets | 8.8 |
| the same, one set of eight warps | 9.3 to 9.6 |
| the same, and the tail of an op asks for the next matrix in the L2 cache | 9.0 to 9.5 |
| the same, two teams with half of the ring each, for odd and even layers | 9.2 |
| the same, asking never stops between layers (no op boundaries) | 7.9 |
| one ring of 208 KB that a warp fills by bulk copies for all layers, 48 or 64 KB on their way; 80 | 7.6; 8.2 |
| two rings of 96 KB, for odd and even layers, which compete for the memory | 8.4 to 9.2 |
| no ring: four rows per warp in registers, 16 warps | 8.9 |
| blocks of 2 rows copied to shared memory by a warp that never stops; 32, 48, 64, 96 KB flying | 11.8, 10.6, 9.1, 9.5 |
| the same, blocks of 4 rows | 11.4, 11.4, 9.4, 9.6 |

- More bytes in flight are not better: above about 48 KB per SM they lengthen the queue to the memory, in which the
  signals between ops stand as well. With 128 KB in flight a wait took 3.1 us, with 32 KB 0.7 us.
- Staged across ops in the emitted kernel: by bulk copies of one thread 8.0, by plain asynchronous copies of four warps
  7.7.
- A thread that fills a ring must not divide: 0.4 us a group went there.
""",
    "cuda chain-decode": """\
### cuda chain-decode: a decode step of 16 layers

144 Triton kernels, 9 a layer, in the sizes of a model with 1.2 billion parameters (hidden 2048, inner 8192, 32 heads, 8
key-value heads, 2.0 GB of bfloat16 weights, 128 cached tokens): as they are, and with our GEMV in place of Triton's.

Limits: Triton's GEMV of 8192 columns with 2 rows and 2048 columns at a time, the fastest in a graph, leaves three
slots per SM; with 4 rows and 1024 columns there are six, five beside the warp that asks ahead. The suite times both.
Small ops between the GEMVs cost two syncs between all SMs each. What was tried with Triton's kernels, us a step (874 in
a graph):

| plan | us |
| --- | --- |
| five slots of 96 registers | 951 to 961 |
| six slots of 80: nothing but the task is kept in registers from task to task | 899 |
| and `prefetch-weights` of 16, 24, 32, 40 MB ahead | 862, 856, 861, 897 |
| and the norm on every SM | 843 |

With our GEMV:

| plan | us |
| --- | --- |
| ring of 160 KB; the task table does not fit into shared memory beside it | 977 |
| ring of 128 KB, table in shared memory, the norm on every SM | 877 |
| the norm on one SM: the others ask for weights meanwhile | 820 |
| SMs that run a small op take no rows of the GEMV behind it: every GEMV had ended 2 to 4 us late for them | 766 |
| the same, and what a slot signals is loaded before its barrier | 770 |
| the same with `prefetch-weights=32M`, at the memory's rate, 2/3 and 1/2 of it | 755, 734, 757 |
| and with the norm on every SM | 737 |
| and with 32 and 48 KB on their way in place of 48 and 64 | 729 |

Then weights of all GEMVs were staged in one ring, by warps of the super kernel, 32 KB on their way (48 are slower):

| plan | us |
| --- | --- |
| ring of 128 KB, without and with `prefetch-weights=1` | 764, 726 |
| ring of 160 KB; with `prefetch-weights=1` the task table no longer fits beside it | 741, 750 |
| the same, staged weights are not prefetched as well, only what other ops read | 729 |
| ring of 192 KB, the same, the table in device memory | 717 |
| an SM copies the lists of its own cores, and sums of arguments: the table is in shared memory | 702 |
| the same; SMs that run a small op have rows of the next GEMV too, for their ring is full | 691 |
| the norm on every SM (ring of 160 and 192 KB, 8 layers: 359 and 350 on one SM) | 369, 376 |
| twice as much on its way while the readers wait for a chunk (8 layers) | no gain |

What limits it: small ops read under the load of the ring, and each of their reads takes about a microsecond; an L2
cache that is filled beside the ring makes that worse, and gains little, for the ring holds what is read first.

""",
}


def page() -> str:
    """The text of docs/benchmarks.md."""
    sections: dict[str, list[str]] = {suite: [text] for suite, text in (SUITES | CUDA_SUITES).items()}
    for path in sorted(RESULTS.glob("*.json")):
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for suite, result in kept["suites"].items():
            sections[suite].append(section(result, path))
    return "\n".join([INTRODUCTION, *(part for parts in sections.values() for part in parts)])


def section(result: dict[str, Any], path: Path) -> str:
    """One result as a machine's section of its suite."""
    machine = result["machine"]
    cores = f"{machine['cores_used']} of {machine['cores_there']} {machine.get('core_name', 'cores')}"
    title = f"### {result['suite']}: {machine['processor']}, {cores}"
    facts = ", ".join(f"{key} {machine[key]}" for key in ("python", "torch", "triton") if key in machine)
    if "memory_read_TB_per_s" in machine:
        facts += f"; memory {machine['memory_read_TB_per_s']} TB/s"
    figures = [
        (f["name"], f"{f['value']:.2f} {f['unit']}", _limit(f), "met" if f["met"] else "**not met**")
        for f in result["figures"]
    ]
    times = [(t["name"], f"{t['median']:.2f}", f"{50 * t['spread']:.0f} %") for t in result["timings"]]
    checks = f"{len(result['checks'])} results checked, " + ("all right" if result["ok"] else "**some wrong**")
    parts = [title, "", f"{facts}; {checks}. Data: `{path.relative_to(ROOT)}`.", ""]
    parts += [_table(("figure", "measured", "target", ""), figures)]
    parts += _compared(result.get("comparisons", []))
    parts += _single_calls(result.get("latencies", []))
    if times:
        parts += [_table(("time per call", "median, us", "spread"), times)]
    return "\n".join(parts + [f"- {note}." for note in result["notes"]]) + "\n"


def _compared(comparisons: list[dict[str, Any]]) -> Iterator[str]:
    """One table for those with the same peers."""
    for (unit, *who), group in groupby(comparisons, _columns):
        rows = list(group)
        shares = any(row["share"] is not None for row in rows)
        head = (f"median, {unit}", *who, "best/ours", *(["reading alone"] if shares else []))
        yield _table(head, [_compared_cells(row, shares) for row in rows])


def _single_calls(latencies: list[dict[str, Any]]) -> Iterator[str]:
    """One table for each way of calling: workloads down, runners across."""
    by_condition: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for row in latencies:
        by_condition.setdefault(row["condition"], {}).setdefault(row["workload"], {})[row["runner"]] = row
    for condition, workloads in by_condition.items():
        runners = list(dict.fromkeys(runner for rows in workloads.values() for runner in rows))
        rows = [
            (name, *(_single_call(found[runner]) if runner in found else "" for runner in runners))
            for name, found in workloads.items()
        ]
        yield _table((condition, *runners), rows)


def _single_call(row: dict[str, Any]) -> str:
    times = " / ".join(f"{row[key]:.0f}" if row[key] >= 100 else f"{row[key]:.1f}" for key in ("p50", "p99", "largest"))
    return f"{times} ({row['threads']})"


def _columns(comparison: dict[str, Any]) -> tuple[str, ...]:
    return comparison["unit"], *(timing["name"] for timing in _timed(comparison))


def _timed(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """Us, also without fusion where that was timed, and every peer."""
    return [comparison["ours"], *filter(None, [comparison.get("unfused")]), *comparison["peers"]]


def _compared_cells(comparison: dict[str, Any], shares: bool) -> tuple[str, ...]:
    in_microseconds = {"us": 1.0, "s": 1e6}[comparison["unit"]]
    cells = [comparison["name"], *(f"{timing['median'] / in_microseconds:.2f}" for timing in _timed(comparison))]
    cells.append(f"{comparison['ratio']:.2f} x")
    if shares:
        cells.append("" if comparison["share"] is None else f"{100 * comparison['share']:.0f} %")
    return tuple(cells)


def _limit(figure: dict[str, Any]) -> str:
    return f"{'at least' if figure['at_least'] else 'at most'} {figure['limit']:.3g} {figure['unit']}"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [head, ("---",) * len(head), *rows])


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
