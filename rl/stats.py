"""Success rates and their intervals, and comparisons of policies that played the same tasks. Pure functions of numbers.

Comparisons are paired differences, Pareto dominance and pass@k. Intervals of rates and of their differences are
quantiles of a Bayesian bootstrap over tasks (Rubin 1981): the mean under random Dirichlet weights. Outcomes that were
possible but perhaps not seen have half a task's weight each, as in Jeffreys' prior. So the interval of a rate is the
Jeffreys interval, and twenty equal results are no proof of equality. Means of numbers that may have any value have
Student's interval.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from rl.config.refusals import Refusal

RATE = (0.0, 1.0)  # what the success of a task can be
DIFFERENCE = (-1.0, 0.0, 1.0)  # what the difference of two can be


def jeffreys(successes: int, trials: int, level: float = 0.8) -> tuple[float, float]:
    """Return the equal-tailed interval of a rate under Jeffreys' prior: quantiles of Beta(s + 1/2, n - s + 1/2).

    (Brown, Cai and DasGupta 2001, section 4.3, with their rule that the interval touches 0 for no success and 1 for no
    failure.) Raises ValueError if successes are not within 0..trials or trials is 0.
    """
    if not 0 <= successes <= trials or trials < 1:
        raise Refusal(f"{successes} successes of {trials} trials")
    tail, a, b = (1 - level) / 2, successes + 0.5, trials - successes + 0.5
    low = 0.0 if successes == 0 else beta_quantile(tail, a, b)
    high = 1.0 if successes == trials else beta_quantile(1 - tail, a, b)
    return low, high


def beta_quantile(p: float, a: float, b: float) -> float:
    """Return x with I_x(a, b) = p, by bisection to the last bit of a double."""
    low, high = 0.0, 1.0
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        low, high = (middle, high) if beta_cdf(middle, a, b) < p else (low, middle)


def beta_cdf(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_cdf(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    fraction, c, d = 1.0, 1.0, 0.0  # 1 + t1 / (1 + t2 / (1 + ...)), by Lentz's method
    for m in range(1000):
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        even = (m + 1) * (b - m - 1) * x / ((a + 2 * m + 1) * (a + 2 * m + 2))
        for term in (odd, even):
            d = 1 / (1 + term * d)
            c = 1 + term / c
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front / fraction


def bootstrap(
    values: Sequence[float],
    possible: Sequence[float],
    draws: int = 4000,
    seed: int = 0,
    tasks: Sequence[str] | None = None,
) -> np.ndarray:
    """Return draws of the mean over all tasks, given the values of some of them. Equal arguments give equal draws.

    possible: values with half a task's weight each.
    tasks: the task of each value; None: each value has a task of its own. Values of one task are not independent, so a
    draw weighs whole tasks: it is the weighted sum of values over the weighted number of values.
    """
    if not len(values):
        raise Refusal("no values to take the mean of")
    of_task = by_task(values, tasks)
    if len(of_task) == len(values):
        seen, counts = np.unique(np.asarray(values, dtype=float), return_counts=True)
        points, weights = np.append(seen, possible), np.append(counts, [0.5] * len(possible))
        shares = np.random.default_rng(seed).standard_gamma(weights, (draws, len(weights)))
        return shares @ points / shares.sum(1)
    mean_count = len(values) / len(of_task)  # values of a task
    sums = np.array([*map(sum, of_task), *(mean_count * value for value in possible)])
    counts = np.array([*map(len, of_task), *[mean_count] * len(possible)])
    weights = np.array([1.0] * len(of_task) + [0.5] * len(possible))
    shares = np.random.default_rng(seed).standard_gamma(weights, (draws, len(weights)))
    return (shares @ sums) / (shares @ counts)


def by_task(values: Sequence[float], tasks: Sequence[str] | None) -> list[list[float]]:
    """Return the values of each distinct task, in order of appearance; without `tasks`, each value alone."""
    if tasks is None:
        return [[value] for value in values]
    grouped: dict[str, list[float]] = {}
    for task, value in zip(tasks, values, strict=True):
        grouped.setdefault(task, []).append(value)
    return list(grouped.values())


def student_interval(
    values: Sequence[float], level: float = 0.8, tasks: Sequence[str] | None = None
) -> tuple[float, float]:
    """Return mean -+ t * error, Student's interval of the mean; of one task, the mean alone.

    tasks: as `bootstrap`'s. The error is the cluster-robust one (Liang and Zeger 1986) with K / (K - 1) for K tasks;
    with a task for each value it is deviation / sqrt(n).
    """
    of_task, mean = by_task(values, tasks), float(np.mean(values))
    n = len(of_task)
    if n < 2:
        return mean, mean
    residuals = [sum(value - mean for value in one) for one in of_task]
    error = math.sqrt(n / (n - 1) * math.fsum(r * r for r in residuals)) / len(values)
    half = student_quantile(level, n - 1) * error
    return mean - half, mean + half


def student_quantile(level: float, freedom: int) -> float:
    """Return t with P(|T| <= t) = level: P(|T| > t) = I_x(freedom / 2, 1 / 2) at x = freedom / (freedom + t^2)."""
    return math.sqrt(freedom * (1 / beta_quantile(1 - level, freedom / 2, 0.5) - 1))


def score_interval(
    differences: Sequence[float], scores: set[float], tasks: Sequence[str] | None = None
) -> tuple[float, float]:
    """Return the interval of the mean difference of two policies' scores, task by task.

    tasks: as `bootstrap`'s.
    scores: all that either had. Of at most two values, a score is a success in other units, and so is its interval:
    with few tasks or rare successes Student's would be too narrow or too wide.
    """
    if len(scores) <= 2:
        possible = [(max(scores) - min(scores)) * outcome for outcome in DIFFERENCE]
        return interval(bootstrap(differences, possible, tasks=tasks))
    return student_interval(differences, tasks=tasks)


def verdict(low: float, high: float) -> str:
    """Return what the interval of a difference shows."""
    return "better" if low > 0 else "worse" if high < 0 else "no difference shown"


def interval(draws: np.ndarray, level: float = 0.8) -> tuple[float, float]:
    """Return the equal-tailed interval of draws."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def unweighted_interval(
    groups: Sequence[Sequence[float]],
    possible: Sequence[float],
    draws: int = 4000,
    tasks: Sequence[Sequence[str]] | None = None,
) -> tuple[float, float]:
    """Return the interval of the mean of several groups' means, such as of environments, each counted once.

    tasks: as `bootstrap`'s, of each group.
    A group's draws are moved to its own mean and spread to the variance of a mean of n values: the prior moves them to
    the middle of `possible` and narrows them, which does not average out over groups.
    """
    total, prior = np.zeros(draws), 0.5 * len(possible)
    for number, values in enumerate(groups):
        own = tasks[number] if tasks else None
        drawn, n = bootstrap(values, possible, draws, number, own), len(by_task(values, own))
        total += np.mean(values) + (drawn - drawn.mean()) * math.sqrt((n + prior + 1) / n)
    low, high = interval(total / len(groups))
    return max(low, min(possible)), min(high, max(possible))


