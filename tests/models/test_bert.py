"""BERT against a forward pass in float64 and stored outputs, and its weights from files."""

import json
import struct
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.bert import TINY, published, reference, rest_of, tokens
from _helpers.refusals import raises
from safetensors.numpy import save_file

from crl_jax.data import DataError, Tokens
from crl_jax.models import BERT, BackboneWithHead, Network, Projection, load_bert

pytestmark = pytest.mark.usefixtures("quick_compiles")

NET = Network(TINY)
ARRAYS = published()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "tiny.npz"
    np.savez(path, **ARRAYS)
    return load_bert(path, n_heads=3)


initial_rest = cache(rest_of)


@cache
def program(network):
    return jax.jit(network.apply, static_argnames=("train", "method"))


def run_network(params, given, method="features", *, network=NET, rest=None, train=False):
    rest = initial_rest(network) if rest is None else rest
    return program(network)(params, rest, given, train=train, method=method)


def test_hidden_states_and_features_match_float64_reference(loaded):
    assert loaded.settings == TINY
    given = tokens()
    want = reference(ARRAYS, TINY, *given)
    hidden = run_network(loaded.params, given, "hidden")[0]
    for got, kept, expected in zip(hidden, given.mask, want, strict=True):
        np.testing.assert_allclose(got[kept], expected, rtol=1e-4, atol=1e-5)
    means = [x.mean(axis=0) for x in want]
    np.testing.assert_allclose(run_network(loaded.params, given)[0], means, rtol=1e-4, atol=1e-5)
    first = Network(replace(TINY, pooling="cls"))
    got = run_network(loaded.params, given, network=first)[0]
    np.testing.assert_allclose(got, [x[0] for x in want], rtol=1e-4, atol=1e-5)


def test_published_weights_match_stored_outputs(real_data):
    folder = real_data / "minilm-l3"
    loaded = load_bert(folder / "paraphrase-MiniLM-L3-v2.fp16.npz", n_heads=12)
    stored = np.load(folder / "expected_outputs.npz")
    mask = stored["attention_mask"] > 0
    given = Tokens(jnp.asarray(stored["input_ids"]), jnp.asarray(mask))
    network = Network(loaded.settings)
    hidden = run_network(loaded.params, given, "hidden", network=network)[0]
    np.testing.assert_allclose(
        np.asarray(hidden)[mask], stored["last_hidden_state"][mask], rtol=0, atol=1e-4
    )
    means = run_network(loaded.params, given, network=network)[0]
    np.testing.assert_allclose(means, stored["mean_pooled"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("junk", [0, 7, 39])
def test_padding_does_not_change_features(loaded, junk):
    """Neither the content nor the number of padding tokens changes the result."""
    given = tokens(seed=junk)
    want = run_network(loaded.params, given)[0]
    refilled = given._replace(ids=jnp.where(given.mask, given.ids, junk))
    np.testing.assert_array_equal(run_network(loaded.params, refilled)[0], want)
    longer = Tokens(*(jnp.pad(x, [(0, 0), (0, 2)]) for x in given))
    np.testing.assert_allclose(run_network(loaded.params, longer)[0], want, rtol=1e-5, atol=1e-6)


def test_empty_text_has_zero_features_and_finite_gradients(loaded):
    given = tokens()
    empty = given._replace(mask=given.mask.at[1].set(False))

    def total(params):
        return jnp.sum(NET.apply(params, initial_rest(NET), empty)[0])

    features = run_network(loaded.params, empty)[0]
    np.testing.assert_array_equal(features[1], np.zeros(12))
    slopes = jax.jit(jax.grad(total))(loaded.params)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((features, slopes)))


def test_bfloat16_is_near_float32(loaded):
    given = tokens()
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), loaded.params)
    got, want = run_network(half, given)[0], run_network(loaded.params, given)[0]
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(got.astype(jnp.float32), want, atol=0.06)
    rounded = jax.tree.map(lambda x: x.astype(jnp.float32), half)
    # Also close to the float32 result with the rounded weights.
    near = run_network(rounded, given)[0]
    np.testing.assert_allclose(got.astype(jnp.float32), near, atol=0.06)


def test_dropout_applies_in_training_and_varies_per_text_and_call(loaded):
    one = tokens(n=1)
    twice = Tokens(*(jnp.tile(x, (2, 1)) for x in one))
    rest = initial_rest(NET)
    plain, after = run_network(loaded.params, twice, rest=rest)
    np.testing.assert_allclose(plain[0], plain[1], rtol=1e-6)
    np.testing.assert_array_equal(after["dropout_key"], rest["dropout_key"])
    first, after = run_network(loaded.params, twice, rest=rest, train=True)
    again, _ = run_network(loaded.params, twice, rest=rest, train=True)
    second, _ = run_network(loaded.params, twice, rest=after, train=True)
    np.testing.assert_array_equal(first, again)
    assert len({x.tobytes() for x in np.asarray([*plain[:1], *first, *second])}) == 5
    off = Network(replace(TINY, dropout=0.0))
    without_dropout, _ = run_network(loaded.params, twice, network=off, train=True)
    np.testing.assert_allclose(without_dropout, plain, rtol=1e-6)


