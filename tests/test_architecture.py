"""Data flow one way: which part of the package may know which. Imports inside functions and by name count too."""

import ast
import importlib.util
from graphlib import CycleError, TopologicalSorter

import pytest

# A folder imports from those before it (design, section 10).
FOLDERS = ("core", "gaussian", "distribution", "data", "nets", "attacks", "defences", "runs", "keras_classes")
FOLDERS += ("evaluation", "comparison", "serving", "cli")
MAX_INNER_IMPORTS = 15


def modules_of(root):
    """Every module of the package by its name, as (file, tree)."""
    found = {}
    for path in sorted((root / "wca_tf").rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        found[name] = (path, ast.parse(path.read_text()))
    return found


def imported(node):
    """What an import statement names, in full: modules, or names within modules."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def by_name(node, package):
    """The module that a text names, as `importlib` gets it: in full, or with a dot before it in a call of `load`."""
    text = node.value if isinstance(node, ast.Constant) else None
    if isinstance(text, str) and text.startswith(("wca_tf.", "reproduce.")):
        return [text]
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "load" and node.args:
        text = getattr(node.args[0], "value", "")
        return [importlib.util.resolve_name(text, package)] if isinstance(text, str) and text.startswith(".") else []
    return []


def arrows_of(modules):
    """The modules of the package that each module knows, wherever in it, whether by a statement or by name."""
    arrows = {}
    for name, (path, tree) in modules.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        named = {each for node in ast.walk(tree) for each in (*imported(node), *by_name(node, package))}
        known = {each if each in modules else each.rpartition(".")[0] for each in named}
        arrows[name] = {each for each in known if each in modules and each not in (name, "wca_tf")}
    return arrows


@pytest.fixture(scope="module")
def modules(root):
    return modules_of(root)


@pytest.fixture(scope="module")
def arrows(modules):
    return arrows_of(modules)


def folder_of(module):
    return module.split(".")[1]


def test_a_folder_imports_from_those_before_it(modules, arrows):
    assert {folder_of(name) for name in modules if name != "wca_tf"} == set(FOLDERS)
    back = [
        f"{name} knows {other}"
        for name, others in arrows.items()
        for other in others
        if name != "wca_tf" and FOLDERS.index(folder_of(other)) > FOLDERS.index(folder_of(name))
    ]
    assert not back


def test_the_package_knows_nothing_of_what_reproduces_the_paper(modules):
    for name, (_, tree) in modules.items():
        named = {each for node in ast.walk(tree) for each in (*imported(node), *by_name(node, name))}
        assert not {each for each in named if each.split(".")[0] == "reproduce"}, name


def test_there_is_no_import_circle(arrows):
    TopologicalSorter(arrows).prepare()  # raises CycleError


def test_a_circle_through_a_function_or_a_name_would_be_found(tmp_path):
    package = tmp_path / "wca_tf" / "nets"
    package.mkdir(parents=True)
    texts = {
        "a": "def f():\n    from wca_tf.nets import b",
        "b": "import importlib\nimportlib.import_module('wca_tf.nets.c')",
        "c": "class C:\n    def f(self):\n        return self.load('.a')",
    }
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text)
    with pytest.raises(CycleError):
        TopologicalSorter(arrows_of(modules_of(tmp_path))).prepare()


def inner_imports(path, tree):
    """The imports of a file that are not at its top: in a function, or for type checkers alone."""
    top = set(map(id, tree.body))
    return [(path, node) for node in ast.walk(tree) if imported(node) and id(node) not in top]


def test_few_imports_are_not_at_the_top_and_each_says_why(modules):
    found = [each for path, tree in modules.values() for each in inner_imports(path, tree)]
    assert len(found) <= MAX_INNER_IMPORTS
    for path, node in found:
        lines = path.read_text().splitlines()
        near = lines[node.lineno - 1] + (lines[node.lineno - 2] if path.name == "lazily.py" else "")
        assert "#" in near or path.name == "lazily.py", f"{path.name}:{node.lineno} does not say why"


def test_modules_that_load_libraries_late_evaluate_no_annotation(modules):
    for path, tree in modules.values():
        lazy = any(each.startswith("wca_tf.core.lazily.") for node in tree.body for each in imported(node))
        first = next((node for node in tree.body if isinstance(node, ast.ImportFrom)), None)
        assert not lazy or (first.module == "__future__" and first.names[0].name == "annotations"), path


def in_folder(module, *folders):
    return module != "wca_tf" and folder_of(module) in folders


def test_attacks_meet_models_in_their_call_and_in_the_source_of_a_transfer_alone(arrows):
    models = {"wca_tf.nets.adapter", "wca_tf.nets.model_files", "wca_tf.nets.classifier"}
    meeting = {name for name, others in arrows.items() if in_folder(name, "attacks") and others & models}
    assert meeting == {"wca_tf.attacks.attack", "wca_tf.attacks.transfer"}


def test_training_evaluation_and_commands_know_no_single_defence(arrows):
    common = {f"wca_tf.defences.{name}" for name in ("defence", "tables", "adversarial_training")}
    for name, others in arrows.items():
        if in_folder(name, "runs", "evaluation", "comparison", "serving", "cli"):
            assert not {each for each in others - common if each.startswith("wca_tf.defences.")}, name


def test_one_import_registers_every_class_that_files_of_nets_name(modules, arrows):
    registering = {name for name, (path, _) in modules.items() if "register_keras_serializable" in path.read_text()}
    reached, todo = set(), ["wca_tf.keras_classes"]
    while todo:
        reached.add(name := todo.pop())
        todo += arrows[name] - reached
    assert registering <= reached


def test_the_commands_alone_know_absl(modules):
    for name, (path, tree) in modules.items():
        known = {module.split(".")[0] for node in ast.walk(tree) for module in imported(node)}
        assert "absl" not in known or in_folder(name, "cli"), path