def seeds_interval(
    values: Sequence[Sequence[float]], tasks: Sequence[Sequence[str]], possible: Sequence[float]
) -> tuple[float, float]:
    """Return the interval of the mean over runs with several seeds that played the same tasks: for other tasks and
    other seeds. With one seed it is for other tasks alone.

    values, tasks: of each seed, as `bootstrap`'s.
    The squares of two distances from the mean are added: to the ends of the bootstrap over tasks, and to those of
    Student's interval over the seeds' means. It is the two-way clustered variance without the term that is subtracted
    (Cameron, Gelbach and Miller 2011, eq. 2.9), so that the interval is too wide rather than too narrow.
    """
    pooled = [value for one in values for value in one]
    mean = float(np.mean(pooled))
    low, high = interval(bootstrap(pooled, possible, tasks=[task for one in tasks for task in one]))
    bottom, top = student_interval([float(np.mean(one)) for one in values])
    low, high = mean - math.hypot(mean - low, (top - bottom) / 2), mean + math.hypot(high - mean, (top - bottom) / 2)
    return max(low, min(possible)), min(high, max(possible))


def rate_interval(values: Sequence[float], tasks: Sequence[str] | None = None) -> tuple[float, float]:
    """Return the interval of the mean of rates; it touches 0 if all are 0 and 1 if all are 1, as jeffreys' does.

    tasks: as `bootstrap`'s.
    """
    low, high = interval(bootstrap(values, RATE, tasks=tasks))
    return low if any(values) else 0.0, high if min(values) < 1 else 1.0


def pass_at_k(successes: int, samples: int, k: int) -> float:
    """Return the unbiased estimate of the chance that at least one of k attempts at a task succeeds.

    It is the share of k-subsets of the samples with a success, 1 - C(n - c, k) / C(n, k) (Chen et al. 2021).
    """
    if not 1 <= k <= samples or not 0 <= successes <= samples:
        raise Refusal(f"pass@{k} of {successes} successes in {samples} samples")
    return 1 - math.comb(samples - successes, k) / math.comb(samples, k)


def dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    """Return whether a is at least b everywhere and more somewhere."""
    pairs = list(zip(a, b, strict=True))
    return all(x >= y for x, y in pairs) and any(x > y for x, y in pairs)


def frontier(scores: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the names that no other name's scores dominate."""
    return [name for name, own in scores.items() if not any(dominates(other, own) for other in scores.values())]


def dominance_probability(
    differences: Sequence[Sequence[float]], draws: int = 4000, tasks: Sequence[Sequence[str]] | None = None
) -> float:
    """Return the probability that a policy is better than another in every environment.

    differences: of their successes task by task, for each environment; environments are independent.
    tasks: as `bootstrap`'s, of each environment.
    """
    own: Sequence[Sequence[str] | None] = tasks or [None] * len(differences)
    drawn = (bootstrap(env, DIFFERENCE, draws, seed, own[seed]) for seed, env in enumerate(differences))
    return math.prod(float((draw > 0).mean()) for draw in drawn)
