"""Statistics of success rates."""

import math


def jeffreys(successes: int, trials: int, level: float = 0.8) -> tuple[float, float]:
    """Return the equal-tailed interval of a rate under Jeffreys' prior: quantiles of Beta(s + 1/2, n - s + 1/2).

    (Brown, Cai and DasGupta 2001, section 4.3, with their rule that the interval touches 0 for no success and 1 for no
    failure.) Raises ValueError if successes are not within 0..trials or trials is 0.
    """
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"{successes} successes of {trials} trials")
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
