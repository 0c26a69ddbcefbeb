"""PyTorch's counterparts of cases_language.cc."""
import math

import torch
import torch.nn.functional as nn

HEADERS = []  # functions of ops/language/functional.h
LEFT_OUT = {}


def stretched(frequency, length, factor, low, high):
    """Llama 3.1's, by wavelengths."""
    wavelength = 2 * math.pi / frequency
    blend = (length / wavelength - low) / (high - low)
    between = (1 - blend) * frequency / factor + blend * frequency
    long = torch.where(wavelength > length / low, frequency / factor, between)
    return torch.where(wavelength < length / high, frequency, long)


def rope(base=10000.0, interleaved=False, dims=None, scale=1, stretch=None):
    """Rotation by complex numbers."""
    def run(x, positions):
        n = dims or x.shape[-1]
        frequency = base ** -(torch.arange(0, n, 2, dtype=torch.float64) / n)
        if stretch:
            frequency = stretched(frequency, *stretch)
        angle = (positions.double() / scale)[..., None] * frequency
        turn = torch.polar(torch.ones_like(angle), angle)[..., None, :]  # for every head
        part, rest = x[..., :n], x[..., n:]
        pairs = part.unflatten(-1, (-1, 2)) if interleaved else part.unflatten(-1, (2, -1)).transpose(-1, -2)
        pairs = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
        part = (pairs if interleaved else pairs.transpose(-1, -2)).flatten(-2)
        return torch.cat([part, rest], -1)
    return run


def seen(queries, keys, query_at=None, key_at=None, causal=True, window=0, documents=None):
    """Which keys a query sees, broadcast to [b 1 s t]."""
    query_at = torch.arange(queries) + keys - queries if query_at is None else query_at
    key_at = torch.arange(keys) if key_at is None else key_at
    query_at, key_at = query_at[..., :, None], key_at[..., None, :]
    mask = (key_at <= query_at) | (not causal)
    if window:
        mask = mask & (key_at > query_at - window)
    if documents:
        mask = mask & (documents[0][..., :, None] == documents[1][..., None, :])
    return mask if mask.dim() == 2 else mask[:, None]


def attention(q, k, v, mask, scale=None, bias=None):
    """Written out, so that a query that sees nothing gives 0 without gradients; elsewhere it is PyTorch's."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(groups, 1).transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
    if bias is not None:
        scores = scores + bias
    out = nn.softmax(torch.where(mask, scores, -1e30), -1) * mask @ v.repeat_interleave(groups, 1)
    given = torch.where(mask, torch.zeros((), dtype=q.dtype) if bias is None else bias.detach(), -math.inf)
    given = given.expand(scores.shape)
    theirs = nn.scaled_dot_product_attention(q, k, v, given, scale=scale, enable_gqa=True)
    sees = mask.any(-1, keepdim=True).expand(out.shape)
    torch.testing.assert_close(out.detach()[sees], theirs.detach()[sees], rtol=1e-10, atol=1e-10)
    return out.transpose(1, 2)


def masked(q, k, v, **options):
    return attention(q, k, v, seen(q.shape[1], k.shape[1], **options))


def positions(q, k, v, query_at, key_at):
    return masked(q, k, v, query_at=query_at, key_at=key_at)


def everything(q, k, v, bias, query_at, key_at, query_documents, key_documents):
    mask = seen(q.shape[1], k.shape[1], query_at, key_at, True, 6, (query_documents, key_documents))
    return attention(q, k, v, mask, 0.4, bias)


def assign_slice(variable, begin, value):
    new = variable.detach().clone()
    new[:, begin:begin + value.shape[1]] = value.detach()
    return new


CASES = {
    "rope": rope(),
    "rope/batch": rope(base=500),
    "rope/interleaved": rope(interleaved=True),
    "rope/part": rope(dims=6),
    "rope/interleaved_part": rope(interleaved=True, dims=4),
    "rope/scale": rope(scale=4),
    "rope/llama": rope(base=500000, stretch=(8192, 8, 1, 4)),
    "rope/llama_numbers": rope(interleaved=True, stretch=(512, 4, 2, 9)),
    "attention/ends": masked,
    "attention/blind": positions,
    "attention/groups": masked,
    "attention/query_groups": lambda q, k, v: masked(q, k, v, causal=False),
    "attention/values": lambda q, k, v: attention(q, k, v, seen(7, 9), 0.2),
    "attention/long": masked,
    "attention/window": lambda q, k, v: masked(q, k, v, window=3),
    "attention/window_ahead": lambda q, k, v: masked(q, k, v, window=3, causal=False),
    "attention/bias": lambda q, k, v, bias: attention(q, k, v, seen(7, 9, causal=False), bias=bias),
    "attention/bias_of_heads": lambda q, k, v, bias: attention(q, k, v, seen(7, 9), bias=bias),
    "attention/positions": positions,
    "attention/query_positions": lambda q, k, v, at: masked(q, k, v, query_at=at, window=4),
    "attention/documents": lambda q, k, v, own, theirs: masked(q, k, v, causal=False, documents=(own, theirs)),
    "attention/everything": everything,
    "assign": lambda variable, value: value.detach(),
    "assign_slice": assign_slice,
}