def test_dropout_drops_given_fraction(loaded):
    """The hidden states are those after the embeddings: all further layers are disabled."""
    settings = replace(TINY, n_layers=1, dropout=0.3)
    params = jax.tree.map(jnp.zeros_like, loaded.params)
    params = {**params, "norm": {"scale": jnp.zeros(12), "bias": jnp.ones(12)}}
    # The first norm of the layer then sees only the dropped ones: +1/0.7 or 0.
    own = params["layer_1"]
    params["layer_1"] = {**own, **{n: {**own[n], "scale": jnp.ones(12)} for n in ("norm_1",)}}
    params["layer_1"]["norm_2"] = {"scale": jnp.ones(12), "bias": jnp.zeros(12)}
    del params["layer_2"]
    given = Tokens(jnp.zeros((500, 10), jnp.int32), jnp.ones((500, 10), bool))
    hidden = run_network(params, given, "hidden", network=Network(settings), train=True)[0]
    kept = np.asarray(hidden) > 0  # above the mean of their vector
    mixed = kept.any(-1)
    n = kept[mixed].size
    # Vectors without any dropped entry have none above their mean: a share of 0.7¹² of them.
    want = (0.7 - 0.7**12) / (1 - 0.7**12 - 0.3**12)
    assert abs(kept[mixed].mean() - want) < 5 * np.sqrt(0.21 / n)


def test_features_with_head_match_backbone():
    network = Network(BackboneWithHead(TINY, Projection((7,), norm=False)))
    params, rest = jax.jit(network.init)(jax.random.key(0))
    assert params["head"]["linear_1"]["kernel"].shape == (12, 7)
    z, _ = run_network(params, tokens(), "__call__", network=network, rest=rest)
    assert z.shape == (5, 7)
    x, _ = run_network(params, tokens(), network=network, rest=rest)
    np.testing.assert_allclose(x, run_network(params["backbone"], tokens())[0], rtol=1e-6)


def test_initial_parameters_have_published_scale_and_structure(loaded):
    params, rest = jax.jit(Network(BERT(2000, 64, 1, 4, 96, 20)).init)(jax.random.key(0))
    np.testing.assert_allclose(np.std(params["token_embedding"]), 0.02, rtol=0.02)
    np.testing.assert_allclose(np.std(params["layer_1"]["linear_1"]["kernel"]), 0.02, rtol=0.05)
    assert set(rest) == {"dropout_key"}
    mine, _ = jax.eval_shape(NET.init, jax.random.key(0))
    assert jax.tree.structure(mine) == jax.tree.structure(loaded.params)
    assert jax.tree.map(jnp.shape, mine) == jax.tree.map(jnp.shape, loaded.params)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"width": 0}, "`width` must be at least 1, got 0"),
        ({"n_heads": 5}, "`n_heads` must divide `width`, 12, got 5"),
        ({"dropout": 1.0}, r"`dropout` must lie in \[0, 1\), got 1"),
        ({"pooling": "max"}, "`pooling` must be one of mean, cls, got 'max'"),
    ],
)
def test_rejects_invalid_settings(wrong, message):
    with raises(ValueError, match=message):
        replace(TINY, **wrong)


def test_rejects_invalid_tokens(loaded):
    given = tokens()
    with raises(ValueError, match=r"`tokens` must have ids and a mask of one shape"):
        run_network(loaded.params, given._replace(mask=given.mask[:, :4]))
    long = Tokens(jnp.zeros((2, 11), jnp.int32), jnp.ones((2, 11), bool))
    with raises(ValueError, match="`tokens` must have at most 10 positions, got 11"):
        run_network(loaded.params, long)


CONFIG = {
    "model_type": "bert", "vocab_size": 40, "hidden_size": 12, "num_hidden_layers": 2,
    "num_attention_heads": 3, "intermediate_size": 20, "max_position_embeddings": 10,
    "type_vocab_size": 2, "hidden_dropout_prob": 0.25, "layer_norm_eps": 1e-6, "hidden_act": "gelu",
}  # fmt: skip


