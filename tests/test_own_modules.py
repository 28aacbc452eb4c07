"""What a file names is imported only where the user has named it too: a directory may be anybody's."""

import importlib
import json
import re
import shutil
import sys
import zipfile

import keras
import pytest
from evaluation_nets import write_model_dir

import wca_tf
from wca_tf.core.errors import InputError
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.keras_file import load_classifier
from wca_tf.evaluation.plan import known_trial
from wca_tf.evaluation.runner import evaluate
from wca_tf.nets.model_files import target_in
from wca_tf.runs.model_dir import ModelDirectory
from wca_tf.runs.new_model import take_weights
from wca_tf.runs.training import train
from wca_tf.serving.config import ExportConfig

EVIL = "open('ran', 'w').close()\n"
SMALL = wca_tf.TrainConfig(image_size=8, defence="wca:feature_dim=16")  # as evaluation_nets trains it
CONFIG = EvaluateConfig("fgsm", "0.1", num_examples=4, eot_samples=2)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working directory, on Python's path, with modules that leave a file when they are imported."""
    for name in ("evil", "keras_hub"):
        (tmp_path / f"{name}.py").write_text(EVIL)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("evil", "keras_hub"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The directory of a small net. Tests must not change it."""
    return write_model_dir(tmp_path_factory.mktemp("small") / "model")


def change_config(directory, change):
    config = json.loads((directory / "config.json").read_text())
    change(config)
    (directory / "config.json").write_text(json.dumps(config))


def change_net(path, change):
    """Change the architecture that a `.keras` file describes."""
    with zipfile.ZipFile(path) as source:
        contents = {name: source.read(name) for name in source.namelist()}
    described = json.loads(contents["config.json"])
    change(described)
    with zipfile.ZipFile(path, "w") as target:
        for name, data in {**contents, "config.json": json.dumps(described).encode()}.items():
            target.writestr(name, data)


def layer_of(module):
    def change(described):
        planted = {"module": module, "class_name": "D", "config": {}, "registered_name": "D"}
        described["config"]["backbone"]["config"]["layers"].append(planted)

    return change


PLANTED = {  # where a directory may name a module
    "modules": lambda model: change_config(model, lambda config: config.update(modules=["evil"])),
    "defence": lambda model: change_config(model, lambda config: config["config"].update(defence="evil:D")),
    "attack": lambda model: change_config(model, lambda config: config["config"].update(adversarial_attack="evil:A")),
    "layer": lambda model: change_net(model / "model.keras", layer_of("evil")),
    "layer that Keras imports": lambda model: change_net(model / "model.keras", layer_of("keras_hub")),
}


@pytest.mark.parametrize("where", PLANTED)
def test_a_model_directory_imports_nothing_that_nobody_named(small, here, where):
    model = shutil.copytree(small, here / "model")
    PLANTED[where](model)
    with pytest.raises(InputError) as raised:
        wca_tf.evaluate_model_dir(CONFIG, model, here / "report")
    assert "--modules='" in str(raised.value) and str(model) in str(raised.value)
    assert not (here / "ran").exists()


def test_the_text_of_a_defence_in_a_net_imports_nothing(small, here):
    model = shutil.copytree(small, here / "model")
    change_net(model / "model.keras", lambda described: described["config"].update(defence="evil:D"))
    with pytest.raises(InputError, match="not the model that"):
        wca_tf.evaluate_model_dir(CONFIG, model, here / "report")
    assert not (here / "ran").exists()


def test_a_stored_attack_imports_nothing(here):
    row = {"name": "evil:Attack", "radius": "0.1", "options": {}}
    with pytest.raises(InputError, match="evaluation.json needs modules.*--modules='evil'"):
        known_trial(row, CONFIG)
    assert not (here / "ran").exists()


@pytest.mark.slow
def test_an_attack_of_an_earlier_report_imports_nothing(small, here):
    report = here / "report"
    evaluate(CONFIG, small, report)
    described = json.loads((report / "evaluation.json").read_text())
    described["attacks"][0]["name"] = "evil:Attack"
    (report / "evaluation.json").write_text(json.dumps(described))
    with pytest.raises(InputError, match="attack evil:Attack of this report.*--modules='evil'"):
        evaluate(CONFIG, small, report)
    assert not (here / "ran").exists()


USES = {
    "load_model": lambda model: wca_tf.load_model(model / "model.keras"),
    "load_best": lambda model: ModelDirectory(model).load_best(),
    "export": lambda model: wca_tf.export_model_dir(ExportConfig(str(model), str(model / "served"))),
    "transfer": target_in,
    "initial weights": lambda model: take_weights(None, str(model)),
    "file": lambda model: load_classifier(model / "model.keras"),
}


@pytest.mark.parametrize("module", ["evil", "keras_hub"])
@pytest.mark.parametrize("use", USES)
def test_a_keras_file_imports_nothing_that_nobody_named(small, here, use, module):
    """Keras itself would import keras_hub and others."""
    model = shutil.copytree(small, here / "model")
    change_net(model / "model.keras", layer_of(module))
    with pytest.raises(InputError, match=f"model.keras needs modules.*--modules='{module}'"):
        USES[use](model)
    assert not (here / "ran").exists()


def test_a_resumed_run_imports_nothing_that_nobody_named(trained, tiny_config, here):
    model = shutil.copytree(trained, here / "model")
    (model / "backup").mkdir()
    (model / "last.keras").rename(model / "backup" / "latest.keras")
    PLANTED["modules"](model)
    change_net(model / "backup" / "latest.keras", layer_of("evil"))
    with pytest.raises(InputError, match="latest.keras needs modules.*--modules='evil'"):
        train(tiny_config, model)
    PLANTED["defence"](model)
    with pytest.raises(InputError, match="with --defence=evil:D, received"):
        train(tiny_config, model)
    assert not (here / "ran").exists()


NAMING = {
    "load_best": lambda model, modules: ModelDirectory(model).load_best(modules),
    "train": lambda model, modules: train(SMALL, model, modules=modules),
    "evaluate": lambda model, modules: wca_tf.evaluate_model_dir(CONFIG, model, model / "report", modules),
    "export": lambda model, modules: wca_tf.export_model_dir(ExportConfig(str(model), str(model / "out")), modules),
}


@pytest.mark.parametrize(
    "use", ["load_best", "train", *(pytest.param(use, marks=pytest.mark.slow) for use in ("evaluate", "export"))]
)
def test_modules_that_the_caller_names_are_imported(small, here, use):
    model = shutil.copytree(small, here / "model")
    PLANTED["modules"](model)
    NAMING[use](model, ["evil"])
    assert (here / "ran").exists()
    PLANTED["modules"](model)  # and from now on a directory may use it, as after `import evil`
    assert ModelDirectory(model).train_config().image_size == 8


@pytest.mark.parametrize(
    ("modules", "message"),
    [("evil", "a list of modules, received 'evil'"), (["nowhere"], "received 'nowhere': No mod")],
)
def test_modules_that_cannot_be_imported_are_one_line(small, here, modules, message):
    with pytest.raises(InputError, match=message):
        wca_tf.load_model(small / "model.keras", modules)
    assert not (here / "ran").exists()


def test_the_command_says_which_module_cannot_be_imported(fails_in_one_line, tmp_path):
    line = fails_in_one_line(tmp_path, "train", "--modules=nowhere")
    assert "expected modules to import, received 'nowhere'" in line


# Commands, in a directory whose modules must not be imported


COMMANDS = {
    "evaluate": ("evaluate", "--model_dir=model", "--attacks=fgsm"),
    "self-test": ("evaluate", "--model_dir=model", "--attacks=fgsm", "--self_test"),
    "transfer": ("evaluate", "--model_dir=good", "--attacks=transfer:source=model", "--report_dir=report"),
    "file": ("evaluate", "--model=model/model.keras", "--dataset=digits", "--image_size=25", "--report_dir=report"),
    "certify": ("certify", "--model_dir=model", "--radii=0.1"),
    "export": ("export", "--model_dir=model", "--export_dir=served"),
    "initial weights": ("train", "--model_dir=new", "--initial_weights=model", "--image_size=25"),
    "reproduce": ("reproduce", "--experiment=ablation", "--scale=tiny", "--models_dir=models"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_imports_nothing_that_nobody_named(trained, command, tmp_path, name):
    """Nor does a file stand in for a package: scipy is installed, pandas and jax are tried by others."""
    for module in ("evil", "keras_hub", "scipy", "pandas", "jax", "torch"):
        (tmp_path / f"{module}.py").write_text(EVIL)
    shutil.copytree(trained, tmp_path / "good")
    model = shutil.copytree(trained, tmp_path / "model")
    for plant in ("modules", "layer", "layer that Keras imports"):
        PLANTED[plant](model)
    for variant in ("none", "isotropic", "anisotropic"):
        kept = shutil.copytree(trained, tmp_path / "models" / f"digits-tiny-{variant}")
        PLANTED["modules"](kept)
        PLANTED["defence"](kept)
    done = command(*COMMANDS[name], cwd=tmp_path)
    assert done.code == 2 and not (tmp_path / "ran").exists()
    [line] = done.err.strip().splitlines()
    assert line.startswith("error: ") and "--modules='" in line and "evil" in line


@pytest.mark.slow
def test_a_comparison_imports_nothing_that_nobody_named(small, command, tmp_path):
    for module in ("evil", "scipy", "pandas"):
        (tmp_path / f"{module}.py").write_text(EVIL)
    report = tmp_path / "report"
    evaluate(CONFIG, small, report)
    described = json.loads((report / "evaluation.json").read_text())
    described["training"]["defence"], described["modules"] = "evil:D", ["evil"]
    (report / "evaluation.json").write_text(json.dumps(described))
    done = command("compare", "--evaluations=report", "--report_dir=compared", cwd=tmp_path)
    assert done.code == 0 and "evil:D" in done.out and not (tmp_path / "ran").exists()


LAYERS = """
import keras


@keras.saving.register_keras_serializable("mine")
class Twice(keras.layers.Layer):
    def call(self, images):
        return 2 * images
"""


@pytest.mark.slow
def test_a_file_with_layers_of_a_users_own_is_evaluated_as_the_message_says(command, here):
    (here / "my_layers.py").write_text(LAYERS)
    twice = importlib.import_module("my_layers").Twice()
    layers = [keras.Input((28, 28, 1)), twice, keras.layers.Flatten(), keras.layers.Dense(10)]
    keras.Sequential(layers).save(here / "net.keras")
    asked = ("evaluate", "--model=net.keras", "--dataset=digits", "--attacks=fgsm", "--num_examples=5")
    done = command(*asked, "--report_dir=report", cwd=here)
    assert done.code == 2 and not (here / "ran").exists()
    advice = re.search(r"--modules='(\w+)'", done.err)
    assert advice.group(1) == "my_layers"
    done = command(*asked, "--report_dir=report", "--modules=my_layers", cwd=here)
    assert done.code == 0, done.err
