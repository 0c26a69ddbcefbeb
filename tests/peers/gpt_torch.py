#!/usr/bin/env python3
"""Trains one of bench's two GPTs with PyTorch on the CPU and prints one JSON object: tokens/s of the median step.

The same model as examples/gpt_model.cc: pre-layer-norm blocks, separate biased projections, tanh gelu, learned
positions, output tied to the embedding, dropout 0, AdamW with decay on matrices only, loss read after every step.
"""
import argparse
import json
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

MODELS = {  # layers, width, heads, context, vocabulary, batch: as MeasuredModels() in tests/bench/bench_gpt.cc
    "10.8M": (6, 384, 6, 256, 256, 8),
    "124M": (12, 768, 12, 256, 50304, 4),
}


class Block(nn.Module):
    def __init__(self, width, heads, context):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("hidden", torch.ones(context, context, dtype=torch.bool).triu(1), persistent=False)

    def attend(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(width, 2))
        if hasattr(F, "scaled_dot_product_attention"):
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(2, 3)) * (width // self.heads) ** -0.5
            mixed = scores.masked_fill(self.hidden[:length, :length], float("-inf")).softmax(3) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, context, vocabulary):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(context, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads, context) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.table(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.table.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="10.8M")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="bf16: autocast")
    parser.add_argument("--compile", action="store_true", help="torch.compile (PyTorch 2 and newer)")
    parser.add_argument("--warm_up", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(1)

    layers, width, heads, context, vocabulary, batch = MODELS[args.model]
    model = Gpt(layers, width, heads, context, vocabulary)
    weights = list(model.parameters())
    groups = [
        {"params": [p for p in weights if p.dim() > 1], "weight_decay": 0.01},
        {"params": [p for p in weights if p.dim() == 1], "weight_decay": 0.0},
    ]
    fused = {"fused": True} if tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 4) else {}
    optimizer = torch.optim.AdamW(groups, lr=3e-4, **fused)
    run = model
    if args.compile:
        if not hasattr(torch, "compile"):
            parser.error("--compile needs PyTorch 2 or newer, this is " + torch.__version__)
        run = torch.compile(model)

    def step():
        tokens = torch.randint(vocabulary, (batch, context + 1))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = run(tokens[:, :-1], tokens[:, 1:].contiguous())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(args.warm_up):
        step()
    seconds = []
    for _ in range(args.steps):
        start = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({
        "tokens_per_s": batch * context / statistics.median(seconds),
        "step_ms": 1e3 * statistics.median(seconds),
        "loss": loss,
        "parameters": sum(p.numel() for p in weights),
        "torch": torch.__version__,
    }))


if __name__ == "__main__":
    main()
