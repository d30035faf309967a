"""Pseudo-random permutation of ``0 … n-1``, evaluated element-wise."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

_ROUNDS = 8
# Largest size that is sorted. Sorting is cheap here, while on a domain of a few dozen elements the
# network mixes slowly, and some permutations are several times as likely as others.
_SORTED = 1024


def permute(key: Key[Array, ""], index: Int[Array, "*shape"], n: int) -> Int[Array, "*shape"]:
    r"""Applies the pseudo-random permutation of ``0 … n-1`` that ``key`` selects to ``index``.

    Sorting random numbers, as ``jax.random.permutation`` does, costs O(n log n) and dominated the
    epoch time of a small model. A Feistel network over :math:`\mathbb Z_a \times \mathbb Z_b`
    (``a``, ``b`` close to :math:`\sqrt n`, ``a * b >= n``) is a bijection for any round function;
    cycle walking restricts it to ``0 … n-1``. It needs no memory beyond its output and can
    evaluate any subset of the permutation. For n up to 1,024, random numbers are sorted, so that
    all permutations are equally likely.

    Args:
      key: Random key. The network has 8 round keys of 32 bits and does not reach all n!
        permutations: it is suitable for shuffling training data, not for cryptography.
      index: Positions, any shape, each in ``[0, n)``.
      n: Number of elements, in ``[1, 2^31)``; static.

    Returns:
      Permuted positions, int32, shape of ``index``.

    Raises:
      ValueError: If ``n`` is out of range.

    References:
      Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002 (cycle walking, sections 4
      and 5: the generalised Feistel network).

    >>> import jax
    >>> order = permute(jax.random.key(0), jax.numpy.arange(5), 5)
    >>> sorted(order.tolist())
    [0, 1, 2, 3, 4]
    """
    if not 1 <= n < 2**31:
        raise ValueError(f"`n` must lie in [1, 2^31), got {n}.")
    if n <= _SORTED:
        return jax.random.permutation(key, jnp.arange(n, dtype=jnp.int32))[index]
    a, b = _sides(n)
    round_keys = jax.random.bits(key, (_ROUNDS,), jnp.uint32)

    def encrypt(x: Array) -> Array:
        left, right = x // b, x % b
        for i in range(_ROUNDS):
            if i % 2 == 0:
                left = _add(left, _scale_to_bound(_mix(right ^ round_keys[i]), a), a)
            else:
                right = _add(right, _scale_to_bound(_mix(left ^ round_keys[i]), b), b)
        return left * b + right

    # Cycle walking: about a * b - n elements need more than one step. The first step is part of
    # the loop, so that the rounds are compiled only once.
    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        x, first = state
        return jnp.where((x >= n) | first, encrypt(x), x), jnp.bool_(False)

    permuted, _ = jax.lax.while_loop(
        lambda state: jnp.any(state[0] >= n) | state[1],
        step,
        (index.astype(jnp.uint32), jnp.bool_(True)),
    )
    return permuted.astype(jnp.int32)


def _sides(n: int) -> tuple[int, int]:
    """Sides of the smallest nearly square rectangle of at least ``n`` cells, each below 2^16."""
    root = math.isqrt(n - 1) + 1
    a = min(range(root, root * 3 // 4, -1), key=lambda a: -n % a)
    return a, -(-n // a)


def _scale_to_bound(bits: Array, bound: int) -> Array:
    """Maps 32 uniform bits to ``[0, bound)``: the high word of ``bits * bound``, bound < 2^16."""
    return ((bits >> 16) * bound + (((bits & 0xFFFF) * bound) >> 16)) >> 16


def _add(x: Array, y: Array, modulus: int) -> Array:
    """``(x + y) % modulus`` for ``x, y < modulus``; relies on unsigned wrap-around."""
    return jnp.minimum(x + y, x + y - modulus)


def _mix(x: Array) -> Array:
    """32-bit finaliser of MurmurHash3: every input bit affects every output bit."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
