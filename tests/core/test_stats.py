"""Intervals of success rates against scipy, and against numbers frozen from it for where it is absent."""

import numpy as np
import pytest

from rl.stats import DIFFERENCE, beta_cdf, beta_quantile, bootstrap, interval, jeffreys, seeds_interval

PAIRS = [(s, n) for n in (1, 2, 3, 7, 20, 64, 200, 999, 5000) for s in sorted({0, 1, n // 3, n // 2, n - 1, n})]
FROZEN = {  # scipy.stats.beta.ppf([0.1, 0.9], s + 1/2, n - s + 1/2)
    (1, 3): (0.1015373255475, 0.684710321608),
    (3, 10): (0.1505912258762, 0.5017811181001),
    (100, 200): (0.4548394628761, 0.5451605371239),
    (199, 200): (0.9844737174705, 0.998538302798),
    (4999, 5000): (0.9993750252536, 0.999941561348),
}


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_jeffreys_is_scipys_beta(level):
    beta = pytest.importorskip("scipy.stats").beta
    for s, n in PAIRS:
        low, high = jeffreys(s, n, level)
        expected = beta.ppf([(1 - level) / 2, (1 + level) / 2], s + 0.5, n - s + 0.5)
        assert low == (0.0 if s == 0 else pytest.approx(expected[0], abs=1e-10)), (s, n)
        assert high == (1.0 if s == n else pytest.approx(expected[1], abs=1e-10)), (s, n)


@pytest.mark.parametrize(("counts", "interval"), FROZEN.items())
def test_jeffreys_frozen(counts, interval):
    assert jeffreys(*counts) == pytest.approx(interval, abs=1e-10)


def test_beta_cdf_is_scipys():
    special = pytest.importorskip("scipy.special")
    for a, b in ((0.5, 0.5), (1, 1), (0.5, 100.5), (30.5, 0.5), (2.5, 7.5), (400.5, 600.5), (4000.5, 1000.5)):
        for x in (1e-9, 0.01, 0.1, 0.35, 0.5, 0.6, 0.8, 0.99, 1 - 1e-9):
            assert beta_cdf(x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-8, abs=1e-12), (x, a, b)


def test_the_uniform_and_the_arcsine_law_have_closed_forms():
    assert beta_quantile(0.3, 1, 1) == pytest.approx(0.3, abs=1e-14)
    assert beta_cdf(0.25, 0.5, 0.5) == pytest.approx(1 / 3, abs=1e-13)  # 2 / pi * asin(sqrt(x))
    assert [beta_cdf(x, 2, 3) for x in (-1, 0, 1, 2)] == [0, 0, 1, 1]


def test_interval_contains_the_rate_and_is_symmetric():
    for s, n in PAIRS:
        low, high = jeffreys(s, n)
        assert 0 <= low <= s / n <= high <= 1 and low < high
        assert jeffreys(n - s, n) == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_interval_rises_with_successes_and_narrows():
    lows, highs = zip(*(jeffreys(s, 40) for s in range(41)), strict=True)
    assert list(lows) == sorted(set(lows)) and list(highs) == sorted(set(highs))
    widths = [high - low for low, high in (jeffreys(n // 2, n) for n in (2, 10, 50, 250, 1250))]
    assert widths == sorted(widths, reverse=True) and widths[-1] < 0.04
    assert jeffreys(3, 10, 0.5)[0] > jeffreys(3, 10, 0.8)[0] > jeffreys(3, 10, 0.95)[0]


@pytest.mark.parametrize(("successes", "trials"), [(0, 0), (-1, 5), (6, 5), (0, -1)])
def test_impossible_counts_are_refused(successes, trials):
    with pytest.raises(ValueError, match=f"{successes} successes of {trials} trials"):
        jeffreys(successes, trials)


def test_equal_seeds_leave_the_interval_over_tasks():
    values, tasks = [1.0, 0.0, 0.0, 1.0, -1.0, 1.0], list("abcdef")
    expected = interval(bootstrap(values * 3, DIFFERENCE, tasks=tasks * 3))
    for seeds in (1, 3):
        assert seeds_interval([values] * seeds, [tasks] * seeds, DIFFERENCE) == pytest.approx(expected, abs=0.02)


def test_an_interval_over_seeds_contains_the_mean_as_often_as_it_says():
    """Success has a part of the seed's and a part of the task's: over tasks alone the interval would be too narrow."""
    rng, tasks, hits, narrow = np.random.default_rng(0), [str(n) for n in range(40)], 0, 0
    for _ in range(150):
        rates = 0.5 + 0.2 * rng.uniform(-1, 1, (3, 1)) + 0.25 * rng.uniform(-1, 1, (1, 40))
        values = (rng.uniform(size=(3, 40)) < rates).astype(float)
        low, high = seeds_interval(values, [tasks] * 3, (0.0, 1.0))
        hits += low <= 0.5 <= high
        bottom, top = interval(bootstrap(values.ravel(), (0.0, 1.0), tasks=tasks * 3))
        narrow += bottom <= 0.5 <= top
    assert 0.78 <= hits / 150 <= 0.97 and narrow / 150 < 0.7
