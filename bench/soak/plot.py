"""A plot of the run: memory, file descriptors and threads, the event loop's lag, and requests."""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from bench.soak.watching import MB, Sample, quantile


def draw(samples: Sequence[Sample], warm_up_s: float, path: Path) -> None:
    """Write a PNG."""
    minutes = [one.at / 60 for one in samples]
    figure, (memory, open_things, lag, requests) = plt.subplots(4, 1, figsize=(10, 11), sharex=True)
    memory.plot(minutes, [one.rss / MB for one in samples], color="tab:blue")
    memory.set_ylabel("resident memory, MB")
    open_things.plot(minutes, [one.fds for one in samples], color="tab:orange", label="file descriptors")
    open_things.plot(minutes, [one.threads for one in samples], color="tab:green", label="threads")
    open_things.set_ylim(bottom=0)
    open_things.legend()
    pairs = list(pairwise(samples))
    worst = [quantile(now.lags, 1.0, before.lags) * 1000 for before, now in pairs]
    shown = [(at, ms) for at, ms in zip(minutes[1:], worst, strict=True) if math.isfinite(ms)]
    lag.scatter([at for at, _ in shown], [ms for _, ms in shown], s=6, color="tab:red")
    lag.set_yscale("log")
    lag.set_ylabel("worst lag each second, at most, ms")
    rates = [(now.requests - before.requests) / (now.at - before.at) for before, now in pairs]
    requests.plot(minutes[1:], rates, color="tab:grey", label="sent per second")
    requests.plot(minutes, [one.in_flight for one in samples], color="tab:purple", label="in flight")
    requests.set_ylim(bottom=0)
    requests.legend()
    requests.set_xlabel("minutes")
    for axes in (memory, open_things, lag, requests):
        axes.axvspan(0, warm_up_s / 60, color="0.93", zorder=0)
        axes.grid(alpha=0.3)
    figure.suptitle("Soak; the warm-up is shaded")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
