"""Trains in double with PyTorch what optimizers.cc trained, and compares: optimizers.py optimizers|schedules FILE.

Weights agree after every step within 1e-6 of the greatest of their tensor; factors of schedules within 1e-12.
"""
import sys

import torch
from torch import nn, optim
from torch.optim import lr_scheduler

import tensor_file

TOLERANCE = 1e-6
# Newton and Schulz's iteration lifts small singular values a few hundredfold, and with them their rounding.
TOLERANCE_OF_MUON = 1e-5
STEPS = 20


def warm(optimizer, warmup, after):
    """A linear rise whose first step has the rate 1 / warmup, then `after`, which begins at step `warmup`."""
    rise = lr_scheduler.LinearLR(optimizer, 1 / warmup, 1, warmup - 1)
    return lr_scheduler.SequentialLR(optimizer, [rise, after], [warmup])


def stable_decay(o):
    flat = lr_scheduler.ConstantLR(o, 1, 1)
    fall = lr_scheduler.LinearLR(o, 1, 0.2, 12)
    return lr_scheduler.SequentialLR(o, [lr_scheduler.LinearLR(o, 1 / 8, 1, 7), flat, fall], [8, 28])


def one_cycle(o):
    """PyTorch's begins with 1 / 25 and reaches 1 in step 9. Ours leaves out the 1 / 25 and reaches 1 in step 8, the
    last of its warmup; factors() moves the rise. From step 9 on both fall alike."""
    return lr_scheduler.OneCycleLR(o, 1, 41, pct_start=10 / 41, cycle_momentum=False, div_factor=25,
                                   final_div_factor=40)


# {name: (scheduler, the step at which it ends: ours stays there, PyTorch's rises again or refuses to go on)}
SCHEDULES = {
    "constant": (lambda o: lr_scheduler.ConstantLR(o, 1, 1), None),
    "linear_warmup": (lambda o: lr_scheduler.LinearLR(o, 1 / 8, 1, 7), None),
    "linear": (lambda o: lr_scheduler.LinearLR(o, 1, 0.1, 30), None),
    "linear/warmup": (lambda o: warm(o, 8, lr_scheduler.LinearLR(o, 1, 0, 22)), None),
    "cosine": (lambda o: lr_scheduler.CosineAnnealingLR(o, 30, eta_min=0.05), 30),
    "cosine/warmup": (lambda o: warm(o, 5, lr_scheduler.CosineAnnealingLR(o, 13, eta_min=0.1)), 18),
    "polynomial": (lambda o: lr_scheduler.PolynomialLR(o, 30, 2.5), None),
    "polynomial/warmup": (lambda o: warm(o, 8, lr_scheduler.PolynomialLR(o, 22, 0.5)), None),
    "step": (lambda o: lr_scheduler.StepLR(o, 7, 0.3), None),
    "step/warmup": (lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.LinearLR(o, 1 / 5, 1, 4),
                                                             lr_scheduler.StepLR(o, 7, 0.3)]), None),
    "one_cycle": (one_cycle, 40),
    "warmup_stable_decay": (stable_decay, None),
}


def factors(name, steps):
    make, end = SCHEDULES[name]
    optimizer = optim.SGD([nn.Parameter(torch.zeros(1))], lr=1)
    scheduler = make(optimizer)
    rates = []
    for step in range(steps):
        rates.append(optimizer.param_groups[0]["lr"] if end is None or step <= end else rates[end])
        if end is None or step < end:
            optimizer.step()
            scheduler.step()
    return rates[1:10] + rates[9:] if name == "one_cycle" else rates


def compare_schedules(written):
    failures = [f"{name} has no counterpart" for name in written if name not in SCHEDULES]
    failures += [f"{name} has no case" for name in SCHEDULES if name not in written]
    for name in written.keys() & SCHEDULES.keys():
        ours = written[name]
        theirs = torch.tensor(factors(name, len(ours)), dtype=torch.float64)
        apart = (ours - theirs).abs()
        step = int(apart.argmax())
        if not apart[step] <= 1e-12:
            failures.append(f"{name} is {ours[step]:.15g} at step {step}, PyTorch's {theirs[step]:.15g}")
    return failures


def all_of(optimizer, **numbers):
    return lambda network: [optimizer(network.parameters(), **numbers)]


def muon(**numbers):
    return lambda network: [optim.Muon([network[0].weight, network[2].weight], lr=0.02, **numbers),
                            optim.SGD([network[0].bias], lr=0.1)]


