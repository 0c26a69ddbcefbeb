"""PyTorch's counterparts of cases_composed.cc. Draws have none: tests/ops/composed_test.cc has their frequencies."""
import math

import torch
import torch.nn.functional as nn

HEADERS = ["ops/language/composed.h"]
DRAWN = "drawn by seed, operator, step and position: composed_test"
LEFT_OUT = {name: DRAWN for name in ("bernoulli", "gumbel", "categorical", "randint", "randperm", "drop_path")}


def layer_norm(axes, eps):
    def run(x):
        variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
        return (x - mean) / (variance + eps).sqrt()
    return run


def rms_norm(axes, eps):
    return lambda x: x / (x.square().mean(axes, keepdim=True) + eps).sqrt()


def weight_norm(axis):
    return lambda v, g: torch._weight_norm(v, g.reshape([-1 if i == axis else 1 for i in range(v.dim())]), axis)


def slice_scatter(x, src, begin, end):
    return torch.slice_scatter(x, src, 1, begin, end)


def nonzero(size):
    def run(mask):
        places = mask.flatten().nonzero().flatten()
        return nn.pad(places[:size], (0, max(size - len(places), 0)), value=-1), torch.tensor(len(places))
    return run


def unique(size):
    def run(x):
        values, counts = x.unique(return_counts=True)
        more = (0, max(size - len(values), 0))
        return nn.pad(values[:size], more), nn.pad(counts[:size], more), torch.tensor(len(values))
    return run


def pad(mode, rows, columns):
    """Of PyTorch's layout, channels first, and back."""
    return lambda x: nn.pad(x.permute(0, 3, 1, 2), (*columns, *rows), mode=mode).permute(0, 2, 3, 1)


def channels_first(function):
    return lambda x: function(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def attention(q, k, v, bias):
    """Of [b s h d]; a query that sees no key gets 0."""
    scores = torch.einsum("bshd,bthd->bhst", q, k) / math.sqrt(q.shape[3]) + bias
    blind = scores.isneginf().all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(blind, 0), -1).masked_fill(blind, 0)
    return torch.einsum("bhst,bthd->bshd", weights, v)


def hidden(seen):
    return torch.zeros(seen.shape, dtype=torch.double).masked_fill(~seen, -math.inf)


def alibi(q, k, v):
    """Of six heads: four of a power of two, and the first and third of eight. Causal, aligned at the ends."""
    slopes = torch.tensor([2.0 ** -2, 2.0 ** -4, 2.0 ** -6, 2.0 ** -8, 2.0 ** -1, 2.0 ** -3], dtype=torch.double)
    apart = torch.arange(7)[None, :] - (torch.arange(5)[:, None] + 2)
    return attention(q, k, v, -slopes[:, None, None] * apart.abs() + hidden(apart <= 0))


def buckets(queries, keys, bidirectional):
    """As T5 has it."""
    def run(table):
        count, most = 8, 20
        relative = torch.arange(keys)[None, :] - torch.arange(keys - queries, keys)[:, None]
        first = torch.zeros_like(relative)
        if bidirectional:
            count //= 2
            first = (relative > 0).long() * count
            distance = relative.abs()
        else:
            distance = (-relative).clamp(min=0)
        exact = count // 2
        far = exact + (torch.log(distance.double() / exact) / math.log(most / exact) * (count - exact)).clamp(-100, 100).long()
        return table[first + torch.where(distance < exact, distance, far.clamp(max=count - 1))]
    return run


def places(table):
    """As Swin has it, of windows of 3 x 4."""
    coordinates = torch.stack(torch.meshgrid(torch.arange(3), torch.arange(4), indexing="ij")).flatten(1)
    relative = coordinates[:, :, None] - coordinates[:, None, :]
    return table[(relative[0] + 2) * 7 + relative[1] + 3]


def lengths(k, count):
    return (torch.arange(k.shape[1]) < count[:, None])[:, None, None, :]


CASES = {
    "softmax/axis": lambda x: x.softmax(1),
    "softmax/first": lambda x: x.softmax(0),
    "log_softmax/axis": lambda x: x.log_softmax(1),
    "layer_norm_over/last": layer_norm([2], 1e-5),
    "layer_norm_over/axes": layer_norm([1, 2], 1e-3),
    "rms_norm_over/last": rms_norm([2], 1e-5),
    "rms_norm_over/axes": rms_norm([0, 2], 1e-3),
    "weight_norm": weight_norm(0),
    "weight_norm/axis": weight_norm(1),
    "take/places": lambda x: x[:, [7, 0, -2, 0]],
    "max_with_indices": lambda x: x.max(1),
    "min_with_indices": lambda x: x.min(-1),
    "dynamic_slice": lambda x, begin: x[:, begin:begin + 4],
    "slice_scatter": lambda x, src: slice_scatter(x, src, 2, 5),
    "slice_scatter/end": lambda x, src: slice_scatter(x, src, 5, 8),
    "scatter": lambda x, order, src: x.scatter(1, torch.argsort(order, dim=1, stable=True)[:, :5], src[:, :5]),
    "bincount": lambda ids: torch.bincount(ids.flatten(), minlength=11),
    "nonzero": nonzero(40),
    "nonzero/fewer": nonzero(3),
    "unique": unique(50),
    "unique/fewer": unique(4),
    "searchsorted": lambda x, values: torch.searchsorted(x.sort().values.detach(), values.detach()),
    "searchsorted/right": lambda x, values: torch.searchsorted(x.sort().values, values, right=True),
    "quantile": lambda x: x.quantile(0.3, 1),
    "quantile/ends": lambda x: (x.amin(1, keepdim=True), x.amax(1, keepdim=True)),
    "cumprod": lambda x: x.cumprod(1),
    "cummax": lambda x: x.cummax(1).values,
    "cummax/integers": lambda x: x.cummax(0).values,
    "cummin": lambda x: x.cummin(1).values,
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "logcumsumexp/far": lambda x: x.logcumsumexp(0),
    "pad/axes": lambda x: nn.pad(x, (1, 3, 0, 0, 2, 0, 0, 1), value=0.5),
    "pad/reflect": pad("reflect", (3, 1), (0, 4)),
    "pad/replicate": pad("replicate", (3, 1), (0, 9)),
    "pad/circular": pad("circular", (4, 1), (0, 5)),
    "unfold": lambda x: x.unfold(2, 3, 1),
    "unfold/steps": lambda x: x.unfold(0, 4, 3),
    "pixel_shuffle": channels_first(lambda x: nn.pixel_shuffle(x, 3)),
    "pixel_unshuffle": channels_first(lambda x: nn.pixel_unshuffle(x, 2)),
    "alibi": alibi,
    "relative_buckets": buckets(40, 50, True),
    "relative_buckets/causal": buckets(40, 40, False),
    "relative_places": places,
    "attention/mask": lambda q, k, v, mask: attention(q, k, v, hidden(mask)),
    "attention/key_lengths": lambda q, k, v, count: attention(q, k, v, hidden(lengths(k, count))),
    "attention/mask_and_bias": lambda q, k, v, mask, bias, count:
        attention(q, k, v, bias + hidden(mask) + hidden(lengths(k, count))),
}
