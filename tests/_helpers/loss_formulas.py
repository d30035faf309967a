"""Formulas of losses as published, in float64 and without overflow protection.

They share no code with the losses under test. Each takes the scores ``pos`` ``[...]`` of a
positive, ``extra`` ``[..., M]`` of extra positives or None, and ``neg`` ``[..., N]`` of negatives,
the mask ``m`` of the negatives, the temperature ``t``, and hyper-parameters and arrays of its loss.
It returns the losses of the anchors ``[...]``.
"""

import numpy as np


def mean(values, m):
    return (m * values).sum(-1) / m.sum(-1)


def column(x):
    return np.expand_dims(x, -1)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def minus_log_sigmoid(x):
    return np.log1p(np.exp(-x))


def bpr(pos, extra, neg, m, t):
    return mean(minus_log_sigmoid((pos[..., None] - neg) / t), m)


def bce(pos, extra, neg, m, t):
    return minus_log_sigmoid(pos / t) + mean(minus_log_sigmoid(-neg / t), m)


def gbce(pos, extra, neg, m, t, sampling_rate, calibration):
    # The power of the probability of the positive, as in the paper.
    power = sampling_rate * (calibration * (1 - 1 / sampling_rate) + 1 / sampling_rate)
    apart = (m * minus_log_sigmoid(-neg / t)).sum(-1)
    return (power * minus_log_sigmoid(pos / t) + apart) / (m.sum(-1) + 1)


def from_denominator(pos, g, t):
    return np.log1p(g / np.exp(pos / t))  # -log(e^pos / (e^pos + g))


def info_nce(pos, extra, neg, m, t):
    return from_denominator(pos, (m * np.exp(neg / t)).sum(-1), t)


def hard(pos, extra, neg, m, t, tau_plus, beta, min_score=-1.0):
    tilt = np.exp(column(beta) * neg / t)
    w = tilt / mean(tilt, m)[..., None]
    draws = pos[..., None] if extra is None else extra
    false = tau_plus * np.exp(draws / t).mean(-1)
    true = (mean(w * np.exp(neg / t), m) - false) / (1 - tau_plus)
    return from_denominator(pos, m.sum(-1) * np.maximum(true, np.exp(min_score / t)), t)


def debiased(*args, **hyper):
    return hard(*args, **hyper, beta=0.0)


def bayesian_weights(neg, m, tau_plus, alpha, beta):
    u = ((neg[..., None, :] <= neg[..., :, None]) * m[..., None, :]).sum(-1)
    u = u / m.sum(-1, keepdims=True)
    tau_plus, alpha, beta = map(column, (tau_plus, alpha, beta))
    a = (1 - 2 * alpha) * (1 - 2 * tau_plus)
    b = 2 * (alpha * (1 - tau_plus) + (1 - alpha) * tau_plus)
    phi = (-b + np.sqrt(b**2 + 4 * a * u)) / (2 * a)
    z = (1 - beta) * alpha + beta * (1 - alpha)
    return m * ((1 - beta) * alpha + (beta - alpha) * phi) / z / (b / 2 + a * phi)


def bayesian(pos, extra, neg, m, t, tau_plus, alpha, beta):
    w = bayesian_weights(neg, m, tau_plus, alpha, beta)
    return from_denominator(pos, (w * np.exp(neg / t)).sum(-1), t)


def adjusted(pos, extra, neg, m, t, mu, sigma):
    log_w = np.where(m, -(((neg - column(mu)) / column(sigma)) ** 2) / 2, -np.inf)
    w = np.exp(log_w - log_w.max(-1, keepdims=True))
    return from_denominator(pos, (w / mean(w, m)[..., None] * np.exp(neg / t)).sum(-1), t)


