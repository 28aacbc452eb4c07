"""Images and labels: their sources (sources.py), the checked examples (examples.py) and their batches (batches.py)."""
