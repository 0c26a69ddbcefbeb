"""The models of examples/ as modules of PyTorch, for those who time their steps (steps_torch.py, steps_cuda.py)."""
import math

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
        """classes None: the features are given."""
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64))
        blocks, width = [], 64
        for group, (count, inner) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
            for i in range(count):
                blocks.append(Bottleneck(width, inner, 2 if group > 0 and i == 0 else 1))
                width = 4 * inner
        self.blocks, self.output = nn.Sequential(*blocks), nn.Linear(width, classes) if classes else nn.Identity()

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
    def __init__(self, width, heads, kv_heads, depth, inner):
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
    """By default 160m."""

    def __init__(self, width=768, layers=12, vocabulary=32000, heads=12, kv_heads=4, depth=64, inner=3328, tied=False):
        super().__init__()
        self.kind, self.depth = torch.float32, depth  # kind: of activations
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, kv_heads, depth, inner) for _ in range(layers))
        self.norm, self.output = RmsNorm(width), nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.output.weight = self.embedding.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, tokens, before=None):
        """before[b p w]: what stands before the tokens, whose logits are not given."""
        x, first = self.embedding(tokens), 0
        if before is not None:
            x, first = torch.cat((before.to(x.dtype), x), 1), before.shape[1]
        place = torch.arange(x.shape[1], device=tokens.device).float()
        angles = torch.outer(place, 500000.0 ** (-torch.arange(0, self.depth, 2, device=tokens.device) / self.depth))
        angles = torch.cat((angles, angles), -1)
        x, cos, sin = (t.to(self.kind) for t in (x, angles.cos(), angles.sin()))
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.output(self.norm(x[:, first:]))


class Dlrm(nn.Module):
    def __init__(self, tables=26, rows=10 ** 6, width=64, dense=13, sparse=True):
        super().__init__()
        self.tables = nn.ModuleList()
        for _ in range(tables):
            weight = torch.empty(rows, width).uniform_(-1e-3, 1e-3)
            self.tables.append(nn.Embedding(rows, width, sparse=sparse, _weight=weight))

        def mlp(*sizes):
            layers = []
            for a, b in zip(sizes, sizes[1:]):
                layers += [nn.Linear(a, b), nn.ReLU()]
            return layers
        vectors = tables + 1
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, -1))
        self.bottom = nn.Sequential(*mlp(dense, 64, 32, width))
        self.top = nn.Sequential(*mlp(width + vectors * tables // 2, 64, 64, 32, 32, 1)[:-1])

    def forward(self, dense, ids):
        x = self.bottom(dense)
        vectors = torch.stack([x] + [table(ids[:, i]).to(x.dtype) for i, table in enumerate(self.tables)], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat((x, products), 1)).flatten()


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, allowed=None, causal=False):
        """allowed[b 1 s t]: which keys a query sees."""
        b, s, w = x.shape
        q, k, v = self.qkv(x).view(b, s, 3 * self.heads, -1).transpose(1, 2).chunk(3, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=causal)
        return self.out(mixed.transpose(1, 2).reshape(b, s, w))


class Block(nn.Module):
    """A block of BERT's (norms behind) or a ViT's (norms before)."""

    def __init__(self, width, heads, norm_first, eps):
        super().__init__()
        self.norm_first, self.attention = norm_first, Attention(width, heads)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, allowed=None):
        if self.norm_first:
            x = x + self.attention(self.norm1(x), allowed)
            return x + self.down(F.gelu(self.up(self.norm2(x))))
        x = self.norm1(x + self.attention(x, allowed))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Vit(nn.Module):
    def __init__(self, width=768, layers=12, heads=12, patch=16, side=224, classes=10):
        """classes None: all tokens are given, normed."""
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn((side // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(Block(width, heads, True, 1e-6) for _ in range(layers)))
        self.norm, self.output = nn.LayerNorm(width, 1e-6), nn.Linear(width, classes) if classes else None

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1).to(x.dtype), x], 1) + self.positions
        if self.output is None:
            return self.norm(self.blocks(x))
        return self.output(self.norm(self.blocks(x)[:, 0]))


