"""Trains in double with PyTorch the models that programs.cc trained, and compares their losses: programs.py FILE.

Each of the twenty losses agrees within 1e-4 of itself. The models are written out here with PyTorch's functions.
"""
import math
import sys

import torch
from torch import optim
from torch.nn import functional as F

import losses

TOLERANCE = 1e-4


# --- Pictures ---

def conv_norm(w, at, x, stride, parts):
    """A filter [k r s c] and the statistics of each of so many parts of the batch."""
    filters = w[at + "weight"].permute(0, 3, 1, 2)
    x = F.conv2d(x, filters, stride=stride, padding=filters.shape[2] // 2)
    gamma, beta = w[at + "norm/gamma"], w[at + "norm/beta"]
    return torch.cat([F.batch_norm(part, None, None, gamma, beta, training=True) for part in x.chunk(parts)])


def resnet_features(groups, parts, large_stem):
    """groups: the group of each block."""
    def features(w, batch):
        x = conv_norm(w, "stem/", batch["images"], 2 if large_stem else 1, parts).relu()
        if large_stem:
            x = F.max_pool2d(x, 3, 2, 1)
        for i, group in enumerate(groups):
            at, stride = f"block{i}/", 2 if i > 0 and group != groups[i - 1] else 1
            y = x
            if at + "reduce/weight" in w:
                y = conv_norm(w, at + "reduce/", y, 1, parts).relu()
            y = conv_norm(w, at + "first/", y, stride, parts).relu()
            y = conv_norm(w, at + "last/", y, 1, parts)
            if at + "shortcut/weight" in w:
                x = conv_norm(w, at + "shortcut/", x, stride, parts)
            x = (x + y).relu()
        return x.mean((2, 3))
    return features


def resnet(groups, parts=1, large_stem=False):
    def loss(w, batch):
        x = resnet_features(groups, parts, large_stem)(w, batch)
        return F.cross_entropy(x @ w["classes/weight"] + w["classes/bias"], batch["labels"].long())
    return loss


def unet(groups):
    def conv(w, at, x, stride=1):
        filters = w[at + "weight"].permute(0, 3, 1, 2)
        return F.conv2d(x, filters, w[at + "bias"], stride=stride, padding=filters.shape[2] // 2)

    def normed(w, at, x):
        return F.silu(F.group_norm(x, groups, w[at + "gamma"], w[at + "beta"]))

    def block(w, at, x, time):
        y = conv(w, at + "first/", normed(w, at + "norm1/", x))
        y = y + (time @ w[at + "time/weight"] + w[at + "time/bias"])[:, :, None, None]
        y = conv(w, at + "last/", normed(w, at + "norm2/", y))
        return y + (conv(w, at + "shortcut/", x) if at + "shortcut/weight" in w else x)

    def loss(w, batch):
        width = w["down/time1/weight"].shape[0]
        place = torch.arange(width)
        angle = batch["time"].double()[:, None] * 1e4 ** (-2.0 * (place // 2) / width)
        waves = torch.where(place % 2 == 0, angle.sin(), angle.cos())
        time = F.silu(waves @ w["down/time1/weight"] + w["down/time1/bias"])
        time = F.silu(time @ w["down/time2/weight"] + w["down/time2/bias"])
        full = block(w, "down/full/", conv(w, "down/begin/", batch["noisy"]), time)
        half = block(w, "down/half/", conv(w, "down/to_half/", full, 2), time)
        x = block(w, "down/quarter/", conv(w, "down/to_quarter/", half, 2), time)
        x = block(w, "up/half/", torch.cat([F.interpolate(x, scale_factor=2), half], 1), time)
        x = block(w, "up/full/", torch.cat([F.interpolate(x, scale_factor=2), full], 1), time)
        return F.mse_loss(conv(w, "up/end/", normed(w, "up/norm/", x)), batch["noise"])
    return loss


# --- Transformers ---

def attend(w, at, x, allowed=None):
    """allowed[b s t]: which keys a query sees."""
    q, k, v = (torch.einsum("bsw,whd->bhsd", x, w[at + n]) + w[at + n + "_bias"][:, None] for n in "qkv")
    mask = None if allowed is None else allowed[:, None]
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return torch.einsum("bhsd,hdw->bsw", mixed, w[at + "out"]) + w[at + "out_bias"]


def norm(w, at, x, eps=1e-5):
    return F.layer_norm(x, x.shape[-1:], w[at + "gamma"], w[at + "beta"], eps)


def feed_forward(w, at, x):
    return F.gelu(x @ w[at + "up"] + w[at + "up_bias"]) @ w[at + "down"] + w[at + "down_bias"]


def vit(layers, patch):
    def loss(w, batch):
        filters = w["patches/weight"].permute(0, 3, 1, 2)
        x = F.conv2d(batch["images"], filters, w["patches/bias"], stride=patch).flatten(2).transpose(1, 2)
        x = torch.cat([w["class_token"].expand(x.shape[0], -1, -1), x], 1) + w["positions"]
        for i in range(layers):
            at = f"block{i}/"
            x = x + attend(w, at + "attention/", norm(w, at + "norm1/", x, 1e-6))
            x = x + feed_forward(w, at + "mlp/", norm(w, at + "norm2/", x, 1e-6))
        logits = norm(w, "norm/", x[:, 0], 1e-6) @ w["classes/weight"] + w["classes/bias"]
        return F.cross_entropy(logits, batch["labels"].long())
    return loss


def moe(layers, top_k, capacity, balance):
    def experts(w, at, x):
        """The rows of x that a queue has room for, expert by expert; and the loss that spreads tokens."""
        gate = (x @ w[at + "gate"]).softmax(-1)
        count = gate.shape[-1]
        room = min(x.shape[1], math.ceil(capacity * top_k * x.shape[1] / count))
        values, chosen = gate.topk(top_k, -1)
        share = values / values.sum(-1, keepdim=True)
        rows = []
        for b in range(x.shape[0]):
            taken, row = [0] * count, torch.zeros_like(x[b])
            for k in range(top_k):
                for t in range(x.shape[1]):
                    e = chosen[b, t, k].item()
                    if taken[e] < room:
                        y = F.gelu(x[b, t] @ w[at + "up"][e], approximate="tanh") @ w[at + "down"][e]
                        row = row + F.one_hot(torch.tensor(t), x.shape[1])[:, None] * share[b, t, k] * y
                    taken[e] += 1
            rows.append(row)
        used = F.one_hot(chosen, count).double().mean((1, 2))
        return torch.stack(rows), count * (used * gate.mean(1)).sum(-1).mean()

    def loss(w, batch):
        tokens = batch["tokens"].long()
        x = w["embedding"][tokens] + w["positions"][:tokens.shape[1]]
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril().expand(x.shape[0], -1, -1)
        spread = 0
        for i in range(layers):
            at = f"block{i}/"
            x = x + attend(w, at + "attention/", norm(w, at + "norm1/", x), seen)
            given, one = experts(w, at + "experts/", norm(w, at + "norm2/", x))
            x, spread = x + given, spread + one
        logits = norm(w, "norm/", x) @ w["output"].T
        return F.cross_entropy(logits.flatten(0, 1), batch["targets"].long().flatten()) + balance * spread
    return loss


def bert(layers):
    def loss(w, batch):
        tokens, padding = batch["tokens"].long(), batch["padding"]
        x = norm(w, "embedding_norm/", w["embedding"][tokens] + w["positions"][:tokens.shape[1]], 1e-12)
        seen = padding[:, :, None] == padding[:, None]
        for i in range(layers):
            at = f"block{i}/"
            x = norm(w, at + "norm1/", x + attend(w, at + "attention/", x, seen), 1e-12)
            x = norm(w, at + "norm2/", x + feed_forward(w, at + "mlp/", x), 1e-12)
        x = norm(w, "transform_norm/", F.gelu(x @ w["transform/weight"] + w["transform/bias"]), 1e-12)
        logits = x @ w["embedding"].T + w["output_bias"]
        return F.cross_entropy(logits.flatten(0, 1), batch["targets"].long().flatten(), ignore_index=-1)
    return loss


# --- Clicks and faces ---

def dlrm(tables, bottom, top):
    def layer(w, at, x):
        return (x @ w[at + "/weight"] + w[at + "/bias"]).relu()

    def loss(w, batch):
        x = batch["dense"]
        for i in range(bottom):
            x = layer(w, f"bottom{i}", x)
        x = layer(w, "bottom_out", x)
        ids = batch["ids"].long()
        vectors = torch.stack([x] + [F.embedding(ids[:, i], w[f"table{i}"]) for i in range(tables)], 1)
        i, j = torch.tril_indices(tables + 1, tables + 1, -1)
        x = torch.cat([x, (vectors @ vectors.transpose(1, 2))[:, i, j]], 1)
        for i in range(top):
            x = layer(w, f"top/block{i}", x)
        logits = x @ w["click/weight"] + w["click/bias"]
        return F.binary_cross_entropy_with_logits(logits[:, 0], batch["labels"])
    return loss


def faces(groups, scale, margin):
    def loss(w, batch):
        features = resnet_features(groups, 1, False)({k[len("backbone/"):]: t for k, t in w.items()}, batch)
        x = F.batch_norm(features @ w["embedding/weight"], None, None, w["embedding_norm/gamma"],
                         w["embedding_norm/beta"], training=True)
        cosine = F.normalize(x) @ F.normalize(w["identities/centres"]).T
        own = F.one_hot(batch["labels"].long(), cosine.shape[1]).bool()
        angle = cosine.clamp(-1 + 1e-9, 1 - 1e-9).acos()
        further = torch.where(angle + margin < math.pi, (angle + margin).cos(),
                              cosine - margin * math.sin(margin))
        return F.cross_entropy(scale * torch.where(own, further, cosine), batch["labels"].long())
    return loss


# --- All of them ---

class AdagradRows(optim.Optimizer):
    """One number of state for each row."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                of_rows = p.grad.square().reshape(p.shape[0], -1).mean(1)
                total = self.state[p]["sum"] = self.state[p].get("sum", 0) + of_rows
                by = (total.sqrt() + 1e-10).reshape([-1] + [1] * (p.dim() - 1))
                p -= group["lr"] * p.grad / by


class Both:
    def __init__(self, *optimizers):
        self.all = optimizers

    def zero_grad(self):
        for one in self.all:
            one.zero_grad()

    def step(self):
        for one in self.all:
            one.step()


def of_faces(w):
    network = {name: t for name, t in w.items() if name != "identities/centres"}
    return Both(adamw(network, 1e-2, 5e-4), AdagradRows([w["identities/centres"]], 1e-2))


def decays(name):
    """As ours: filters, matrices and tables, and neither norms nor biases nor what is only added."""
    return not name.endswith(("gamma", "beta", "bias", "class_token", "positions"))


def sgd(w, lr, momentum, decay):
    return optim.SGD(groups_of(w, decay), lr=lr, momentum=momentum)


def adamw(w, lr, decay, betas=(0.9, 0.999), eps=1e-8):
    return optim.AdamW(groups_of(w, decay), lr=lr, betas=betas, eps=eps)


def groups_of(w, decay):
    return [{"params": [t for name, t in w.items() if decays(name)], "weight_decay": decay},
            {"params": [t for name, t in w.items() if not decays(name)], "weight_decay": 0.0}]


def of_resnet(w):
    return sgd(w, 0.05, 0.9, 5e-4)


# loss, optimizer, clipping
MODELS = {
    "resnet": (resnet([0, 0, 1, 2]), of_resnet, None),
    "resnet_parts": (resnet([0, 1, 1, 2], parts=4), of_resnet, None),
    "bottleneck": (resnet([0, 0, 1, 1], large_stem=True), of_resnet, None),
    "vit": (vit(4, 4), lambda w: adamw(w, 2e-3, 0.05), 1.0),
    "dlrm": (dlrm(4, 1, 4), lambda w: AdagradRows(list(w.values()), 0.05), None),
    "dlrm_sgd": (dlrm(4, 1, 4), lambda w: sgd(w, 0.2, 0, 0), None),
    "moe": (moe(4, 2, 1.0, 0.1), lambda w: adamw(w, 2e-3, 0.1, (0.9, 0.95)), 1.0),
    "bert": (bert(4), lambda w: adamw(w, 2e-3, 0.01, eps=1e-6), 1.0),
    "unet": (unet(2), lambda w: adamw(w, 2e-3, 0.01), 1.0),
    "faces": (faces([0, 0, 1, 1], 8, 0.3), of_faces, None),
}


def losses_of(written, model):
    loss_of, optimizer_of, clip = MODELS[model]
    prefix = f"{model}:weight:"
    w = {key[len(prefix):]: t.double().requires_grad_() for key, t in written.items()
         if key.startswith(prefix) and not key.endswith(("norm/mean", "norm/variance"))}
    inputs = {key.split(":")[1] for key in written if key.startswith(model + ":") and key.endswith(":0")}
    optimizer = optimizer_of(w)
    found = []
    for step in range(losses.STEPS):
        batch = {name: written[f"{model}:{name}:{step}"] for name in inputs}
        batch = {name: t.double() if t.is_floating_point() else t for name, t in batch.items()}
        optimizer.zero_grad()
        loss = loss_of(w, batch)
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(list(w.values()), clip)
        optimizer.step()
        found.append(loss.item())
    return found


if __name__ == "__main__":
    sys.exit(losses.compare("programs", sys.argv[1], TOLERANCE, losses_of))