def corrected(pos, extra, neg, m, t, tau_plus, gamma, min_score=-1.0):
    log_w = np.where(m, -column(gamma) * neg / t, -np.inf)
    w = np.exp(log_w - log_w.max(-1, keepdims=True))
    false = np.exp(pos / t) if extra is None else np.exp(extra / t).mean(-1)
    mixed = mean(w * np.exp(neg / t), m) / mean(w, m)
    g = np.maximum((mixed - tau_plus * false) / (1 - tau_plus), np.exp(min_score / t))
    return np.log(m.sum(-1) * g) - pos / t


def attention(pos, extra, neg, m, t, pos_scale, neg_scale):
    positives = pos[..., None] if extra is None else np.concatenate([pos[..., None], extra], -1)
    a = np.exp(positives / column(pos_scale))
    positive = (a * positives).sum(-1) / a.sum(-1)
    b = np.exp((neg - neg.max(-1, keepdims=True)) / column(neg_scale))
    logits = np.where(m, b / mean(b, m)[..., None] * neg / t, -np.inf)  # overflow float64
    return np.logaddexp(0, np.logaddexp.reduce(logits, axis=-1) - positive / t)


def global_contrastive(pos, extra, neg, m, t, log_mean):
    log_ratio = np.log(mean(np.exp(neg / t), m)) - log_mean
    return log_mean + np.exp(np.minimum(log_ratio, 60)) - 1 - pos / t


def pairwise(pos, extra, neg, m, t, tau_plus, floor=1e-2):
    mixed = mean(sigmoid((pos[..., None] - neg) / t), m)
    false = 0.5 if extra is None else sigmoid((pos[..., None] - extra) / t).mean(-1)
    return -np.log(np.maximum((mixed - tau_plus * false) / (1 - tau_plus), floor))


def decoupled(pos, extra, neg, m, t):
    return -np.log(np.exp(pos / t) / (m * np.exp(neg / t)).sum(-1))


def sigmoid_contrastive(pos, extra, neg, m, t, bias):
    apart = minus_log_sigmoid(-neg / t - column(bias))
    return minus_log_sigmoid(pos / t + bias) + (m * apart).sum(-1)


def proto(pos, extra, neg, m, t, pos_concentration, neg_concentration):
    return info_nce(pos / pos_concentration, None, neg / neg_concentration, m, t)


def nce(pos, extra, neg, m, t, pos_log_noise, neg_log_noise, ratio=None):
    k = m.sum(-1) if ratio is None else ratio
    u, q, noise = np.exp(pos / t), np.exp(pos_log_noise), np.exp(neg_log_noise)
    kq = column(k) * noise
    return np.log1p(k * q / u) + k * mean(np.log1p(np.exp(neg / t) / kq), m)


def oracle(pos, extra, neg, m, t, true_negative):
    g = m.sum(-1) * mean(np.exp(neg / t), m & true_negative)
    return from_denominator(pos, g, t)


def oracle_pairwise(pos, extra, neg, m, t, true_negative):
    ahead = (pos[..., None] - neg) / t
    kept = m & true_negative
    near_one = np.log1p(-mean(sigmoid(-ahead), kept))  # accurate for small losses
    return -np.where(near_one > -0.1, near_one, np.log(mean(sigmoid(ahead), kept)))


def supervised(pos, extra, neg, m, t, where_pos, denominator="all"):
    positives = np.concatenate([pos[..., None], extra], axis=-1) / t
    g = (m * np.exp(neg / t)).sum(-1)[..., None]
    if denominator == "all":  # only other terms: avoids cancellation
        others = where_pos[..., None, :] & ~np.eye(positives.shape[-1], dtype=bool)
        g = g + (others * np.exp(positives)[..., None, :]).sum(-1)
    return mean(np.log1p(g / np.exp(positives)), where_pos)


def punce(pos, extra, neg, m, t, where_pos, labelled, tau_plus):
    as_positive = supervised(pos, extra, neg, m, t, where_pos)
    labelled_ones = (where_pos[..., 1:] * np.exp(extra / t)).sum(-1)
    as_negative = from_denominator(pos, (m * np.exp(neg / t)).sum(-1) + labelled_ones, t)
    part = tau_plus * as_positive + (1 - tau_plus) * as_negative
    return np.where(labelled, as_positive, part)


