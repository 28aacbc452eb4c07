"""Several evaluations side by side: numbers of nets that met the same attacks on the same images."""
