#!/usr/bin/env python3
"""Times PyTorch's training steps of the models of examples/ on a GPU and prints one JSON object.

  steps_cuda.py llama_160m        bf16 autocast over fp32 weights, torch.compile, TF32 where fp32 products are left,
                                  fused optimizers: medians of 20 steps between synchronisations
  steps_cuda.py NAME --small      a small model of that kind, once, on the CPU where there is no GPU: that it runs

OURS are the flags of the program of the same kind whose step is the same (tests/gpu/run.sh reads them: --flags NAME).
"""
import argparse
import contextlib
import json
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

import torch_models as models

OURS = {
    "llama_160m": "llama --size=160m --batch=16 --context=1024",
    "llama_1b": "llama --size=1b --batch=4 --context=1024",
    "resnet_50": "resnet --size=50 --image_size=224 --batch=64",
    "vit_base": "vit --size=base --image_size=224 --batch=64 --clip=0",
    "bert_base": "bert --size=base --batch=64 --context=512",
    "moe_64": "moe --layers=6 --width=768 --heads=12 --experts=64 --top_k=2 --context=1024 --batch=8",
    "dlrm": "dlrm --rows=1000000 --width=64 --batch=2048 --optimizer=sgd",
    "unet": "unet --width=64 --image_size=64 --batch=64",
    "caption": "caption --image_size=64 --eye_layers=6 --layers=6 --batch=256",
    "insightface": "insightface --size=50 --image_size=112 --identities=10000 --width=512 --batch=128 --clip=0",
}
CLIPPED = ("llama", "bert", "moe", "unet", "caption")


def make(name, small, device):
    """A module and a function of it that gives a batch's loss."""
    def tokens(batch, context, words):
        return torch.randint(words, (batch, context), device=device)

    def of_words(model, batch, context, words):
        inputs, targets = tokens(batch, context, words), tokens(batch, context, words).flatten()
        return model, lambda run: F.cross_entropy(run(inputs).flatten(0, 1), targets)

    def pictures(batch, side):
        return torch.rand(batch, 3, side, side, device=device).to(memory_format=torch.channels_last)

    def of_pictures(model, batch, side):
        images, labels = pictures(batch, side), torch.randint(10, (batch,), device=device)
        return model.to(memory_format=torch.channels_last), lambda run: F.cross_entropy(run(images), labels)

    if name == "llama_160m":
        if small:
            return of_words(models.Llama(64, 2, 100, 4, 2, 16, 128), 2, 8, 100)
        return of_words(models.Llama(), 16, 1024, 32000)
    if name == "llama_1b":
        if small:
            return of_words(models.Llama(64, 2, 100, 4, 2, 16, 128, True), 2, 8, 100)
        return of_words(models.Llama(2048, 16, 128256, 32, 8, 64, 8192, True), 4, 1024, 128256)
    if name == "resnet_50":
        return of_pictures(models.ResNet50(), *((2, 32) if small else (64, 224)))
    if name == "vit_base":
        return of_pictures(models.Vit(64, 2, 4, 4, 16) if small else models.Vit(), *((2, 16) if small else (64, 224)))
    if name == "bert_base":
        batch, context = (2, 16) if small else (64, 512)
        model = models.Bert(64, 2, 4, context) if small else models.Bert()
        inputs, targets = tokens(batch, context, 258), tokens(batch, context, 258)
        targets = torch.where(torch.rand(batch, context, device=device) < 0.15, targets, -1).flatten()
        padding = torch.zeros(batch, context, dtype=torch.int32, device=device)
        return model, lambda run: F.cross_entropy(run(inputs, padding).flatten(0, 1), targets, ignore_index=-1)
    if name == "moe_64":
        batch, context = (2, 8) if small else (8, 1024)
        model = models.Moe(32, 2, 4, context, 4, 2) if small else models.Moe(768, 6, 12, context, 64, 2)
        inputs, targets = tokens(batch, context, 256), tokens(batch, context, 256).flatten()

        def loss(run):
            logits, spread = run(inputs)
            return F.cross_entropy(logits.flatten(0, 1), targets) + 0.01 * spread
        return model, loss
    if name == "dlrm":
        batch, rows = (4, 10) if small else (2048, 10 ** 6)
        dense, ids = torch.rand(batch, 13, device=device), tokens(batch, 26, rows)
        labels = torch.rand(batch, device=device).round()
        return models.Dlrm(rows=rows), lambda run: F.binary_cross_entropy_with_logits(run(dense, ids), labels)
    if name == "caption":
        batch, side, layers = (2, 8, 1) if small else (256, 64, 6)
        images, inputs, targets = pictures(batch, side), tokens(batch, 8, 81), tokens(batch, 8, 81).flatten()
        shown = (torch.rand(batch, device=device) > 0.125).float()
        model = models.Caption(side, layers, layers)
        return model, lambda run: F.cross_entropy(run(images, shown, inputs).flatten(0, 1), targets)
    if name == "insightface":
        batch, side, identities = (2, 32, 100) if small else (128, 112, 10000)
        images, labels = pictures(batch, side), torch.randint(identities, (batch,), device=device)
        model = models.Faces(identities, 64 if small else 512).to(memory_format=torch.channels_last)
        return model, lambda run: F.cross_entropy(run(images, labels), labels)
    batch, side = (2, 8) if small else (64, 64)
    noisy, noise = pictures(batch, side), pictures(batch, side)
    moment = torch.randint(1000, (batch,), device=device)
    model = models.Unet(8 if small else 64).to(memory_format=torch.channels_last)
    return model, lambda run: F.mse_loss(run(noisy, moment), noise)


