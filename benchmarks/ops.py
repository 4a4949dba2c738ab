"""The cases of bench_ops: what is computed, at which sizes, with how many operations and how many bytes at least.

Both peers take the cases from here; arrays are theirs, as values do not matter.  Only the standard library is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_F32 = 4


@dataclass(frozen=True)
class Case:
    """One operation at one size.

    Attributes
    ----------
    op : str
    sizes : tuple of int
        matmul (m, k, n); conv (batch, channels in, channels out, image side, kernel side); attention (matrices,
        length, features); einsum (samples, rows and columns, inner); columns such as softmax, norms and gather
        (features, samples); otherwise (elements,).

    An op that ends in "step" is one with its gradients: the result, its sum with weights unless it is a loss, and the
    gradients of all operands that are no masks or ids.
    """

    op: str
    sizes: tuple[int, ...]

    @property
    def precision(self) -> str:
        """Of products of matrices, by the name that both libraries have for it."""
        last = self.op.split()[-1]
        return last if last in ("high", "medium") else "highest"

    @property
    def name(self) -> str:
        """For tables: ``matmul 512x512x512``."""
        return f"{self.op} {'x'.join(map(str, self.sizes))}"

    @property
    def flops(self) -> float:
        """Operations that have to be done; an FMA is two.  A step counts three times."""
        s = self.sizes
        if self.op.endswith(" step"):
            return 3 * Case(self.op.removesuffix(" step"), s).flops
        if self.op.startswith("matmul"):
            return 2.0 * s[0] * s[1] * s[2]
        if self.op.startswith("conv"):
            return 2.0 * s[0] * s[1] * s[2] * s[3] ** 2 * s[4] ** 2
        if self.op.startswith("attention"):
            return (10.0 if "backward" in self.op else 4.0) * s[0] * s[1] ** 2 * s[2]
        if self.op == "einsum":
            return 2.0 * s[0] * s[1] ** 2 * s[2]
        per_element = {"add": 1, "sum": 1, "where": 1, "bce": 8, "gather": 0,
                       "softmax": 5, "layer norm": 8, "layer norm backward": 14, "RMS norm": 4,
                       "RMS norm backward": 11, "softmax-CE": 5, "AdamW": 14}
        return float(per_element[self.op] * self.elements)

    @property
    def elements(self) -> int:
        """Elements of the first operand of an operation without products."""
        return self.sizes[0] * (self.sizes[1] if len(self.sizes) > 1 else 1)

    @property
    def bytes(self) -> float:
        """Bytes that have to be moved, each array once.  A step counts three times."""
        s = self.sizes
        if self.op.endswith(" step"):
            return 3 * Case(self.op.removesuffix(" step"), s).bytes
        if self.op.startswith("matmul"):
            arrays: float = s[0] * s[1] + s[1] * s[2] + s[0] * s[2]
        elif self.op.startswith("conv"):
            arrays = s[0] * s[3] ** 2 * (s[1] + s[2]) + s[1] * s[2] * s[4] ** 2
        elif self.op.startswith("attention"):
            arrays = (8 if "backward" in self.op else 4) * s[0] * s[1] * s[2]
        elif self.op == "einsum":
            arrays = s[0] * s[1] * (2 * s[2] + s[1])
        else:
            per_element = {"add": 3, "sum": 1, "where": 4, "bce": 2, "gather": 2,
                           "softmax": 2, "layer norm": 2, "layer norm backward": 3, "RMS norm": 2,
                           "RMS norm backward": 3, "softmax-CE": 2, "AdamW": 7}
            arrays = per_element[self.op] * self.elements
        return float(_F32 * arrays)


def _cases(matmuls: Any, convs: Any, elements: Any, columns: Any, attentions: Any) -> list[Case]:
    return [
        *(Case(op, s) for s in matmuls for op in ("matmul", "matmul dW", "matmul dX", "matmul high", "matmul medium")),
        *(Case(op, s) for s in convs for op in ("conv", "conv dgrad", "conv wgrad", "conv transposed",
                                                "conv transposed step")),
        *(Case(op, s) for s in elements for op in ("add", "sum", "AdamW", "where", "where step", "bce", "bce step")),
        *(Case(op, s) for s in columns for op in ("softmax", "softmax-CE", "layer norm", "layer norm backward",
                                                  "RMS norm", "RMS norm backward", "gather", "gather step")),
        *(Case(op, s) for s in attentions for op in ("attention", "attention backward", "attention masked",
                                                     "attention masked step", "einsum", "einsum step")),
    ]


SIZES = {  # quick: a second on a software driver; small: a processor; large: a graphics card
    "quick": _cases([(64, 64, 64)], [(2, 4, 8, 8, 3)], [(1 << 14,)], [(32, 64)], [(2, 16, 8)]),
    "small": _cases([(256, 256, 256), (1024, 1024, 1024), (512, 784, 128), (33, 1001, 65)],
                    [(32, 16, 16, 32, 3), (32, 64, 64, 8, 3)], [(1 << 20,), (1 << 24,)],
                    [(128, 1024), (1000, 4096)], [(64, 64, 32), (16, 512, 64)]),
    "large": _cases([(512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192),
                     (512, 784, 128), (128, 8192, 8192), (4097, 1001, 65)],
                    [(32, 16, 16, 32, 3), (64, 64, 64, 56, 3), (64, 256, 256, 14, 3), (64, 256, 512, 28, 1)],
                    [(1 << 20,), (1 << 24,), (1 << 26,)],
                    [(128, 1024), (512, 65536), (4096, 8192), (50257, 2048)],
                     [(64, 64, 32), (128, 1024, 64), (32, 4096, 64)]),
}
# What a card is to be judged by in one short call: columns beside copying, attention, gradients of weights and products
# on matrix units.
_JUDGED = {"softmax", "softmax-CE", "layer norm", "layer norm backward", "RMS norm", "RMS norm backward", "attention",
           "attention backward", "conv wgrad", "matmul", "matmul high", "matmul medium"}
_SMALL = {(128, 1024), (64, 64, 32), (32, 16, 16, 32, 3)}
SIZES["judged"] = [case for case in SIZES["large"] if case.op in _JUDGED and case.sizes not in _SMALL and (
    not case.op.startswith("matmul") or case.sizes == (4096, 4096, 4096))]
SIZES["judged quick"] = [case for case in SIZES["quick"] if case.op in _JUDGED]
