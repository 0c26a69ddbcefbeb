#!/usr/bin/env python3
"""Times PyTorch's training steps of the models of examples/, eager, on the CPU.

  steps_torch.py resnet|llama|dlrm [threads] [steps] [bf16] [compile] [profile]

resnet: ResNet-50 at 224 x 224, batch 16, channels last, SGD with momentum. llama: 160m, batch 4 of 256 tokens, AdamW.
dlrm: 26 tables of 10^6 rows x 64, batch 2048, sparse gradients, SGD. The same of ours:

  resnet --size=50 --image_size=224 --batch=16 --steps=8 --eval_batches=0
  llama --size=160m --batch=4 --context=256 --steps=8 --eval_batches=0
  dlrm --rows=1000000 --width=64 --batch=2048 --optimizer=sgd --steps=20 --eval_batches=0

steps.py runs both in turn.
"""
import resource
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


class Bottleneck(nn.Module):
    def __init__(self, width, inner, stride):
        super().__init__()
        out = 4 * inner

        def conv(a, b, k, s=1):
            return nn.Sequential(nn.Conv2d(a, b, k, s, k // 2, bias=False), nn.BatchNorm2d(b))
        self.reduce, self.first, self.last = conv(width, inner, 1), conv(inner, inner, 3, stride), conv(inner, out, 1)
        self.shortcut = conv(width, out, 1, stride) if width != out or stride > 1 else nn.Identity()

    def forward(self, x):
        y = F.relu(self.reduce(x), inplace=True)
        y = F.relu(self.first(y), inplace=True)
        return F.relu(self.last(y) + self.shortcut(x), inplace=True)


class ResNet50(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64))
        blocks, width = [], 64
        for group, (count, inner) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
            for i in range(count):
                blocks.append(Bottleneck(width, inner, 2 if group > 0 and i == 0 else 1))
                width = 4 * inner
        self.blocks, self.output = nn.Sequential(*blocks), nn.Linear(width, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.stem(x), inplace=True), 3, 2, 1)
        return self.output(self.blocks(x).mean((2, 3)))


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x):
        if hasattr(F, "rms_norm"):
            return F.rms_norm(x, x.shape[-1:], self.gamma.to(x.dtype), 1e-5)
        return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5).to(x.dtype) * self.gamma.to(x.dtype)


class LlamaBlock(nn.Module):
    def __init__(self, width=768, heads=12, kv_heads=4, depth=64, inner=3328):
        super().__init__()
        self.heads, self.kv_heads, self.depth = heads, kv_heads, depth
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * depth, bias=False)
        self.out = nn.Linear(heads * depth, width, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, -1, self.depth).transpose(1, 2).split(
            (self.heads, self.kv_heads, self.kv_heads), 1)

        def turn(y):
            low, high = y.chunk(2, -1)
            return y * cos + torch.cat((-high, low), -1) * sin
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (turn(k), v))
        q = turn(q)
        if hasattr(F, "scaled_dot_product_attention"):
            mixed = F.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), is_causal=True)
        else:
            hidden = torch.ones(s, s, dtype=torch.bool).triu(1)
            mixed = ((q @ k.transpose(-1, -2)) / self.depth ** 0.5).masked_fill(hidden, float("-inf")).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(b, s, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, width=768, layers=12, vocabulary=32000):
        super().__init__()
        self.kind = torch.float32  # of activations
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width) for _ in range(layers))
        self.norm, self.output = RmsNorm(width), nn.Linear(width, vocabulary, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, tokens):
        angles = torch.outer(torch.arange(tokens.shape[1]).float(), 500000.0 ** (-torch.arange(0, 64, 2) / 64))
        angles = torch.cat((angles, angles), -1)
        x, cos, sin = (t.to(self.kind) for t in (self.embedding(tokens), angles.cos(), angles.sin()))
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.output(self.norm(x))


class Dlrm(nn.Module):
    def __init__(self, tables=26, rows=10 ** 6, width=64, dense=13):
        super().__init__()
        self.tables = nn.ModuleList()
        for _ in range(tables):
            weight = torch.empty(rows, width).uniform_(-1e-3, 1e-3)
            self.tables.append(nn.Embedding(rows, width, sparse=True, _weight=weight))

        def mlp(*sizes):
            layers = []
            for a, b in zip(sizes, sizes[1:]):
                layers += [nn.Linear(a, b), nn.ReLU()]
            return layers
        vectors = tables + 1
        self.pairs = torch.tril_indices(vectors, vectors, -1)
        self.bottom = nn.Sequential(*mlp(dense, 64, 32, width))
        self.top = nn.Sequential(*mlp(width + vectors * tables // 2, 64, 64, 32, 32, 1)[:-1])

    def forward(self, dense, ids):
        x = self.bottom(dense)
        vectors = torch.stack([x] + [table(ids[:, i]).to(x.dtype) for i, table in enumerate(self.tables)], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat((x, products), 1)).flatten()


def make(name):
    """The model, its optimizer, and a batch's loss."""
    if name == "resnet":
        model = ResNet50().to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
        x, t = torch.rand(16, 3, 224, 224).to(memory_format=torch.channels_last), torch.randint(0, 10, (16,))
        return model, optimizer, lambda: F.cross_entropy(model(x).float(), t)
    if name == "llama":
        model = Llama()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
        tokens, t = torch.randint(0, 32000, (4, 256)), torch.randint(0, 32000, (1024,))
        return model, optimizer, lambda: F.cross_entropy(model(tokens).float().flatten(0, 1), t)
    model = Dlrm()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = [(torch.rand(2048, 13), torch.randint(0, 10 ** 6, (2048, 26)), torch.rand(2048).round()) for _ in range(8)]

    def loss():
        batches.append(batches.pop(0))
        dense, ids, t = batches[0]
        return F.binary_cross_entropy_with_logits(model(dense, ids).float(), t)
    return model, optimizer, loss


def main():
    name, options = sys.argv[1], sys.argv[2:]
    numbers = [int(o) for o in options if o.isdigit()] + [None, None]
    torch.set_num_threads(numbers[0] or 1)
    torch.set_flush_denormal(True)
    model, optimizer, loss_of = make(name)
    model.kind = torch.bfloat16 if "bf16" in options else torch.float32
    if "compile" in options:
        loss_of = torch.compile(loss_of)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in options):
            loss = loss_of()
        loss.backward()
        if name == "llama":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()
    for _ in range(2):
        step()
    times = []
    for _ in range(numbers[1] or 6):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    if "profile" in options:
        with torch.profiler.profile() as profile:
            step()
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=50))
        ms = {row.key: row.self_cpu_time_total / 1e3 for row in profile.key_averages()}
        convolutions = sum(own for key, own in ms.items() if "convolution" in key)
        print(f"convolutions {convolutions:.1f} ms, all else {sum(ms.values()) - convolutions:.1f} ms")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"PyTorch {torch.__version__} {' '.join(sys.argv[1:])}: median step {sorted(times)[len(times) // 2] * 1e3:.1f} ms, "
          f"least {min(times) * 1e3:.1f}; {peak:.1f} GB", flush=True)


main()
