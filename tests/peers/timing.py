"""Rows of kernels' times, as tests/ops/kernel_bench.h prints them."""
import re
import sys
import time

import torch


class Rows:
    """PROGRAM [threads] [batch] [bf16] [only=REGEX]"""

    def __init__(self):
        numbers = [int(word) for word in sys.argv[1:] if word.isdigit()] + [None, None]
        only = [word[5:] for word in sys.argv[1:] if word.startswith("only=")]
        self.batch, self.only = numbers[1] or 8, re.compile(only[-1] if only else "")
        self.dtype = torch.bfloat16 if "bf16" in sys.argv[1:] else torch.float32
        torch.set_num_threads(numbers[0] or 1)
        torch.set_flush_denormal(True)
        torch.set_grad_enabled(False)

    def wanted(self, name):
        return bool(self.only.search(name))

    def row(self, name, run, flops=0):
        """The median of at least 9 runs in a fifth of a second."""
        if not self.wanted(name):
            return
        run()
        times, begin = [], time.perf_counter()
        while len(times) < 9 or time.perf_counter() - begin < 0.2:
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        s = sorted(times)[len(times) // 2]
        print(f"{name:34} {s * 1e3:8.3f} ms" + (f" {flops / s / 1e9:6.0f} GFLOP/s" if flops else ""), flush=True)
