"""PyTorch's counterparts of cases_reductions.cc."""
import torch

HEADERS = []
LEFT_OUT = {}


def prod(x, axes, keep=False):
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def masked_mean(x, mask, axis, keep=False):
    mask = mask.expand_as(x)
    total = torch.where(mask, x, 0).sum(axis, keepdim=keep)
    return total / mask.sum(axis, keepdim=keep).clamp(min=1)


CASES = {
    "sum": lambda x: x.sum((0, 2)),
    "sum/all": torch.sum,
    "mean": lambda x: x.mean(-1, keepdim=True),
    "max": lambda x: x.amax(1),
    "max/ties": lambda x: x.float().amax(1),
    "min": lambda x: x.amin((0, 1)),
    "argmax": lambda x: x.argmax(1),
    "prod": lambda x: prod(x, [1]),
    "prod/axes": lambda x: prod(x, [0, 2], True),
    "prod/zeros": lambda x: prod(torch.relu(x), [1]),
    "prod/one_zero": lambda x: prod(x - x[:, 4:5], [1]),
    "var": lambda x: x.var((0, 2)),
    "var/biased": lambda x: x.var(1, correction=0, keepdim=True),
    "stddev": lambda x: x.std(1),
    "logsumexp": lambda x: x.logsumexp((0, 2)),
    "logsumexp/large": lambda x: x.logsumexp(1, keepdim=True),
    "norm": lambda x: torch.linalg.vector_norm(x, 2, 1),
    "norm/zeros": lambda x: torch.linalg.vector_norm(x - x[0], 2, 1),
    "norm/one": lambda x: torch.linalg.vector_norm(x, 1, (0, 1)),
    "norm/infinity": lambda x: torch.linalg.vector_norm(x, float("inf"), 2, keepdim=True),
    "any": lambda x: x.any(1),
    "all": lambda x: x.all(1),
    "masked_mean": lambda x, mask: masked_mean(x, mask, 0),
    "masked_mean/rows": lambda x, mask: masked_mean(x, mask, 1, True),
}
