#!/usr/bin/env python3
"""Collectives of ours, Gloo and Open MPI side by side: runs the programs in turn, collective by collective, so that what
else the machine does falls on all of them (small virtual machines run everything at half their speed for seconds), and
prints tables of medians over the rounds and what this project aims at.

On one host ours moves pieces through shared memory, and so does Open MPI (vader); Gloo has nothing but TCP. TCP only:
all three over the loopback device. Threads: ours between devices of one process.
A ratio above 1 says that ours is faster than the better of the others: the median of the rounds' ratios, each of figures
taken within seconds of one another.
"""
import argparse
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]
SMALL, LARGE = [4 << 10, 64 << 10], [1 << 20, 64 << 20]
SIZE_NAMES = {4: "4 B", 4 << 10: "4 KiB", 64 << 10: "64 KiB", 1 << 20: "1 MiB", 64 << 20: "64 MiB"}
# What the comparison is held to: ratios to the better of the other two, seconds of a message.
TCP_LEAST, ALL_REDUCE_FROM, MESSAGE_MOST = 0.9, 1 << 20, 10e-6

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl"]


class Way:
    """One program in one setting."""

    def __init__(self, name, library, command):
        self.name, self.library, self.command = name, library, command


def ways(folder, processes):
    def program(library):
        return os.path.join(folder, library + "_collectives")
    count = str(processes)
    mpi = ["-np", count, program("mpi")]
    return [
        Way("ours, shared memory", "ours", [program("ours"), "--processes=" + count]),
        Way("ours, TCP", "ours", [program("ours"), "--processes=" + count, "--noshared_memory"]),
        Way("ours, threads", "ours", [program("ours"), "--processes=1", "--devices=" + count]),
        Way("Gloo, TCP", "gloo", [program("gloo"), "--processes=" + count]),
        Way("Open MPI, shared memory", "mpi", MPIRUN + ["self,vader"] + mpi),
        Way("Open MPI, TCP", "mpi", MPIRUN + ["self,tcp", "--mca", "btl_tcp_if_include", "lo"] + mpi),
    ]


def run(way, collectives, args):
    """What it printed, by (collective, bytes): the median seconds; nothing when it failed, which is said."""
    command = args.prefix + way.command + ["--sizes=" + ",".join(str(s) for s in SMALL + LARGE),
                                           "--collectives=" + ",".join(collectives),
                                           "--seconds=%g" % args.seconds]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, err = child.communicate(timeout=args.timeout)
        ended = "ended with %d" % child.returncode
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        out, err = child.communicate()
        ended = "had not ended after %g s" % args.timeout
    if child.returncode != 0:
        print("%s %s:\n%s" % (shlex.join(command), ended, err[-1500:]), file=sys.stderr)
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return {(line["collective"], line["bytes"]): line["median"] for line in lines}


def measure(args):
    """{processes: {way's name: {(collective, bytes): [median of each round, or None]}}}"""
    results = {}
    for round_number in range(args.rounds):
        for processes in args.processes:
            for number, collective in enumerate(args.collectives):
                for way in ways(args.programs, processes):
                    if not os.path.exists(os.path.join(args.programs, way.library + "_collectives")):
                        continue
                    found = results.setdefault(processes, {}).setdefault(way.name, {})
                    wanted = [collective] + (["message"] if number == 0 else [])
                    for case, seconds in run(way, wanted, args).items():
                        runs = found.setdefault(case, [])
                        runs.extend([None] * (round_number - len(runs)))
                        runs.append(seconds)
                print("round %d of %d, %d ranks: %s" % (round_number + 1, args.rounds, processes, collective),
                      file=sys.stderr, flush=True)
    return results


def of(found, way, case):
    """Median over the rounds, or None."""
    runs = [seconds for seconds in found.get(way, {}).get(case, []) if seconds is not None]
    return statistics.median(runs) if runs else None


class Comparison:
    """Ours in one setting against those that may be compared with it."""

    def __init__(self, title, mine, others):
        self.title, self.mine, self.others = title, mine, others

    def ratio(self, found, case):
        """How many times as fast as the best of the others, and its name; None where a figure lacks."""
        rivals = [(of(found, other, case), other) for other in self.others if of(found, other, case)]
        ratios = []
        for number, mine in enumerate(found.get(self.mine, {}).get(case, [])):
            rounds = [found[other][case][number:number + 1] for _, other in rivals]
            others = [runs[0] for runs in rounds if runs and runs[0] is not None]
            if mine is not None and others:
                ratios.append(min(others) / mine)
        return (statistics.median(ratios), min(rivals)[1]) if ratios else None


ONE_HOST = Comparison("One host", "ours, shared memory", ["Gloo, TCP", "Open MPI, shared memory"])
TCP_ONLY = Comparison("TCP only", "ours, TCP", ["Gloo, TCP", "Open MPI, TCP"])
THREADS = Comparison("One process, devices as threads", "ours, threads",
                     ["Gloo, TCP", "Open MPI, shared memory", "Open MPI, TCP", "ours, shared memory", "ours, TCP"])
SHOWN = {THREADS: ["Gloo, TCP", "Open MPI, shared memory", "ours, shared memory"]}


def print_table(header, rows, markdown):
    widths = [max(len(str(row[i])) for row in [header] + rows) for i in range(len(header))]
    for number, row in enumerate([header] + rows):
        cells = [str(c).ljust(w) if i == 0 else str(c).rjust(w) for i, (c, w) in enumerate(zip(row, widths))]
        print("| " + " | ".join(cells) + " |" if markdown else "  ".join(cells).rstrip())
        if number == 0 and markdown:
            print("|---" + "|--:" * (len(header) - 1) + "|")
    print()


