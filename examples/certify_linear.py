"""Theorem 1 at work: what a linear net with Gaussian noise is sure to keep, and what the best attack leaves.

    python examples/certify_linear.py

Zeros against ones of scikit-learn's digits, logistic regression on the pixels, noise on the logit's margin.
"""

import numpy as np
from sklearn.linear_model import LogisticRegression

import wca_tf
from wca_tf.data.sources import load_examples
from wca_tf.gaussian import bounds

training, test = (load_examples(wca_tf.DataConfig(dataset="digits"), split) for split in ("train", "test"))


def zeros_and_ones(examples):
    chosen = examples.labels < 2
    pixels = examples.images[chosen].reshape(chosen.sum(), -1) / 255
    return pixels, np.where(examples.labels[chosen] == 1, 1, -1)


fitted = LogisticRegression(C=0.01).fit(*zeros_and_ones(training))
pixels, sign = zeros_and_ones(test)
margin = sign * fitted.decision_function(pixels)
deviation = 1.0  # of the noise on wᵀ(f(x) + z) + b
for epsilon in (0.0, 0.05, 0.1):
    change = bounds.linear_output_change(fitted.coef_[0], epsilon)
    attacked = pixels - epsilon * sign[:, None] * np.sign(fitted.coef_[0])  # the worst corner of the ball
    left = bounds.certified_probability(sign * fitted.decision_function(np.clip(attacked, 0, 1)), 0.0, deviation)
    certified = bounds.certified_probability(margin, change, deviation)
    bound = bounds.theorem_1_probability(margin, change, deviation)
    print(
        f"epsilon {epsilon}: the best attack leaves {left.mean():.1%}, "
        f"certified {certified.mean():.1%}, Theorem 1 {bound.mean():.1%}"
    )
    assert np.all(bound <= certified + 1e-9) and np.all(certified <= left + 1e-9)
