#!/usr/bin/env python3
"""Runs bench's GPT steps and the same models in PyTorch, alternating, and prints one table of ratios.

Every repetition is a process of its own, ours and theirs in turn, so that what else the machine does falls on both;
a row is the medians over the repetitions. With more than one thread ours is the better of the two ways to use them:
one device with several kernel threads, or several devices (dp) with one each.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def environment(threads):
    # Debian's PyTorch multiplies with OpenBLAS, which knows too few processors by name: without the first line it may
    # run AVX2 code, a third slower. All libraries get as many threads as we do.
    return dict(os.environ, OPENBLAS_CORETYPE="SKYLAKEX", OPENBLAS_NUM_THREADS=str(threads),
                OMP_NUM_THREADS=str(threads))


def run(command, threads, prefix):
    env = environment(threads)
    done = subprocess.run(prefix + command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit("%s ended with %d:\n%s" % (shlex.join(command), done.returncode, done.stderr[-2000:]))
    return json.loads(done.stdout)


def ways(threads, dtype):
    """Names of bench's GptStep for so many threads."""
    end = "" if dtype == "fp32" else "/dtype:" + dtype
    names = ["dp:1/kernel_threads:%d%s" % (threads, end)]
    if threads > 1:
        names.append("dp:%d/kernel_threads:1%s" % (threads, end))
    return names


def ours(args, model, way, threads):
    name = "^GptStep/%s/%s/iterations" % (model.replace(".", "[.]"), way)
    command = [args.bench, "--benchmark_filter=" + name, "--benchmark_format=json"]
    # OMP_NUM_THREADS would bound nothing of ours: each runtime thread sets its own team.
    found = run(command, threads, args.prefix)["benchmarks"]
    if len(found) != 1:
        sys.exit("%s has %d benchmarks named %s" % (args.bench, len(found), name))
    return found[0]


def theirs(args, model, threads, dtype, compiled):
    command = [args.python, os.path.join(HERE, "gpt_torch.py"), "--model", model, "--threads", str(threads),
               "--dtype", dtype, "--steps", "5" if model == "10.8M" else "3"]
    return run(command + (["--compile"] if compiled else []), threads, args.prefix)


def torch_version(args):
    done = subprocess.run([args.python, "-c", "import torch; print(torch.__version__)"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    if done.returncode != 0:
        sys.exit("There is no PyTorch for %s, so nothing to compare with. On Debian: apt-get install python3-torch "
                 "libopenblas0-openmp; or give another interpreter with --python." % args.python)
    return done.stdout.strip()


def measure(args, model, threads, dtype, compiled):
    us, them = {way: [] for way in ways(threads, dtype)}, []
    for _ in range(args.repetitions):
        for way in us:
            us[way].append(ours(args, model, way, threads))
        them.append(theirs(args, model, threads, dtype, compiled)["tokens_per_s"])
    speeds = {way: statistics.median(r["tokens/s"] for r in runs) for way, runs in us.items()}
    best = max(speeds, key=speeds.get)
    return {
        "best": best,
        "ours": speeds[best],
        "floor": statistics.median(r["of_floor_speed"] for r in us[best]),
        "theirs": statistics.median(them),
        "others": {way: s for way, s in speeds.items() if way != best},
        "ratios": [max(us[way][i]["tokens/s"] for way in us) / them[i] for i in range(len(them))],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default=os.path.join(HERE, "..", "..", "build", "tests", "bench"))
    parser.add_argument("--python", default="/usr/bin/python3", help="an interpreter that has torch")
    parser.add_argument("--models", nargs="+", default=["10.8M", "124M"], choices=["10.8M", "124M"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", default=["fp32"], choices=["fp32", "bf16"])
    parser.add_argument("--compile", action="store_true", help="also against torch.compile, where it is PyTorch 2")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--prefix", default="", help="command to run every measured program under, e.g. 'nice -n -5'")
    args = parser.parse_args()
    args.prefix = shlex.split(args.prefix)
    if args.repetitions < 5:
        parser.error("medians of fewer than 5 repetitions say little")
    version = torch_version(args)
    modes = [False] + ([True] if args.compile and int(version.split(".")[0]) >= 2 else [])
    if args.compile and len(modes) == 1:
        print("torch.compile needs PyTorch 2 or newer: eager only", file=sys.stderr)

    print("ours and PyTorch %s, tokens/s, medians of %d alternating runs" % (version, args.repetitions))
    row = "%-6s %-6s %7s %-8s %9s %9s %7s %10s   %s"
    print(row % ("model", "dtype", "threads", "theirs", "ours", "PyTorch", "ratio", "of floor", "ratios of the runs; our way (other ways)"))
    for dtype in args.dtypes:
        for model in args.models:
            for threads in args.threads:
                for compiled in modes:
                    m = measure(args, model, threads, dtype, compiled)
                    others = ", ".join("%s: %.0f" % (w, s) for w, s in m["others"].items())
                    print(row % (model, dtype, threads, "compiled" if compiled else "eager", "%.0f" % m["ours"],
                                 "%.0f" % m["theirs"], "%.2f" % (m["ours"] / m["theirs"]), "%.0f %%" % (100 * m["floor"]),
                                 "%.2f to %.2f; " % (min(m["ratios"]), max(m["ratios"])) + m["best"] + (" (%s)" % others if others else "")), flush=True)


if __name__ == "__main__":
    main()