class Caption(nn.Module):
    """A Llama that reads a picture before its tokens."""

    def __init__(self, side, eye_layers, layers):
        super().__init__()
        self.eye, self.into_text = Vit(64, eye_layers, 4, 4, side, None), nn.Linear(64, 128)
        self.text = Llama(128, layers, 81, 4, 2, 32, 384)

    def forward(self, images, shown, tokens):
        return self.text(tokens, self.into_text(self.eye(images)) * shown[:, None, None])


class Faces(nn.Module):
    """Scaled cosines to the centres of all identities, the own one's angle greater by a margin."""

    def __init__(self, identities, width, scale=32, margin=0.3):
        super().__init__()
        self.backbone, self.embedding = ResNet50(None), nn.Linear(2048, width, bias=False)
        self.norm, self.scale, self.margin = nn.BatchNorm1d(width), scale, margin
        self.centres = nn.Parameter(0.01 * torch.randn(identities, width))

    def forward(self, images, labels):
        faces = F.normalize(self.norm(self.embedding(self.backbone(images))))
        cosine = F.linear(faces, F.normalize(self.centres)).float()
        own = cosine.gather(1, labels[:, None])
        further = own * math.cos(self.margin) - (1 - own * own).clamp_min(1e-6).sqrt() * math.sin(self.margin)
        target = torch.where(own > -math.cos(self.margin), further, own - self.margin * math.sin(self.margin))
        return self.scale * cosine.scatter(1, labels[:, None], target)


class AdagradRows(torch.optim.Optimizer):
    """One number of state for each row."""

    @torch.no_grad()
    def step(self):
        for p in (p for group in self.param_groups for p in group["params"]):
            state = self.state[p]
            state["sum"] = state.get("sum", 0) + p.grad.square().mean(1)
            p.addcdiv_(p.grad, (state["sum"].sqrt() + 1e-10)[:, None], value=-self.defaults["lr"])


class Bert(nn.Module):
    def __init__(self, width=768, layers=12, heads=12, context=512, vocabulary=258):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(0.02 * torch.randn(context, width))
        self.first, self.last = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)
        self.blocks = nn.ModuleList(Block(width, heads, False, 1e-12) for _ in range(layers))
        self.transform, self.bias = nn.Linear(width, width), nn.Parameter(torch.zeros(vocabulary))
        nn.init.normal_(self.embedding.weight, 0, 0.02)

    def forward(self, tokens, padding):
        seen = (padding[:, :, None] == padding[:, None])[:, None]
        x = self.first(self.embedding(tokens) + self.positions[:tokens.shape[1]])
        for block in self.blocks:
            x = block(x, seen)
        x = self.last(F.gelu(self.transform(x)))
        return x @ self.embedding.weight.T.to(x.dtype) + self.bias


