"""How often each finite-sample test certifies a harmless policy: `python bench/refit/bounds.py`.

Paired differences of n groups are +1, 0 or -1; the policy is at least as good as its reference, and the claim to
certify is that it loses at most epsilon. All tests are valid at delta; the sharpest certifies most often.
"""

import math
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, binom

sys.path.insert(0, str(Path(__file__).parents[2]))

from app.certify.bets import p_value

EPSILON, DELTA, DRAWS = 0.02, 0.1, 400
Floats = NDArray[np.float64]


def betting(d: Floats) -> bool:
    """The test in use."""
    return p_value(d.tolist(), -EPSILON, low=-1.0, high=1.0, delta=DELTA) <= DELTA


def exact_discordant(d: Floats) -> bool:
    """An exact binomial test of the discordant pairs, their share bounded with a tenth of delta (Berger and Boos)."""
    n, plus, minus = len(d), int((d > 0).sum()), int((d < 0).sum())
    pairs, part = plus + minus, 0.1 * DELTA
    share = beta.ppf(1.0 - part, pairs + 1, n - pairs) if pairs < n else 1.0
    if share <= EPSILON:
        return True
    return bool(part + binom.cdf(minus, pairs, 0.5 + 0.5 * EPSILON / share) <= DELTA)


def empirical_bernstein(d: Floats) -> bool:
    """Maurer and Pontil's bound, which uses the empirical variance."""
    n, log = len(d), math.log(2.0 / DELTA)
    margin = math.sqrt(2.0 * d.var(ddof=1) * log / n) + 2.0 * 7.0 * log / (3.0 * (n - 1))
    return bool(d.mean() - margin >= -EPSILON)


def hoeffding_bentkus(d: Floats) -> bool:
    """The usual p-value of risk control, on the loss (1 - d) / 2: it uses only the range."""
    n, risk, allowed = len(d), float((1.0 - d.mean()) / 2.0), (1.0 + EPSILON) / 2.0
    low = min(risk, allowed)
    divergence = low * math.log(low / allowed) + (1.0 - low) * math.log((1.0 - low) / (1.0 - allowed))
    bentkus = math.e * binom.cdf(math.ceil(n * risk), n, allowed)
    return min(math.exp(-n * divergence), float(bentkus)) <= DELTA


TESTS = (betting, exact_discordant, empirical_bernstein, hoeffding_bentkus)


def main() -> None:
    """Print the share of draws that each test certifies."""
    rng = np.random.default_rng(0)
    print("| groups | gains | losses | " + " | ".join(test.__name__.replace("_", " ") for test in TESTS) + " |")
    print("|---" * (3 + len(TESTS)) + "|")
    for n in (200, 400, 1000, 2000, 5000):
        for gain, loss in ((0.005, 0.005), (0.02, 0.02), (0.05, 0.05), (0.08, 0.05), (0.1, 0.1)):
            draws = rng.choice([-1.0, 0.0, 1.0], size=(DRAWS, n), p=[loss, 1.0 - gain - loss, gain])
            shares = " | ".join(f"{np.mean([test(d) for d in draws]):.2f}" for test in TESTS)
            print(f"| {n} | {gain} | {loss} | {shares} |")


if __name__ == "__main__":
    main()
