"""Recomputes in double with PyTorch what values.cc wrote, and compares: values.py FILE.

Every part below (values_<part>.py) holds CASES, a PyTorch function for each case of cases_<part>.cc, and HEADERS,
the headers whose functions must all have a case unless its LEFT_OUT gives a reason. Values and gradients agree
within 1e-5 of the greatest of their tensor; results that are not floating are equal.
"""
import importlib
import pathlib
import re
import sys

import torch

import tensor_file

PARTS = ["basics", "reductions", "losses", "vision", "sparse", "composed", "language", "linear_algebra", "recurrent"]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def read(path):
    """{case: {"in": {..}, "out": {..}, "weight": {..}, "grad": {..}}}, tensors by number"""
    cases = {}
    for name, tensor in tensor_file.read(path).items():
        case, kind, number = re.fullmatch(r"(.*):([a-z]+)(\d+)", name).groups()
        cases.setdefault(case, {"in": {}, "out": {}, "weight": {}, "grad": {}})[kind][int(number)] = tensor
    return cases


def difference(got, want):
    """A sentence, or None where they agree."""
    if tuple(got.shape) != tuple(want.shape):
        return f"has shape {list(got.shape)}, PyTorch's {list(want.shape)}"
    if not got.dtype.is_floating_point:
        wrong = (got != want).sum().item() if got.dtype == want.dtype else -1
        return None if wrong == 0 else f"is {got.dtype}, PyTorch's {want.dtype}" if wrong < 0 else \
            f"differs in {wrong} of {got.numel()} elements"
    got, tolerance = got.double(), TOLERANCE[got.dtype]
    want = want.double()
    same = (got == want) | (got.isnan() & want.isnan())
    finite = want[want.isfinite()].abs()
    scale = finite.max().item() if finite.numel() else 0.0
    near = (got - want).abs() <= tolerance * scale
    bad = ~(same | (near & want.isfinite()))
    if not bad.any():
        return None
    worst = torch.where(bad, (got - want).abs().nan_to_num(float("inf")), torch.zeros_like(want)).argmax()
    return f"is {got.flatten()[worst]:.9g} at element {worst}, PyTorch's {want.flatten()[worst]:.9g}, scale {scale:.3g}"


def check(case, function):
    """Sentences about what differs."""
    inputs = [case["in"][i] for i in range(len(case["in"]))]
    inputs = [x.double().requires_grad_() if x.dtype.is_floating_point else x for x in inputs]
    results = function(*inputs)
    results = list(results) if isinstance(results, (list, tuple)) else [results]
    if len(results) != len(case["out"]):
        return [f"has {len(case['out'])} results, PyTorch's {len(results)}"]
    wrong = [(f"result {o}", difference(case["out"][o], r.detach())) for o, r in enumerate(results)]
    terms = [(results[o].double() * w).sum() for o, w in case["weight"].items() if results[o].requires_grad]
    if terms:
        sum(terms).backward()
    for i, x in enumerate(inputs):
        if not x.requires_grad:
            continue
        want = x.grad if x.grad is not None else torch.zeros_like(x)
        got = case["grad"].get(i, torch.zeros(x.shape))
        wrong.append((f"gradient {i}", difference(got, want)))
    return [f"{what} {text}" for what, text in wrong if text]


def functions_of(header):
    """Those that give a Tensor, several, or a struct of them."""
    text = (pathlib.Path(__file__).parents[2] / header).read_text()
    return set(re.findall(r"^(?:std::vector<Tensor>|[A-Z]\w*) ([a-z_0-9]+)\(", text, re.M))


def main(path):
    written = read(path)
    functions, failures = {}, []
    for part in PARTS:
        module = importlib.import_module("values_" + part)
        failures += [f"{name} has two counterparts" for name in module.CASES if name in functions]
        functions.update(module.CASES)
        covered = {name.split("/")[0] for name in written} | set(module.LEFT_OUT)
        for header in module.HEADERS:
            failures += [f"{name} of {header} has no case" for name in sorted(functions_of(header) - covered)]
    failures += [f"{name} has no counterpart" for name in written if name not in functions]
    failures += [f"{name} has no case" for name in functions if name not in written]
    for name, case in written.items():
        if name not in functions:
            continue
        try:
            failures += [f"{name}: {text}" for text in check(case, functions[name])]
        except Exception as error:  # of the counterpart
            failures.append(f"{name}: {type(error).__name__}: {error}")
    print(f"{len(written)} cases beside PyTorch {torch.__version__}, {len(failures)} failures")
    print("".join(f"  {text}\n" for text in failures), end="")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