class Experts(nn.Module):
    """Tokens sorted by expert; products of all experts by PyTorch's grouped product, where it has one that takes them."""

    def __init__(self, width, inner, experts, top_k):
        super().__init__()
        self.experts, self.top_k = experts, top_k
        self.gate = nn.Parameter(0.02 * torch.randn(width, experts))
        self.up = nn.Parameter(0.02 * torch.randn(experts, width, inner))
        self.down = nn.Parameter(0.02 * torch.randn(experts, inner, width))

    def product(self, rows, weights, ends):
        if rows.is_cuda and rows.dtype == torch.bfloat16 and hasattr(torch, "_grouped_mm"):
            return torch._grouped_mm(rows, weights, offs=ends)
        begins = [0] + ends.tolist()
        return torch.cat([rows[a:b] @ w for a, b, w in zip(begins, begins[1:], weights)])

    def forward(self, x):
        tokens = x.flatten(0, 1)
        scores = (tokens.float() @ self.gate).softmax(-1)
        weights, chosen = scores.topk(self.top_k, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        ends = torch.bincount(chosen.flatten(), minlength=self.experts).cumsum(0).to(torch.int32)
        kind = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
        rows = tokens.index_select(0, order // self.top_k).to(kind)
        y = F.gelu(self.product(rows, self.up.to(kind), ends), approximate="tanh")
        y = self.product(y, self.down.to(kind), ends) * weights.flatten()[order, None].to(kind)
        used = torch.bincount(chosen.flatten(), minlength=self.experts) / chosen.numel()
        spread = self.experts * (used * scores.mean(0)).sum()
        return torch.zeros_like(tokens).index_add(0, order // self.top_k, y.to(tokens.dtype)).view(x.shape), spread


class Moe(nn.Module):
    def __init__(self, width, layers, heads, context, experts, top_k, vocabulary=256):
        super().__init__()
        inner = 2 * width
        self.embedding, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(0.02 * torch.randn(context, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.attentions = nn.ModuleList(Attention(width, heads) for _ in range(layers))
        self.experts = nn.ModuleList(Experts(width, inner, experts, top_k) for _ in range(layers))
        self.output = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x, spread = self.embedding(tokens) + self.positions, 0
        for i, (attention, experts) in enumerate(zip(self.attentions, self.experts)):
            x = x + attention(self.norms[2 * i](x), causal=True)
            given, one = experts(self.norms[2 * i + 1](x))
            x, spread = x + given, spread + one
        return self.output(self.norms[-1](x)), spread


class Unet(nn.Module):
    class Part(nn.Module):
        def __init__(self, inputs, width, time, groups):
            super().__init__()
            self.norm1, self.norm2 = nn.GroupNorm(groups, inputs), nn.GroupNorm(groups, width)
            self.first, self.last = nn.Conv2d(inputs, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
            self.time = nn.Linear(time, width)
            self.shortcut = nn.Conv2d(inputs, width, 1) if inputs != width else nn.Identity()

        def forward(self, x, time):
            y = self.first(F.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
            return self.last(F.silu(self.norm2(y))) + self.shortcut(x)

    def __init__(self, width=16, groups=4):
        super().__init__()
        w, self.width = width, width
        self.time1, self.time2 = nn.Linear(w, 4 * w), nn.Linear(4 * w, 4 * w)
        self.begin, self.end = nn.Conv2d(3, w, 3, padding=1), nn.Conv2d(w, 3, 3, padding=1)
        self.to_half, self.to_quarter = nn.Conv2d(w, 2 * w, 3, 2, 1), nn.Conv2d(2 * w, 4 * w, 3, 2, 1)
        self.norm = nn.GroupNorm(groups, w)
        parts = (("down_full", w, w), ("down_half", 2 * w, 2 * w), ("quarter", 4 * w, 4 * w), ("up_half", 6 * w, 2 * w),
                 ("up_full", 3 * w, w))
        self.parts = nn.ModuleDict({name: self.Part(inputs, out, 4 * w, groups) for name, inputs, out in parts})

    def forward(self, noisy, time):
        place = torch.arange(self.width, device=time.device)
        angle = time.float()[:, None] * 1e4 ** (-2.0 * (place // 2) / self.width)
        hidden = F.silu(self.time1(torch.where(place % 2 == 0, angle.sin(), angle.cos())))
        hidden = F.silu(self.time2(hidden))
        full = self.parts["down_full"](self.begin(noisy), hidden)
        half = self.parts["down_half"](self.to_half(full), hidden)
        x = self.parts["quarter"](self.to_quarter(half), hidden)
        x = self.parts["up_half"](torch.cat([F.interpolate(x, scale_factor=2), half], 1), hidden)
        x = self.parts["up_full"](torch.cat([F.interpolate(x, scale_factor=2), full], 1), hidden)
        return self.end(F.silu(self.norm(x)))
