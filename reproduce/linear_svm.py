"""The paper's check of Theorem 1: a linear SVM of two classes with learned noise ("Empirical Evaluation of Theorem 1").

Shapes: N images [N, H, W, channels], D dimensions after PCA. Labels are 0 and 1, as in `Examples`; y = 2 label − 1.
"""

import dataclasses
import math
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf
from sklearn.decomposition import PCA

from wca_tf.attacks.pgd import ProjectedGradient
from wca_tf.core.errors import DIVERGED, DivergedError, InputError
from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.data.batches import to_float
from wca_tf.data.examples import check_images, check_labels
from wca_tf.defences.wca import alignment
from wca_tf.defences.wca.noise import NOISE_LAYERS, GaussianFeatureNoise
from wca_tf.gaussian import bounds
from wca_tf.gaussian.probability import probability_correct
from wca_tf.nets.targets import GaussianLogitsTarget

DIMENSIONS = 32  # paper


@dataclasses.dataclass(frozen=True)
class Descent:
    """The options of gradient descent in `train_svm`, which the paper does not give. Both covariances have the same.

    Attributes:
        weight_decay: penalty on w and L, above 0; without it the alignment term makes both grow without limit. The
            standard deviation of the noise, √(wᵀ Sigma w), becomes about 2 / weight_decay.
        learning_rate: Adam's learning rate at the start; it falls to 0 along a cosine.
        steps: number of gradient steps.
        batch_size: images per step, drawn with replacement.

    Raises:
        InputError: a value is not above 0, or not finite.
    """

    weight_decay: float = 3.0
    learning_rate: float = 0.05
    steps: int = 2000
    batch_size: int = 256

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not 0 < value < math.inf:
                raise InputError(f"expected {name} above 0, received {value}")


DESCENT = Descent()


