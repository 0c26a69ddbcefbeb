"""Trains in double with PyTorch the models that llama.cc trained, and compares their losses: llama.py FILE.

Each of the twenty losses agrees within 1e-5 of itself; PyTorch's own in fp32 are up to 3e-5 from those in double. The
model is written out here: root-mean-square norms, rotary positions by complex numbers, grouped queries, SwiGLU.
"""
import math
import sys

import torch
from torch import optim
from torch.nn import functional as F

import losses

TOLERANCE = 1e-5


def norm(x, gamma, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gamma


def turns(width, n):
    """Radians from one position to the next, for each pair; stretched as Llama 3.1 does."""
    frequency = n["base"] ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    if n["trained"] > 0:
        turned = n["trained"] * frequency / (2 * math.pi)
        keep = ((turned - n["low"]) / (n["high"] - n["low"])).clamp(0, 1)
        frequency = frequency * (keep + (1 - keep) / n["factor"])
    return frequency


def rotate(x, n):
    """x[b s h d]; pair i is elements i and i + d / 2."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * turns(x.shape[-1], n)
    unit = torch.polar(torch.ones_like(angles), angles)[None, :, None, :]
    turned = torch.complex(x[..., :half], x[..., half:]) * unit
    return torch.cat([turned.real, turned.imag], -1)


def attend(w, at, x, n):
    def project(name):
        y = torch.einsum("bsw,whd->bshd", x, w[at + name])
        return y + w[at + name + "_bias"] if at + name + "_bias" in w else y

    q, k, v = rotate(project("q"), n), rotate(project("k"), n), project("v")
    group = q.shape[2] // k.shape[2]
    k, v = (t.repeat_interleave(group, 2) for t in (k, v))
    scores = torch.einsum("bshd,bthd->bhst", q, k) / math.sqrt(q.shape[-1])
    hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    mixed = torch.einsum("bhst,bthd->bshd", scores.masked_fill(hidden, -math.inf).softmax(-1), v)
    return torch.einsum("bshd,hdw->bsw", mixed, w[at + "out"])


def swiglu(x, gate, up, down):
    return (F.silu(x @ gate) * (x @ up)) @ down


def experts(w, at, x, n):
    """Expert by expert, the choices of the greatest weights that there is room for; and the loss that spreads them."""
    scores = (x @ w[at + "gate"]).softmax(-1)
    count, k, tokens = scores.shape[-1], int(n["top_k"]), x.shape[1]
    weights, chosen = scores.topk(k, -1)
    if n["normalise"]:
        weights = weights / weights.sum(-1, keepdim=True)
    room = min(tokens, math.ceil(n["capacity"] * k * tokens / count))
    rows = []
    for b in range(x.shape[0]):
        row = torch.zeros_like(x[b])
        for e in range(count):
            token, j = (chosen[b] == e).nonzero(as_tuple=True)
            kept = weights[b, token, j].topk(min(room, len(token))).indices
            token, j = token[kept], j[kept]
            y = swiglu(x[b, token], w[at + "up_gate"][e], w[at + "up"][e], w[at + "down"][e])
            row = row.index_add(0, token, weights[b, token, j, None] * y)
        rows.append(row)
    y = torch.stack(rows)
    if at + "shared_gate" in w:
        shared = swiglu(x, *(w[at + "shared/" + name] for name in ("gate", "up", "down")))
        y = y + (x @ w[at + "shared_gate"]).sigmoid() * shared
    used = F.one_hot(chosen, count).double().mean((1, 2))
    return y, count * (used * scores.mean(1)).sum(-1).mean()


def loss_of(w, tokens, targets, n):
    x, spread = w["embedding"][tokens], 0
    for i in range(int(n["layers"])):
        at = f"block{i}/"
        x = x + attend(w, at + "attention/", norm(x, w[at + "norm1/gamma"], n["eps"]), n)
        y = norm(x, w[at + "norm2/gamma"], n["eps"])
        if at + "experts/gate" in w:
            y, one = experts(w, at + "experts/", y, n)
            x, spread = x + y, spread + one
        else:
            x = x + swiglu(y, *(w[at + "mlp/" + name] for name in ("gate", "up", "down")))
    logits = norm(x, w["norm/gamma"], n["eps"]) @ w.get("output", w["embedding"]).T
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + n["aux_loss"] * spread


def decays(name):
    """As ours: matrices and tables, and neither norms nor biases."""
    return not name.endswith(("gamma", "_bias"))


def losses_of(written, model):
    names = ("layers", "heads", "kv_heads", "eps", "base", "trained", "factor", "low", "high", "top_k", "normalise",
             "capacity", "aux_loss")
    n = dict(zip(names, written[f"{model}:numbers"].tolist()))
    prefix = f"{model}:weight:"
    w = {key[len(prefix):]: t.double().requires_grad_() for key, t in written.items() if key.startswith(prefix)}
    groups = [{"params": [t for name, t in w.items() if decays(name)], "weight_decay": 0.1},
              {"params": [t for name, t in w.items() if not decays(name)], "weight_decay": 0.0}]
    optimizer = optim.AdamW(groups, lr=2e-3)
    found = []
    for step in range(losses.STEPS):
        tokens, targets = (written[f"{model}:{kind}:{step}"].long() for kind in ("tokens", "targets"))
        optimizer.zero_grad()
        loss = loss_of(w, tokens, targets, n)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(w.values()), 1.0)
        optimizer.step()
        found.append(loss.item())
    return found


if __name__ == "__main__":
    sys.exit(losses.compare("llama", sys.argv[1], TOLERANCE, losses_of))
