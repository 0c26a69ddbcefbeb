#!/usr/bin/env python3
"""Times PyTorch's training steps of the models of examples/, eager, on the CPU.

  steps_torch.py resnet|llama|dlrm [threads] [steps] [bf16] [compile] [profile]

resnet: ResNet-50 at 224 x 224, batch 16, channels last, SGD with momentum. llama: 160m, batch 4 of 256 tokens, AdamW.
dlrm: 26 tables of 10^6 rows x 64, batch 2048, sparse gradients, SGD. The same of ours:

  resnet --size=50 --image_size=224 --batch=16 --steps=8 --eval_batches=0
  llama --size=160m --batch=4 --context=256 --steps=8 --eval_batches=0
  dlrm --rows=1000000 --width=64 --batch=2048 --optimizer=sgd --steps=20 --eval_batches=0

steps.py runs both in turn.
"""
import resource
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

from torch_models import Dlrm, Llama, ResNet50


def make(name):
    """The model, its optimizer, and a batch's loss."""
    if name == "resnet":
        model = ResNet50().to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
        x, t = torch.rand(16, 3, 224, 224).to(memory_format=torch.channels_last), torch.randint(0, 10, (16,))
        return model, optimizer, lambda: F.cross_entropy(model(x).float(), t)
    if name == "llama":
        model = Llama()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
        tokens, t = torch.randint(0, 32000, (4, 256)), torch.randint(0, 32000, (1024,))
        return model, optimizer, lambda: F.cross_entropy(model(tokens).float().flatten(0, 1), t)
    model = Dlrm()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = [(torch.rand(2048, 13), torch.randint(0, 10 ** 6, (2048, 26)), torch.rand(2048).round()) for _ in range(8)]

    def loss():
        batches.append(batches.pop(0))
        dense, ids, t = batches[0]
        return F.binary_cross_entropy_with_logits(model(dense, ids).float(), t)
    return model, optimizer, loss


def main():
    name, options = sys.argv[1], sys.argv[2:]
    numbers = [int(o) for o in options if o.isdigit()] + [None, None]
    torch.set_num_threads(numbers[0] or 1)
    torch.set_flush_denormal(True)
    model, optimizer, loss_of = make(name)
    model.kind = torch.bfloat16 if "bf16" in options else torch.float32
    if "compile" in options:
        loss_of = torch.compile(loss_of)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in options):
            loss = loss_of()
        loss.backward()
        if name == "llama":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()
    for _ in range(2):
        step()
    times = []
    for _ in range(numbers[1] or 6):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    if "profile" in options:
        with torch.profiler.profile() as profile:
            step()
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=50))
        ms = {row.key: row.self_cpu_time_total / 1e3 for row in profile.key_averages()}
        convolutions = sum(own for key, own in ms.items() if "convolution" in key)
        print(f"convolutions {convolutions:.1f} ms, all else {sum(ms.values()) - convolutions:.1f} ms")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"PyTorch {torch.__version__} {' '.join(sys.argv[1:])}: median step {sorted(times)[len(times) // 2] * 1e3:.1f} ms, "
          f"least {min(times) * 1e3:.1f}; {peak:.1f} GB", flush=True)


main()
