"""Trains in double with PyTorch the models that own_models.cc trained, and compares their losses: own_models.py FILE.

Each loss agrees within 2e-5 of itself. The models are written as PyTorch's users write them: loops over steps and
edges, dense experts, recurrent states.
"""
import math
import sys

import torch
from torch import optim
from torch.nn import functional as F

import losses

TOLERANCE = 2e-5
STEPS, LAYERS = 5, 2


def linear(w, at, x):
    y = x @ w[at + "/weight"]
    return y + w[at + "/bias"] if at + "/bias" in w else y


def rms(x, gamma=1.0):
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * gamma


def normal(x, gamma=1.0, beta=0.0):
    return F.layer_norm(x, x.shape[-1:]) * gamma + beta


def attend(w, at, x, memory=None, bias=None, causal=False, scale=None):
    """Weights q, k, v [width, heads, depth] and out [heads, depth, width], with or without biases."""
    memory = x if memory is None else memory
    q, k, v = (torch.einsum("bsw,whd->bhsd", of, w[f"{at}/{name}"]) +
               (w[f"{at}/{name}_bias"][:, None] if f"{at}/{name}_bias" in w else 0)
               for name, of in (("q", x), ("k", memory), ("v", memory)))
    scores = q @ k.transpose(2, 3) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
    y = torch.einsum("bhsd,hdw->bsw", scores.softmax(-1) @ v, w[at + "/out"])
    return y + w.get(at + "/out_bias", 0)


def mlp(w, at, x, activation=lambda x: F.gelu(x, approximate="tanh")):
    y = activation(x @ w[at + "/up"] + w.get(at + "/up_bias", 0))
    return y @ w[at + "/down"] + w.get(at + "/down_bias", 0)


def block(w, at, x, causal):
    x = x + attend(w, at + "attention", normal(x, w[at + "norm1/gamma"], w[at + "norm1/beta"]), causal=causal)
    return x + mlp(w, at + "mlp", normal(x, w[at + "norm2/gamma"], w[at + "norm2/beta"]))


# --- T5 ---

def t5_bias(table, length, bidirectional):
    """As transformers.T5Attention has it, for 8 buckets up to a distance of 6."""
    buckets = 4 if bidirectional else 8
    apart = torch.arange(length)[None] - torch.arange(length)[:, None]
    first = buckets * (apart > 0) if bidirectional else torch.zeros_like(apart)
    distance = apart.abs() if bidirectional else -apart.clamp(max=0)
    exact = buckets // 2
    far = (distance.clamp(min=1).double() / exact).log() / math.log(6 / exact) * (buckets - exact)
    far = (exact + far.long()).clamp(max=buckets - 1)
    return table[first + torch.where(distance < exact, distance, far)].permute(2, 0, 1)


def t5(w, batch):
    source, target = batch["source"].long(), batch["target"].long()
    from_left = t5_bias(w["encoder_bias"], source.shape[1], True)
    to_left = t5_bias(w["decoder_bias"], target.shape[1], False)
    memory = w["shared"][source]
    for i in range(LAYERS):
        at = f"encoder/block{i}/"
        y = rms(memory, w[at + "norm1/gamma"])
        memory = memory + attend(w, at + "self", y, bias=from_left, scale=1)
        memory = memory + mlp(w, at + "mlp", rms(memory, w[at + "norm2/gamma"]), F.relu)
    memory = rms(memory, w["encoder_norm/gamma"])
    x = w["shared"][target]
    for i in range(LAYERS):
        at = f"decoder/block{i}/"
        x = x + attend(w, at + "self", rms(x, w[at + "norm1/gamma"]), bias=to_left, causal=True, scale=1)
        x = x + attend(w, at + "cross", rms(x, w[at + "norm2/gamma"]), memory, scale=1)
        x = x + mlp(w, at + "mlp", rms(x, w[at + "norm3/gamma"]), F.relu)
    logits = rms(x, w["decoder_norm/gamma"]) @ w["shared"].T / math.sqrt(x.shape[-1])
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].long().flatten())


# --- CLIP ---

def clip(w, batch):
    x, y = linear(w, "patches", batch["pictures"]), w["words"][batch["captions"].long()]
    for i in range(LAYERS):
        x, y = block(w, f"image/block{i}/", x, False), block(w, f"text/block{i}/", y, True)
    u, v = F.normalize(linear(w, "of_picture", x.mean(1))), F.normalize(linear(w, "of_caption", y[:, -1]))
    logits, place = u @ v.T * w["temperature"].exp(), torch.arange(len(u))
    return (F.cross_entropy(logits, place) + F.cross_entropy(logits.T, place)) / 2


# --- DiT ---

