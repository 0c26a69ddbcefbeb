#!/usr/bin/env python3
"""Runs bench's GPT steps and the same models in PyTorch, alternating, and prints one table of ratios in Markdown.

Every repetition is a process of its own, ours and theirs in turn, so that what else the machine does falls on both;
a row is the medians over the repetitions. With more than one thread ours is the better of the two ways to use them:
one device with several kernel threads, or several devices (dp) with one each. Each --python is a PyTorch of its own
and gets its own rows beside the same runs of ours. At the end stands what this project aims at, met or by how much not.
"""
import argparse
import glob
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import sysconfig

HERE = os.path.dirname(os.path.abspath(__file__))

# Least ratio to PyTorch by dtype and model, and least share of the floor's speed by dtype (tests/PERFORMANCE.md).
RATIO_AIMS = {("fp32", "10.8M"): 1.3, ("fp32", "124M"): 1.6, ("bf16", "10.8M"): 1.5, ("bf16", "124M"): 1.5}
FLOOR_AIMS = {"fp32": 0.85}

# Run by each interpreter: its version and the libraries it multiplies with. A library inside PyTorch has no file of
# its own; the configuration names that.
PROBE = """
import json, os, re, torch
torch.ones(64, 64) @ torch.ones(64, 64)
files = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
blas = sorted("/".join(f.split("/")[-2:]) for f in files if re.match("lib(openblas|mkl_rt|blis)", os.path.basename(f)))
built = torch.__config__.show()
name = re.search("BLAS_INFO=([^,]*)", built)
onednn = re.search("MKL-DNN v([0-9.]+)", built)
print(json.dumps({"version": torch.__version__, "blas": ", ".join(blas) or (name[1] if name else "unknown") + " built in",
                  "onednn": onednn[1] if onednn else "none"}))
"""


def openmp_openblas():
    """Folder of Debian's OpenBLAS that shares PyTorch's OpenMP threads, or None. The usual flavour has threads of its
    own, which the OpenMP team fights for the cores: with two threads it is slower than with one."""
    machine = sysconfig.get_config_var("MULTIARCH") or ""
    folders = [os.path.join("/usr/lib", machine, "openblas-openmp")] + sorted(glob.glob("/usr/lib/*/openblas-openmp"))
    return next((f for f in folders if os.path.exists(os.path.join(f, "libblas.so.3"))), None)


def processor_has(flag):
    with open("/proc/cpuinfo") as cpuinfo:
        return any(flag in line.split() for line in cpuinfo if line.startswith("flags"))


def environment(threads):
    """Of a PyTorch process."""
    env = dict(os.environ, OPENBLAS_NUM_THREADS=str(threads), OMP_NUM_THREADS=str(threads))
    if processor_has("avx512f"):
        # OpenBLAS knows too few processors by name: without this it may run AVX2 code, a third slower.
        env["OPENBLAS_CORETYPE"] = "SKYLAKEX"
    folder = openmp_openblas()
    if folder:
        env["LD_LIBRARY_PATH"] = ":".join(filter(None, [folder, os.environ.get("LD_LIBRARY_PATH")]))
    return env


def run(command, env):
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit("%s ended with %d:\n%s" % (shlex.join(command), done.returncode, done.stderr[-2000:]))
    return json.loads(done.stdout)


class Peer:
    """One PyTorch, eager or compiled."""

    def __init__(self, python, about, compiled):
        self.python, self.compiled = python, compiled
        self.name = about["version"].split("+")[0] + (" compiled" if compiled else " eager")

    def tokens_per_s(self, args, model, threads, dtype):
        command = args.prefix + [self.python, os.path.join(HERE, "gpt_torch.py"), "--model", model,
                                 "--threads", str(threads), "--dtype", dtype, "--steps", "5" if model == "10.8M" else "3"]
        return run(command + (["--compile"] if self.compiled else []), environment(threads))["tokens_per_s"]


