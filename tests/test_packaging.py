"""The wheel and the source distribution: what is in them, and that they work where the checkout is not."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
VERSIONS = ("3.11", "3.12", "3.13")
TRAIN = ("--backbone=lenet5", "--max_train_examples=128", "--batch_size=32", "--epochs=1", "--model_dir=net")


def run(*command, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=1800, **options)
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


def interpreter(version):
    """A Python of this version with venv: on PATH, or one of pyenv's."""
    found = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    for python in filter(None, found):
        if subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0:
            return python
    pytest.skip(f"there is no Python {version} here")


def modules(root):
    files = (root / "wca_tf").rglob("*")
    return {str(path.relative_to(root)) for path in files if path.suffix in (".py", ".pyi", ".j2")}


def test_the_wheel_has_every_module_every_template_and_nothing_else(root, built):
    with zipfile.ZipFile(built[0]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        [metadata] = [wheel.read(name).decode() for name in wheel.namelist() if name.endswith("METADATA")]
    tracked = set(run("git", "-C", root, "ls-files", "wca_tf").split())
    assert names == tracked & modules(root)
    assert "License: Apache-2.0" in metadata or "License-Expression: Apache-2.0" in metadata
    assert "Requires-Dist: tensorflow<3,>=" in metadata and "==2" not in metadata.split("Provides-Extra")[0]


def test_the_source_distribution_has_what_the_wheel_is_made_of(built):
    with tarfile.open(built[1]) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE"} <= names


def quick_tests(root):
    """The files that bin/test --quick runs, but those that look at the checkout."""
    [names] = re.findall(r"^quick=\((.*?)\)", (root / "bin" / "test").read_text(), re.DOTALL | re.MULTILINE)
    return [f"tests/test_{name}.py" for name in names.split() if name != "architecture"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_works_in_an_empty_environment(version, built, root, tmp_path):
    run(interpreter(version), "-m", "venv", tmp_path / "venv")
    programs = tmp_path / "venv" / "bin"
    lock = root / "requirements.lock"
    run(programs / "pip", "install", "--quiet", "--constraint", lock, f"{built[0]}[dev]")
    environment = {"HOME": str(tmp_path), "PATH": f"{programs}:/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": "2"}
    out = run(programs / "wca-quickstart", "--work_dir=work", cwd=tmp_path, env=environment)
    assert "By the usual protocol the WCA-Net keeps" in out
    reports = "--evaluations=work/none/report,work/wca/report"
    for command, *arguments, told in (
        ("wca-train", *TRAIN, "best epoch"),
        ("wca-evaluate", "--model_dir=net", "--attacks=fgsm", "--num_examples=8", "worst case"),
        ("wca-compare", reports, "--report_dir=compared", "overstates"),
        ("wca-export", "--model_dir=net", "--export_dir=served", "signatures"),
    ):
        assert told in run(programs / command, *arguments, cwd=tmp_path, env=environment)
    shutil.copytree(root / "tests", tmp_path / "tests")
    shutil.copy(root / "pyproject.toml", tmp_path)
    told = run(programs / "python", "-m", "pytest", "-m", "not slow", *quick_tests(root), cwd=tmp_path, env=environment)
    assert " passed" in told and " failed" not in told
    assert not Path(tmp_path / "wca_tf").exists()  # all of it ran from the wheel