def dit(w, batch):
    angle = (batch["time"] + 1) * math.pi / 4
    noisy = batch["picture"] * angle.cos()[:, None, None] + batch["noise"] * angle.sin()[:, None, None]
    waves = angle[:, None] * torch.arange(1, 5)
    c = linear(w, "time", torch.cat([waves.cos(), waves.sin()], 1)) + w["class/table"][batch["class"].long()]
    x = linear(w, "in", noisy) + w["positions"]
    for i in range(LAYERS):
        at = f"block{i}/"
        m = linear(w, at + "modulation", F.silu(c))[:, None].chunk(6, 2)
        x = x + m[2] * attend(w, at + "attention", normal(x) * (1 + m[0]) + m[1])
        x = x + m[5] * mlp(w, at + "mlp", normal(x) * (1 + m[3]) + m[4])
    return F.mse_loss(linear(w, "out", normal(x)), batch["noise"])


# --- LSTM ---

def lstm(w, batch):
    x = linear(w, "in", batch["x"])
    for i in range(LAYERS):
        at = f"block{i}/"
        layer = torch.nn.LSTM(x.shape[-1], x.shape[-1], batch_first=True).double()
        weights = {"weight_ih_l0": w[at + "from_x"].T, "weight_hh_l0": w[at + "from_h"].T, "bias_ih_l0": w[at + "bias"],
                   "bias_hh_l0": torch.zeros_like(w[at + "bias"])}
        x = x + torch.func.functional_call(layer, weights, x)[0]
    return F.mse_loss(linear(w, "out", x[:, -1]), batch["y"])


# --- Linear attention, as a recurrence ---

def linear_attention(w, batch):
    x = w["table"][batch["tokens"].long()]
    for i in range(LAYERS):
        at = f"block{i}/"
        y = normal(x)
        q, k, v = (linear(w, at + name, y) for name in "qkv")
        keep = linear(w, at + "gate", y).sigmoid()
        state, given = torch.zeros(len(x), q.shape[2], v.shape[2]).double(), []
        for t in range(x.shape[1]):
            state = keep[:, t, :, None] * state + k[:, t, :, None] * v[:, t, None]
            given.append((q[:, t, None] @ state)[:, 0])
        x = x + linear(w, at + "out", rms(torch.stack(given, 1)))
    return F.cross_entropy(linear(w, "classes", x).flatten(0, 1), batch["labels"].long().flatten())


# --- Graph attention, edge by edge ---

def graph_attention(w, batch):
    x = linear(w, "in", batch["x"])
    for i in range(LAYERS):
        at = f"block{i}/"
        y = x @ w[at + "weight"]
        heads = y.unflatten(2, w[at + "of_source"].shape)
        source, target = (heads * w[at + "of_source"]).sum(3), (heads * w[at + "of_target"]).sum(3)
        graphs = []
        for g in range(len(x)):
            into = [[] for _ in range(x.shape[1])]
            for a, b in zip(batch["from"][g].tolist(), batch["to"][g].tolist()):
                into[b].append(a)
            nodes = []
            for b, ends in enumerate(into):
                if not ends:
                    nodes.append(torch.zeros_like(y[g, b]))
                    continue
                weight = F.leaky_relu(source[g, ends] + target[g, b], 0.2).softmax(0)
                nodes.append((weight[:, :, None] * heads[g, ends]).sum(0).flatten())
            graphs.append(torch.stack(nodes))
        x = x + F.elu(torch.stack(graphs))
    return F.cross_entropy(linear(w, "classes", x).flatten(0, 1), batch["labels"].long().flatten())


# --- WGAN-GP ---

def network(w, name, x):
    x = linear(w, name + "/in", x)
    for i in range(LAYERS):
        x = x + linear(w, f"{name}/block{i}/linear", x).tanh()
    return linear(w, name + "/out", x)


def of_critic(w, batch):
    real, made, share = batch["real"], network(w, "generator", batch["z"]), (batch["mix"] + 1) / 2
    between = share * real + (1 - share) * made
    slope, = torch.autograd.grad(network(w, "critic", between).sum(), between, create_graph=True)
    penalty = (slope.norm(dim=1) - 1).square().mean()
    return network(w, "critic", made).mean() - network(w, "critic", real).mean() + 10 * penalty


def of_generator(w, batch):
    return -network(w, "critic", network(w, "generator", batch["z"])).mean()


# --- Sophia ---

def sophia_logits(w, batch):
    x = linear(w, "in", batch["x"])
    for i in range(LAYERS):
        x = x + mlp(w, f"block{i}/mlp", x)
    return linear(w, "classes", x)


def sophia(w, batch):
    return F.cross_entropy(sophia_logits(w, batch), batch["labels"].long())


