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
}
