"""wca_tf's package."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "wca_tf" / "__init__.py").read_text()).group(1)

# Ranges that need no branch on a version in our code. requirements.lock has the exact versions that are tested.
REQUIREMENTS = [
    "absl-py>=2.1",
    "importlib_resources>=6",  # tensorflow-datasets imports it and does not say so
    "jinja2>=3.1",
    "keras>=3.14,<4",
    "lazy_loader>=0.4",
    "markupsafe>=2.1",
    "matplotlib>=3.9",
    "numpy>=1.26",
    "pillow>=10.3",
    "psutil>=5.9",  # how much memory is free
    "scikit-learn>=1.5",
    "scipy>=1.13",
    "tabulate>=0.10",
    "tensorboard>=2.18",  # the training summaries; TensorFlow does not require it
    "tensorflow>=2.18,<3",
    "tensorflow-datasets>=4.9.7",
    "tensorflow-probability>=0.25",
    "tensorflow-serving-api>=2.18",  # messages of the warm-up file
    "tf-keras>=2.18",  # tensorflow-probability imports it
    "tqdm>=4.66",
    "typing_extensions>=4.12",
]
# KerasCV gets no more releases: only the backbone resnet18_imagenet needs it.
IMAGENET = ["keras-cv==0.9.0"]

setup(
    name="wca_tf",
    version=VERSION,
    description="Weight-Covariance Alignment in TensorFlow: stochastic nets, and attacks that say what they are worth",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.14",
    packages=find_packages(include=["wca_tf", "wca_tf.*"]),
    package_data={"wca_tf": ["*.pyi"], "wca_tf.evaluation.report": ["templates/*.j2"]},
    install_requires=REQUIREMENTS,
    extras_require={
        "dev": [
            *IMAGENET,
            "hypothesis",
            "ipykernel",
            "mkdocs",
            "mkdocs-material",
            "mkdocstrings",
            "mkdocstrings-python",
            "mypy",
            "nbclient",
            "pytest",
            "pytest-cov",
            "pytest-xdist",
            "ruff",
            "types-tqdm",
        ],
        "imagenet": IMAGENET,
        "cuda": ["tensorflow[and-cuda]"],
        "jax": ["jax>=0.4.30"],
        "stream": ["array_record>=0.5"],  # TFDS sets in this format
        "torch": ["torch>=2.4"],
    },
    entry_points={
        "console_scripts": [
            "wca-train = wca_tf.cli.train:console",
            "wca-evaluate = wca_tf.cli.evaluate:console",
            "wca-compare = wca_tf.cli.compare:console",
            "wca-certify = wca_tf.cli.certify:console",
            "wca-export = wca_tf.cli.export:console",
            "wca-quickstart = wca_tf.cli.quickstart:console",
        ]
    },
)
