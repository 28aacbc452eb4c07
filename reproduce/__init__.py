"""The paper's tables and figures, and more: declarations of nets, readings and tables, and the engine that fills them.

It stands beside the package and uses its public names. The evidence, what each attack left of each image, is kept in
`evidence/`; every table, chart and page is made from it.
"""