@pytest.mark.parametrize("before", ["", "bert."])
def test_loads_safetensors_with_config(tmp_path, loaded, before):
    """Published checkpoints include heads of other tasks, and legacy LayerNorm parameter names."""
    arrays = {before + name.replace("LayerNorm.weight", "LayerNorm.gamma"): x
              for name, x in ARRAYS.items()}  # fmt: skip
    arrays[before + "pooler.dense.weight"] = np.zeros((12, 12), np.float32)
    arrays[before + "embeddings.position_ids"] = np.arange(10)[None]
    arrays["cls.predictions.bias"] = np.zeros(40, np.float16)
    save_file(arrays, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    got = load_bert(tmp_path, pooling="cls")
    assert got.settings == replace(TINY, dropout=0.25, epsilon=1e-6, pooling="cls")
    assert got.unused == ("cls.predictions.bias", "embeddings.position_ids", "pooler.dense.weight")
    jax.tree.map(np.testing.assert_array_equal, got.params, loaded.params)
    assert load_bert(tmp_path, dropout=0.5).settings.dropout == 0.5
    with raises(ValueError, match=r"`n_heads` must be the 3 of .*config.json, got 4"):
        load_bert(tmp_path, n_heads=4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_loads_other_dtypes_as_float32(tmp_path, dtype):
    arrays = {name: x.astype(jnp.dtype(dtype)) for name, x in ARRAYS.items()}
    save_file(arrays, tmp_path / "half.safetensors")
    params = load_bert(tmp_path / "half.safetensors", n_heads=3).params
    want = arrays["encoder.layer.1.output.dense.weight"].astype(np.float32).T
    got = params["layer_2"]["linear_2"]["kernel"]
    assert got.dtype == jnp.float32
    np.testing.assert_array_equal(got, want)


def without(name):
    return {key: x for key, x in ARRAYS.items() if key != name}


QUERY = "encoder.layer.1.attention.self.query.weight"


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (without(QUERY), f"expected an array {QUERY}, got none"),
        (without("embeddings.LayerNorm.weight"), "expected an array embeddings.LayerNorm.weight"),
        ({**ARRAYS, QUERY: np.zeros((12, 5), np.float32)}, r"of shape \(12, 12\), got \(12, 5\)"),
        ({**ARRAYS, QUERY: np.zeros((12, 12), np.int32)}, "to be floating, got int32"),
        ({**ARRAYS, QUERY: np.full((12, 12), np.nan)}, f"expected finite numbers in {QUERY}"),
        ({**ARRAYS, "encoder.extra": np.zeros(3)}, "got encoder.extra too"),
        ({**ARRAYS, "bert." + QUERY: ARRAYS[QUERY]}, "some with and without bert."),
    ],
)
def test_rejects_mismatched_arrays(tmp_path, arrays, message):
    np.savez(tmp_path / "bad.npz", **arrays)
    with raises(DataError, match=message):
        load_bert(tmp_path / "bad.npz", n_heads=3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model_type": "roberta"}, "expected model_type 'bert', got 'roberta'"),
        ({"hidden_act": "relu"}, "expected hidden_act 'gelu', got 'relu'"),
        ({"hidden_size": "wide"}, "expected a whole number as hidden_size, got 'wide'"),
        ({"hidden_size": 24}, r"expected embeddings.word_embeddings.weight of shape \(40, 24\)"),
    ],
)
def test_rejects_mismatched_config(tmp_path, wrong, message):
    np.savez(tmp_path / "tiny.npz", **ARRAYS)
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **wrong}))
    with raises(DataError, match=message):
        load_bert(tmp_path / "tiny.npz")


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"hidden_size": }'])
def test_rejects_config_that_is_not_json(tmp_path, text):
    np.savez(tmp_path / "tiny.npz", **ARRAYS)
    (tmp_path / "config.json").write_text(text)
    with raises(DataError, match=r"config\.json: expected JSON"):
        load_bert(tmp_path / "tiny.npz")


def test_rejects_missing_or_unreadable_weights(tmp_path):
    with raises(FileNotFoundError, match=r"model\.safetensors"):
        load_bert(tmp_path)
    np.savez(tmp_path / "tiny.npz", **ARRAYS)
    with raises(ValueError, match="`n_heads` must be given"):
        load_bert(tmp_path / "tiny.npz")
    (tmp_path / "weights.bin").write_bytes(b"pickle")
    with raises(DataError, match=r"ends in \.safetensors or \.npz, got"):
        load_bert(tmp_path / "weights.bin", n_heads=3)
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04")
    with raises(DataError, match="expected an archive of arrays"):
        load_bert(tmp_path / "broken.npz", n_heads=3)


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{", "expected a safetensors file, got .*JSON"),
        ({"a": entry(dtype="U16", shape=(4,))}, "expected a to have one of the types .* got U16"),
        ({"a": entry(shape=(2**40, 2**40))}, "expected a safetensors file, got .*overflow"),
        ({"a": entry(), "b": entry()}, "expected a safetensors file, got .*offset"),
    ],
)
def test_rejects_invalid_safetensors_header(tmp_path, header, message):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "bad.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    with raises(DataError, match=message):
        load_bert(path, n_heads=3)


@pytest.mark.parametrize("content", [b"", b"1234", struct.pack("<Q", 2**60) + b"{}"])
def test_rejects_truncated_safetensors_header(tmp_path, content):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with raises(
        DataError, match=r"bad\.safetensors: expected a safetensors file, got .*header too"
    ):
        load_bert(path, n_heads=3)