def gbpr(pos, extra, neg, m, t, group, where_group, rho):
    agreed = rho * mean(group, where_group) + (1 - rho) * pos
    return bpr(agreed, None, neg, m, t)


def mpr(pos, extra, neg, m, t, likely, balance):
    spread = 0.0 if extra is None else extra[..., 0] - extra[..., 1]
    of_likely = (likely - spread)[..., None] - neg
    balance = column(balance)
    ahead = balance * (pos - likely)[..., None] + (1 - balance) * of_likely
    return mean(minus_log_sigmoid(ahead / t), m)


def triplet(pos, extra, neg, m, t, margin):
    return mean(np.maximum((neg - pos[..., None]) / t + column(margin), 0), m)


def linear(pos, extra, neg, m, t, repulsion):
    return -pos / t + repulsion * mean(neg, m) / t


def bilateral(pos, extra, neg, m, t, repulsion, pos_temperature=None):
    positives = pos[..., None] if extra is None else np.concatenate([pos[..., None], extra], -1)
    own_t = t if pos_temperature is None else column(pos_temperature)
    pull = np.exp(positives / own_t).mean(-1)
    return repulsion * np.log(mean(np.exp(neg / t), m)) - np.log(pull)


def info_nce_plus(pos, extra, neg, m, t, inclusion, repulsion):
    g = (m * np.exp(neg / t)).sum(-1)
    ahead = np.log1p((g + (inclusion - 1) * np.exp(pos / t)) / np.exp(pos / t))
    return repulsion * ahead + (repulsion - 1) * pos / t


def debiased_cosine(pos, extra, neg, m, t, tau_plus, margin, repulsion):
    draws = pos[..., None] if extra is None else extra
    mixed = mean(np.maximum(neg / t - column(margin), 0), m)
    false = np.maximum(draws / t - column(margin), 0).mean(-1)
    return 1 - pos / t + repulsion * (mixed - tau_plus * false) / (1 - tau_plus)


def cosine(pos, extra, neg, m, t, margin, repulsion):
    return 1 - pos / t + repulsion * mean(np.maximum(neg / t - column(margin), 0), m)


def small(values, drop_rate):
    """Returns the values shifted so that the largest is 0."""
    dropped = np.argsort(-values, axis=None)[: int(drop_rate * values.size)]
    return np.where(np.isin(np.arange(values.size).reshape(values.shape), dropped), 0, values)


def truncated_bce(pos, extra, neg, m, t, drop_rate):
    missed = small(minus_log_sigmoid(pos / t), drop_rate)
    return missed + mean(minus_log_sigmoid(-neg / t), m)


def truncated_bpr(pos, extra, neg, m, t, drop_rate):
    return small(bpr(pos, extra, neg, m, t), drop_rate)


def reweighted_bce(pos, extra, neg, m, t, exponent):
    missed = sigmoid(pos / t) ** exponent * minus_log_sigmoid(pos / t)
    return missed + mean(sigmoid(-neg / t) ** column(exponent) * minus_log_sigmoid(-neg / t), m)


def reweighted_bpr(pos, extra, neg, m, t, exponent):
    d = (pos[..., None] - neg) / t
    return mean(sigmoid(d) ** column(exponent) * minus_log_sigmoid(d), m)


SURROGATES = {
    "tanh": lambda d: 2 * sigmoid(2 * d),  # 1 + tanh(d), accurate for small values
    "relu": lambda d: np.maximum(1 + d, 0),
    "atan": lambda d: np.maximum(1 + np.arctan(d), 0),
}


def pairwise_softmax(pos, extra, neg, m, t, surrogate="tanh"):
    return np.log1p((m * SURROGATES[surrogate](neg - pos[..., None]) ** (1 / t)).sum(-1))