def find_peers(args):
    """Prints a line on each PyTorch and gives the ones to measure."""
    peers = []
    for python in args.python:
        done = subprocess.run([python, "-c", PROBE], env=environment(1), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit("There is no PyTorch for %s, so nothing to compare with. On Debian: apt-get install python3-torch "
                     "libopenblas0-openmp; or give another interpreter with --python. It said:\n%s"
                     % (python, done.stderr[-500:]))
        about = json.loads(done.stdout)
        print("PyTorch %(version)s: BLAS %(blas)s; oneDNN %(onednn)s" % about)
        if "openblas-pthread" in about["blas"] and max(args.threads) > 1:
            print("  this BLAS has threads of its own, which slow PyTorch down: install libopenblas0-openmp")
        peers.append(Peer(python, about, False))
        if args.compile and int(about["version"].split(".")[0]) < 2:
            print("  torch.compile needs PyTorch 2 or newer: eager only")
        elif args.compile and not shutil.which("g++"):
            print("  torch.compile needs g++, which is not here: eager only")
        elif args.compile:
            peers.append(Peer(python, about, True))
    return peers


def ways(threads, dtype):
    """Names of bench's GptStep for so many threads."""
    end = "" if dtype == "fp32" else "/dtype:" + dtype
    names = ["dp:1/kernel_threads:%d%s" % (threads, end)]
    if threads > 1:
        names.append("dp:%d/kernel_threads:1%s" % (threads, end))
    return names


def ours(args, model, way):
    name = "^GptStep/%s/%s/iterations" % (model.replace(".", "[.]"), way)
    command = args.prefix + [args.bench, "--benchmark_filter=" + name, "--benchmark_format=json"]
    found = run(command, os.environ)["benchmarks"]
    if len(found) != 1:
        sys.exit("%s has %d benchmarks named %s" % (args.bench, len(found), name))
    return found[0]


def measure(args, peers, model, threads, dtype):
    """One row for each peer."""
    us, them = {way: [] for way in ways(threads, dtype)}, {peer: [] for peer in peers}
    for _ in range(args.repetitions):
        for way in us:
            us[way].append(ours(args, model, way))
        for peer in peers:
            them[peer].append(peer.tokens_per_s(args, model, threads, dtype))
    speeds = {way: statistics.median(r["tokens/s"] for r in runs) for way, runs in us.items()}
    best = max(speeds, key=speeds.get)
    return [{
        "model": model, "dtype": dtype, "threads": threads, "peer": peer.name, "way": best, "speeds": speeds,
        "ours": speeds[best], "theirs": statistics.median(them[peer]),
        "ratio": speeds[best] / statistics.median(them[peer]),
        "ratios": [run["tokens/s"] / speed for run, speed in zip(us[best], them[peer])],
        "floor": statistics.median(r["of_floor_speed"] for r in us[best]),
    } for peer in peers]


LINE = "| %-5s | %-5s | %7s | %-16s | %8s | %8s | %-19s | %8s | %4s | %s |"


def print_row(row):
    short = {way: way.split("/dtype")[0] for way in row["speeds"]}
    others = ["%s: %.0f" % (short[w], s) for w, s in row["speeds"].items() if w != row["way"]]
    ratio, runs = "%.2f" % row["ratio"], len(row["ratios"])
    if runs > 1:
        ratio += " (%.2f to %.2f)" % (min(row["ratios"]), max(row["ratios"]))
    print(LINE % (row["model"], row["dtype"], row["threads"], row["peer"], "%.0f" % row["ours"], "%.0f" % row["theirs"],
                  ratio, "%.0f %%" % (100 * row["floor"]), runs,
                  short[row["way"]] + (" (%s)" % ", ".join(others) if others else "")), flush=True)


def print_aim(what, aim, rows, figure, name):
    """An aim holds when its worst row meets it; `name` says which row that is."""
    if not rows:
        return
    worst = min(rows, key=lambda row: row[figure])
    value, meeting = worst[figure], sum(row[figure] >= aim for row in rows)
    where = name % worst
    if value >= aim:
        print("* %s at least %.2f: met in all %d rows, the least is %.2f (%s)" % (what, aim, len(rows), value, where))
    else:
        print("* %s at least %.2f: not met, short by %.2f at %.2f (%s); met in %d of %d rows"
              % (what, aim, aim - value, value, where, meeting, len(rows)))


def print_aims(rows):
    print("\nAims:")
    for (dtype, model), aim in RATIO_AIMS.items():
        print_aim("%s %s, tokens/s over PyTorch's" % (dtype, model), aim,
                  [row for row in rows if row["dtype"] == dtype and row["model"] == model], "ratio",
                  "%(threads)d threads, PyTorch %(peer)s")
    for dtype, aim in FLOOR_AIMS.items():
        print_aim("%s, share of the floor's speed" % dtype, aim, [row for row in rows if row["dtype"] == dtype], "floor",
                  "%(model)s, %(threads)d threads")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default=os.path.join(HERE, "..", "..", "build", "tests", "bench"))
    parser.add_argument("--python", action="append", help="an interpreter that has torch, /usr/bin/python3 if none is "
                        "given; may be given several times")
    parser.add_argument("--models", nargs="+", default=["10.8M", "124M"], choices=["10.8M", "124M"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", default=["fp32"], choices=["fp32", "bf16"])
    parser.add_argument("--compile", action="store_true", help="also against torch.compile, where it is PyTorch 2")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--prefix", default="", help="command to run every measured program under, e.g. 'nice -n -5'")
    args = parser.parse_args()
    args.prefix = shlex.split(args.prefix)
    args.python = args.python or ["/usr/bin/python3"]
    if args.repetitions < 1:
        parser.error("--repetitions must be at least 1")
    if args.repetitions < 5:
        print("medians of fewer than 5 repetitions say little", file=sys.stderr)

    peers = find_peers(args)
    print("tokens/s of ours and PyTorch, medians of %d alternating runs\n" % args.repetitions)
    print(LINE % ("model", "dtype", "threads", "PyTorch", "ours", "PyTorch", "ratio (of the runs)", "of floor",
                  "runs", "our way (the other one)"))
    print("|---" * 10 + "|", flush=True)
    rows = []
    for dtype in args.dtypes:
        for model in args.models:
            for threads in args.threads:
                for row in measure(args, peers, model, threads, dtype):
                    print_row(row)
                    rows.append(row)
    print_aims(rows)


if __name__ == "__main__":
    main()
