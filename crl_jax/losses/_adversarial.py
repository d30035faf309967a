"""Adversarial contrastive loss: the worst case over the hardness of negatives."""

from jaxtyping import Array, Bool, Float

from .. import _hyperparams as hp
from .._hyperparams import Temperature, check_arguments
from .._reduce import ReduceFn, masked_mean
from ..weights import adversarial_weights
from ._common import finish, per_anchor_loss, prepare
from ._logspace import log_sum_exp, softplus


@per_anchor_loss
@check_arguments
def adversarial_contrastive(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    radius: hp.NonNegative = 0.1,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Adversarial InfoNCE (AdvInfoNCE) loss, with the exact maximum over the hardness.

    .. math::
        \ell = \max_\delta\, -\log \frac{e^{s^+/t}}{e^{s^+/t} + \sum_j e^{\delta_j} e^{s_j/t}},
        \qquad e^{\delta_j} = N p_j, \quad \sum_j p_j \log(N p_j) \le \eta

    where :math:`p` is a distribution of the :math:`N` negatives. It is InfoNCE with the
    :func:`crl_jax.weights.adversarial_weights`, and distributionally robust: its sum over negatives
    is

    .. math::
        N \max_p \mathbb{E}_p[e^{s/t}]
        = N \min_{\lambda > 0} \Bigl\{\lambda\eta
            + \lambda \log \frac1N \sum_j \exp\bigl(e^{s_j/t}/\lambda\bigr)\Bigr\}

    The gradient with respect to scores and temperature is that of the maximum, in which the weights
    are constant; the gradient with respect to ``radius`` is 0. The published method replaces the
    exact maximum by gradient ascent on embeddings that define :math:`p`, and the radius by the
    number of ascent epochs. Equal to :func:`info_nce` for ``radius=0``. The weights take 24
    exponentials per negative: with 128 negatives, the loss and its gradient took 17 times as long
    as :func:`info_nce` on a CPU.

    Args:
      radius: Radius :math:`\eta \ge 0` in nats within which the hardness is chosen; a scalar or an
        array that broadcasts to ``[*batch]``. From :math:`\log N` on, only the negative with the
        highest score remains.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Zhang et al., `Empowering Collaborative Filtering with Principled Adversarial Contrastive
      Loss <https://arxiv.org/abs/2310.18700>`_, 2023, with the divergence that its published code
      computes.

    >>> import jax.numpy as jnp
    >>> pos, neg = jnp.array([0.8]), jnp.array([[0.7, 0.1, -0.2]])
    >>> print(f"{adversarial_contrastive(pos, neg, radius=0.2, temperature=0.5):.4f}")
    1.0253
    """
    a = prepare(pos, neg, temperature, where, weights)
    hardness = adversarial_weights(a.neg, radius=radius, temperature=a.temperature, where=a.where)
    log_sum = log_sum_exp(a.neg / a.temperature, weights=hardness)
    return finish(softplus(log_sum - a.pos / a.temperature), a, reduce_fn)
