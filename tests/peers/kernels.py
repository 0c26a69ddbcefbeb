#!/usr/bin/env python3
"""Runs our kernels and PyTorch's in turn and prints a table of medians in Markdown.

Each turn is one process of ours and one of each --python, which print the same rows. A ratio is PyTorch's median over
ours: 1.1 is ours 1.1 times as fast.

  kernels.py vision --threads 1 2 --batch 16 --only='^(max|avg|bilinear|group|batch)' --python peer/bin/python
"""
import argparse
import os
import re
import statistics
import subprocess
import sys

from compare import HERE, environment


def rows_of(command, env):
    """Name of a row to milliseconds."""
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit("%s ended with %d:\n%s" % (" ".join(command), done.returncode, done.stderr[-2000:]))
    return {m[1].strip(): float(m[2]) for m in re.finditer(r"^(.*?) +([0-9.]+) ms", done.stdout, re.MULTILINE)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", choices=["vision", "sparse"])
    parser.add_argument("--build", default=os.path.join(HERE, "..", "..", "build"))
    parser.add_argument("--python", action="append", help="an interpreter that has torch, /usr/bin/python3 if none is "
                        "given; may be given several times")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--only", default="", help="regular expression of the rows to measure")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    pythons = args.python or ["/usr/bin/python3"]
    versions = [subprocess.run([p, "-c", "import torch; print(torch.__version__.split('+')[0])"], check=True,
                               stdout=subprocess.PIPE, text=True).stdout.strip() for p in pythons]
    for threads in args.threads:
        words = [str(threads), str(args.batch), "only=" + args.only] + (["bf16"] if args.bf16 else [])
        ours, theirs = [], [[] for _ in pythons]
        for _ in range(args.turns):
            ours.append(rows_of([os.path.join(args.build, "tests", args.kernels + "_benchmark")] + words, os.environ))
            for python, turns in zip(pythons, theirs):
                script = os.path.join(HERE, args.kernels + "_torch.py")
                turns.append(rows_of([python, script] + words, environment(threads)))
        print(f"\n| {threads} thread{'s' if threads > 1 else ''}, ms | ours |" +
              "".join(f" PyTorch {v} | ratio (of the turns) |" for v in versions))
        print("|---|--:" + "|--:|---" * len(pythons) + "|")
        sums = [0] * (1 + len(pythons))
        for name in ours[0]:
            mine = statistics.median(turn[name] for turn in ours)
            sums[0] += mine
            line = f"| {name} | {mine:.3f} |"
            for i, turns in enumerate(theirs):
                other = statistics.median(turn[name] for turn in turns)
                sums[1 + i] += other
                ratios = [b[name] / a[name] for a, b in zip(ours, turns)]
                line += f" {other:.3f} | {other / mine:.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |"
            print(line, flush=True)
        print(f"| all of them | {sums[0]:.3f} |" + "".join(f" {s:.3f} | {s / sums[0]:.2f} |" for s in sums[1:]))


if __name__ == "__main__":
    main()
