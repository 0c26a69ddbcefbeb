#!/usr/bin/env python3
"""Trains a GPT-2 with PyTorch on a GPU and prints one JSON object: tokens/s over steps without a gap.

The model is that of gpt_torch.py beside this file; bf16 autocast over fp32 weights, as ours; torch.compile, PyTorch's
own choice of fused attention (the flash kernels), fused AdamW, TF32 allowed where fp32 products are left.
"""
import argparse
import gc
import json
import sys
import time

import torch

from gpt_torch import Gpt

MODELS = {  # layers, width, heads, context, vocabulary: as in tests/gpu/bench_gpu.cc
    "10.8M": (6, 384, 6, 256, 256),
    "124M": (12, 768, 12, 1024, 50304),
    "1.3B": (24, 2048, 16, 1024, 50304),
}


def make_step(args, batch):
    layers, width, heads, context, vocabulary = MODELS[args.model]
    torch.manual_seed(1)
    model = Gpt(layers, width, heads, context, vocabulary).cuda()
    weights = list(model.parameters())
    groups = [
        {"params": [p for p in weights if p.dim() > 1], "weight_decay": 0.01},
        {"params": [p for p in weights if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, fused=True)
    run = torch.compile(model, dynamic=False) if args.compile else model
    tokens = torch.randint(vocabulary, (batch, context + 1), device="cuda")
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(args.dtype)

    def step():
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
            loss = run(inputs, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    return step, batch * context, sum(p.numel() for p in weights)


def least_bytes(model, batch):
    """What a step takes at least, whatever the compiler computes again: four fp32 numbers per weight (it, its gradient and
    AdamW's two); per block, token and channel q, k and v (6 bytes in bf16), attention's result (2), what gelu is taken of
    (8) and the fp32 residual (4); bf16 logits and their gradient. Batches that need more than is free are not tried, as
    each trial compiles for a minute."""
    layers, width, _, context, vocabulary = MODELS[model]
    weights = layers * 12 * width * width + (vocabulary + context) * width
    return 16 * weights + batch * context * (20 * layers * width + 4 * vocabulary)


def out_of_memory(error):
    """Also where it is not PyTorch's own allocator that says so."""
    text = str(error)
    return isinstance(error, torch.cuda.OutOfMemoryError) or "out of memory" in text or "ALLOC_FAILED" in text


def measure(args, batch):
    step, tokens, parameters = make_step(args, batch)
    for _ in range(args.warm_up):
        loss = step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(args.steps):
        loss = step()
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - start) / args.steps
    return {
        "tokens_per_s": tokens / seconds,
        "step_ms": 1e3 * seconds,
        "batch": batch,
        "loss": loss.item(),
        "parameters": parameters,
        "memory_gb": torch.cuda.max_memory_allocated() / 1e9,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="124M")
    parser.add_argument("--batch", type=int, nargs="+", default=[32],
                        help="sequences of a step; of several the first that fits the memory")
    parser.add_argument("--dtype", choices=["fp32", "bf16", "fp16"], default="bf16")
    parser.add_argument("--eager", dest="compile", action="store_false", help="without torch.compile")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--warm_up", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this PyTorch sees no GPU")
    torch.cuda.set_device(args.device)
    torch.set_float32_matmul_precision("high")
    free, _ = torch.cuda.mem_get_info()
    for batch in args.batch:
        if len(args.batch) > 1 and least_bytes(args.model, batch) > free:
            continue
        fits = True
        try:
            print(json.dumps(measure(args, batch)), flush=True)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            fits = False
        if fits:
            return
        # Outside the handler, whose traceback holds the tensors.
        print("batch %d does not fit" % batch, file=sys.stderr, flush=True)
        torch._dynamo.reset()
        gc.collect()  # compiled functions and modules refer to each other
        torch.cuda.empty_cache()
    sys.exit("no batch of %s fits the memory" % args.batch)


if __name__ == "__main__":
    main()
