"""Pairwise losses over groups of users (GBPR) or several items (MPR)."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import check_shape
from .._hyperparams import Share, Temperature, check_arguments, expand_anchor_axis, per_anchor
from .._reduce import ReduceFn, masked_mean
from ._common import beside, finish, lead, prepare, row_mean
from ._logspace import softplus
from ._protocols import per_anchor_loss


@per_anchor_loss
@check_arguments
def gbpr(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    group: Float[Array, "*batch n_group"],
    rho: Share = 0.4,
    where_group: Bool[Array, "*batch n_group"] | None = None,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Group Bayesian personalised ranking (GBPR) loss.

    .. math::
        \ell = \frac1N \sum_j -\log \sigma\Bigl(\Bigl[
            \frac{\rho}{|G|} \sum_{w \in G} s_{wi} + (1 - \rho)\, s^+ - s_j\Bigr] / t\Bigr)

    Averaging the positive score over a group of users reduces the effect of noisy positives.
    Equivalent to :func:`bpr` for ``rho=0``.

    Args:
      pos: Scores :math:`s^+ = s_{ui}` of anchor-positive pairs, shape ``[*batch]``.
      neg: Scores :math:`s_j` of anchor-negative pairs, shape ``[*batch, n_neg]``.
      group: Scores :math:`s_{wi}` of a group of users with the same positive item, shape
        ``[*batch, n_group]``; in the paper the group includes the anchor.
      rho: Weight :math:`\rho` in [0, 1] of the group mean; a scalar or an array that
        broadcasts to ``[*batch]``.
      where_group: Mask of valid group members, shape ``[*batch, n_group]``; masked scores are
        ignored. For anchors with an empty group, ``rho`` is 0.
      temperature: As in :func:`bpr`.
      where: As in :func:`bpr`.
      weights: As in :func:`bpr`.
      reduce_fn: As in :func:`bpr`.

    Returns:
      Reduced loss, by default the mean over anchors; per-anchor losses ``[*batch]`` if
      ``reduce_fn`` is None. At least float32.

    Raises:
      ValueError: If shapes are incompatible or a hyper-parameter is out of range.

    References:
      Pan and Chen, `GBPR: Group Preference Based Bayesian Personalized Ranking for One-Class
      Collaborative Filtering <https://www.ijcai.org/Proceedings/13/Papers/396.pdf>`_, 2013,
      Eq. 3; "Contrastive Learning for Personalized Recommendation", section 3.5.1.

    >>> pos, neg, group = jnp.array([0.5]), jnp.array([[0.2]]), jnp.array([[1.0, 2.0]])
    >>> print(f"{gbpr(pos, neg, group=group, rho=0.4):.4f}")  # softplus(0.2 - 0.9)
    0.4032
    """
    check_shape("group", group, (*neg.shape[:-1], *group.shape[-1:]))
    check_shape("where_group", where_group, group.shape)
    a = prepare(pos, neg, temperature=temperature, where=where, weights=weights)
    keep = jnp.ones(group.shape, bool) if where_group is None else where_group
    if a.kept is not None:
        keep = keep & a.kept[..., None]
    agreed = row_mean(jnp.where(keep, jnp.asarray(group, a.pos.dtype), 0), keep)
    rho = jnp.where(jnp.any(keep, axis=-1), per_anchor("rho", rho, a.pos.shape, a.pos.dtype), 0)
    a = a._replace(pos=rho * agreed + (1 - rho) * a.pos)
    return finish(row_mean(softplus(-lead(a, a.neg)), a.where), a, reduce_fn)


@per_anchor_loss
@check_arguments
def mpr(
    pos: Float[Array, "..."],
    neg: Float[Array, "*batch n_neg"],
    *,
    likely: Float[Array, "*batch"],
    balance: Share = 0.5,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Multiple pairwise ranking (MPR) loss.

    .. math::
        \ell = \frac1N \sum_{j} -\log \sigma\bigl(\bigl[
            \lambda\,(s^+ - s_{j_1})
            + (1 - \lambda)\,\{(s_{j_1} - s_j) - (s_{i_1} - s_{i_2})\}\bigr] / t\bigr)

    The model assumption is :math:`s^+ - s_j \ge s_{j_1} - s_j \ge s_{i_1} - s_{i_2}`: an
    unobserved item :math:`j_1` that the user may like ranks between the positive and the
    negative :math:`j`, and its score margin over :math:`j` exceeds the margin between two
    positives. For ``balance=1`` it is :func:`bpr` with the likely item as the negative.

    Args:
      pos: Scores of anchor-positive pairs. Shape ``[*batch]``: only the positive :math:`s^+`;
        the margin :math:`s_{i_1} - s_{i_2}` is replaced by its expectation 0. Shape
        ``[*batch, 3]`` (same rank as ``neg``): :math:`s^+`, :math:`s_{i_1}` and
        :math:`s_{i_2}`.
      neg: Scores :math:`s_j` of negatives, such as unpopular items, shape
        ``[*batch, n_neg]``.
      likely: Scores :math:`s_{j_1}` of an unobserved item that the user may like, shape
        ``[*batch]``.
      balance: Weight :math:`\lambda` in [0, 1]; a scalar or an array that broadcasts to
        ``[*batch]``.
      temperature: As in :func:`bpr`.
      where: As in :func:`bpr`.
      weights: As in :func:`bpr`.
      reduce_fn: As in :func:`bpr`.

    Returns:
      Reduced loss, by default the mean over anchors; per-anchor losses ``[*batch]`` if
      ``reduce_fn`` is None. At least float32.

    Raises:
      ValueError: If shapes are incompatible or a hyper-parameter is out of range.

    References:
      Yu et al., `Multiple Pairwise Ranking with Implicit Feedback
      <https://doi.org/10.1145/3269206.3269294>`_, 2018; "Contrastive Learning for
      Personalized Recommendation", section 3.5.1, whose :math:`j_2` is the same on both
      sides.

    >>> pos, neg, likely = jnp.array([2.0]), jnp.array([[0.0, -1.0]]), jnp.array([1.0])
    >>> print(f"{mpr(pos, neg, likely=likely, balance=0.5):.4f}")
    0.2573
    """
    check_shape("likely", likely, neg.shape[:-1])
    a = prepare(
        pos, neg, temperature=temperature, where=where, weights=weights, extra_positives=True
    )
    if a.extra is not None:
        check_shape("pos", pos, (*neg.shape[:-1], 3))
    share = per_anchor("balance", balance, a.pos.shape, a.pos.dtype)
    between = beside("likely", likely, a.pos, a.kept)
    spread = 0 if a.extra is None else a.extra[..., 0] - a.extra[..., 1]
    ahead = share * (a.pos - between) + (1 - share) * (between - spread)
    by = ahead[..., None] - expand_anchor_axis(1 - share) * a.neg
    return finish(row_mean(softplus(-by / a.temperature), a.where), a, reduce_fn)
