"""Coverage of the intervals by simulation, pass@k against all subsets, dominance against its definition."""

from itertools import combinations

import numpy as np
import pytest

from rl.compare import (
    DIFFERENCE,
    RATE,
    bootstrap,
    dominance_probability,
    dominates,
    frontier,
    interval,
    pass_at_k,
)
from rl.stats import jeffreys

SIMULATIONS = 8_000  # standard error of a coverage of 80 %: 0.45 %


def coverage(simulate, possible, draws=500) -> float:
    """Return how often the 80 % interval has the truth. simulate(rng): (the truth, the values of the tasks)."""
    rng, hits = np.random.default_rng(1), 0
    for number in range(SIMULATIONS):
        truth, values = simulate(rng)
        low, high = interval(bootstrap(values, possible, draws, seed=number))
        hits += low <= truth <= high
    return hits / SIMULATIONS


def paired_successes(rng, n=60):
    wins, ties, losses = rng.dirichlet([1, 1, 1])
    return wins - losses, rng.choice([1.0, 0.0, -1.0], n, p=[wins, ties, losses])


def passes(rng, n=100, samples=6, k=3):
    """Tasks of uniform difficulty up to a random bound: P(success) = u * bound."""
    bound = rng.uniform(0.2, 1)
    chances = rng.uniform(0, bound, n)
    truth = 1 - (1 - (1 - bound) ** (k + 1)) / (bound * (k + 1))
    return truth, [pass_at_k(int(c), samples, k) for c in rng.binomial(samples, chances)]


def rates(rng, n=60):
    truth = rng.uniform()
    return truth, rng.binomial(1, truth, n)


@pytest.mark.parametrize(
    ("simulate", "possible"),
    [(rates, RATE), (paired_successes, DIFFERENCE), (passes, RATE)],
    ids=["rate", "paired successes", "pass@k"],
)
def test_intervals_cover_the_truth_as_often_as_they_say(simulate, possible):
    assert abs(coverage(simulate, possible) - 0.8) < 0.01


def test_interval_of_a_rate_is_jeffreys():
    for successes, trials in ((0, 20), (3, 20), (10, 20), (180, 200)):
        draws = bootstrap([1] * successes + [0] * (trials - successes), RATE, 100_000)
        low, high = jeffreys(successes, trials)
        expected = (low or np.quantile(draws, 0.1), high)  # which touches 0 by a rule of its own
        assert interval(draws) == pytest.approx(expected, abs=2e-3)


def test_interval_of_a_mean_score_is_that_of_the_normal_law():
    """Simulated with 20,000 samples of 100 tasks, it has the truth in 79.1 % (standard error 0.3 %)."""
    for n in (10, 100, 400):
        values = np.random.default_rng(n).normal(0.1, 2, n)
        half = 1.2815516 * values.std(ddof=1) / n**0.5
        expected = (values.mean() - half, values.mean() + half)
        assert interval(bootstrap(values, (), 100_000)) == pytest.approx(expected, abs=0.03 * half)


def test_equal_results_are_no_proof_of_equality():
    low, high = interval(bootstrap([0.0] * 20, DIFFERENCE))
    assert -0.1 < low < -0.005 and 0.005 < high < 0.1


def test_pairing_narrows_the_interval_of_a_difference():
    rng = np.random.default_rng(0)
    base = rng.integers(0, 2, 400)
    better = np.where(rng.uniform(size=400) < 0.1, 1, base)
    paired = interval(bootstrap(better - base, DIFFERENCE))
    apart = interval(bootstrap(better, RATE) - bootstrap(base, RATE, seed=1))
    assert paired[0] > 0 and paired[1] - paired[0] < 0.6 * (apart[1] - apart[0])


def test_pass_at_k_is_the_share_of_subsets_with_a_success():
    for samples in range(1, 8):
        for successes in range(samples + 1):
            outcomes = [1] * successes + [0] * (samples - successes)
            for k in range(1, samples + 1):
                subsets = list(combinations(outcomes, k))
                assert pass_at_k(successes, samples, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_is_unbiased():
    rng, p = np.random.default_rng(0), 0.3
    found = [pass_at_k(int(c), 8, 4) for c in rng.binomial(8, p, 40_000)]
    assert np.mean(found) == pytest.approx(1 - (1 - p) ** 4, abs=5 * np.std(found) / 200)


@pytest.mark.parametrize("wrong", [(0, 4, 5), (5, 4, 1), (-1, 4, 1), (1, 4, 0)])
def test_impossible_counts_of_passes_are_refused(wrong):
    with pytest.raises(ValueError, match=f"pass@{wrong[2]} of {wrong[0]} successes in {wrong[1]} samples"):
        pass_at_k(*wrong)


def test_frontier_is_that_of_brute_force():
    rng = np.random.default_rng(0)
    for _ in range(300):
        points = rng.integers(0, 4, (rng.integers(1, 12), rng.integers(1, 5)))
        beaten = {
            i for i, a in enumerate(points) for b in points if np.all(b >= a) and np.any(b > a)
        }  # by the definition
        found = frontier({str(i): list(point) for i, point in enumerate(points)})
        assert found == [str(i) for i in range(len(points)) if i not in beaten] and found


def test_dominance_of_other_lengths_is_refused():
    with pytest.raises(ValueError):
        dominates([1, 2], [1])


def test_probability_of_dominance_is_the_environments_product():
    tie, better = [1.0, -1.0] * 20, [1.0] * 20 + [0.0] * 20
    assert dominance_probability([tie]) == pytest.approx(0.5, abs=0.03)
    assert dominance_probability([tie, tie]) == pytest.approx(0.25, abs=0.03)
    assert dominance_probability([better, better]) > 0.99
    assert dominance_probability([better, [-d for d in better]]) < 0.01
