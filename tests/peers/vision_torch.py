#!/usr/bin/env python3
"""Times PyTorch's CPU kernels, channels last, on the rows of tests/ops/vision_benchmark.cc.

  vision_torch.py [threads] [batch] [bf16] [only=REGEX]
"""
import torch
import torch.nn.functional as F

from timing import Rows

LAYERS = [(224, 3, 64, 7, 2, 3), (56, 64, 64, 1, 1, 0), (56, 64, 64, 3, 1, 1), (56, 64, 256, 1, 1, 0),
          (56, 256, 64, 1, 1, 0), (56, 128, 128, 3, 2, 1), (56, 256, 512, 1, 2, 0), (28, 128, 128, 3, 1, 1),
          (28, 512, 128, 1, 1, 0), (14, 256, 256, 3, 1, 1), (14, 1024, 256, 1, 1, 0), (7, 512, 512, 3, 1, 1),
          (7, 2048, 512, 1, 1, 0)]


def main():
    rows = Rows()
    row, batch, dtype = rows.row, rows.batch, rows.dtype
    aten = torch.ops.aten

    def plane(channels, size):
        return torch.rand(batch, channels, size, size).to(dtype).to(memory_format=torch.channels_last)

    x = plane(64, 112)
    y, at = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    row("max_pool 112 64", lambda: F.max_pool2d(x, 3, 2, 1, return_indices=True))
    row("max_pool dx 112 64", lambda: aten.max_pool2d_with_indices_backward(y, x, [3, 3], [2, 2], [1, 1], [1, 1], False, at))
    x = plane(2048, 7)
    row("avg_pool 7 2048", lambda: F.adaptive_avg_pool2d(x, 1))
    x, d = plane(128, 28), plane(128, 56)
    row("bilinear 28>56 128", lambda: F.interpolate(x, scale_factor=2, mode="bilinear"))
    row("bilinear dx 28>56 128", lambda: aten.upsample_bilinear2d_backward(d, [56, 56], [batch, 128, 28, 28], False))
    for size, channels in ((56, 256), (14, 512)):
        x, d = plane(channels, size), plane(channels, size)
        g, b = torch.rand(channels), torch.rand(channels)
        _, mean, rstd = aten.native_group_norm(x, g, b, batch, channels, size * size, 32, 1e-5)
        row(f"group_norm {size} {channels}", lambda: aten.native_group_norm(x, g, b, batch, channels, size * size, 32, 1e-5))
        row(f"group_norm dx {size} {channels}", lambda: aten.native_group_norm_backward(
            d, x, mean, rstd, g, batch, channels, size * size, 32, [True, True, True]))
    for size, channels in ((112, 64), (56, 256), (14, 1024), (7, 2048)):
        x, d = plane(channels, size), plane(channels, size)
        g, b = torch.rand(channels), torch.rand(channels)
        _, mean, rstd = aten.native_batch_norm(x, g, b, None, None, True, 0.1, 1e-5)
        row(f"batch_norm {size} {channels}", lambda: aten.native_batch_norm(x, g, b, None, None, True, 0.1, 1e-5))
        row(f"batch_norm dx {size} {channels}", lambda: aten.native_batch_norm_backward(
            d, x, g, None, None, mean, rstd, True, 1e-5, [True, True, True]))
    for size, channels, filters, k, s, p in LAYERS:
        name = f"{size} {channels}>{filters} k{k} s{s}"
        if not any(rows.wanted(kind + name) for kind in ("conv ", "conv dx ", "conv dw ")):
            continue
        x = plane(channels, size)
        w = torch.rand(filters, channels, k, k).to(dtype).to(memory_format=torch.channels_last)
        y = F.conv2d(x, w, None, s, p)
        flops = 2 * y.numel() * channels * k * k

        def backward(mask):
            return aten.convolution_backward(y, x, w, None, [s, s], [p, p], [1, 1], False, [0, 0], 1, mask)
        row("conv " + name, lambda: F.conv2d(x, w, None, s, p), flops)
        row("conv dx " + name, lambda: backward([True, False, False]), flops)
        row("conv dw " + name, lambda: backward([False, True, False]), flops)


main()
