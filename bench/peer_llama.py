#!/usr/bin/env python3
"""peer_llama.py MODEL.gguf --prompt N --steps N --threads N: prompt and decode speed of llama.cpp (through llama-cpp-python) on random tokens, as one
JSON object. For comparison alone: no program here needs Python."""
import argparse
import ctypes
import json
import random
import statistics
import time

import llama_cpp as ll

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--prompt", type=int, default=512)
parser.add_argument("--steps", type=int, default=48)
parser.add_argument("--threads", type=int, default=2)
a = parser.parse_args()

quiet = ll.llama_log_callback(lambda level, text, data: None)  # kept: the library calls it later
ll.llama_log_set(quiet, ctypes.c_void_p(0))
ll.llama_backend_init()
mp = ll.llama_model_default_params()
mp.n_gpu_layers = 0
model = ll.llama_model_load_from_file(a.model.encode(), mp)
if not model:
    raise SystemExit(f"peer_llama.py: llama.cpp does not load {a.model}")
cp = ll.llama_context_default_params()
cp.n_ctx = a.prompt + a.steps + 8
cp.n_batch = cp.n_ubatch = max(a.prompt, 1)
cp.n_threads = cp.n_threads_batch = a.threads
ctx = ll.llama_init_from_model(model, cp)
n_vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(model))
rng = random.Random(1)


def decode(tokens):
    array = (ll.llama_token * len(tokens))(*tokens)
    t0 = time.perf_counter()
    if ll.llama_decode(ctx, ll.llama_batch_get_one(array, len(tokens))) != 0:
        raise SystemExit("peer_llama.py: llama_decode failed")
    ll.llama_get_logits_ith(ctx, -1)
    return time.perf_counter() - t0


def draw(n):
    return [rng.randrange(300, n_vocab) for _ in range(n)]


decode(draw(4))  # pages and threads are there
prompt = decode(draw(a.prompt)) if a.prompt > 0 else None
steps = [decode(draw(1)) for _ in range(a.steps)]
print(
    json.dumps(
        {
            "program": "llama.cpp",
            "version": ll.__version__,
            "threads": a.threads,
            "prompt_tokens_per_second": a.prompt / prompt if prompt else None,
            "tokens_per_second": len(steps) / sum(steps),
            "step_ms": {"median": 1e3 * statistics.median(steps), "least": 1e3 * min(steps)},
        },
        separators=(",", ":"),
    )
)
