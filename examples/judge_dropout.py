"""Is dropout at test time a defence? A Keras net with noise inside it, attacked on one draw, and on the mean of ten.

    python examples/judge_dropout.py

Expectation over Transformation: the gradient of the mean over draws, which here costs a pass for each.
"""

import keras
import numpy as np
import tensorflow as tf

import wca_tf
from wca_tf.data.sources import load_examples
from wca_tf.nets.judge import judge

training, test = (load_examples(wca_tf.DataConfig(dataset="digits"), split) for split in ("train", "test"))
keras.utils.set_random_seed(0)
features = keras.Sequential(
    [keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(128, activation="relu")]
)
head = keras.layers.Dense(10)
net = keras.Sequential([features, keras.layers.Dropout(0.5), head])
net.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
net.fit(training.images / np.float32(255), training.labels, epochs=5, batch_size=64, verbose=0)


def logits(images, seed):
    hidden = features(images)
    kept = tf.random.stateless_uniform(tf.shape(hidden), seed) < 0.5
    return head(2 * hidden * tf.cast(kept, tf.float32))


target = wca_tf.SampledTarget(logits, noise_free_logits=lambda images: head(features(images)))
images, labels, indices = test.images[:20] / np.float32(255), test.labels[:20], np.arange(20)
print(f"clean: {judge(target, tf.constant(images), labels, indices, 0).probability_correct.mean():.1%}")
for draws in (1, 10):
    attack = wca_tf.parse_attack("pgd", eot_samples=draws)
    left = attack(target, images, labels, epsilon=0.05).probability_correct.mean()
    print(f"PGD on {draws} draw{'s' * (draws > 1)} a step leaves {left:.1%}")
