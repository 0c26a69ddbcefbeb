"""PyTorch's counterparts of cases_sparse.cc. What is detached is a variable's new value: no gradient flows."""
import torch
import torch.nn.functional as nn

HEADERS = ["ops/language/sparse.h"]
LEFT_OUT = {}


def sort(axis, descending=False):
    return lambda x: torch.sort(x, dim=axis, descending=descending, stable=True)


def cumsum(x, axis, reverse=False, exclusive=False):
    along = x.flip(axis) if reverse else x
    total = along.cumsum(axis)
    if exclusive:
        total = total.roll(1, axis).index_fill(axis, torch.tensor([0]), 0)
    return total.flip(axis) if reverse else total


def bag(mode):
    """Padded bags as PyTorch has them: in one list, with the places where they begin."""
    def run(table, ids, lengths, weights=None):
        used = torch.arange(ids.shape[1]) < lengths[:, None]
        begins = lengths.cumsum(0) - lengths
        weights = None if weights is None else weights[used]
        return nn.embedding_bag(ids[used], table, begins, mode=mode, per_sample_weights=weights)
    return run


def touched(ids, grad):
    """The rows that ids names, and the sums of their gradients."""
    rows, place = ids[ids >= 0].unique(return_inverse=True)
    return rows, torch.zeros(len(rows), grad.shape[1], dtype=grad.dtype).index_add(0, place, grad.detach()[ids >= 0])


def unique_rows(ids, grad):
    rows, values = touched(ids, grad)
    left = len(ids) - len(rows)
    return nn.pad(rows, (0, left), value=-1), nn.pad(values, (0, 0, 0, left))


def sgd_rows(table, ids, grad):
    """By PyTorch's optimizer, from a sparse gradient."""
    parameter = torch.nn.Parameter(table.detach().clone())
    used = ids >= 0
    (nn.embedding(ids[used], parameter, sparse=True) * grad.detach()[used]).sum().backward()
    torch.optim.SGD([parameter], lr=0.3).step()
    return parameter.detach()


def sgd_rows_decay(table, ids, grad):
    rows, values = touched(ids, grad)
    return table.detach().index_add(0, rows, values + 0.2 * table.detach()[rows], alpha=-0.3)


def adagrad_rows(table, state, ids, grad):
    rows, values = touched(ids, grad)
    sums = state.detach().index_add(0, rows, values.square().mean(1))
    return table.detach().index_add(0, rows, values / (sums[rows].sqrt() + 1e-3)[:, None], alpha=-0.3), sums


def grouped_matmul(x, w, counts):
    parts, begin = [], 0
    for expert, count in enumerate(counts.tolist()):
        parts.append(x[begin:begin + count] @ w[expert])
        begin += count
    return torch.cat(parts + [x.new_zeros(len(x) - begin, w.shape[2])])


def route(chosen, weights=None):
    """slots, places and counts of 4 experts with room for 8, choice by choice."""
    pools, tokens, k = chosen.shape
    slots, places = torch.full((pools, 4, 8), -1), torch.full((pools, tokens, k), -1)
    counts = torch.zeros(pools, 4, dtype=torch.long)
    for p in range(pools):
        queue = [(t, j) for j in range(k) for t in range(tokens)]
        for e in range(4):
            mine = [c for c in queue if chosen[p][c] == e]
            counts[p, e] = len(mine)
            kept = mine if weights is None else sorted(mine, key=lambda c: -weights[p][c].item())
            for slot, (t, j) in enumerate(sorted(kept[:8], key=mine.index)):
                slots[p, e, slot] = t * k + j
                places[p, t, j] = e * 8 + slot
    return slots.int(), places.int(), counts.int()


def grouped_matmul_of_ranks(x, w, counts):
    return torch.stack([torch.stack([grouped_matmul(part, w[r], n) for part, n in zip(x[r], counts[r])])
                        for r in range(len(x))])


