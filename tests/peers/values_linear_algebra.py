"""PyTorch's counterparts of cases_linear_algebra.cc. Complex tensors have a last axis of 2."""
import torch

HEADERS = ["ops/language/linear_algebra.h"]
LEFT_OUT = {}


def transformed(function, axis=-1):
    return lambda x: torch.view_as_real(function(torch.view_as_complex(x), dim=axis))


def rfft(axis=-1):
    return lambda x: torch.view_as_real(torch.fft.rfft(x, dim=axis))


def irfft(axis=-1, n=None):
    return lambda x: torch.fft.irfft(torch.view_as_complex(x), n, dim=axis)


def cholesky(a):
    return torch.linalg.cholesky((a + a.mT) / 2 + 9 * torch.eye(a.shape[-1], dtype=a.dtype))


def triangular(upper, transposed):
    def run(t, b):
        t = t.triu() if upper else t.tril()
        return torch.linalg.solve_triangular(t.mT if transposed else t, b, upper=upper != transposed)
    return run


CASES = {
    "fft": transformed(torch.fft.fft),
    "fft/axis": transformed(torch.fft.fft, 0),
    "fft/factors": transformed(torch.fft.fft, 1),
    "fft/long": transformed(torch.fft.fft),
    "fft/prime": transformed(torch.fft.fft),
    "fft/primes": transformed(torch.fft.fft),
    "ifft": transformed(torch.fft.ifft),
    "ifft/axis": transformed(torch.fft.ifft, -2),
    "rfft": rfft(),
    "rfft/axis": rfft(1),
    "irfft": irfft(),
    "irfft/odd": irfft(0, 151),
    "irfft/one": irfft(n=1),
    "cholesky": cholesky,
    "cholesky/product": lambda x: torch.linalg.cholesky(x @ x.mT),
    "triangular_solve": triangular(False, False),
    "triangular_solve/upper": triangular(True, False),
    "triangular_solve/transposed": triangular(False, True),
    "triangular_solve/both": triangular(True, True),
    "solve": torch.linalg.solve,
    "solve/shift": lambda a, b: torch.linalg.solve(a + 20 * torch.eye(40, dtype=a.dtype), b),
    "qr": torch.linalg.qr,
    "qr/square": torch.linalg.qr,
    "qr/r_alone": lambda a: torch.linalg.qr(a)[1],
}