def seconds_text(seconds, size):
    if seconds is None:
        return "-"
    if size in SMALL:
        return "%.1f" % (seconds * 1e6)
    return "%.3g (%.2f)" % (seconds * 1e3, size / seconds / 1e9)


def print_comparison(comparison, processes, found, args):
    columns = [comparison.mine] + SHOWN.get(comparison, comparison.others)
    for sizes, unit in ((SMALL, "us"), (LARGE, "ms (GB/s of the tensor)")):
        title = "%s, %d ranks" % (comparison.title, processes)
        print("%s, %s:\n" % ("**%s**" % title if args.markdown else title, unit))
        rows = []
        for collective in args.collectives:
            for size in sizes:
                case = (collective, size)
                ratio = comparison.ratio(found, case)
                rows.append(["%s %s" % (collective, SIZE_NAMES[size])]
                            + [seconds_text(of(found, way, case), size) for way in columns]
                            + ["%.2f" % ratio[0] if ratio else "-"])
        print_table(["", *columns, "ratio"], rows, args.markdown)


def print_messages(found, markdown):
    rows = []
    for way, cases in found.items():
        for case in (("message", 4), ("network_message", 0)):
            if case in cases:
                name = "%s%s" % (way, ", the network alone" if case[1] == 0 else "")
                rows.append([name, "%.2f" % (of(found, way, case) * 1e6)])
    if rows:
        print("%s\n" % ("**A small message one way**, us:" if markdown else "A small message one way, us:"))
        print_table(["", "us"], rows, markdown)


def print_aim(what, least, results, comparison, collectives, sizes):
    """Held when the worst case holds."""
    ratios = []
    for processes, found in results.items():
        for collective in collectives:
            for size in sizes:
                ratio = comparison.ratio(found, (collective, size))
                if ratio:
                    where = "%s %s, %d ranks, %s" % (collective, SIZE_NAMES[size], processes, ratio[1])
                    ratios.append((ratio[0], where))
    if not ratios:
        print("* %s: not measured" % what)
        return
    worst, where = min(ratios)
    met = sum(ratio >= least for ratio, _ in ratios)
    if met == len(ratios):
        print("* %s: met in all %d cases, the least is %.2f (%s)" % (what, met, worst, where))
    else:
        print("* %s: not met in %d of %d cases, the least is %.2f (%s)" % (what, len(ratios) - met, len(ratios), worst,
                                                                          where))


def print_aims(results, args):
    print("Aims:\n")
    everything = args.collectives
    print_aim("over TCP at least %.1f of the speed of the better of the two" % TCP_LEAST, TCP_LEAST, results, TCP_ONLY,
              everything, SMALL + LARGE)
    print_aim("over TCP ahead of both for all_reduce from 1 MiB", 1, results, TCP_ONLY,
              [c for c in everything if c == "all_reduce"], LARGE)
    print_aim("on one host ahead of Open MPI's shared memory from 1 MiB", 1, results,
              Comparison("", ONE_HOST.mine, ["Open MPI, shared memory"]), everything, LARGE)
    print_aim("several devices in one process ahead of everything", 1, results, THREADS, everything, SMALL + LARGE)
    message = of(results.get(2, {}), "ours, TCP", ("message", 4))
    if message is None:
        print("* a small message in less than %.0f us: not measured" % (MESSAGE_MOST * 1e6))
    else:
        print("* a small message in less than %.0f us: %s, %.2f us"
              % (MESSAGE_MOST * 1e6, "met" if message < MESSAGE_MOST else "not met", message * 1e6))


def save(results, file):
    flat = [[processes, way, case[0], case[1], runs] for processes, found in results.items()
            for way, cases in found.items() for case, runs in cases.items()]
    with open(file, "w") as out:
        json.dump(flat, out)


def load(file):
    results = {}
    with open(file) as saved:
        for processes, way, collective, size, runs in json.load(saved):
            results.setdefault(processes, {}).setdefault(way, {})[collective, size] = runs
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=os.path.join(HERE, "..", "..", "build", "tests"),
                        help="folder of ours_collectives, gloo_collectives, mpi_collectives")
    parser.add_argument("--processes", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--collectives", nargs="+", default=COLLECTIVES, choices=COLLECTIVES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="about how long one case runs in one round")
    parser.add_argument("--timeout", type=float, default=300, help="seconds after which a program is ended")
    parser.add_argument("--prefix", default="", help="command to run every measured program under, e.g. 'nice -n -5'")
    parser.add_argument("--markdown", action="store_true", help="tables in Markdown")
    parser.add_argument("--save", help="file to keep the figures of the rounds in")
    parser.add_argument("--load", help="measure nothing, print from such a file")
    args = parser.parse_args()
    args.prefix = shlex.split(args.prefix)
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    if args.rounds < 5 and not args.load:
        print("medians of fewer than 5 rounds say little", file=sys.stderr)
    for library, package in (("ours", "nothing"), ("gloo", "libgloo-dev"), ("mpi", "libopenmpi-dev and openmpi-bin")):
        if not args.load and not os.path.exists(os.path.join(args.programs, library + "_collectives")):
            print("%s_collectives is not built (it needs %s): left out" % (library, package), file=sys.stderr)

    results = load(args.load) if args.load else measure(args)
    if args.save:
        save(results, args.save)
    for processes, found in results.items():
        for comparison in (ONE_HOST, TCP_ONLY, THREADS):
            print_comparison(comparison, processes, found, args)
    print_messages(results.get(2, {}), args.markdown)
    print_aims(results, args)


if __name__ == "__main__":
    main()
