"""WCAHead: the loss of a WCA-Net in a model of one's own, with plain compile and fit."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from head_nets import (
    SHAPE,
    Subclassed,
    WithoutTraining,
    body,
    cases,
    compiled,
    fitted,
    functional,
    head,
    largest_difference,
    nested,
    sequential,
    twin,
)
from keras import layers
from toy_models import finite_differences, toy_data

import wca_tf
from wca_tf.core.errors import InputError
from wca_tf.defences.wca.constraints import CovarianceConstraint, WeightNormConstraint
from wca_tf.defences.wca.covariance import MIN_SCALE
from wca_tf.nets.gaussian_head import heads_of

MODELS = {"sequential": sequential, "functional": functional, "nested": nested, "subclassed": Subclassed}


def built(name):
    model = MODELS[name]()
    model(toy_data(2)[0])
    return model


def with_weights_of(net, model):
    model(toy_data(2)[0])
    model.set_weights(net.get_weights())
    return model


def head_of(model):
    [found] = heads_of(model)
    return found


# The loss


def parts_of(model, term):
    """The logits of a batch, the two parts of the loss, and their gradients."""
    images, labels = toy_data()
    with tf.GradientTape(persistent=True) as tape:
        logits = model(images, training=True)
        ce = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        regulariser = term(model)
    weights = [weight.value for weight in model.trainable_weights]
    gradients = [tape.gradient(part, weights, unconnected_gradients="zero") for part in (ce, regulariser)]
    return [logits, ce, regulariser, *gradients[0], *gradients[1]]


@pytest.mark.parametrize("name", cases(MODELS, "sequential", "subclassed"))
def test_a_batch_has_the_logits_the_loss_and_the_gradients_of_a_wca_net(name):
    net = twin()
    model = with_weights_of(net, MODELS[name]())
    theirs = parts_of(net, lambda net: net.penalty() - net.rewards()["alignment"])
    for mine, other in zip(parts_of(model, lambda model: sum(model.losses)), theirs, strict=True):
        np.testing.assert_array_equal(mine, other)
    sgd = [keras.optimizers.SGD(1.0) for _ in range(2)]
    mine, theirs = (fitted(each, 1, 96, optimizer) for each, optimizer in zip((model, net), sgd, strict=True))
    assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-6)
    assert largest_difference(model, net) < 3e-7  # the two parts of a gradient are added in another order


WAYS = {"graph": {}, "eager": {"run_eagerly": True}, "three steps at a time": {"steps_per_execution": 3}}


@pytest.mark.parametrize("way", cases(WAYS, "graph"))
def test_48_steps_of_adam_end_with_the_weights_of_a_wca_net(way):
    net = twin()
    model = with_weights_of(net, sequential())
    fitted(net, 16)
    fitted(model, 16, options=WAYS[way])
    assert largest_difference(model, net) < 1e-6


@pytest.mark.slow  # XLA compiles for long on a CPU
def test_compiled_steps_end_with_the_weights_of_a_compiled_wca_net():
    net = twin()
    model = with_weights_of(net, sequential())
    for each in (net, model):  # XLA draws other normal numbers from a seed
        fitted(each, options={"jit_compile": True})
    assert largest_difference(model, net) < 1e-6


def test_the_term_is_that_of_equation_3_and_so_is_its_gradient():
    model = built("sequential")
    layer, rng = head_of(model), np.random.default_rng(0)
    layer.noise.scale_vector.assign(rng.normal(size=layer.noise.scale_vector.shape))
    kernel, vector = (each.numpy().astype(np.float64) for each in (layer.classifier.kernel, layer.noise.scale_vector))

    def term(kernel, vector):
        scale = tfp.math.fill_triangular(vector).numpy()
        np.fill_diagonal(scale, np.logaddexp(0, np.diag(scale)) + MIN_SCALE)
        decay = 0.1 / 2 * ((kernel**2).sum() + (scale**2).sum())
        return decay - np.log(((scale.T @ kernel) ** 2).sum(axis=0)).sum()

    model(toy_data(2)[0], training=True)
    with tf.GradientTape() as tape:
        loss = sum(model.losses)
    assert float(loss) == pytest.approx(term(kernel, vector), rel=1e-5)
    gradients = tape.gradient(loss, [layer.classifier.kernel.value, layer.noise.scale_vector.value])
    of_kernel = finite_differences(lambda point: term(point, vector), kernel)
    np.testing.assert_allclose(gradients[0], of_kernel, rtol=1e-4, atol=1e-4)
    of_vector = finite_differences(lambda point: term(kernel, point), vector)
    np.testing.assert_allclose(gradients[1], of_vector, rtol=1e-4, atol=1e-4)


def test_the_term_counts_once_where_the_head_is_called_twice():
    layer = head()
    twice = functional(layer=layer, after=lambda logits: logits)
    images = keras.Input(SHAPE)
    model = keras.Model(images, layers.Average()([twice(images), twice(1 - images)]))
    model(toy_data(2)[0], training=True)
    assert float(sum(model.losses)) == pytest.approx(float(layer.penalty() - layer.reward()), rel=1e-6)


@pytest.mark.parametrize("frozen", ["bottleneck", "classifier", "noise", "head", "all but the noise"])
def test_what_is_frozen_stays_and_the_rest_has_the_gradient_of_the_term(frozen):
    model = built("sequential")
    layer = head_of(model)
    if frozen == "all but the noise":  # the paper's E3
        layer.bottleneck.trainable = layer.classifier.trainable = model.layers[1].trainable = False
        assert [weight.path for weight in model.trainable_weights] == [layer.noise.scale_vector.path]
    else:
        (layer if frozen == "head" else getattr(layer, frozen)).trainable = False
    moving, before = [w.path for w in model.trainable_weights], {w.path: w.numpy() for w in model.weights}
    fitted(model)
    changed = {weight.path for weight in model.weights if (weight.numpy() != before[weight.path]).any()}
    assert changed - {layer.noise.random_state.path} == set(moving)
    model(toy_data(2)[0], training=True)
    expected = 0 if frozen == "head" else float(layer.penalty() - layer.reward())
    assert float(sum(model.losses)) == pytest.approx(expected, rel=1e-6)


def test_outside_training_and_in_val_loss_there_is_no_term():
    model, (images, labels) = built("sequential"), toy_data()
    assert float(sum(model.losses)) == 0  # the call before was no training
    history = fitted(model, 3, validation_data=(images, labels))
    assert history["val_loss"] == pytest.approx(history["val_ce"], rel=1e-6)
    assert history["loss"][-1] < 0 < history["ce"][-1]
    alone = model.evaluate(images, labels, verbose=0, return_dict=True)
    assert alone["loss"] == pytest.approx(alone["ce"], rel=1e-6)


@pytest.mark.parametrize("name", cases(["head", "WCANet"], "head"))
def test_early_stopping_on_val_loss_chooses_the_epoch_of_the_best_cross_entropy(name):
    model, (images, labels) = (twin if name == "WCANet" else sequential)(), toy_data(200)
    noise = np.random.default_rng(0).uniform(0, 1, images.shape)
    data = (0.3 * images + noise).astype(np.float32)  # hard images: the net learns the first ones by heart
    stop = keras.callbacks.EarlyStopping("val_loss", patience=30, restore_best_weights=True)
    compiled(model, keras.optimizers.Adam(0.02))
    history = model.fit(
        data[:60], labels[:60], 20, 30, verbose=0, validation_data=(data[60:], labels[60:]), callbacks=[stop]
    ).history
    assert stop.best_epoch == np.argmin(history["val_ce"]) < 25
    assert np.argmin(history["loss"]) > 25  # the loss with the term would have chosen one of the last


# Inputs and arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 1}, "expected 2 classes or more, received num_classes=1"),
        ({"num_classes": 40}, "feature_dim of at least the number of classes, 40 .*received feature_dim=32"),
        ({"feature_dim": 2.5}, "expected feature_dim as a whole number"),
        ({"covariance": "full"}, "expected covariance among isotropic, anisotropic; received 'full'"),
        ({"alignment": "none"}, "expected alignment among per_class, .*received 'none'"),
        ({"features": "unit"}, "expected features among free, normalised; received 'unit'"),
        ({"alignment_weight": -1}, "expected alignment_weight of 0 or more, received -1"),
        ({"weight_decay": math.nan}, "expected weight_decay of 0 or more, received nan"),
    ],
)
def test_an_argument_out_of_range_is_one_line(options, message):
    with pytest.raises(InputError, match=message) as raised:
        wca_tf.WCAHead(**{"num_classes": 3, **options})
    assert "\n" not in str(raised.value)


def test_inputs_that_are_not_rows_of_features_are_one_line():
    with pytest.raises(InputError, match=r"inputs \[B, F\] of WCAHead, received \[None, 8, 8, 1\]: put .*Flatten"):
        keras.Sequential([keras.Input(SHAPE), head()])


def test_a_model_whose_call_has_no_training_argument_cannot_be_fitted():
    model = WithoutTraining()
    model.predict(toy_data(4)[0], verbose=0)  # but it answers
    with pytest.raises(InputError, match="call has the argument `training`, received WithoutTraining") as raised:
        fitted(model)
    assert "\n" not in str(raised.value)


PROBABILITIES = [
    "sparse_categorical_crossentropy",
    keras.losses.sparse_categorical_crossentropy,
    keras.losses.SparseCategoricalCrossentropy(),
]


@pytest.mark.parametrize("loss", PROBABILITIES, ids=["name", "function", "object"])
@pytest.mark.parametrize("name", cases([*MODELS, "WCANet"], "sequential", "subclassed", "WCANet"))
def test_a_loss_of_probabilities_is_one_line(name, loss):
    images, labels = toy_data(32)
    with pytest.raises(InputError, match="expected a loss of logits, .*from_logits=True.*received .*entropy") as raised:
        model = twin() if name == "WCANet" else MODELS[name]()
        model.compile("adam", loss)
        assert name != "WCANet", "a WCANet says so at once"
        model.fit(images, labels, verbose=0)
    assert "\n" not in str(raised.value)


class Both(Subclassed):
    """A subclassed model with two outputs."""

    def call(self, images, training=None):
        logits = super().call(images)
        return {"logits": logits, "p": keras.ops.softmax(logits)}


def test_a_softmax_behind_the_head_may_have_a_loss_of_probabilities():
    images, labels = toy_data(32)
    model = sequential(layers.Softmax())
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(images, labels, verbose=0)
    model = Both()  # nobody knows which of its losses is the head's
    model.compile(
        "adam", {"logits": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "p": PROBABILITIES[0]}
    )
    model.fit(images, {"logits": labels, "p": labels}, verbose=0)
    model = functional(after=lambda logits: {"logits": logits, "p": layers.Dense(1, "sigmoid")(logits)})
    losses = {"logits": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "p": "binary_crossentropy"}
    model.compile("adam", losses)
    model.fit(images, {"logits": labels, "p": (labels > 0).astype(np.float32)}, verbose=0)


# Training in all of Keras's ways


@pytest.mark.parametrize("policy", cases(["mixed_bfloat16", "mixed_float16"], "mixed_bfloat16"))
def test_the_head_is_float32_under_a_policy_of_half_precision(policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = sequential()
    finally:
        keras.config.set_dtype_policy("float32")
    history = fitted(model, 3)
    assert history["loss"][-1] < history["loss"][0]
    assert model.layers[1].compute_dtype == policy.removeprefix("mixed_")
    assert {weight.dtype for weight in head_of(model).trainable_weights} == {"float32"}
    assert model(toy_data(2)[0]).dtype == tf.float32


@pytest.mark.slow
def test_weights_of_classes_and_samples_weigh_the_data_and_not_the_term():
    images, labels = toy_data()
    one, other, none = (built("sequential") for _ in range(3))
    fitted(one, class_weight={0: 0.0, 1: 0.0, 2: 0.0})
    fitted(other, sample_weight=np.zeros(len(labels)))
    assert largest_difference(one, other) == 0  # nothing is learnt from the data
    np.testing.assert_array_equal(head_of(one).bottleneck.kernel, head_of(none).bottleneck.kernel)
    assert (head_of(one).classifier.kernel.numpy() != head_of(none).classifier.kernel.numpy()).all()


@pytest.mark.slow
def test_accumulated_gradients_are_those_of_the_mean_of_the_steps():
    net = twin()
    model = with_weights_of(net, sequential())
    for each in (model, net):
        fitted(each, 4, optimizer=keras.optimizers.SGD(0.01, gradient_accumulation_steps=3))
    assert largest_difference(model, net) < 1e-6


def test_a_loop_of_ones_own_reads_the_term_after_a_graph():
    model, images = built("sequential"), tf.constant(toy_data(4)[0])
    tf.function(lambda images: model(images, training=True))(images)
    assert float(sum(model.losses)) == pytest.approx(float(head_of(model).regularisation()))


def test_constraints_project_the_one_head_of_any_model():
    model = sequential(weight_decay=0.0)
    fitted(model, 3, callbacks=[WeightNormConstraint(0.5), CovarianceConstraint(0.7, 0.3)])
    layer = head_of(model)
    assert np.linalg.norm(layer.classifier.kernel, axis=0).max() <= 0.5 + 1e-6
    values = np.linalg.svd(layer.noise.scale_tril)[1] ** 2
    assert 0.3 - 1e-4 < values.min() <= values.max() < 0.7 + 1e-4
    for number, other in ((0, body()), (2, functional(after=lambda x: layers.Add()([x, head()(x)])))):
        with pytest.raises(InputError, match=f"one WCAHead, to project its weights; received {number} heads"):
            fitted(other, callbacks=[WeightNormConstraint(0.5)])
