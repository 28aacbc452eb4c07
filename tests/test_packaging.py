"""The wheel and the source distribution: what is in them, and that they work where the checkout is not."""

import os
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
SCRIPT = """
import json, pathlib, wca_tf
assert "site-packages" in wca_tf.__file__, wca_tf.__file__
config = wca_tf.TrainConfig(max_train_examples=128, batch_size=32, epochs=1, image_size=25)
wca_tf.train(config, "run")
evaluation = wca_tf.EvaluateConfig(attacks="fgsm,z_margin:steps=2", epsilons="0.1", num_examples=8)
results = wca_tf.evaluate(evaluation, "run", "report")
assert pathlib.Path("report/report.html").is_file() and pathlib.Path("report/model_card.md").is_file()
print([row["name"] for row in results["attacks"]])
"""


def run(*command, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(root, tmp_path_factory):
    """(the wheel, the source distribution), both made of a copy of what git has."""
    directory = tmp_path_factory.mktemp("built")
    source = directory / "source"
    run("git", "clone", "--quiet", root, source)
    run("git", "-C", source, "checkout-index", "--all", "--force")
    run(sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", directory, cwd=source)
    [sdist] = directory.glob("wca_tf-*.tar.gz")
    # The wheel is made of the source distribution, as an index or a user would.
    with tarfile.open(sdist) as archive:
        archive.extractall(directory / "unpacked", filter="data")
    [unpacked] = (directory / "unpacked").iterdir()
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", directory, unpacked)
    [wheel] = directory.glob("wca_tf-*.whl")
    return wheel, sdist


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The bin/ of an environment with the wheel, which takes the requirements from this one."""
    directory = tmp_path_factory.mktemp("venv")
    venv.create(directory, with_pip=True)
    run(directory / "bin" / "pip", "install", "--no-deps", built[0])
    [packages] = (directory / "lib").glob("python*/site-packages")
    # Only the packages: an editable wca_tf here is a .pth, which Python does not follow from there.
    (packages / "requirements.pth").write_text("\n".join(site.getsitepackages()))
    return directory / "bin"


def modules(root):
    return {str(path.relative_to(root)) for path in (root / "wca_tf").rglob("*") if path.suffix in (".py", ".j2")}


def test_the_wheel_has_every_module_every_template_and_nothing_else(root, built):
    with zipfile.ZipFile(built[0]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        [metadata] = [wheel.read(name).decode() for name in wheel.namelist() if name.endswith("METADATA")]
    tracked = set(run("git", "-C", root, "ls-files", "wca_tf").split())
    assert names == tracked & modules(root)
    assert "License: Apache-2.0" in metadata or "License-Expression: Apache-2.0" in metadata
    assert "Requires-Dist: tensorflow==2.21.0" in metadata


def test_the_source_distribution_has_what_the_wheel_is_made_of(built):
    with tarfile.open(built[1]) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE"} <= names


def test_the_package_works_from_the_wheel(installed, tmp_path):
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "TF_CPP_MIN_LOG_LEVEL": "2"}
    (tmp_path / "script.py").write_text(SCRIPT)
    out = run(installed / "python", "script.py", cwd=tmp_path, env=environment)
    assert out.splitlines()[-1] == "['fgsm', 'z_margin:steps=2']"
    assert "best epoch" in run(installed / "wca-train", *TRAIN, "--model_dir=again", cwd=tmp_path, env=environment)
    table = run(installed / "wca-evaluate", "--model_dir=again", *EVALUATE, cwd=tmp_path, env=environment)
    assert "worst case" in table
    assert "signatures" in run(
        installed / "wca-export", "--model_dir=again", "--export_dir=served", cwd=tmp_path, env=environment
    )
    assert "ablation" in run(installed / "wca-reproduce", "--list", cwd=tmp_path, env=environment)
    assert not Path(tmp_path / "wca_tf").exists()


TRAIN = ("--max_train_examples=128", "--batch_size=32", "--epochs=1", "--image_size=25")
EVALUATE = ("--attacks=fgsm", "--epsilons=0.1", "--num_examples=8")
