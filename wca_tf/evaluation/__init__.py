"""The evaluation of nets: judging.py judges images, trials.py runs attacks, and runner.py does the whole evaluation."""
