"""Coverage of the intervals by simulation, pass@k against all subsets, dominance against its definition."""

from itertools import combinations

import numpy as np
import pytest

from rl.stats import (
    DIFFERENCE,
    RATE,
    bootstrap,
    dominance_probability,
    dominates,
    frontier,
    interval,
    jeffreys,
    pass_at_k,
    score_interval,
    student_interval,
    unweighted_interval,
)

SIMULATIONS = 8_000  # standard error of a coverage of 80 %: 0.45 %
MANY = 20_000  # 0.28 %


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
    [
        pytest.param(rates, RATE, id="rate"),
        pytest.param(paired_successes, DIFFERENCE, id="paired successes", marks=pytest.mark.full),
        pytest.param(passes, RATE, id="pass@k", marks=pytest.mark.full),
    ],
)
def test_intervals_cover_the_truth_as_often_as_they_say(simulate, possible):
    assert abs(coverage(simulate, possible) - 0.8) < 0.01


def in_environments(rng, low, high, environments, n):
    """Environments whose rates lie from low to high, with n tasks each."""
    rates = rng.uniform(low, high, environments)
    return rates.mean(), [rng.binomial(1, rate, n) for rate in rates]


@pytest.mark.parametrize(("low", "high"), [(0.9, 0.9), (0.05, 0.05), (0, 1)], ids=["high", "low", "any"])
@pytest.mark.parametrize(
    ("environments", "n", "simulations"),
    [(8, 25, 500), *(pytest.param(*more, 3000, marks=pytest.mark.full) for more in ((5, 40), (12, 100)))],
)
def test_interval_of_an_unweighted_mean_covers_the_truth(low, high, environments, n, simulations):
    """A prior pulls each environment's rate to the middle, which does not average out: 62 % and 71 % with 8 of them."""
    rng, covered = np.random.default_rng(0), []
    for _ in range(simulations):  # standard error: 1.8 %, or 0.7 %
        truth, values = in_environments(rng, low, high, environments, n)
        bounds = unweighted_interval(values, RATE, draws=300)
        covered.append(bounds[0] <= truth <= bounds[1])
    assert abs(np.mean(covered) - 0.8) < 0.05


def test_interval_of_an_unweighted_mean_stays_within_bounds():
    assert unweighted_interval([[0.0] * 9] * 3, RATE)[0] == 0 < unweighted_interval([[0.0] * 9] * 3, RATE)[1] < 0.2
    low, high = unweighted_interval([[1.0] * 9, [0.0] * 3], RATE)
    assert 0 < low < 0.5 < high < 1
    assert unweighted_interval([[1.0] * 20], DIFFERENCE)[1] == 1


def test_interval_of_a_rate_is_jeffreys():
    for successes, trials in ((0, 20), (3, 20), (10, 20), (180, 200)):
        draws = bootstrap([1] * successes + [0] * (trials - successes), RATE, 100_000)
        low, high = jeffreys(successes, trials)
        expected = (low or np.quantile(draws, 0.1), high)  # which touches 0 by a rule of its own
        assert interval(draws) == pytest.approx(expected, abs=2e-3)


def test_interval_of_a_mean_is_students():
    scipy_stats = pytest.importorskip("scipy.stats")
    for n in (2, 3, 10, 100, 1000):
        values = np.random.default_rng(n).normal(0.1, 2, n)
        expected = scipy_stats.t.interval(0.8, n - 1, values.mean(), scipy_stats.sem(values))
        assert student_interval(values) == pytest.approx(expected, rel=1e-9)
    assert student_interval([0.5]) == (0.5, 0.5) and student_interval([0.5] * 9) == (0.5, 0.5)


def normal(rng, n):
    return 0.3, rng.normal(0.3, 2, (MANY, n))


def shaped(rng, n):
    """Differences of scores between 0 and 1 that are mostly near the ends."""
    return 0.5 - 0.5 / 1.3, rng.beta(0.5, 0.5, (MANY, n)) - rng.beta(0.5, 0.8, (MANY, n))


def tied(rng, n):
    """Differences of seven values, among them 0, with random probabilities."""
    shares, points = rng.dirichlet([1] * 7, MANY), np.arange(-3, 4) / 4
    chosen = (rng.uniform(size=(MANY, n, 1)) > shares.cumsum(1)[:, None]).sum(2).clip(0, 6)
    return shares @ points, points[chosen]


@pytest.mark.parametrize("simulate", [normal, shaped, tied])
@pytest.mark.parametrize(("n", "tolerance"), [(5, 0.02), (10, 0.01), (20, 0.01), (50, 0.01), (200, 0.01)])
def test_score_interval_covers_the_truth_at_any_number_of_tasks(simulate, n, tolerance):
    """With the normal law's quantile, ten tasks would have it in 77 % and five in 73 %."""
    truth, values = simulate(np.random.default_rng(n), n)
    half = student_interval([*range(n)])[1] - (n - 1) / 2  # of the values 0, 1, ..., n - 1, in units of their deviation
    half = half / np.std(np.arange(n), ddof=1) * values.std(1, ddof=1)
    assert abs(np.mean(abs(values.mean(1) - truth) <= half) - 0.8) < tolerance


@pytest.mark.parametrize("n", [5, 10, 20, *(pytest.param(n, marks=pytest.mark.full) for n in (50, 200))])
def test_score_interval_of_two_values_covers_the_truth(n):
    """Scores of 0 or 3, any rates of wins, ties and losses equally likely: then so are all counts, and given counts the
    rates have a Dirichlet law."""
    rng = np.random.default_rng(n)
    counts = [(won, lost) for won in range(n + 1) for lost in range(n + 1 - won)]
    chosen = rng.permutation(counts)[:600] if len(counts) > 600 else counts
    covered = []
    for won, lost in chosen:
        low, high = score_interval(np.repeat([3.0, -3.0, 0.0], [won, lost, n - won - lost]), {0.0, 3.0})
        rates = rng.dirichlet([won + 1, n - won - lost + 1, lost + 1], 1000)
        truth = 3 * (rates[:, 0] - rates[:, 2])
        covered.append(np.mean((low <= truth) & (truth <= high)))
    assert abs(np.mean(covered) - 0.8) < 0.01


def test_scores_of_two_values_have_the_interval_of_successes():
    differences = np.array([1.0, 0, 0, -1, 0, 0, 0, 0, 0, 1])
    low, high = interval(bootstrap(differences, DIFFERENCE))
    assert score_interval(0.4 * differences, {-0.1, 0.3}) == pytest.approx((0.4 * low, 0.4 * high))
    assert score_interval(np.zeros(20), {0.0, 1.0}) == interval(bootstrap(np.zeros(20), DIFFERENCE))
    assert score_interval(np.zeros(20), {0.5}) == (0, 0)
    assert score_interval(differences, {0.0, 0.5, 1.0}) == student_interval(differences)


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
