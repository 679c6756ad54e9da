"""Stage 18, one kernel: a decode step on a CPU is one compiled function, from token ids to the chosen tokens.

What was slow:  starting operations. Stage 13 recorded a step's operations, and the host still starts them one by one:
                PyTorch checks and allocates for each, and the threads wait for each other after each. With a small
                model this takes longer than the arithmetic.
The change:     the whole step is loops in one function, which Numba compiles: norms, products, attention over the
                paged pool, GELU and argmax. Matrices are row-major: with one row of x, a product reads its matrix from
                end to end.
What it gives:  the host makes one call, and no time passes between operations. The function takes any number of rows,
                so a batch needs no padding.
Where it loses: large batches: a product in three plain loops does not keep its numbers in registers, as a library's
                does. The function is written for one architecture, GPT-2 in float32 on a CPU; other models run as in
                stage 17. Each matrix is in memory once more. The first process waits for the compiler.

On a GPU such a function is a megakernel: "Look Ma, No Bubbles!" (Hazy Research, 2025) computes Llama's forward so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from roseinfer.graphs.operation import operation
from roseinfer.kernels.numba_calls import compiled, run_parallel
from roseinfer.kernels.paged_numba import SUMS
from roseinfer.models import Model
from roseinfer.models.gpt2 import GPT2

from .s17_policies import Policies


class Weights(NamedTuple):
    """Weights of GPT-2. Those of the layers are stacked: qkv[i] [3 C, C] is layer i's, and norm_1[i] [2, C] has its
    weight and its bias."""

    tokens: np.ndarray
    positions: np.ndarray
    norm_1: np.ndarray
    qkv: np.ndarray
    qkv_bias: np.ndarray
    out: np.ndarray
    out_bias: np.ndarray
    norm_2: np.ndarray
    up: np.ndarray
    up_bias: np.ndarray
    down: np.ndarray
    down_bias: np.ndarray
    last_norm: np.ndarray
    head: np.ndarray
    head_bias: np.ndarray


def weights_of(model: GPT2) -> Weights:
    blocks: Any = model.h
    last: Any = model.ln_f
    output: Any = model.wte if model.lm_head is None else model.lm_head

    def stack(name: str) -> np.ndarray:
        return torch.stack([block.get_parameter(name).detach() for block in blocks]).numpy()

    def norms(name: str) -> np.ndarray:
        return np.stack([stack(f"{name}.weight"), stack(f"{name}.bias")], axis=1)

    return Weights(
        tokens=model.wte.weight.detach().numpy(), positions=model.wpe.weight.detach().numpy(),
        norm_1=norms("ln_1"), qkv=stack("attn.c_attn.weight"), qkv_bias=stack("attn.c_attn.bias"),
        out=stack("attn.c_proj.weight"), out_bias=stack("attn.c_proj.bias"),
        norm_2=norms("ln_2"), up=stack("mlp.c_fc.weight"), up_bias=stack("mlp.c_fc.bias"),
        down=stack("mlp.c_proj.weight"), down_bias=stack("mlp.c_proj.bias"),
        last_norm=torch.stack([last.weight.detach(), last.bias.detach()]).numpy(),
        head=output.weight.detach().numpy(), head_bias=np.zeros(len(output.weight), np.float32),
    )  # fmt: skip


@njit(fastmath=SUMS)
def norm(out, x, weight, eps):
    for n in range(len(x)):
        mean, squares, width = np.float32(0), np.float32(0), np.float32(x.shape[1])
        for value in x[n]:
            mean += value / width
        for value in x[n]:
            squares += (value - mean) * (value - mean)
        scale = np.float32(1) / np.sqrt(squares / width + eps)
        for i in range(x.shape[1]):
            out[n, i] = (x[n, i] - mean) * scale * weight[0, i] + weight[1, i]


@njit(parallel=True, fastmath=SUMS)
def product(out, x, weight, bias):
    """x @ weight.T + bias. A task is a row of the weight: it is read once, and meets all rows of x."""
    for m in prange(len(weight)):
        row = weight[m]
        for n in range(len(x)):
            total = np.float32(0)
            for k in range(len(row)):
                total += x[n, k] * row[k]
            out[n, m] = total + bias[m]


@njit(parallel=True, fastmath=SUMS)
def gelu(x):
    """In place; z * sigmoid(2 a) is z * (1 + tanh(a)) / 2."""
    for i in prange(x.shape[1]):
        for n in range(len(x)):
            z = x[n, i]
            a = np.float32(0.7978845608) * (z + np.float32(0.044715) * z * z * z)
            x[n, i] = z / (np.float32(1) + np.exp(-2 * a))


@njit(parallel=True, fastmath=SUMS)
def attend(out, heads, k_pool, v_pool, slot_mapping, context_lens, block_tables):
    """heads [N, 3 H, D]: q, k and v. A task is one head of one sequence. It writes its own K and V, and then reads only
    that head's: so tasks need not wait for each other."""
    num_heads, block_size, head_dim = k_pool.shape[1:]
    scale = np.float32(head_dim) ** np.float32(-0.5)
    for task in prange(len(heads) * num_heads):
        n, h = task // num_heads, task % num_heads
        block, offset = divmod(slot_mapping[n], block_size)
        k_pool[block, h, offset], v_pool[block, h, offset] = heads[n, num_heads + h], heads[n, 2 * num_heads + h]
        scores = np.empty(context_lens[n], np.float32)
        for t in range(len(scores)):
            key, score = k_pool[block_tables[n, t // block_size], h, t % block_size], np.float32(0)
            for d in range(head_dim):
                score += heads[n, h, d] * key[d]
            scores[t] = score * scale
        top, total = scores.max(), np.float32(0)
        out[n, h] = 0
        for t in range(len(scores)):
            weight, value = np.exp(scores[t] - top), v_pool[block_tables[n, t // block_size], h, t % block_size]
            total += weight
            for d in range(head_dim):
                out[n, h, d] += weight * value[d]
        out[n, h] /= total


@njit
def choose(tokens, logits):
    for n in range(len(logits)):
        best = np.argmax(logits[n])  # the first of equal ones, or the first NaN
        tokens[n] = best if np.isfinite(logits[n, best]) else -1


@compiled()  # once for all models: their sizes are not part of the types
def decode_kernel(w, eps, token_ids, positions, slot_mapping, context_lens, block_tables, pool, logits, tokens):
    """One token of each sequence. pool [2, L, blocks, H, block_size, D]; results are written to logits and tokens."""
    num_rows, width = len(token_ids), w.tokens.shape[1]
    x, qkv = np.empty((num_rows, width), np.float32), np.empty((num_rows, 3 * width), np.float32)
    y, z, mid = np.empty_like(x), np.empty_like(x), np.empty((num_rows, w.up.shape[1]), np.float32)
    heads, out = qkv.reshape(num_rows, -1, pool.shape[5]), y.reshape(num_rows, -1, pool.shape[5])  # the same memory
    for n in range(num_rows):
        x[n] = w.tokens[token_ids[n]] + w.positions[positions[n]]
    for i in range(len(w.qkv)):
        norm(y, x, w.norm_1[i], eps)
        product(qkv, y, w.qkv[i], w.qkv_bias[i])
        attend(out, heads, pool[0, i], pool[1, i], slot_mapping, context_lens, block_tables)
        product(z, y, w.out[i], w.out_bias[i])
        x += z
        norm(y, x, w.norm_2[i], eps)
        product(mid, y, w.up[i], w.up_bias[i])
        gelu(mid)
        product(z, mid, w.down[i], w.down_bias[i])
        x += z
    norm(y, x, w.last_norm, eps)
    product(logits, y, w.head, w.head_bias)
    choose(tokens, logits)


class OneKernel(Policies):
    """Policies whose decode step is decode_kernel, for GPT-2 in float32 on a CPU. Any other model runs as in stage 17.

    The graph of a batch size then holds one operation, and there is one for each size: no padding.
    """

    name = "s18_one_kernel"
    kernel = staticmethod(decode_kernel)

    def __init__(self, model: Model, *, num_blocks: int, **settings: Any) -> None:
        super().__init__(model, num_blocks=num_blocks, **settings)
        self.weights = weights_of(model) if has_kernel(model) else None
        self.is_one_function = bool(self.weights)
        if self.weights:
            self.buckets = list(range(1, self.max_num_seqs + 1))
        self.one_operation = operation(self.run_kernel)

    def static_step(self, bucket: int) -> Callable[[], tuple[Tensor, Tensor]]:
        if not self.weights:
            return super().static_step(bucket)
        names = "token_ids", "positions", "slot_mapping", "context_lens", "block_tables"
        inputs = [self.inputs_on_device[name][:bucket] for name in names]
        return lambda: self.one_operation(*inputs, self.pool)

    def run_kernel(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        logits = torch.empty(len(inputs[0]), self.config.vocab_size)
        tokens = torch.empty(len(inputs[0]), dtype=torch.int64)
        arrays = (x.numpy() for x in (*inputs, logits, tokens))
        run_parallel(self.kernel, self.weights, np.float32(self.config.norm_eps), *arrays)
        return logits, tokens


def has_kernel(model: Model) -> bool:
    """Whether decode_kernel computes this model: GPT-2 in float32 on a CPU, with as many KV heads as heads."""
    if not isinstance(model, GPT2) or model.dtype != torch.float32 or model.device.type != "cpu":
        return False
    c = model.config
    return c.num_kv_heads == c.num_heads and c.num_heads * c.head_dim == c.hidden_size
