"""New items and users by side features: vectors, lists, files, errors."""

import jax
import numpy as np
import pytest
from _helpers.refusals import raises

from crl_jax import data, models
from crl_jax.serving import FeatureModel, Recommender

pytestmark = pytest.mark.usefixtures("quick_compiles")

FILMS = data.FeatureTable.from_columns(
    [10, 11, 12, 13, 90, 91],
    {
        "year": [1990.0, 1995.0, 2000.0, np.nan, 2010.0, 1980.0],
        "genre": [["war"], ["war", "drama"], ["drama"], ["war"], ["drama", "war"], ["drama"]],
    },
)
PEOPLE = data.FeatureTable.from_columns(["ann", "bob", "eve", "zoe"], {"job": list("xyxy")})
LOG = data.Interactions.from_arrays(
    [0, 0, 1, 2], [0, 1, 2, 3], user_ids=["ann", "bob", "eve"], item_ids=[10, 11, 12, 13]
)


@pytest.fixture(scope="module")
def trained():
    """An encoder, its parameters and its schemas."""
    film_schema = data.FeatureSchema.fit(FILMS, LOG.item_ids, min_count=1)
    person_schema = data.FeatureSchema.fit(PEOPLE, LOG.user_ids, min_count=1)
    encoder = models.FeatureEncoder(
        3, 4, 5,
        user_features=person_schema.transform(PEOPLE, LOG.user_ids),
        item_features=film_schema.transform(FILMS, LOG.item_ids),
    )  # fmt: skip
    return encoder, jax.jit(encoder.init)(jax.random.key(0)), person_schema, film_schema


@pytest.fixture(params=["inner", "cosine"])
def model(trained, request):
    encoder, params, person_schema, film_schema = trained
    return Recommender.from_tables(
        jax.jit(encoder.encode)(params),
        LOG,
        similarity=request.param,
        user_model=FeatureModel.from_params(person_schema, params["user_features"]),
        item_model=FeatureModel.from_params(film_schema, params["item_features"]),
    )


def scores(users, items, similarity):
    users, items = np.asarray(users, np.float64), np.asarray(items, np.float64)
    if similarity == "cosine":
        users, items = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (users, items))
    return users @ items.T


def test_new_item_vectors_match_encoder(trained, model):
    encoder, params, _, film_schema = trained
    wider = model.with_items(FILMS)
    assert wider.known.item_ids.tolist() == [10, 11, 12, 13, 90, 91]
    new = jax.jit(encoder.item_vectors)(params, film_schema.transform(FILMS, [90, 91]))
    np.testing.assert_array_equal(wider.items[:4], model.items)
    np.testing.assert_allclose(wider.items[4:], new, rtol=1e-5, atol=1e-6)
    want = scores(model.users, wider.items, model.similarity)
    lists = wider.recommend(k=6).to_dict()
    for user, row in zip(["ann", "bob", "eve"], want, strict=True):
        own = set(LOG.items[LOG.users == LOG.user_index(user)].tolist())
        order = [i for i in np.argsort(-row).tolist() if i not in own]
        assert [item for item, _ in lists[user]] == wider.known.item_ids[order].tolist()
    some = model.with_items(FILMS, ["91"])
    assert some.known.item_ids.tolist() == [10, 11, 12, 13, 91]
    np.testing.assert_allclose(some.score("ann", 91), [want[0, 5]], rtol=1e-5, atol=1e-6)
    assert model.known.n_items == 4


def test_recommends_for_new_users_from_features(trained, model):
    encoder, params, person_schema, _ = trained
    vector = jax.jit(encoder.user_vectors)(params, person_schema.transform(PEOPLE, ["zoe"]))
    want = scores(vector, model.items, model.similarity)[0]
    got = model.recommend_from_features(PEOPLE, "zoe", k=4)
    assert got.users.tolist() == ["zoe"]
    order = np.argsort(-want)
    assert got.items[0].tolist() == LOG.item_ids[order].tolist()
    np.testing.assert_allclose(got.scores[0], want[order], rtol=1e-5, atol=1e-6)
    few = model.recommend_from_features(PEOPLE, k=4, candidates=[10, 11], exclude=10)
    assert len(few) == 4
    assert (few.items[:, 0] == 11).all()
    assert not few.present[:, 1:].any()


