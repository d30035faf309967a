"""A random order of ``n`` things, computed one element at a time."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

_ROUNDS = 8
# Up to here sorting is cheap, while on a domain of a few dozen the network mixes so slowly that
# some orders come up several times as often as others.
_SORTED = 1024


def permute(key: Key[Array, ""], index: Int[Array, "*shape"], n: int) -> Int[Array, "*shape"]:
    r"""Images of ``index`` under a pseudo-random permutation of ``0 … n-1`` that ``key`` fixes.

    Sorting random numbers, as ``jax.random.permutation`` does, costs O(n log n) and took most of
    an epoch of a small model. A Feistel network over :math:`\mathbb Z_a \times \mathbb Z_b`
    (``a``, ``b`` close to :math:`\sqrt n`, ``a * b >= n``) is a bijection whatever its round
    function is; walking along its cycle until it falls below ``n`` restricts it to ``0 … n-1``.
    It needs no memory beyond its output, and any part of the permutation can be had alone. Up to
    1,024 things are sorted, so that each of their orders is as likely as any.

    Args:
      key: Chooses the permutation. The keys reach 2^32 values in each of 8 rounds, not all n!
        orders: a shuffle for training, not for cryptography.
      index: Positions, any shape, each in ``[0, n)``.
      n: Number of things, in ``[1, 2^31)``; static.

    Returns:
      Int32 of the shape of ``index``; distinct positions have distinct images.

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
                left = _add(left, _below(_mix(right ^ round_keys[i]), a), a)
            else:
                right = _add(right, _below(_mix(left ^ round_keys[i]), b), b)
        return left * b + right

    # Each of the a * b - n values too many sends about one element on, and all along with it. All
    # take the first step: the rounds stand in the program once, which takes time to compile.
    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        x, first = state
        return jnp.where((x >= n) | first, encrypt(x), x), jnp.bool_(False)

    walked, _ = jax.lax.while_loop(
        lambda state: jnp.any(state[0] >= n) | state[1],
        step,
        (index.astype(jnp.uint32), jnp.bool_(True)),
    )
    return walked.astype(jnp.int32)


def _sides(n: int) -> tuple[int, int]:
    """Sides of the smallest rectangle of at least ``n`` cells that is nearly square.

    Often the area is n itself. The longer side stays below 2^16, which :func:`_below` needs.
    """
    root = math.isqrt(n - 1) + 1
    a = min(range(root, root * 3 // 4, -1), key=lambda a: -n % a)
    return a, -(-n // a)


def _below(bits: Array, bound: int) -> Array:
    """The high word of ``bits * bound`` for a bound below 2^16: 32 even bits to ``[0, bound)``."""
    return ((bits >> 16) * bound + (((bits & 0xFFFF) * bound) >> 16)) >> 16


def _add(x: Array, y: Array, modulus: int) -> Array:
    """``(x + y) % modulus`` of two smaller numbers; a difference below 0 wraps to a great one."""
    return jnp.minimum(x + y, x + y - modulus)


def _mix(x: Array) -> Array:
    """The 32-bit finaliser of MurmurHash3: every input bit reaches every output bit."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
