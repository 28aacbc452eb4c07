"""The output of an evaluation: the page, its figures and sections, the printed table, and the commands to repeat it."""