def route_ranks(chosen, weights=None):
    """Of 4 experts at 2 ranks with room for 12 choices each."""
    pools, tokens, k = chosen.shape
    slots, places = torch.full((pools, 2, 12), -1), torch.full((pools, tokens, k), -1)
    rows, kept = torch.zeros(pools, 2), torch.zeros(pools, tokens, k)
    for p in range(pools):
        queue = [(t, j) for j in range(k) for t in range(tokens)]
        for r in range(2):
            mine = [c for c in queue if chosen[p][c] // 2 == r]
            best = mine if weights is None else sorted(mine, key=lambda c: -weights[p][c].item())
            for c in best[:12]:
                kept[p][c] = chosen[p][c] + 1
            there = [min(c for c in best[:12] if c[0] == t) for t in sorted({t for t, _ in best[:12]})]
            for slot, (t, j) in enumerate(there):
                slots[p, r, slot] = t * k + j
                places[p, t, j] = r * 12 + slot
            rows[p, r] = len(there)
    counts = torch.stack([(chosen == e).flatten(1).sum(1) for e in range(4)], 1)
    return slots.int(), places.int(), rows.int(), kept, counts.int()


def sort_choices(kept):
    """Of 4 experts at 2 ranks, with room for 14 choices of a row block."""
    ranks, pools, rows, k = kept.shape
    slots, places = torch.full((ranks, pools, 14), -1), torch.full(kept.shape, -1)
    counts = torch.zeros(ranks, pools, 2)
    for r in range(ranks):
        for p in range(pools):
            flat = kept[r, p].flatten().tolist()
            mine = sorted((i for i, v in enumerate(flat) if v > 0 and (v - 1) // 2 == r), key=lambda i: flat[i])
            for slot, i in enumerate(mine[:14]):
                slots[r, p, slot] = i
                places[r, p, i // k, i % k] = slot
                counts[r, p, int(flat[i]) - 1 - 2 * r] += 1
    return slots.int(), places.int(), counts.int()


def take_rows(x, chosen, weights=None):
    slots = route(chosen)[0].long()
    k = chosen.shape[2]
    rows = x[torch.arange(len(x))[:, None, None], slots.clamp(min=0) // k]
    if weights is not None:
        rows = rows * weights.flatten(1)[torch.arange(len(x))[:, None, None], slots.clamp(min=0)][..., None]
    return (rows * (slots >= 0)[..., None]).transpose(0, 1)


def return_rows(y, chosen, weights=None):
    places = route(chosen)[1].long()
    rows = y.transpose(0, 1).flatten(1, 2)[torch.arange(len(chosen))[:, None, None], places.clamp(min=0)]
    rows = rows * (places >= 0)[..., None]
    return (rows if weights is None else rows * weights[..., None]).sum(2)


def segment_softmax(axis):
    def run(x, ids):
        same = ids[:, None] == ids[None, :]
        parts = x.movedim(axis, 0)
        weights = (parts - parts.detach().max()).exp()
        return (weights / torch.einsum("ij,j...->i...", same.to(x.dtype), weights)).movedim(0, axis)
    return run


CASES = {
    "sort": sort(1),
    "sort/falling": sort(1, True),
    "sort/ties": sort(-1),
    "sort/falling_ties": sort(-1, True),
    "sort/long": sort(-1),
    "argsort": lambda x: torch.argsort(x, dim=0, stable=True),
    "argsort/falling_ties": lambda x: torch.argsort(x, dim=1, descending=True, stable=True),
    "top_k": lambda x: torch.topk(x, 7, 1),
    "top_k/least": lambda x: torch.topk(x, 7, 1, largest=False),
    "top_k/all": lambda x: torch.topk(x, 9),
    "argmin": lambda x: x.argmin(1),
    "cumsum": lambda x: x.cumsum(1),
    "cumsum/long": lambda x: x.cumsum(-1),
    "cumsum/reverse": lambda x: cumsum(x, 1, reverse=True),
    "cumsum/exclusive": lambda x: cumsum(x, 1, exclusive=True),
    "cumsum/both": lambda x: cumsum(x, 0, True, True),
    "cumsum/integers": lambda x: x.cumsum(0),
    "take": lambda x, ids: x[:, ids],
    "take/rows": lambda x, ids: x[ids],
    "take/one": lambda x, ids: x[:, :, ids],
    "take_along_axis": lambda x, ids: x.gather(1, ids),
    "take_along_axis/last": lambda x, ids: x.gather(2, ids),
    "batched_take": lambda x, ids: x.gather(1, ids[..., None].expand(-1, -1, 2)),
    "batched_take/last": lambda x, ids: x.gather(2, ids),
    "scatter_add": lambda x, ids, src: x.scatter_add(1, ids, src),
    "scatter_add/integers": lambda x, ids, src: x.scatter_add(0, ids, src),
    "index_add": lambda x, ids, src: x.index_add(1, ids, src),
    "index_add/axes": lambda x, ids, src: x.index_add(0, ids.flatten(), src.flatten(0, 1)),
    "scatter_max": lambda x, ids, src: x.scatter_reduce(1, ids, src, "amax"),
    "scatter_max/ties": lambda x, ids, src, a, b: (x + 0 * a).scatter_reduce(-1, ids, src + 0 * b, "amax"),
    "scatter_min": lambda x, ids, src: x.scatter_reduce(1, ids.long(), src, "amin"),
    "scatter_min/integers": lambda x, ids, src: x.scatter_reduce(0, ids, src, "amin"),
    "index_max": lambda x, ids, src: x.index_reduce(1, ids, src, "amax"),
    "index_max/axes": lambda x, ids, src: x.index_reduce(0, ids.flatten(), src.flatten(0, 1), "amax"),
    "index_min": lambda x, ids, src: x.index_reduce(1, ids, src, "amin"),
    "segment_softmax": segment_softmax(0),
    "segment_softmax/axis": segment_softmax(1),
    "embedding_bag": bag("sum"),
    "embedding_bag/mean": bag("mean"),
    "embedding_bag/max": bag("max"),
    "embedding_bag/weights": bag("sum"),
    "unique_rows": unique_rows,
    "sgd_rows": sgd_rows,
    "sgd_rows/decay": sgd_rows_decay,
    "adagrad_rows": adagrad_rows,
    "grouped_matmul": grouped_matmul,
    "grouped_matmul/ranks": grouped_matmul_of_ranks,
    "route_ranks": route_ranks,
    "route_ranks/weights": route_ranks,
    "sort_choices": sort_choices,
    "exchange": lambda y, counts: y.clone(),
    "route": route,
    "route/weights": route,
    "take_rows": take_rows,
    "take_rows/weights": take_rows,
    "return_rows": return_rows,
    "return_rows/weights": return_rows,
    "tril": torch.tril,
    "tril/above": lambda x: torch.tril(x, 2),
    "tril/below": lambda x: torch.tril(x, -3),
    "triu": torch.triu,
    "triu/above": lambda x: torch.triu(x, 2),
    "triu/below": lambda x: torch.triu(x, -3),
    "flip": lambda x: x.flip(0, -1),
    "roll": lambda x: x.roll(3, 1),
    "roll/back": lambda x: x.roll(-16, -1),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "repeat/leading": lambda x: x.repeat(2, 1, 2),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 1),
    "stack": lambda *x: torch.stack(x),
    "stack/last": lambda *x: torch.stack(x, -1),
    "squeeze": lambda x: x.squeeze(-2),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "arange": lambda x: x * torch.arange(-1, 3.3, 0.5, dtype=x.dtype),
    "arange/integers": lambda x: x + torch.arange(20, 5, -3),
}
