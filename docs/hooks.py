"""What mkdocs does while it builds this site: the tables of attacks come from their declarations."""

from typing import Any

from wca_tf.attacks.tables import with_tables_of_attacks


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page with its tables of attacks, where it has their marks."""
    return with_tables_of_attacks(markdown) if page.file.src_uri == "reference/catalogue.md" else markdown
