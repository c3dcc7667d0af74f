#!/usr/bin/env python3
"""Writes tests/data/quants.gguf, what tests/t_quant.c compares with: make_quants.py OUT.gguf [libggml-base.so]

Needs the Python packages gguf and numpy. In the file:
  T.raw, T.f32    blocks of type T, some with odd scales, and their values as gguf.quants.dequantize gives them
  x.NAME          numbers of several distributions
  T.made.NAME     x.NAME as gguf.quants.quantize packs it
  rms.T.NAME      (key) root of the mean squared error of x.NAME packed by llama.cpp: from the library where one is given, else from the present OUT.gguf
"""
import ctypes
import os
import sys

import numpy as np
import gguf
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

SIMPLE = (T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1)
K = (T.Q4_K, T.Q5_K, T.Q6_K)
N = 8 * 256
# Where a block's F16 numbers lie.
SCALES = {T.Q8_0: (0,), T.Q4_0: (0,), T.Q4_1: (0, 2), T.Q5_0: (0,), T.Q5_1: (0, 2), T.Q4_K: (0, 2), T.Q5_K: (0, 2), T.Q6_K: (208,)}
# Normal, negative, subnormal, largest, infinite, NaN
ODD = (0x2c00, 0xa9a5, 0x0001, 0x83ff, 0x7bff, 0x7c00, 0xfc00, 0x7e00, 0x0000, 0x8000)


def blocks(rng, t):
    elems, size = gguf.GGML_QUANT_SIZES[t]
    n = len(ODD) if elems == 32 else 4
    b = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for i in range(n):
        for k, at in enumerate(SCALES[t]):
            odd = ODD[(i + k) % len(ODD)] if elems == 32 else (0x2c00, 0x83ff, ODD[5 + k], 0x1c3b)[i]
            b[i, at : at + 2] = odd & 255, odd >> 8
    return b


def numbers(rng):
    gauss = rng.standard_normal(N)
    edge = gauss * np.repeat(10.0 ** np.array([0, -36, -30, -7, -6, -4, 3, 4.5]), 256)
    edge[0:64] = 0
    edge[64:96] *= -1e-5
    edge[96:128] = 1.5
    edge[128:160] = -1.5
    return {
        "gauss": gauss * 0.02,
        "student": rng.standard_t(2, N) * 0.02,
        "outliers": np.where(rng.random(N) < 0.004, gauss * 2, gauss * 0.02),
        "positive": rng.exponential(1, N),
        "sparse": np.where(rng.random(N) < 0.9, 0, gauss),
        "edge": edge,
    }


def llama(lib, x, t):
    elems, size = gguf.GGML_QUANT_SIZES[t]
    out = np.empty(x.size // elems * size, np.uint8)
    f = getattr(lib, "quantize_" + t.name.lower().replace("k", "K"))
    f.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    f(x.ctypes.data, out.ctypes.data, 1, x.size, None)
    return out


def rms(x, packed, t):
    y = dequantize(packed.reshape(1, -1), t).ravel()
    return np.sqrt(np.mean((y.astype(np.float64) - x) ** 2))


def figures(path, lib_path, x):
    if lib_path is None:
        old = gguf.GGUFReader(path).fields
        return {k: float(f.parts[f.data[0]][0]) for k, f in old.items() if k.startswith("rms.")}
    lib = ctypes.CDLL(lib_path)
    return {f"rms.{t.name}.{n}": rms(v, llama(lib, v, t), t) for t in K for n, v in x.items() if n != "edge"}


def main(path, lib_path=None):
    rng = np.random.default_rng(20)
    x = {n: np.ascontiguousarray(v, np.float32) for n, v in numbers(rng).items()}
    w = gguf.GGUFWriter(path + ".new", "quants")
    for k, v in sorted(figures(path, lib_path, x).items()):
        w.add_float32(k, v)
    for t in SIMPLE + K:
        b = blocks(rng, t)
        w.add_tensor(t.name + ".raw", b.reshape(1, -1), raw_dtype=t)
        w.add_tensor(t.name + ".f32", dequantize(b.reshape(1, -1), t))
    for n, v in x.items():
        w.add_tensor("x." + n, v)
        for t in SIMPLE:
            w.add_tensor(f"{t.name}.made.{n}", quantize(v.reshape(1, -1), t), raw_dtype=t)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    os.replace(path + ".new", path)


if __name__ == "__main__":
    np.seterr(all="ignore")
    main(*sys.argv[1:])