def posterior(s, m, strength, hardness):
    power = m * np.exp(s / column(strength) - column(hardness) * s)
    return power / power.sum(-1, keepdims=True)


def variational(
    pos, extra, neg, m, t, pos_strength, neg_strength, pos_hardness, neg_hardness,
    pos_log_prior=None, neg_log_prior=None, objective="compressed",
):  # fmt: skip
    positives = pos[..., None] if extra is None else np.concatenate([pos[..., None], extra], -1)
    own, other = (
        (1, m) if pos_log_prior is None else (np.exp(pos_log_prior), m * np.exp(neg_log_prior))
    )
    alpha = posterior(positives / t, own, pos_strength, pos_hardness)
    beta = posterior(-neg / t, other, neg_strength, neg_hardness)
    ahead = (positives[..., :, None] - neg[..., None, :]) / t
    joint = alpha[..., :, None] * beta[..., None, :]
    if objective == "exact":
        return (joint * minus_log_sigmoid(ahead)).sum((-1, -2))
    return minus_log_sigmoid((joint * ahead).sum((-1, -2)))


def adversarial(pos, extra, neg, m, t, radius):
    """Minimises the dual of the maximum over distributions, which is convex in log(lambda)."""
    peak = np.where(m, neg, -np.inf).max(-1) / t
    x = np.exp(np.where(m, neg / t - column(peak), 0))

    def dual(log_lambda):
        tilted = np.expm1((x - 1) / np.exp(column(log_lambda)))
        return np.exp(log_lambda) * (radius + np.log1p(mean(tilted, m))) + 1

    low, high = np.full(pos.shape, -40.0), np.full(pos.shape, 40.0)
    for _ in range(110):  # golden sections
        left, right = high - 0.618 * (high - low), low + 0.618 * (high - low)
        falls = dual(left) > dual(right)
        low, high = np.where(falls, left, low), np.where(falls, high, right)
    return from_denominator(pos, m.sum(-1) * dual(low) * np.exp(peak), t)


def softmax_at_k(pos, extra, neg, m, t, top_fraction, weight_temperature, threshold=None):
    if threshold is None:
        own = pos[..., None] if extra is None else np.concatenate([pos[..., None], extra], -1)
        ordered = -np.sort(-np.concatenate([own, np.where(m, neg, -np.inf)], -1), axis=-1)
        k = np.ceil(top_fraction * (own.shape[-1] + m.sum(-1)))
        k = np.broadcast_to(np.maximum(k, 1).astype(int), pos.shape)
        threshold = np.take_along_axis(ordered, column(k - 1), -1)[..., 0]
    weight = sigmoid((pos - threshold) / weight_temperature)
    return weight * info_nce(pos, None, neg, m, t)


def lambda_at_k(pos, extra, neg, m, t, cutoff):
    total = np.zeros(pos.shape)
    for anchor in np.ndindex(pos.shape):
        scores = np.append(pos[anchor], neg[anchor][m[anchor]])
        rank = 1 + np.argsort(np.argsort(-scores, kind="stable"), kind="stable")
        apart, last = abs(rank[1:] - rank[0]), np.maximum(rank[1:], rank[0])
        weight = 1 / np.log2(1 + apart) - 1 / np.log2(2 + apart)
        crosses = last > np.broadcast_to(cutoff, pos.shape)[anchor]
        weight[crosses] /= 1 - 1 / np.log2(1 + last[crosses])
        total[anchor] = weight @ minus_log_sigmoid((scores[0] - scores[1:]) / t) / np.log(2)
    return total


def exponential(pos, extra, neg, m, t):
    return mean(np.exp((neg - pos[..., None]) / t), m)


def squared_hinge(pos, extra, neg, m, t, margin):
    short = column(margin) - (pos[..., None] - neg) / t
    return mean(np.maximum(short, 0) ** 2, m)
