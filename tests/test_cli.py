import dataclasses
import json
import os
import re
import subprocess
import sys

import pytest

from wca_tf.attacks import ATTACKS
from wca_tf.cli import flags as cli_flags
from wca_tf.core.errors import InputError
from wca_tf.core.paths import expand_user
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.measures.registry import format_results
from wca_tf.runs.config import TrainConfig


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--model_dir=m --epoch=3", "epoch"),
        ("--model_dir=m --epochs=three", "epochs"),
        ("--model_dir=m --epochs=0", "--epochs"),
        ("--model_dir=m --learning_rate=nan", "--learning_rate"),
        ("--model_dir=m --dataset=no_such_set --tfds_data_dir=data", "no_such_set"),
        ("--model_dir=m --dataset=folder:absent", "absent"),
        ("--model_dir=m --backbone=resnet19", "resnet19"),
        ("--model_dir=m --defence=wca:covariance=full", "full"),
        ("--model_dir=m stray", "stray"),
        ("--model_dir=m --flagfile=absent.flags", "absent.flags"),
        ("--model_dir=m --flagfile=.", "flagfile|[Dd]irectory"),
        ("", "--model_dir"),
        ("--model_dir=", "--model_dir"),
    ],
)
def test_a_wrong_training_command_ends_at_once_with_one_line(fails_in_one_line, tmp_path, arguments, message):
    assert re.search(message, fails_in_one_line(tmp_path, "train", *arguments.split()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--model_dir=m --attacks=pdg", "pdg"),
        ("--model_dir=m --attacks=pgd:steps=0", "steps"),
        ("--model_dir=m --attacks=", "--attacks"),
        ("--model_dir=m --attacks=pgd:norm=linf --epsilons=l2:0.5", "for attacks of linf"),
        ("--model_dir=m --attacks=z_margin:norm=l1", "l1"),
        ("--model_dir=m --attacks=cw:norm=linf", "norm=linf"),
        ("--model_dir=m --attacks=n_pixel:norm=linf", "norm=linf"),
        ("--model_dir=m --epsilons=0 --checklist", "epsilon above 0"),
        ("--model_dir=m --self_test=3", "self_test"),
        ("--model_dir=m --dataset=cifar10", "--dataset with --model alone"),
        ("--model_dir=m --epsilons=-0.1", "-0.1"),
        ("--model_dir=m --epsilons=8/0", "8/0"),
        ("--model_dir=m --epsilon=0.1", "epsilon"),
        ("--model_dir=m --split=train", "split"),
        ("--model_dir=m stray", "stray"),
        ("--model_dir=m --flagfile=absent.flags", "absent.flags"),
        ("", "--model_dir"),
        ("--model_dir=no_such_directory", "no_such_directory"),
    ],
)
def test_a_wrong_evaluation_command_ends_at_once_with_one_line(fails_in_one_line, tmp_path, arguments, message):
    assert re.search(message, fails_in_one_line(tmp_path, "evaluate", *arguments.split()))


@pytest.mark.parametrize(
    ("name", "config_class", "others"),
    [
        ("train", TrainConfig, ["model_dir"]),
        ("evaluate", EvaluateConfig, ["model_dir", "report_dir", "strict", "self_test"]),
    ],
)
def test_helpfull_lists_every_flag_with_its_meaning(command, name, config_class, others):
    done = command(name, "--helpfull")
    assert done.code == 0 and done.err == ""
    text = " ".join(done.out.split())
    for flag in [field.name for field in dataclasses.fields(config_class)] + others:
        assert re.search(rf"--(\[no\])?{flag}[= ]", text), flag
    for field in dataclasses.fields(config_class):
        assert " ".join(field.metadata["help"].split()) in text, field.name
    assert f"bin/{name} --" in text
    if name == "evaluate":
        assert all(re.search(rf"\b{attack}\b", text) for attack in ATTACKS)


@pytest.mark.parametrize("name", ["train", "evaluate", "certify", "compare", "export", "reproduce"])
def test_every_command_has_flags_for_modules_and_locks(command_without_tensorflow, name):
    done = command_without_tensorflow(name, "--helpfull")
    assert done.code == 0 and "--modules=" in done.out and "--[no]lock" in done.out


WITHOUT_LOCKS = """
import errno, fcntl


def refuse(*arguments):
    raise OSError(errno.ENOLCK, "No locks available")


fcntl.flock = refuse
"""


@pytest.mark.slow
def test_a_command_on_a_file_system_without_locks_goes_on_as_its_message_says(command, command_environment, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_LOCKS)
    environment = {**command_environment, "PYTHONPATH": str(tmp_path)}
    small = ("--image_size=25", "--backbone=lenet5", "--max_train_examples=64", "--batch_size=32", "--epochs=1")
    asked = {
        "train": ("train", "--model_dir=model", *small),
        "evaluate": ("evaluate", "--model_dir=model", "--attacks=fgsm", "--num_examples=4", "--report_dir=report"),
        "compare": ("compare", "--evaluations=report", "--report_dir=compared"),
        "export": ("export", "--model_dir=model", "--export_dir=served"),
    }
    for arguments in asked.values():
        done = command(*arguments, cwd=tmp_path, environment=environment)
        assert done.code == 2 and "No locks available" in done.err and "--nolock" in done.err, done.err
        done = command(*arguments, "--nolock", cwd=tmp_path, environment=environment)
        assert done.code == 0, done.err


