"""Compressing gradients with error feedback: what was not sent is kept and added next time.

The codecs themselves are the protocol's (``fdtc``). Error feedback follows EF-SGD (arXiv 1901.09847). May import:
``fdtc``.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import fdtc
from fdtc import Compression, TensorSpec

Vector = NDArray[np.float32]


class Compressor:
    """One worker's side of compression.

    Args:
        specs: The tensors, in the order in which they travel.
        compression: The codec.
        topk_ratio: Part of each tensor's entries that TOPK sends.
        levels: Quantisation levels of QSGD.
        seed: Of QSGD's random rounding.
    """

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        compression: Compression,
        *,
        topk_ratio: float = 0.1,
        levels: int = 255,
        seed: int = 0,
    ) -> None:
        self.specs = tuple(specs)
        self.compression = compression
        self.topk_ratio = topk_ratio
        self.levels = levels
        self._random = np.random.default_rng(seed)
        size = sum(spec.numel for spec in self.specs)
        # QSGD is unbiased, so its errors cancel over time by themselves. It is also no contraction once a tensor has
        # more entries than levels squared: fed back, its error would grow without bound (QSGD, lemma 3.1).
        self._feeds_back = compression in (Compression.TOPK, Compression.FP16)
        self.residual: Vector | None = np.zeros(size, np.float32) if self._feeds_back else None
        self._sent: Vector | None = np.empty(size, np.float32) if self._feeds_back else None

    def compress(self, gradient: Vector) -> memoryview:
        """Encode a gradient, and what earlier ones left behind; keep what this one leaves.

        Args:
            gradient: Flat float32 vector in the order of `specs`; only read.

        Returns:
            The tensor data of a GRADIENTS message. Under NONE it is a view of `gradient`.
        """
        if self.residual is None:
            return self._encode(gradient)
        self.residual += gradient
        data = self._encode(self.residual)
        self.residual -= fdtc.decode_tensors(data, self.specs, self.compression, self._sent)
        return data

    def _encode(self, vector: Vector) -> memoryview:
        return memoryview(
            fdtc.encode_tensors(
                vector,
                self.specs,
                self.compression,
                topk_ratio=self.topk_ratio,
                levels=self.levels,
                rng=self._random,
            )
        )
