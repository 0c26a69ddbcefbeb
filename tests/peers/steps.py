#!/usr/bin/env python3
"""Trains resnet, llama and dlrm and the same models in PyTorch in turn, and prints a table of median steps in Markdown.

Each turn is one process of ours and one of each PyTorch (steps_torch.py has the models); of a process the median of its
steps counts, without the first two, and of a row the median over the turns. --compile measures torch.compile too.

  steps.py resnet --dtypes fp32 bf16 --threads 1 2 --python peer/bin/python --compile
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

from compare import HERE, environment

OURS = {
    "resnet": ["--size=50", "--image_size=224", "--batch=16"],
    "llama": ["--size=160m", "--batch=4", "--context=256"],
    "dlrm": ["--rows=1000000", "--width=64", "--batch=2048", "--optimizer=sgd"],
}


def output_of(command, env, may_fail=False):
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        if may_fail:
            return None
        sys.exit("%s ended with %d:\n%s" % (" ".join(command), done.returncode, done.stderr[-2000:]))
    return done.stdout


def ours(args, dtype, threads):
    """Milliseconds of a step, and what the program says of its profile."""
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log.json")
        said = output_of([os.path.join(args.build, "examples", args.model)] + OURS[args.model] +
                         [f"--dtype={dtype}", f"--kernel_threads={threads}", f"--steps={args.steps + 2}", "--eval_batches=0",
                          f"--log_json={log}"], os.environ)
        with open(log) as lines:
            steps = [json.loads(line).get("step_ms") for line in lines]
    return statistics.median([s for s in steps if s is not None][2:]), said


def theirs(args, python, dtype, threads, compiled):
    """Milliseconds of a step; None where PyTorch, an older one for instance, does not compile the model."""
    words = [args.model, str(threads), str(args.steps)] + (["bf16"] if dtype == "bf16" else [])
    said = output_of([python, os.path.join(HERE, "steps_torch.py")] + words + (["compile"] if compiled else []),
                     environment(threads), may_fail=compiled)
    return said and float(re.search(r"median step ([0-9.]+) ms", said)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(OURS))
    parser.add_argument("--build", default=os.path.join(HERE, "..", "..", "build"))
    parser.add_argument("--python", action="append", help="an interpreter that has torch, /usr/bin/python3 if none is "
                        "given; may be given several times")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", default=["fp32"], choices=["fp32", "bf16"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int, default=5, help="of each process, without the first two")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="print the profile of each row's first run of ours")
    args = parser.parse_args()
    print("| step, ms | dtype | threads | PyTorch | ours | PyTorch | ratio (of the turns) |\n|---|---|--:|---|--:|--:|---|",
          flush=True)
    for dtype in args.dtypes:
        for threads in args.threads:
            peers = [(python, compiled) for python in args.python or ["/usr/bin/python3"]
                     for compiled in ([False, True] if args.compile else [False])]
            mine, others, profile = [], [[] for _ in peers], ""
            for _ in range(args.turns):
                ms, said = ours(args, dtype, threads)
                mine.append(ms)
                profile = profile or said
                for (python, compiled), turns in zip(peers, others):
                    if None not in turns:
                        turns.append(theirs(args, python, dtype, threads, compiled))
            for (python, compiled), turns in zip(peers, others):
                if None in turns:
                    print(f"| {args.model} | {dtype} | {threads} | {python} does not compile it | | | |", flush=True)
                    continue
                ratios = [b / a for a, b in zip(mine, turns)]
                print(f"| {args.model} | {dtype} | {threads} | {python}{' compiled' if compiled else ''} "
                      f"| {statistics.median(mine):.1f} | {statistics.median(turns):.1f} "
                      f"| {statistics.median(turns) / statistics.median(mine):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |",
                      flush=True)
            if args.profile:
                print(profile)


if __name__ == "__main__":
    main()
