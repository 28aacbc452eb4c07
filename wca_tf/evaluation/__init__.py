"""The evaluation of nets: trials.py runs attacks, and runner.py does the whole evaluation."""
