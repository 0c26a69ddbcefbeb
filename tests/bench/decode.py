#!/usr/bin/env python3
"""Times tokens of a Llama of 160 million weights, one after the other, beside what reading its weights would take.

Needs `bench` and the programs of examples/ in --build. A turn reads 512 MiB (bench's row Reading), generates, and reads
again; the table has the medians over the turns. A token reads every weight but the embedding's, and the caches of the
tokens before it.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LAYERS, WIDTH, HEADS, KEY_HEADS, DEPTH, INNER, VOCABULARY = 12, 768, 12, 4, 64, 3328, 32000


def bytes_of_token(size, context):
    block = WIDTH * (HEADS + 2 * KEY_HEADS) * DEPTH + HEADS * DEPTH * WIDTH + 3 * WIDTH * INNER
    return size * (LAYERS * (block + 2 * KEY_HEADS * DEPTH * context) + VOCABULARY * WIDTH)


def output_of(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def reading(args, threads):
    """GB/s, the median and the best of a run."""
    found = json.loads(output_of([os.path.join(args.build, "tests", "bench"), "--benchmark_format=json",
                                  f"--benchmark_filter=^Reading/threads:{threads}/"]))["benchmarks"][0]
    return found["GB/s"], found["best_GB/s"]


def generate(args, model, dtype, threads):
    """Milliseconds of a token, and of a step of the plan alone."""
    prompt = " ".join(str(i * 7919 % VOCABULARY) for i in range(args.prompt))
    said = output_of([os.path.join(args.build, "examples", "generate"), f"--load={model}", "--tokenizer=numbers",
                      "--stop=none", f"--prompt={prompt}", f"--tokens={args.tokens}", f"--dtype={dtype}",
                      f"--kernel_threads={threads}", "--profile"])
    step = re.search(r"a step of decode: ([0-9.]+) ms", said) or re.search(r"decode: a step of .*?: ([0-9.]+) ms", said)
    return 1e3 / float(re.search(r"then ([0-9.]+) tokens/s", said)[1]), float(step[1]), said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(HERE, "..", "..", "build"))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--prompt", type=int, default=724, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="print the profile of each row's first run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as model:
        output_of([os.path.join(args.build, "examples", "llama"), "--size=160m", "--steps=1", "--batch=1", "--context=1024",
                   "--eval_batches=0", f"--save={model}"])
        print("| a token | threads | ms (its plan's step) | reading, GB/s | of the time of reading, by its median (by its best) |")
        print("|---|--:|--:|--:|--:|", flush=True)
        for dtype in args.dtypes:
            size = bytes_of_token(4 if dtype == "fp32" else 2, args.prompt + args.tokens / 2)
            for threads in args.threads:
                tokens, steps, reads, bests, profile = [], [], [], [], ""
                for _ in range(args.turns):
                    before = reading(args, threads)
                    token, step, said = generate(args, model, dtype, threads)
                    after = reading(args, threads)
                    tokens.append(token)
                    steps.append(step)
                    reads += [before[0], after[0]]
                    bests += [before[1], after[1]]
                    profile = profile or said[said.rfind("decode:"):]
                token, read, best = statistics.median(tokens), statistics.median(reads), statistics.median(bests)
                shares = [size / (rate * 1e9) / (token / 1e3) for rate in (read, best)]
                print(f"| {dtype}, {size / 1e6:.0f} MB | {threads} | {token:.2f} ({statistics.median(steps):.2f}) "
                      f"| {read:.1f} (best {best:.1f}) | {shares[0]:.2f} ({shares[1]:.2f}) |", flush=True)
                if args.profile:
                    print(profile)


if __name__ == "__main__":
    main()