def test_save_keeps_feature_models(model, tmp_path):
    model.save(tmp_path / "recommender.npz")
    again = Recommender.load(tmp_path)
    assert again.item_model.schema == model.item_model.schema
    assert again.user_model.schema == model.user_model.schema
    one, other = model.with_items(FILMS), again.with_items(FILMS)
    np.testing.assert_array_equal(one.items, other.items)
    other.save(tmp_path / "wider.npz")
    last = Recommender.load(tmp_path / "wider.npz")
    np.testing.assert_array_equal(last.recommend(k=3).items, one.recommend(k=3).items)
    np.testing.assert_array_equal(
        last.recommend_from_features(PEOPLE, k=3).items,
        one.recommend_from_features(PEOPLE, k=3).items,
    )


@pytest.mark.parametrize(
    ("weight", "message"),
    [(3e38, "within float32, got others for the user 2"), (1e38, "inner products within float32")],
)
def test_rejects_user_vectors_beyond_float32(model, weight, message):
    table = data.FeatureTable.from_columns([1, 2, 3], {"x": [0.0, 3.0, 1.0]})
    schema = data.FeatureSchema.fit(table)
    large = FeatureModel(schema, np.full((1, 5), weight, "f4"), np.zeros((0, 5), "f4"))
    items = 10 * np.ones((4, 5), "f4")
    recommender = Recommender.from_tables((np.ones((3, 5), "f4"), items), LOG, user_model=large)
    with raises(ValueError, match=message):
        recommender.recommend_from_features(table, [1, 2] if weight == 3e38 else [2])


def test_rejects_invalid_arguments(model):
    plain = Recommender.from_tables((model.users, model.items), LOG)
    with raises(ValueError, match="`item_model` must be given"):
        plain.with_items(FILMS)
    with raises(ValueError, match="`user_model` must be given"):
        plain.recommend_from_features(PEOPLE)
    with raises(ValueError, match="`ids` must be new items, got 12, which is in the catalogue"):
        model.with_items(FILMS, [90, 12])
    with raises(ValueError, match="`table` must have an item that the catalogue lacks"):
        model.with_items(FILMS).with_items(FILMS)
    with raises(ValueError, match="`ids` must be different rows of `table`, got 77, which has no"):
        model.with_items(FILMS, [77])
    with raises(ValueError, match="`ids` must be different rows of `table`, got 90, which is rep"):
        model.with_items(FILMS, [90, 90])
    with raises(data.DataError, match="expected 'year' among the numbers"):
        model.with_items(data.FeatureTable.from_columns([99], {"genre": ["war"]}))
    narrow = FeatureModel(model.item_model.schema, np.zeros((1, 2), "f4"), np.zeros((2, 2), "f4"))
    with raises(ValueError, match="`item_model` must have the width 5 of `items`, got 2"):
        Recommender.from_tables((model.users, model.items), LOG, item_model=narrow)
    schema = model.item_model.schema
    with raises(ValueError, match="`dense` must be finite numbers, got NaN"):
        FeatureModel(schema, np.full((1, 5), np.nan, "f4"), np.zeros((2, 5), "f4"))
    with raises(ValueError, match=r"`categories` must be finite numbers, .*<U1"):
        FeatureModel(schema, np.zeros((1, 5), "f4"), np.full((2, 5), "a"))
    with raises(ValueError, match=r"`dense` must have shape \(1, 0\), got \(\)"):
        FeatureModel(schema, np.float32(1), np.zeros((2, 5), "f4"))
    with raises(ValueError, match="`params` must have the arrays .* got no categories"):
        FeatureModel.from_params(schema, {"dense": np.zeros((1, 5), "f4")})
    with raises(ValueError, match=r"`dense` must have shape \(1, 5\), got \(3, 5\)"):
        FeatureModel(model.item_model.schema, np.zeros((3, 5), "f4"), np.zeros((2, 5), "f4"))
