#!/usr/bin/env python3
"""Times a layer of experts in PyTorch on the rows of tests/oneflow_like/experts_benchmark.cc.

  experts_torch.py [threads] [bf16] [only=REGEX]

Experts are taken one after another: their tokens by index_select, results by index_add.
"""
import torch
from torch.nn import functional as F

from timing import Rows

TOKENS, WIDTH, INNER, EXPERTS, TOP = 4096, 512, 1024, 8, 2


def main():
    rows = Rows()
    torch.manual_seed(1)
    x = (2 * torch.rand(TOKENS, WIDTH) - 1).to(rows.dtype)
    gate = (0.02 * torch.randn(WIDTH, EXPERTS)).requires_grad_()
    bound = (6 / (WIDTH + INNER)) ** 0.5
    up = ((2 * torch.rand(EXPERTS, WIDTH, INNER) - 1) * bound).requires_grad_()
    down = ((2 * torch.rand(EXPERTS, INNER, WIDTH) - 1) * bound).requires_grad_()
    optimizer = torch.optim.SGD([gate, up, down], lr=0.1)

    def forward():
        scores = (x.float() @ gate).softmax(-1)
        weights, chosen = scores.topk(TOP, -1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        wide, narrow = up.to(x.dtype), down.to(x.dtype)
        y = torch.zeros_like(x)
        for e in range(EXPERTS):
            token, place = (chosen == e).nonzero(as_tuple=True)
            hidden = F.gelu(x.index_select(0, token) @ wide[e], approximate="tanh")
            y = y.index_add(0, token, (hidden @ narrow[e]) * weights[token, place, None])
        return y.float().square().mean()

    def train(loss):
        def run():
            with torch.enable_grad():
                optimizer.zero_grad()
                loss().backward()
                optimizer.step()
        return run

    name = "bf16" if rows.dtype == torch.bfloat16 else "fp32"
    for kind, loss in (("", forward), ("_compiled", torch.compile(forward))):
        rows.row(name + "_forward" + kind, loss)
        rows.row(name + "_training" + kind, train(loss))


main()
