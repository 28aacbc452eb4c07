"""What a model is worth: judging images (accuracy.py), running attacks (runner.py), printing (table.py)."""
