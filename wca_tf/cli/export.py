"""wca-export: write a trained model as a SavedModel for TF Serving.

    bin/export --model_dir=runs/digits_anisotropic --export_dir=runs/served/digits

Writes EXPORT_DIR/1 (or --version=N), complete or not at all; a version that exists is never replaced. It answers with
    serving_default  one fresh draw of the noise
    averaged         n_samples draws: the share that each class wins
    exact            P(class) over the noise; of nets whose logits are Gaussian with one covariance for all images
    noise_free       the net without its noise
    image_bytes      serving_default of PNG, JPEG, BMP or GIF files
and has warm-up requests and a manifest in assets.extra/. docs/serving.md has clients, latency, and a threat model.
"""

import shlex

import wca_tf
from wca_tf.cli.flags import config_from_flags, define_flags, import_tensorflow, run
from wca_tf.core import files
from wca_tf.core.paths import expand_user
from wca_tf.runs.preflight import check_model_present
from wca_tf.serving.config import MANIFEST, ExportConfig
from wca_tf.serving.versions import check_version_free


def main() -> None:
    """Export as the parsed flags say."""
    config = config_from_flags(ExportConfig)
    check_model_present(config.model_dir)
    check_version_free(expand_user(config.export_dir), config.version)

    import_tensorflow()  # only when the flags are right: it takes seconds
    path = wca_tf.export_model_dir(config)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    print(f"{path}: version {config.version}, {size / 1e6:.1f} MB")
    print("signatures:", *files.read_json(path / MANIFEST)["signatures"])
    base = path.parent.resolve()
    ports = "-p 127.0.0.1:8500:8500 -p 127.0.0.1:8501:8501"
    volume = shlex.quote(f"{base}:/models/{base.name}:ro")
    print(f"next: docker run --rm {ports} -v {volume} -e {shlex.quote(f'MODEL_NAME={base.name}')} tensorflow/serving")


def console() -> None:
    """Run bin/export, or wca-export."""
    define_flags(ExportConfig)
    run(main, __doc__ or "")
