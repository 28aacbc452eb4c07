"""Images and labels: where they come from (sources.py), what they are (examples.py), how they are fed (batches.py)."""
