#!/usr/bin/env python3
"""Runs real PyTorch jobs under millpond and its peers, and prints the tables.

    scripts/peers.py JOBS_PY [--jobs NAME ...] [--peers NAME ...] [--repeats N] [--timeout S]

JOBS_PY is a program that runs `JOBS_PY OUTDIR LABEL JOB` under the allocator that the environment
names (PYTORCH_CUDA_ALLOC_CONF, PEER_ALLOC) and prints a line `RESULT key=value ...` with
steps_per_s, last_loss and device_MiB.

Every run is a process of its own, since pools keep their memory, and for each job the peers run
one after the other within each repeat, since machines differ from hour to hour. Steps a second
are medians over the repeats, device memory is the highest.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile

PEERS = {
    "native": {},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "rmm": {"PEER_ALLOC": "rmm"},
    "millpond": {"PEER_ALLOC": "millpond"},
}
JOBS = [
    "resnet_multires",
    "gpt2_varlen",
    "llama_lora_ckpt",
    "llama_serve",
    "unet_diffusion",
    "gnn_sampled",
    "offload_streams",
    "mixed_dynamic",
]


def run(jobs_py, job, peer, timeout):
    """One run; gives its result's values by name, or None if it failed."""
    environment = {**os.environ, "NOTRACE": "1"}
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PEER_ALLOC"):
        environment.pop(name, None)
    environment.update(PEERS[peer])
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, jobs_py, out, peer, job]
        try:
            done = subprocess.run(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            print(f"{job} under {peer}: not done after {timeout} s", flush=True)
            return None
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    if not lines or "FAILED" in lines[-1]:
        tail = "\n".join(done.stdout.splitlines()[-15:])
        print(f"{job} under {peer}: failed (exit {done.returncode})\n{tail}", flush=True)
        return None
    print(lines[-1], flush=True)
    return dict(re.findall(r"(\w+)=(\S+)", lines[-1]))


def table(title, jobs, peers, cell):
    """Prints a table of one cell a job and peer."""
    print(f"\n{title}\n")
    rows = [["job", *peers], *([job, *(cell(job, peer) for peer in peers)] for job in jobs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        print("| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")


def losses(results, job, peer):
    """How a peer's losses stand to those of the native allocator."""
    native = [run["last_loss"] for run in results.get((job, "native"), [])]
    mine = [run["last_loss"] for run in results.get((job, peer), [])]
    if not native or not mine:
        return "-"
    if native[0] == "None":
        return "none"
    if len(set(native)) > 1:
        return "native varies"
    return "same" if set(mine) == set(native) else f"differs: {mine[0]} for {native[0]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("jobs_py", help="the program that runs one job")
    parser.add_argument("--jobs", nargs="+", default=JOBS, metavar="JOB")
    default = ["native", "expandable", "async", "millpond"]
    parser.add_argument("--peers", nargs="+", default=default, choices=PEERS, metavar="PEER")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--timeout", type=float, default=300, metavar="SECONDS")
    chosen = parser.parse_args()

    results = {}
    for job in chosen.jobs:
        for _ in range(chosen.repeats):
            for peer in chosen.peers:
                result = run(chosen.jobs_py, job, peer, chosen.timeout)
                if result is not None:
                    results.setdefault((job, peer), []).append(result)

    def values(job, peer, name):
        return [float(result[name]) for result in results.get((job, peer), [])]

    def cell(name, summary, best):
        def of(job, peer):
            mine = values(job, peer, name)
            if not mine:
                return "failed"
            others = [values(job, other, name) for other in chosen.peers if other != "millpond"]
            reached = [summary(each) for each in others if each]
            share = f" ({summary(mine) / best(reached):.3f})" if reached and best(reached) else ""
            return f"{summary(mine):.1f}{share}"

        return of

    memory = "Device memory, MiB (and its ratio to the best peer's)"
    table(memory, chosen.jobs, chosen.peers, cell("device_MiB", max, min))
    speed = "Steps a second (and their ratio to the best peer's)"
    table(speed, chosen.jobs, chosen.peers, cell("steps_per_s", statistics.median, max))
    table(
        "Last loss, against the native allocator's",
        chosen.jobs,
        chosen.peers,
        lambda job, peer: losses(results, job, peer),
    )
    wanted = {(job, peer) for job in chosen.jobs for peer in chosen.peers}
    complete = all(len(results.get(key, [])) == chosen.repeats for key in wanted)
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