@dataclasses.dataclass(frozen=True)
class LinearSVM:
    """A linear SVM with noise: h(x) = wᵀ(P (x − mean) + z) + b, z ~ N(0, L Lᵀ). It answers class 1 where h is positive.

    Attributes:
        weight: w [D].
        bias: b.
        scale_tril: L [D, D]; zero for an SVM without noise.
        components: P [D, H, W, channels], PCA's directions.
        mean: [H, W, channels], the mean of the training images in [0, 1].

    Raises:
        InputError: a value is NaN or Inf.
    """

    weight: np.ndarray
    bias: float
    scale_tril: np.ndarray
    components: np.ndarray
    mean: np.ndarray

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if not np.isfinite(getattr(self, field.name)).all():
                raise InputError(f"expected a finite {field.name} of the SVM, received NaN or Inf")

    @property
    def input_weight(self) -> np.ndarray:
        """v = Pᵀ w [H, W, channels]: h changes by vᵀ δ when the image changes by δ."""
        return np.tensordot(self.weight, self.components, 1)

    @property
    def deviation(self) -> float:
        """√(wᵀ Sigma w), h's standard deviation."""
        return bounds.output_deviation(self.weight, self.scale_tril)

    @property
    def logit_scale(self) -> np.ndarray:
        """A [2, D] of the logits (−h/2, h/2)."""
        half = self.scale_tril.T @ self.weight / 2
        return np.stack([-half, half])

    def output(self, images: np.ndarray) -> np.ndarray:
        """Return h without noise, [N], in float64."""
        centred = np.asarray(images, np.float64) - self.mean
        return np.tensordot(centred, self.input_weight, self.mean.ndim) + self.bias

    def margin(self, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return m = y h without noise, [N]."""
        return _signs(labels) * self.output(images)

    def probability_correct(self, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return P(correct), [N], exact: the probability that the label has the larger logit of (−h/2, h/2)."""
        half = self.output(images)[:, np.newaxis] / 2
        return probability_correct(np.concatenate([-half, half], axis=1), labels, self.logit_scale)[0]

    def optimum(self, images: np.ndarray, labels: np.ndarray, epsilon: float) -> np.ndarray:
        """Return the images [N, H, W, channels] of least P(correct) in [0, 1] and the linf ball of radius `epsilon`."""
        signs = _signs(labels)[:, np.newaxis, np.newaxis, np.newaxis]
        return np.clip(np.asarray(images, np.float64) - epsilon * signs * np.sign(self.input_weight), 0, 1)

    def target(self) -> GaussianLogitsTarget:
        """Return this SVM as a net of two logits (−h/2, h/2), in float32, for attacks."""
        components, mean, weight = (tf.constant(v, tf.float32) for v in (self.components, self.mean, self.weight))

        def features(images: tf.Tensor) -> tf.Tensor:
            return tf.tensordot(images - mean, components, [[1, 2, 3], [1, 2, 3]])

        def head(features: tf.Tensor) -> tf.Tensor:
            half = (tf.linalg.matvec(features, weight) + self.bias) / 2
            return tf.stack([-half, half], axis=1)

        return GaussianLogitsTarget(features, head, tf.constant(self.logit_scale, tf.float32))


def train_svm(
    images: np.ndarray, labels: np.ndarray, covariance: str, seed: int, descent: Descent = DESCENT
) -> LinearSVM:
    """Fit PCA, then minimise hinge − ln(wᵀ Sigma w) + weight_decay/2 (‖w‖² + ‖L‖²) (paper, Eq. 1 and 3).

    The hinge loss is computed on noisy outputs. The same arguments give the same SVM, to the bit.

    Args:
        images: training images [N, H, W, channels], uint8, or float32 in [0, 1].
        labels: 0 or 1, [N].
        covariance: "isotropic" or "anisotropic".
        seed: decides the initial weights, the batches and the noise.
        descent: the penalty in the loss, and the options of gradient descent.

    Raises:
        InputError: images or labels cannot be used, or `covariance` is another text.
        DivergedError: the loss is NaN or Inf.
    """
    if covariance not in NOISE_LAYERS:
        raise InputError(f"expected covariance among {', '.join(NOISE_LAYERS)}; received {covariance!r}")
    images = _checked(images, labels)
    pca, features = _reduce(images)
    classifier = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed))
    noise = NOISE_LAYERS[covariance](seed=seed)
    try:
        _descend(classifier, noise, features, _signs(labels), seed, descent)
    except tf.errors.InvalidArgumentError as error:
        if DIVERGED not in str(error):
            raise
        raise DivergedError(f"training diverged: the loss became NaN or Inf with {descent}") from None
    return LinearSVM(
        weight=classifier.kernel.numpy()[:, 0].astype(np.float64),
        bias=float(classifier.bias.numpy()[0]),
        scale_tril=noise.scale_tril.numpy().astype(np.float64),
        components=pca.components_.reshape(DIMENSIONS, *images.shape[1:]),
        mean=pca.mean_.reshape(images.shape[1:]),
    )


def _reduce(images: np.ndarray) -> tuple[PCA, np.ndarray]:
    """Return PCA fitted on `images`, and the features [N, D] of these images."""
    pixels = images.reshape(len(images), -1).astype(np.float64)
    if min(pixels.shape) <= DIMENSIONS:
        raise InputError(f"expected more than {DIMENSIONS} images and pixels for PCA, received {pixels.shape}")
    # The fastest of the exact solvers; its start is fixed, so that the SVM's seed does not decide the features.
    pca = PCA(DIMENSIONS, svd_solver="arpack", random_state=0)
    return pca, pca.fit_transform(pixels)


