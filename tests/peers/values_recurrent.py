"""PyTorch's counterparts of cases_recurrent.cc: torch.lstm, torch.gru, and loops."""
import torch

HEADERS = ["ops/language/scan.h"]
LEFT_OUT = {}


def network(function, states, reverse=False, biased=True):
    """function: torch.lstm or torch.gru, of one layer with its batch first."""
    def run(x, w, u, *rest):
        biases, given = (rest[:2], rest[2:]) if biased else ((), rest)
        first = given or [x.new_zeros(x.shape[0], u.shape[0])] * states
        first = [h[None] for h in first]
        x = x.flip(1) if reverse else x
        y, *last = function(x, tuple(first) if states > 1 else first[0], [w.T, u.T, *biases], biased, 1, 0.0, False,
                            False, True)
        return (y.flip(1) if reverse else y, *(h[0] for h in last))
    return run


def recurrence(axis=1, reverse=False):
    def run(a, b, h=None):
        h = torch.zeros_like(a.select(axis, 0)) if h is None else h
        steps = range(a.shape[axis])
        found = {}
        for i in reversed(steps) if reverse else steps:
            h = found[i] = a.select(axis, i) * h + b.select(axis, i)
        return torch.stack([found[i] for i in steps], axis)
    return run


def loop(x, h, w):
    means, all_h = [], []
    for step in x:
        h = torch.softmax(h @ w, -1) + (step * h).tanh()
        means.append(h.square().mean(-1))
        all_h.append(h)
    return h, torch.stack(means), torch.stack(all_h)


CASES = {
    "lstm": network(torch.lstm, 2),
    "lstm/plain": network(torch.lstm, 2, biased=False),
    "lstm/states": network(torch.lstm, 2),
    "lstm/reverse": network(torch.lstm, 2, reverse=True),
    "gru": network(torch.gru, 1),
    "gru/state": network(torch.gru, 1),
    "gru/reverse": network(torch.gru, 1, reverse=True),
    "linear_recurrence": recurrence(),
    "linear_recurrence/zeros": recurrence(-2),
    "linear_recurrence/reverse": recurrence(reverse=True),
    "linear_recurrence/last": recurrence(),
    "linear_recurrence/chunks": recurrence(),
    "linear_recurrence/chunks_reverse": recurrence(reverse=True),
    "scan": loop,
}