class Both:
    """Two optimizers, each of a part of the weights."""

    def __init__(self, *optimizers):
        self.optimizers = optimizers

    def zero_grad(self, set_to_none):
        for one in self.optimizers:
            one.zero_grad(set_to_none=set_to_none)

    def step(self):
        for one in self.optimizers:
            one.step()


def optimizer_of(name, model, fused):
    if name == "insightface":
        network = [p for p in model.parameters() if p is not model.centres]
        return Both(torch.optim.AdamW(network, lr=1e-3, weight_decay=5e-4, fused=fused),
                    models.AdagradRows([model.centres], {"lr": 1e-3}))
    if name == "resnet_50":
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, fused=fused)
    if name == "dlrm":  # whose tables' gradients have the touched rows alone
        return torch.optim.SGD(model.parameters(), lr=0.01)
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=fused)


def training(name, small, device, compiled=False):
    """A model, and a function that does a step of its training and gives the loss."""
    model, loss_of = make(name, small, device)
    model = model.to(device)
    run = torch.compile(model, dynamic=False) if compiled else model
    kind = device.split(":")[0]
    optimizer = optimizer_of(name, model, kind == "cuda")
    clips = name.startswith(CLIPPED)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(kind, torch.bfloat16):
            loss = loss_of(run)
        loss.backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return model, step


def check():
    for name, flags in OURS.items():
        with torch.device("meta"):
            parameters = sum(p.numel() for p in make(name, False, "meta")[0].parameters())
        print(name, parameters, training(name, True, "cpu")[1]().item(), flags, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=OURS, nargs="?")
    parser.add_argument("--flags", action="store_true", help="print the program's flags alone")
    parser.add_argument("--check", action="store_true", help="of every model a line: its name, how many parameters it "
                        "has, the loss of a small one's first step on the CPU, the program's flags")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--eager", dest="compile", action="store_false", help="without torch.compile")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    if args.check:
        return check()
    if not args.model:
        parser.error("which model? " + ", ".join(OURS))
    if args.flags:
        return print(OURS[args.model])
    on_gpu = torch.cuda.is_available()
    if not on_gpu and not args.small:
        sys.exit("this PyTorch sees no GPU")
    device = f"cuda:{args.device}" if on_gpu else "cpu"
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    model, step = training(args.model, args.small, device, args.compile and on_gpu)
    times = []
    for i in range(5 + args.steps if on_gpu else 1):
        start = time.perf_counter()
        loss = step()
        with torch.cuda.device(device) if on_gpu else contextlib.nullcontext():
            if on_gpu:
                torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    print(json.dumps({"step_ms": round(1e3 * statistics.median(times[5:] or times), 3), "loss": round(loss.item(), 4),
                      "parameters": sum(p.numel() for p in model.parameters()),
                      "memory_gb": torch.cuda.max_memory_allocated(device) / 1e9 if on_gpu else 0,
                      "device": torch.cuda.get_device_name(device) if on_gpu else "cpu", "torch": torch.__version__}))


if __name__ == "__main__":
    main()