def _descend(
    classifier: keras.layers.Dense,
    noise: GaussianFeatureNoise,
    features: np.ndarray,
    signs: np.ndarray,
    seed: int,
    descent: Descent,
) -> None:
    """Train w, b and L on features [N, D] and y [N], in one graph."""
    features, signs = tf.constant(features, tf.float32), tf.constant(signs, tf.float32)
    for layer in (classifier, noise):
        layer.build(features.shape)
    variables = [*classifier.trainable_variables, *noise.trainable_variables]
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(descent.learning_rate, descent.steps))
    optimizer.build(variables)

    @tf.function(jit_compile=False)
    def run() -> None:
        for step in tf.range(descent.steps):
            step_seed = fold_in(make_seed(seed), step)
            rows = tf.random.stateless_uniform(
                [descent.batch_size], fold_in(step_seed, 0), maxval=len(features), dtype=tf.int32
            )
            with tf.GradientTape() as tape:
                outputs = classifier(noise(tf.gather(features, rows), seed=fold_in(step_seed, 1)))[:, 0]
                hinge = tf.reduce_mean(tf.nn.relu(1 - tf.gather(signs, rows) * outputs))
                loss = hinge + _regulariser(classifier, noise, descent.weight_decay)
            gradients = tape.gradient(loss, variables)
            with tf.control_dependencies([tf.debugging.check_numerics(loss, f"{DIVERGED}: the loss")]):
                optimizer.apply(gradients, variables)

    run()


def _regulariser(classifier: keras.layers.Dense, noise: GaussianFeatureNoise, weight_decay: float) -> tf.Tensor:
    """Return −ln(wᵀ Sigma w) + weight_decay/2 (‖w‖² + ‖L‖²), a scalar."""
    weight, scale_tril = tf.convert_to_tensor(classifier.kernel), noise.scale_tril
    squares = tf.reduce_sum(tf.square(weight)) + tf.reduce_sum(tf.square(scale_tril))
    return weight_decay / 2 * squares - alignment.alignment_term(weight, scale_tril)


def bound_curve(
    svm: LinearSVM, images: np.ndarray, labels: np.ndarray, epsilons: Sequence[float], seed: int
) -> list[dict[str, float]]:
    """Return accuracies under attack and the bounds that are proved for them, for each linf radius in `epsilons`.

    Args:
        svm: the model.
        images: [N, H, W, channels], uint8, or float32 in [0, 1].
        labels: 0 or 1, [N].
        epsilons: radii, 0 or more, in the images' [0, 1] units.
        seed: decides PGD's random starts and draws.

    Returns:
        For each radius, the means over images of
            epsilon: the radius;
            pgd: P(correct) under PGD with the paper's parameters; it uses steps to undo its random start, and so does
                not reach the optimum;
            optimum: P(correct) under the best possible attack;
            certified: the bound Φ((m − Delta) / sigma), which would be the optimum if images were not limited to
                [0, 1];
            theorem_1: the paper's bound, 0 or more.

    Raises:
        InputError: images, labels or radii cannot be used.
    """
    images = _checked(images, labels)
    margin, target, indices = svm.margin(images, labels), svm.target(), np.arange(len(images))
    curve = []
    for epsilon in epsilons:
        change = bounds.linear_output_change(svm.input_weight.ravel(), epsilon)
        made = ProjectedGradient().run(target, images, labels, epsilon, indices, seed)
        attacked = made.images.numpy()
        probabilities = {
            "pgd": svm.probability_correct(attacked, labels),
            "optimum": svm.probability_correct(svm.optimum(images, labels, epsilon), labels),
            "certified": bounds.certified_probability(margin, change, svm.deviation),
            "theorem_1": bounds.theorem_1_probability(margin, change, svm.deviation),
        }
        curve.append({"epsilon": float(epsilon), **{name: float(p.mean()) for name, p in probabilities.items()}})
    return curve


def _checked(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Check images and labels, and return the images as float32 in [0, 1]."""
    check_images(images)
    check_labels(labels, 2)
    if len(labels) != len(images):
        raise InputError(f"expected a label for each of {len(images)} images, received {len(labels)}")
    return to_float(tf.constant(images)).numpy()


def _signs(labels: np.ndarray) -> np.ndarray:
    """Return y of labels 0 and 1: −1.0 and 1.0."""
    return 2.0 * np.asarray(labels) - 1.0
