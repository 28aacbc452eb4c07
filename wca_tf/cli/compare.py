"""wca-compare: set evaluations of several nets side by side.

    bin/compare --evaluations=runs/none/report,runs/wca/report --report_dir=runs/compared

Prints a table for each choice of images and radius, and writes comparison.html (to sort and filter, with a link to each
net's report), comparison.md and comparison.json. Nets are set side by side only if they met the same images at the same
radius. The worst case is over the attacks that all of them met with the same options; notes name the others.
"""

from absl import flags

import wca_tf
from wca_tf.cli.flags import import_tensorflow, run, show_in_help
from wca_tf.core.errors import InputError
from wca_tf.core.paths import expand_user


def main() -> None:
    """Compare as the parsed flags say."""
    paths = [expand_user(path) for path in flags.FLAGS.evaluations if path]
    if not paths:
        raise InputError("expected --evaluations=DIR,DIR: report directories of bin/evaluate")
    for path in paths:
        if not path.is_file() and not any((path / name).is_file() for name in ("evaluation.json", "results.json")):
            raise InputError(
                f"expected a report directory of bin/evaluate, received {path}, which has no evaluation.json"
            )
    if not flags.FLAGS.report_dir:
        raise InputError("expected --report_dir=DIR, where the table and the page go")
    report_dir = expand_user(flags.FLAGS.report_dir)
    import_tensorflow()  # only when the flags are right: it takes seconds
    print(wca_tf.compare_evaluations(paths, report_dir))
    print(f"written: {report_dir / 'comparison.html'}, comparison.md and comparison.json beside it")


def console() -> None:
    """Run bin/compare, or wca-compare."""
    flags.DEFINE_list("evaluations", [], "report directories, or files of Evaluation.save, separated by commas")
    flags.DEFINE_string("report_dir", "", "where the table and the page go")
    for name in ("evaluations", "report_dir"):
        show_in_help(name)
    run(main, __doc__ or "")
