"""What a refit learns from a decision log, compared with simulated worlds: `python bench/refit/from_log.py`.

In the first world the gate's own choices hide that P(right) at k=0 and k=1 drops sharply just below its thresholds.
In the second, one passage has become enough, which always reading five does not show. Last, seconds and memory for a
large log.
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from app.core.calibrator import Calibrator  # noqa: E402
from app.offline.refit.choose import choose_calibrator  # noqa: E402
from app.offline.refit.refit import Options, refit  # noqa: E402
from app.offline.refit.splits import Units  # noqa: E402
from app.storage.decisions import SqlDecisionStore  # noqa: E402
from app.storage.reading import LoggedDecision, LoggedDecisions  # noqa: E402
from tests.offline.logs import SERVED, Hidden, read, step, write_log  # noqa: E402

CLIFF = Hidden({0: step(0.75, 0.2, 0.9), 1: step(0.5, 0.3, 0.85), 5: step(0.0, 0.8, 0.8)})
BETTER = Hidden({0: step(0.75, 0.2, 0.9), 1: step(0.0, 0.85, 0.85), 5: step(0.0, 0.8, 0.8)})
OPTIONS = Options("bench", "2026-01-01T00:00:00Z")


def naive(path: Path) -> dict[int, Calibrator]:
    """Verdicts on the served answers, all with weight one."""
    store = SqlDecisionStore.open(str(path))
    logged_decisions = list(LoggedDecisions(store.engine, collection="demo", since=0.0).read())
    store.close()
    return {k: _fit(logged_decisions, k) for k in (0, 1)}


def _fit(logged_decisions: list[LoggedDecision], k: int) -> Calibrator:
    rows = [logged for logged in logged_decisions if logged.k == k]
    signals = {"seq_logprob": np.array([row.signals["seq_logprob"] for row in rows])}
    labels = np.array([bool(row.correct) for row in rows])
    each = Units(np.arange(len(rows)), np.ones(len(rows)))
    return choose_calibrator(signals, labels, each, tuple(signals)).calibrator


def hidden(folder: Path, questions: int, seeds: int, explore: float, shadow: float) -> None:
    """Mean absolute error of P(right) at k=0 and k=1, by training data."""
    found: dict[str, list[tuple[float, float]]] = {"the gate's choices": [], "shadow runs": [], "and exploration": []}
    for seed in range(seeds):
        gate, explored = folder / f"gate{seed}.sqlite3", folder / f"explored{seed}.sqlite3"
        write_log(gate, CLIFF, questions, seed)
        write_log(explored, CLIFF, questions, seed, explore_share=explore, shadow_share=shadow)
        logged = read(explored)
        fitted = {
            "the gate's choices": naive(gate),
            "shadow runs": refit(logged.outcomes, OPTIONS)[0].calibrators,
            "and exploration": refit(logged.outcomes, OPTIONS, logged=logged.rows)[0].calibrators,
        }
        for name, calibrators in fitted.items():
            found[name].append((CLIFF.error(calibrators, 0), CLIFF.error(calibrators, 1)))
    print(
        f"{questions} questions, explored {explore:g}, shadowed {shadow:g}; error at k=0 and k=1, mean of {seeds} logs"
    )
    for name, errors in found.items():
        p0, p1 = np.mean(errors, axis=0)
        print(f"  {name:20} {p0:.3f} {p1:.3f}")


def better(folder: Path, questions: int, seeds: int, shadow: float) -> None:
    """How often the certificate is true, and how many passages it saves."""
    broken, certified, passages = 0, 0, []
    for seed in range(seeds):
        path = folder / f"better{seed}.sqlite3"
        write_log(path, BETTER, questions, seed, shadow_share=shadow)
        logged = read(path)
        artifact, _ = refit(logged.outcomes, OPTIONS, logged=logged.rows)
        graded = artifact.policies["graded"]
        worth, share = BETTER.served(artifact.calibrators, graded.thresholds)
        certified += graded.certificate is not None
        broken += graded.certificate is not None and worth < -OPTIONS.epsilon
        passages.append(share)
    _, before = BETTER.served(SERVED.calibrators, SERVED.policies["graded"].thresholds)
    print(f"{questions} questions, shadowed {shadow:g}: certified {certified} of {seeds}, {broken} of them wrongly;")
    print(f"  passages, of always-five: {before:.3f} before, {np.mean(passages):.3f} after")


def large(folder: Path, questions: int) -> None:
    """Seconds and memory to read a log."""
    path = folder / "large.sqlite3"
    for part in range(0, questions, 20_000):
        write_log(path, CLIFF, min(20_000, questions - part), part, explore_share=0.05, shadow_share=0.1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    logged = read(path)
    took = time.perf_counter() - started
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    size = path.stat().st_size / 2**20
    print(f"{questions} judged decisions ({size:.0f} MB), {len(logged.outcomes)} full rows: read in {took:.1f} s,")
    print(f"  peak memory {grown:.0f} MB above that of writing 20,000")


def main() -> None:
    """Run all three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--large", type=int, default=200_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        hidden(Path(folder), arguments.questions, arguments.seeds, explore=0.05, shadow=0.02)
        better(Path(folder), arguments.questions // 2, arguments.seeds * 4, shadow=0.3)
        large(Path(folder), arguments.large)


if __name__ == "__main__":
    main()
