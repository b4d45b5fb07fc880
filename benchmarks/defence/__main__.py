"""Attacks on the market and on published defences: ``python -m benchmarks.defence``.

``--fast`` uses scikit-learn's digits and takes minutes; without it Fashion-MNIST is needed (Debian's package
dataset-fashion-mnist, or a folder given with ``--images``).  Results are appended to ``--cache`` as they come, so that
a run that was stopped goes on where it was, and one with more seeds only adds to it.  ``--write`` puts the tables into
benchmarks/results/defence.md.  The peers are installed into an environment of their own under artifacts/.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import platform
import re
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.defence import images, peers, report, tasks

RESULTS = Path(__file__).parents[1] / "results" / "defence.md"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.defence", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fast", action="store_true", help="digits, fewer combinations, one seed: minutes")
    parser.add_argument("--seeds", type=int, default=0, help="seeds (default: 3, or 1 if fast)")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes at once")
    parser.add_argument("--cache", type=Path, default=Path("artifacts") / "defence.jsonl")
    parser.add_argument("--only", default="", help="only tasks whose description matches this regular expression")
    parser.add_argument("--minutes", type=float, default=0.0, help="start no task after so long")
    parser.add_argument("--write", action="store_true", help=f"store the tables as {RESULTS.name}")
    parser.add_argument("--images", type=Path, default=Path(images.IMAGES), help="folder of Fashion-MNIST")
    given = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that are started
    began = time.perf_counter()
    seeds, data = given.seeds or (1 if given.fast else 3), "digits" if given.fast else "fashion-mnist"
    places = tasks.Places(Path("artifacts") / "defence-peers", given.images)
    environment = peers.prepare(places.peers)
    wanted = [task for task in tasks.tasks(data, seeds, fast=given.fast) if re.search(given.only, str(task))]
    given.cache.parent.mkdir(parents=True, exist_ok=True)
    known = _read(given.cache)
    todo = list(dict.fromkeys(task for task in wanted if json.dumps(task.key) not in known))
    _run(todo, places, known, given.cache, given.jobs, began + 60 * given.minutes if given.minutes else float("inf"))
    found = {task: known[json.dumps(task.key)] for task in wanted if json.dumps(task.key) in known}
    command = f"python -m benchmarks.defence{' --fast' if given.fast else ''} --seeds {seeds}"
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy"))
    peer_versions = ", ".join(f"{name} {each}" for name, each in peers.VERSIONS.items())
    spent = sum(line.get("cpu", line["seconds"]) for line in found.values())
    missing = len(set(wanted)) - len(found)
    words = (
        f"`{command}`; {versions}, {peer_versions}, Python {platform.python_version()}, {platform.system()} "
        f"{platform.machine()}.  {len(found)} runs, {spent / 60:.0f} minutes of CPU time"
        f"{f'; {missing} runs of this command are not made yet' if missing else ''}."
    )
    text = report.tables(found, data, environment.missing, words)
    print(text)
    if given.write:
        RESULTS.write_text(text, encoding="utf-8")
    print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)


def _run(
    todo: Sequence[tasks.Task], places: tasks.Places, known: dict[str, Any], cache: Path, jobs: int, until: float
) -> None:
    """Run tasks in processes of their own, and note each result at once."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, spawn) as pool, cache.open("a", encoding="utf-8") as file:
        waiting, running = list(todo), set[concurrent.futures.Future[dict[str, Any]]]()
        while waiting or running:
            while waiting and len(running) < jobs and time.perf_counter() < until:
                running.add(pool.submit(tasks.run, waiting.pop(0), places))
            if not running:
                break
            done, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for each in done:
                line = each.result()
                known[json.dumps(line["key"])] = line
                file.write(json.dumps(line) + "\n")
                file.flush()
                print(f"{len(waiting)} left; {line['key']}: {line['seconds']:.0f} s", file=sys.stderr, flush=True)


def _read(path: Path) -> dict[str, Any]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [each for each in map(json.loads, lines) if each["version"] == tasks.VERSION]
    return {json.dumps(each["key"]): each for each in found}


if __name__ == "__main__":
    main()