class Sophia:
    def __init__(self, w):
        self.w, self.state = w, {name: (torch.zeros_like(t), torch.zeros_like(t)) for name, t in w.items()}

    def step(self, batch):
        logits = sophia_logits(self.w, batch)
        drawn = (logits.detach() + 2 * batch["noise"]).argmax(1)
        second = torch.autograd.grad(F.cross_entropy(logits, drawn), list(self.w.values()))
        with torch.no_grad():
            for (name, t), g in zip(self.w.items(), second):
                mean, diagonal = self.state[name]
                mean.mul_(0.9).add_(t.grad, alpha=0.1)
                diagonal.mul_(0.9).add_(len(logits) * g.square(), alpha=0.1)
                t -= 0.05 * (mean / (0.5 * diagonal).clamp(min=1e-4)).clamp(-1, 1)


# --- Distillation ---

def distillation(w, batch):
    def run(name, layers):
        x = linear(w, name + "/in", batch["x"])
        for i in range(layers):
            x = block(w, f"{name}/block{i}/", x, False)
        return x.mean(1), linear(w, name + "/classes", x.mean(1))

    with torch.no_grad():
        known, taught = run("teacher", 2)
    found, said = run("student", LAYERS)
    soft = F.kl_div((said / 2).log_softmax(1), (taught / 2).softmax(1), reduction="batchmean")
    hint = F.mse_loss(linear(w, "hint", found), known)
    return 4 * soft + F.cross_entropy(said, batch["labels"].long()) + 0.1 * hint


# --- Router, with every expert for every row ---

def router(w, batch, parts=6):
    x, uneven = linear(w, "in", batch["x"]), 0
    for i in range(LAYERS):
        at = f"block{i}/"
        gates = linear(w, at + "gate", x).softmax(1)
        best = gates.argmax(1)
        chosen = F.one_hot(best, gates.shape[1]).double()
        each = torch.einsum("bw,ewf->bef", x, w[at + "up"])
        each = torch.einsum("bef,efw->bew", F.gelu(each, approximate="tanh"), w[at + "down"])
        y = (each * (chosen * gates)[:, :, None]).sum(1)
        of_parts = [of.reshape(parts, -1, gates.shape[1]).mean(1) for of in (chosen, gates)]
        uneven = uneven + (of_parts[0] * of_parts[1]).sum(1).mean()
        x = x + y
    return F.mse_loss(linear(w, "out", x), batch["y"]) + 0.1 * gates.shape[1] * uneven


# --- All of them ---

class Torch:
    """An optimizer of PyTorch's; `of`: the weights whose names begin so."""

    def __init__(self, w, kind, of="", **options):
        self.optimizer = kind([t for name, t in w.items() if name.startswith(of)], **options)

    def step(self, batch):
        self.optimizer.step()


def adam(lr, of="", betas=(0.9, 0.999)):
    return lambda w: Torch(w, optim.Adam, of, lr=lr, betas=betas)


# The trainings in turn, each a loss and its optimizer.
MODELS = {
    "t5": [(t5, adam(1e-2))],
    "clip": [(clip, adam(5e-3))],
    "dit": [(dit, adam(5e-3))],
    "lstm": [(lstm, lambda w: Torch(w, optim.SGD, lr=0.2, momentum=0.9))],
    "linear_attention": [(linear_attention, adam(1e-2))],
    "graph_attention": [(graph_attention, adam(1e-2))],
    "wgan": [(of_critic, adam(5e-3, "critic/", (0.5, 0.999))), (of_generator, adam(5e-3, "generator/", (0.5, 0.999)))],
    "sophia": [(sophia, Sophia)],
    "distillation": [(distillation, adam(1e-2, ("student/", "hint/")))],
    "router": [(router, adam(1e-2))],
}
AVERAGE = {"dit": 0.8}  # the decay; the first update copies the weights


def losses_of(written, model):
    prefix = f"{model}:weight:"
    w = {key[len(prefix):]: t.double().requires_grad_() for key, t in written.items() if key.startswith(prefix)}
    inputs = {key.split(":")[1] for key in written if key.startswith(model + ":") and key.endswith(":0")}
    trainings = [(loss_of, make(w)) for loss_of, make in MODELS[model]]
    means, found = None, []

    def batch_of(step):
        batch = {name: written[f"{model}:{name}:{step}"] for name in inputs}
        return {name: t.double() if t.is_floating_point() else t for name, t in batch.items()}

    for step in range(STEPS):
        for loss_of, optimizer in trainings:
            for t in w.values():
                t.grad = None
            loss = loss_of(w, batch_of(step))
            loss.backward()
            optimizer.step(batch_of(step))
            found.append(loss.item())
        if model in AVERAGE:
            keep = AVERAGE[model] if means else 0
            means = {name: keep * means[name] + (1 - keep) * t.detach() if means else t.detach().clone()
                     for name, t in w.items()}
    if model in AVERAGE:
        found.append(trainings[0][0](means, batch_of(0)).item())
    return found


if __name__ == "__main__":
    sys.exit(losses.compare("own models", sys.argv[1], TOLERANCE, losses_of))
