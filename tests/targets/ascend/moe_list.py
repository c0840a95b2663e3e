"""A layer of a mixture-of-experts model as sixty ops in CANN's form, on all cores of an A3 chip.

As a graph compiler leaves it that fuses nothing: norms, rotations and activations are chains of elementwise ops between
matmuls; the shared expert runs beside the routed experts. The elementwise ops promise @block, so that two of them with
the same blocks need no sync; CANN's own metadata have no such promise.
"""

from __future__ import annotations

from targets.ascend.device_lists import DeviceKernel, Entry

from superkernel.targets.ascend.core_types import KernelType

AIV, AIC, MIX = KernelType.AIV_ONLY, KernelType.AIC_ONLY, KernelType.MIX_AIC_1_2
CUBES, VECTORS = 24, 48
HIDDEN, INNER, HEADS, SCORES = (f"float16[48,{size}]" for size in (7168, 4096, 1536, 256))


class Layer:
    def __init__(self, promised: bool) -> None:
        self.entries: list[Entry] = []
        self.promise = "@block" if promised else ""

    def each(self, name: str, size: str, *names: str) -> str:
        """An elementwise op: a block touches its part of every tensor."""
        params = [f"in:x{place}:{size}{self.promise}" for place in range(len(names) - 1)]
        return self._add(name, AIV, VECTORS, (*params, f"out:y:{size}{self.promise}"), names)

    def whole(self, name: str, kind: KernelType, blocks: int, *names: str) -> str:
        """An op whose blocks read all of their inputs."""
        return self._add(name, kind, blocks, (*(f"in:x{place}" for place in range(len(names) - 1)), "out:y"), names)

    def _add(self, name: str, kind: KernelType, blocks: int, params: tuple[str, ...], names: tuple[str, ...]) -> str:
        kernel = DeviceKernel(name, kind, blocks, params)
        self.entries.append(Entry(kernel, names, name=f"{name}_{len(self.entries)}"))
        return names[-1]

    def norm(self, source: str, gain: str, result: str) -> None:
        """Rows of 48 tokens: one per vector core."""
        self.each("Square", HIDDEN, source, f"{result}.squares")
        self.each("ReduceMeanD", HIDDEN, f"{result}.squares", f"{result}.mean")
        self.each("Rsqrt", HIDDEN, f"{result}.mean", f"{result}.scale")
        self.each("Mul", HIDDEN, source, f"{result}.scale", f"{result}.scaled")
        self.each("MulGain", HIDDEN, f"{result}.scaled", gain, result)

    def rotate(self, source: str, result: str) -> None:
        self.each("Neg", HEADS, source, f"{result}.turned")
        self.each("MulCos", HEADS, source, "cos", f"{result}.cos")
        self.each("MulSin", HEADS, f"{result}.turned", "sin", f"{result}.sin")
        self.each("Add", HEADS, f"{result}.cos", f"{result}.sin", result)

    def swiglu(self, source: str, result: str) -> None:
        self.each("Dequant", INNER, source, f"{result}.values")
        self.each("Sigmoid", INNER, f"{result}.values", f"{result}.gate")
        self.each("MulGate", INNER, f"{result}.values", f"{result}.gate", f"{result}.silu")
        self.each("MulUp", INNER, f"{result}.silu", f"{result}.values", f"{result}.product")
        self.each("Quant", INNER, f"{result}.product", result)


def moe_list(promised: bool = True) -> list[Entry]:
    """Without promises, every op depends on all blocks of what it reads."""
    layer = Layer(promised)
    layer.each("CastIn", HIDDEN, "h16", "h")
    layer.norm("h", "g0", "n")
    for part in "ckv":
        layer.whole("MatMulV3", AIC, CUBES, "n", f"w{part}", part)
    layer.norm("c", "g2", "cn")
    layer.whole("MatMulV3", AIC, CUBES, "cn", "wq", "q")
    layer.rotate("q", "qr")
    layer.rotate("k", "kr")
    layer.each("ScatterK", HEADS, "kr", "k_cache")
    layer.whole("ScatterV", AIV, VECTORS, "v", "v_cache")
    layer.whole("FlashAttention", MIX, CUBES, "qr", "k_cache", "v_cache", "a")
    layer.whole("MatMulV3", AIC, CUBES, "a", "wo", "o")
    layer.each("AddResidual", HIDDEN, "o", "h", "r")
    layer.norm("r", "g1", "m")
    layer.each("QuantRow", HIDDEN, "m", "mq")
    layer.whole("MatMulGate", AIC, CUBES, "m", "wg", "scores")
    layer.each("SigmoidScores", SCORES, "scores", "gates")
    layer.each("AddBias", SCORES, "gates", "bias", "biased")
    layer.whole("MoeGatingTopK", AIV, VECTORS, "biased", "chosen")
    layer.whole("MoeInitRouting", AIV, VECTORS, "mq", "chosen", "routed")
    layer.whole("GroupedMatmul", AIC, CUBES, "routed", "w1", "e1")
    layer.whole("MatMulShared", AIC, CUBES, "mq", "ws1", "s1")
    layer.swiglu("e1", "e2")
    layer.swiglu("s1", "s2")
    layer.whole("GroupedMatmul", AIC, CUBES, "e2", "w2", "e3")
    layer.whole("MatMulShared", AIC, CUBES, "s2", "ws2", "s3")
    layer.each("DequantExperts", HIDDEN, "e3", "e4")
    layer.each("DequantShared", HIDDEN, "s3", "s4")
    layer.each("MulShared", HIDDEN, "s4", "share", "s5")
    layer.whole("MoeFinalizeRouting", AIV, VECTORS, "e4", "chosen", "f")
    layer.each("AddShared", HIDDEN, "f", "s5", "t")
    layer.each("AddOut", HIDDEN, "t", "r", "out")
    layer.each("Cast", HIDDEN, "out", "out16")
    return layer.entries
