#!/usr/bin/env python3
"""Times PyTorch's CPU kernels on the rows of tests/ops/sparse_benchmark.cc.

  sparse_torch.py [threads] [only=REGEX]
"""
import torch
import torch.nn.functional as F

from timing import Rows


def main():
    rows = Rows()
    row = rows.row
    for lines, length, k in ((8192, 64, 8), (1024, 1000, 5), (64, 32000, 50), (256, 4096, 4096)):
        x = torch.rand(lines, length)
        if k == length:
            row(f"sort {lines} x {length}", lambda: torch.sort(x, dim=1, descending=True, stable=True))
        else:
            row(f"top_k {lines} x {length}, {k}", lambda: torch.topk(x, k, 1))
    x = torch.rand(1024, 4096)
    row("cumsum 1024 x 4096", lambda: x.cumsum(1))

    line, places = torch.rand(10 ** 6), torch.randint(0, 10 ** 6, (10 ** 6,))
    table, some = torch.rand(50000, 128), torch.randint(0, 50000, (16384,))
    wide, columns = torch.rand(512, 1000), torch.randint(0, 1000, (500,))
    square, across = torch.rand(1024, 1000), torch.randint(0, 1000, (1024, 1000))
    tall, down = torch.rand(1000, 1024), torch.randint(0, 1000, (1000, 1024))
    row("take 10^6 of 10^6", lambda: line.index_select(0, places))
    row("take 16384 rows of 50000 x 128", lambda: table.index_select(0, some))
    row("take 500 of 512 x 1000", lambda: wide.index_select(1, columns))
    row("take_along 1024 x 1000", lambda: square.gather(1, across))
    row("take_along 1000 x 1024, axis 0", lambda: tall.gather(0, down))

    few, bins = torch.rand(1000), torch.randint(0, 1000, (10 ** 6,))
    parts, low, crowd, among = torch.rand(16384, 128), torch.rand(64, 256), torch.rand(16384, 256), torch.randint(0, 64, (16384,))
    row("scatter_add 10^6 to 10^6", lambda: line.scatter_add(0, places, line))
    row("scatter_add 10^6 to 1000", lambda: few.scatter_add(0, bins, line))
    row("scatter_add 1024 x 1000", lambda: square.scatter_add(1, across, square))
    row("scatter_add 1000 x 1024, axis 0", lambda: tall.scatter_add(0, down, tall))
    row("index_add 16384 to 50000 x 128", lambda: table.index_add(0, some, parts))
    row("index_add 16384 to 64 x 256", lambda: low.index_add(0, among, crowd))

    table, ids = torch.rand(200000, 64), torch.randint(0, 200000, (2048, 20))
    for mode in ("sum", "mean", "max"):
        row(f"embedding_bag {mode}", lambda: F.embedding_bag(ids, table, mode=mode))
    dy, begins = torch.rand(2048, 64), torch.arange(0, 2048 * 20, 20)
    for number, mode in ((0, "sum"), (1, "mean")):
        _, bag_of, sizes, greatest = torch.ops.aten._embedding_bag(table, ids.flatten(), begins, False, number)
        row(f"embedding_bag dtable {mode}", lambda: torch.ops.aten._embedding_bag_backward(
            dy, ids.flatten(), begins, bag_of, sizes, greatest, 200000, False, number, False, None))


main()