def newton_schulz(matrix, coefficients, steps, eps):
    """PyTorch's iteration, which it computes in bf16, in the matrix's own type."""
    a, b, c = coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def widen_muon():
    """Lets PyTorch's Muon compute in double; a sentence where this version of PyTorch has none, or another."""
    module = getattr(optim, "_muon", None)
    theirs = getattr(module, "_zeropower_via_newtonschulz", None)
    if theirs is None:
        return f"PyTorch {torch.__version__} lacks Muon, or computes it in another way"
    numbers = (3.4445, -4.7750, 2.0315), 5, 1e-7
    for shape in (5, 6), (5, 3):
        matrix = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        narrow, wide = theirs(matrix, *numbers).double(), newton_schulz(matrix, *numbers)
        torch.testing.assert_close(narrow, wide, rtol=0, atol=0.05)
    module._zeropower_via_newtonschulz = newton_schulz
    return None


CASES = {
    "sgd": all_of(optim.SGD, lr=0.1),
    "sgd/momentum": all_of(optim.SGD, lr=0.1, momentum=0.9),
    "sgd/nesterov": all_of(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "sgd/decay": all_of(optim.SGD, lr=0.1, weight_decay=0.05),
    "sgd/all": all_of(optim.SGD, lr=0.1, momentum=0.8, weight_decay=0.05, nesterov=True),
    "sgd/clipped": all_of(optim.SGD, lr=0.1, momentum=0.9),
    "sgd/cosine": all_of(optim.SGD, lr=0.1, momentum=0.9),
    "adam": all_of(optim.Adam, lr=0.01),
    "adam/numbers": all_of(optim.Adam, lr=0.01, betas=(0.7, 0.95), eps=1e-4, weight_decay=0.05),
    "adamw": all_of(optim.AdamW, lr=0.01),
    "adamw/numbers": all_of(optim.AdamW, lr=0.01, betas=(0.7, 0.95), eps=1e-4, weight_decay=0.3),
    "adamw/cosine": all_of(optim.AdamW, lr=0.01, weight_decay=0.3),
    "rmsprop": all_of(optim.RMSprop),
    "rmsprop/momentum": all_of(optim.RMSprop, momentum=0.9),
    "rmsprop/numbers": all_of(optim.RMSprop, lr=0.02, alpha=0.9, eps=1e-3, momentum=0.5, weight_decay=0.05),
    "adagrad": all_of(optim.Adagrad),
    "adagrad/numbers": all_of(optim.Adagrad, lr=0.05, eps=1e-3, initial_accumulator_value=0.1, weight_decay=0.05),
    "muon": muon(),
    "muon/plain": muon(momentum=0.8, weight_decay=0, nesterov=False),
}


def weights_of(network):
    """In our layout, [in, out]."""
    return {"first": network[0].weight.T, "bias": network[0].bias, "second": network[2].weight.T}


def train(name, written):
    """A sentence about the first weight that differs after some step, or None."""
    network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3, bias=False)).double()
    with torch.no_grad():
        for weight, parameter in weights_of(network).items():
            parameter.copy_(written[f"{name}:{weight}:0"])
    optimizers = CASES[name](network)
    scheduler = None
    if name.endswith("/cosine"):
        scheduler = lr_scheduler.LambdaLR(optimizers[0], factors("cosine/warmup", STEPS + 1).__getitem__)
    tolerance = TOLERANCE_OF_MUON if name.startswith("muon") else TOLERANCE
    for step in range(STEPS):
        x, y = (written[f"batch:{kind}:{step}"].double() for kind in "xy")
        network.zero_grad()
        nn.functional.mse_loss(network(x), y).backward()
        if name == "sgd/clipped":
            nn.utils.clip_grad_norm_(network.parameters(), 0.3)
        for optimizer in optimizers:
            optimizer.step()
        if scheduler is not None:
            scheduler.step()
        for weight, theirs in weights_of(network).items():
            ours = written[f"{name}:{weight}:{step + 1}"].double()
            apart = (ours - theirs).abs().max().item() / theirs.abs().max().item()
            if not apart <= tolerance:
                return f"'{weight}' is {apart:.2g} of its scale from PyTorch's after {step + 1} steps"
    return None


def compare_optimizers(written):
    reason = widen_muon()
    names = dict.fromkeys(name.split(":")[0] for name in written if not name.startswith("batch:"))
    failures = [f"{name} has no counterpart" for name in names if name not in CASES]
    failures += [f"{name} has no case" for name in CASES if name not in names]
    if reason:
        print(f"muon is skipped: {reason}")
        names = [name for name in names if not name.startswith("muon")]
    found = {name: train(name, written) for name in names if name in CASES}
    return failures + [f"{name}: {text}" for name, text in found.items() if text]


def main(part, path):
    written = tensor_file.read(path)
    failures = compare_optimizers(written) if part == "optimizers" else compare_schedules(written)
    print(f"{part} beside PyTorch {torch.__version__}, {len(failures)} failures")
    print("".join(f"  {text}\n" for text in failures), end="")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
