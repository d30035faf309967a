"""Speed of BPRAC's expectation step: interactions per second whose confidence is estimated.

Synthetic interactions of users with items of unequal popularity, and matrix factorisation of width
27 with Gaussian tables, whose scores follow the variance-gamma distribution. *formula*: scores and
priors are given. *expectation step*: scores come from the model and priors from their items; an
unknown distribution is estimated from a sample of scores. *SciPy*: the formula as published, one
quadrature per interaction, on a subset of the same scores; every contestant with the variance-gamma
distribution must agree with it, or the benchmark fails at the end. Contestants are timed
alternately, so that other work on the machine affects all of them; medians are reported.

    python -m benchmarks.confidence --out benchmarks/results/confidence.csv
"""

import math
import statistics
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import integrate, special

from crl_jax import data, models, stats, tasks, weights
from experiments._compiler import tune_compiler

from ._report import Report, Row, add_ratio, alternate, count, one_line_errors, parser, timed

N_USERS, N_ITEMS = 200_000, 50_000
DIM, VARIANCE = 27, 0.6
# Exponent of the power law by which popularity decreases with the rank.
ZIPF = 0.8
ENCODER = models.MatrixFactorization(N_USERS, N_ITEMS, DIM)
Params = dict[str, jax.Array]
Rule = Literal["density", "posterior"]
RULES: dict[Rule, Callable[..., jax.Array]] = {
    "density": weights.confidence_density,
    "posterior": weights.confidence_posterior,
}
EXPECTATION = "expectation step"
KNOWN, SMOOTHED = "variance-gamma", "smoothed"
DISTRIBUTIONS = {KNOWN: stats.VarianceGamma(DIM, VARIANCE), SMOOTHED: stats.SmoothedEmpirical()}
# Number of interactions that SciPy evaluates.
N_REFERENCE = 20_000
# Largest relative error against SciPy that is attributed to float32 rounding.
TOLERANCE = 1e-4


class Case(NamedTuple):
    """Identifies a measurement."""

    what: str
    rule: Rule
    distribution: str


def simulate(n: int, rng: np.random.Generator) -> data.Interactions:
    """Returns the distinct pairs among ``n`` independent draws of a user and an item."""
    popularity = np.arange(1.0, N_ITEMS + 1) ** -ZIPF
    users = rng.integers(N_USERS, size=n)
    items = rng.permutation(N_ITEMS)[rng.choice(N_ITEMS, n, p=popularity / popularity.sum())]
    users, items = np.divmod(np.unique(users * N_ITEMS + items), N_ITEMS)
    return data.Interactions.from_arrays(
        users, items, user_ids=np.arange(N_USERS), item_ids=np.arange(N_ITEMS)
    )


def reference_distribution(scores: np.ndarray) -> np.ndarray:
    """Computes distribution function and density of the scores in float64, ``[2, n]``."""
    order = (DIM - 1) / 2
    constant = VARIANCE * math.sqrt(math.pi) * math.gamma(DIM / 2)

    def density(x: float) -> float:
        z = abs(x) / VARIANCE
        return (z / 2) ** order * special.kve(order, z) * math.exp(-z) / constant

    cdf = [integrate.quad(density, -math.inf, x)[0] for x in scores]
    return np.array([cdf, [density(x) for x in scores]])


def largest_error(
    case: Case, values: np.ndarray, distribution: np.ndarray, prior: np.ndarray
) -> float:
    """Returns the largest relative error, given distribution function and density ``[2, n]``."""
    values, prior = values.astype(np.float64), prior.astype(np.float64)
    cdf, density = distribution
    if case.rule == "density":
        expected = 2 * cdf * density * prior
    else:
        expected = cdf * prior / (cdf * prior + (1 - cdf) * (1 - prior))
    if case.what == EXPECTATION:  # known up to a factor, so divide by the mean
        values, expected = values / values.mean(), expected / expected.mean()
    return float(np.max(np.abs(values / expected - 1)))


def check(rows: list[Row]) -> None:
    """Checks that all errors are within floating-point tolerance.

    Raises:
      SystemExit: If an error exceeds ``TOLERANCE``.
    """
    for row in rows:
        error = row["largest_error"]
        if error is not None and not error <= TOLERANCE:
            case = " ".join(row[name] for name in Case._fields)
            raise SystemExit(f"{case}: relative error {error:.2g}, at most {TOLERANCE}")


