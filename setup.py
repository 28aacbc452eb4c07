"""wca_tf's package. The pins were installed together and tested on Python 3.11."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "wca_tf" / "__init__.py").read_text()).group(1)

REQUIREMENTS = [
    "absl-py==2.5.1",
    "h5py==3.14.0",
    "importlib_resources==7.1.0",  # tensorflow-datasets imports it and does not say so
    "jinja2==3.1.6",
    "keras==3.15.1",
    "keras-cv==0.9.0",
    "markupsafe==3.0.4",
    "matplotlib==3.11.2",
    "numpy==2.4.6",
    "pillow==13.0.0",
    "protobuf==7.36.2",
    "scikit-learn==1.9.1",
    "scipy==1.17.1",
    "tensorboard==2.21.0",
    "tensorflow==2.21.0",
    "tensorflow-datasets==4.9.10",
    "tensorflow-probability==0.25.0",
    "tensorflow-serving-api==2.21.0",  # messages of the warm-up file
    "tf-keras==2.21.0",  # tensorflow-probability imports it
    "tqdm==4.70.1",
    "typing_extensions==4.16.0",
]

setup(
    name="wca_tf",
    version=VERSION,
    description="Weight-Covariance Alignment in TensorFlow: stochastic nets, and attacks that say what they are worth",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.12",
    packages=find_packages(include=["wca_tf", "wca_tf.*"]),
    package_data={"wca_tf.evaluation.report": ["templates/*.j2"]},
    install_requires=REQUIREMENTS,
    extras_require={
        "dev": [
            "hypothesis==6.170.15",
            "mkdocs==1.6.1",
            "mkdocs-material==9.8.1",
            "mkdocstrings==1.0.8",
            "mkdocstrings-python==2.0.11",
            "mypy==2.4.1",
            "pytest==9.2.0",
            "pytest-cov==7.1.0",
            "pytest-xdist==3.8.0",
            "ruff==0.17.5",
            "types-tqdm==4.70.0.20261106",
        ],
        "cuda": ["tensorflow[and-cuda]==2.21.0"],
    },
    entry_points={
        "console_scripts": [
            "wca-train = wca_tf.cli.train:console",
            "wca-evaluate = wca_tf.cli.evaluate:console",
            "wca-compare = wca_tf.cli.compare:console",
            "wca-export = wca_tf.cli.export:console",
            "wca-reproduce = wca_tf.cli.reproduce:console",
        ]
    },
)
