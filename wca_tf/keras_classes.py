"""Registers the classes of this package with Keras, so that `keras.saving.load_model` reads its nets.

`import wca_tf` imports this module where Keras is loaded before. `wca_tf.load_model` imports what a file names.
"""

import wca_tf.defences.adv_bnn.layers
import wca_tf.defences.adv_bnn.net
import wca_tf.defences.ctrw.net
import wca_tf.defences.l2p.net
import wca_tf.defences.pni.layers
import wca_tf.defences.random_ensemble.net
import wca_tf.defences.rfd.net
import wca_tf.defences.se_snn.net
import wca_tf.defences.smoothing.net
import wca_tf.defences.wca.net
import wca_tf.nets.backbones.airbench
import wca_tf.nets.backbones.batch_normalization
import wca_tf.nets.backbones.prelu
import wca_tf.nets.bottleneck_net
import wca_tf.nets.lipschitz_layers
import wca_tf.nets.noise
import wca_tf.nets.noisy_net
import wca_tf.nets.orthogonal_layers
import wca_tf.runs.optimizer
import wca_tf.runs.orthogonal_muon  # noqa: F401 all of them for what they register