@partial(jax.jit, static_argnames="rule")
def formula(
    rule: Rule, scores: jax.Array, prior: jax.Array, distribution: stats.Distribution
) -> jax.Array:
    """Computes the confidence for given scores and priors."""
    return RULES[rule](scores, prior=prior, distribution=distribution)


@jax.jit
def score_all(params: Params, users: jax.Array, items: jax.Array) -> jax.Array:
    """Computes the scores of the interactions."""

    def score(pair: tuple[jax.Array, jax.Array]) -> jax.Array:
        user, item = pair
        return ENCODER.score(ENCODER.encode(params), user[None], item[None, None])[0, 0]

    return jax.lax.map(score, (users, items), batch_size=2**14)


@jax.jit
def expectation(
    confidence: tasks.ConfidenceEM, params: Params, users: jax.Array, items: jax.Array
) -> jax.Array:
    """Estimates the confidence of the interactions, as training does."""
    return confidence.estimate(jax.random.key(1), ENCODER, ENCODER.encode(params), users, items)


def measure(log: data.Interactions, params: Params, rounds: int) -> list[Row]:
    """Returns one row per contestant, SciPy first."""
    users, items = jnp.asarray(log.users), jnp.asarray(log.items)
    item_prior = weights.credibility_prior(log.item_counts)
    prior, scores = item_prior[items], score_all(params, users, items)
    sample = jax.random.choice(jax.random.key(2), scores, (2**16,))
    runs: dict[Case, Callable[[], jax.Array]] = {
        Case("formula", rule, name): partial(formula, rule, scores, prior, distribution.fit(sample))
        for name, distribution in DISTRIBUTIONS.items()
        for rule in RULES
    }
    for case in (Case(EXPECTATION, "density", KNOWN), Case(EXPECTATION, "posterior", SMOOTHED)):
        confidence = tasks.ConfidenceEM(
            item_prior, DISTRIBUTIONS[case.distribution], rule=case.rule
        )
        runs[case] = partial(expectation, confidence, params, users, items)

    subset = np.linspace(0, len(log) - 1, N_REFERENCE).astype(int)
    subset_scores, subset_priors = np.asarray(scores)[subset], np.asarray(prior)[subset]
    score_parts = iter(np.array_split(subset_scores.astype(np.float64), rounds))

    def measure_reference() -> tuple[float, np.ndarray]:
        part = next(score_parts)
        timing = timed(reference_distribution, part)
        return len(part) / timing.seconds, timing.value

    def measure_speed(run: Callable[[], jax.Array]) -> float:
        return len(log) / timed(lambda: jax.block_until_ready(run())).seconds

    values = {case: np.asarray(run())[subset] for case, run in runs.items()}  # compiles
    scipy = Case("SciPy", "density", KNOWN)
    turns = alternate(
        {
            scipy: measure_reference,
            **{case: partial(measure_speed, run) for case, run in runs.items()},
        },
        rounds,
    )
    distribution = np.concatenate([value for _, value in turns[scipy]], axis=1)
    turns[scipy] = [per_second for per_second, _ in turns[scipy]]
    rows = [
        {
            **case._asdict(),
            "per_second": statistics.median(speeds),
            "per_second_max": max(speeds),
            "largest_error": largest_error(case, values[case], distribution, subset_priors)
            if case in values and case.distribution == KNOWN
            else None,
        }
        for case, speeds in turns.items()
    ]
    add_ratio(rows, "times_scipy", "per_second")
    return rows


@one_line_errors
def main() -> None:
    """Measures, and checks against SciPy."""
    tune_compiler()
    arguments = parser(__doc__)
    arguments.add_argument(
        "--interactions", type=count, default=10_000_000, help="pairs to draw before duplicates go"
    )
    arguments.add_argument("--rounds", type=count, default=7, help="timed turns of each contestant")
    args = arguments.parse_args()
    report = Report(args.out, "jax", "jaxlib", "numpy", "scipy")
    rng = np.random.default_rng(0)
    log = simulate(args.interactions, rng)
    params = {
        name: jnp.asarray(rng.normal(0, math.sqrt(VARIANCE), (rows, DIM)), jnp.float32)
        for name, rows in (("users", N_USERS), ("items", N_ITEMS))
    }
    report.about["interactions"] = len(log)
    rows = measure(log, params, args.rounds)
    report.add(rows)
    check(rows)


if __name__ == "__main__":
    main()