@pytest.mark.parametrize("name", ["train", "evaluate", "compare", "export", "reproduce"])
def test_help_fits_on_a_screen_and_says_where_the_rest_is(command_without_tensorflow, name):
    done = command_without_tensorflow(name, "--help")
    lines = done.out.splitlines()
    assert done.code == 0 and done.err == ""
    assert len(lines) <= 40 and max(map(len, lines)) <= 120
    assert f"bin/{name} --" in done.out and "--flagfile=" in done.out
    assert ("--helpfull" in done.out) == (name in ("train", "evaluate"))


@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_without_its_dependencies_a_command_says_to_run_quickstart(command, tmp_path, name):
    interpreter = (sys._base_executable, "-I", "-S")  # no site-packages
    done = command(name, "--model_dir=m", cwd=tmp_path, interpreter=interpreter)
    assert done.code == 2
    assert done.out == ""
    assert len(done.err.splitlines()) == 1, done.err
    assert done.err.startswith("error: ")
    assert f"bin/quickstart, then .venv/bin/python bin/{name}" in done.err
    assert list(tmp_path.iterdir()) == []


def test_evaluate_works_from_another_directory_and_prints_the_table(command, trained, tmp_path):
    (tmp_path / "net").symlink_to(trained)
    (tmp_path / "my.flags").write_text("--attacks=fgsm\n--epsilons=0.1\n--num_examples=10\n--eot_samples=2\n")
    done = command("evaluate", "--flagfile=my.flags", "--model_dir=net", "--report_dir=out/report", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "error" not in done.err and "Traceback" not in done.err
    assert "cuda" not in done.err.lower()  # TensorFlow's start-up notes
    results = json.loads((tmp_path / "out" / "report" / "results.json").read_text())
    assert format_results(results) in done.out
    files = {"results.json", "examples.npz", "report.html", "model_card.md"}
    assert files <= {path.name for path in (tmp_path / "out" / "report").iterdir()}
    assert "report.html" in done.out


def test_an_error_found_after_tensorflow_was_loaded_is_one_line_too(command, tmp_path):
    done = command("train", "--model_dir=m", "--defence=wca:feature_dim=9", cwd=tmp_path)
    assert done.code == 2
    assert [line for line in done.err.splitlines() if line.startswith("error: ")] == done.err.splitlines()
    assert "feature_dim=9" in done.err
    assert list(tmp_path.iterdir()) == []


def test_an_attack_that_cannot_be_built_is_one_line_and_nothing_is_written(command, trained, contents, tmp_path):
    before = contents(trained)
    done = command("evaluate", f"--model_dir={trained}", "--attacks=fgsm,transfer:source=/nowhere", cwd=tmp_path)
    assert done.code == 2
    assert len(done.err.splitlines()) == 1, done.err
    assert done.err.startswith("error: ") and "/nowhere" in done.err
    assert contents(trained) == before


@pytest.mark.parametrize(("given", "seen"), [({}, "1"), ({"TF_ENABLE_ONEDNN_OPTS": "0"}, "0")])
def test_commands_turn_onednn_on_unless_the_user_turns_it_off(command_environment, root, given, seen):
    program = """
import os, sys
from wca_tf.cli.flags import run
run(lambda: print(os.environ["TF_ENABLE_ONEDNN_OPTS"], "tensorflow.python" in sys.modules), "usage")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env={**command_environment, **given}, cwd=root, capture_output=True, text=True
    )
    assert done.stdout.split() == [seen, "False"], done  # False: before TensorFlow reads the variable


@pytest.mark.parametrize("error", [MemoryError("1 PB"), type("ResourceExhaustedError", (Exception,), {})("1 PB")])
def test_what_does_not_fit_is_one_line(capsys, error):
    def main():
        raise error

    with pytest.raises(SystemExit) as ended:
        cli_flags._main_with_clear_errors(main)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: not enough memory, or no space left to write: 1 PB\n"


def test_help_into_a_pipe_that_nobody_reads_ends_quietly(root, command_environment):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, str(root / "bin" / "evaluate"), "--helpfull"]
    done = subprocess.run(command, env=command_environment, stdout=writer, stderr=subprocess.PIPE, timeout=100)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_help_to_a_full_disk_is_one_line(root, command_environment):
    command = [sys.executable, str(root / "bin" / "evaluate"), "--helpfull"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, env=command_environment, stdout=full, stderr=subprocess.PIPE, timeout=100)
    assert done.returncode == 2 and done.stderr.startswith(b"error: ") and done.stderr.count(b"\n") == 1


def test_a_command_whose_stderr_is_closed_does_its_work(command_environment):
    code = "import sys; from wca_tf.cli import flags; sys.argv = ['x']; flags.run(flags.import_tensorflow, '')"
    done = subprocess.run([sys.executable, "-c", code], env=command_environment, preexec_fn=lambda: os.close(2))
    assert done.returncode == 0


def test_a_path_with_a_nul_is_refused():
    with pytest.raises(InputError, match=r"expected a path, received 'a\\x00b'"):
        expand_user("a\0b")


def test_a_terminal_without_greek_letters_gets_question_marks(command_environment):
    code = "import sys; from wca_tf.cli.flags import run; sys.argv = ['x']; run(lambda: print('\\u03b5'), '')"
    environment = {**command_environment, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=100)
    assert (done.returncode, done.stdout.strip()) == (0, b"?")


def test_certify_refuses_attacks_of_another_norm_without_naming_a_flag_it_lacks(fails_in_one_line, tmp_path):
    told = fails_in_one_line(tmp_path, "certify", "--model_dir=m", "--radii=0.1", "--attacks=pgd:norm=linf")
    assert "radii for attacks of linf, received one of l2" in told and "--epsilons" not in told
