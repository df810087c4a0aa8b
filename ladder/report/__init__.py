"""The tables as a person reads them: HTML pages with figures, Markdown, and the terminal. Nothing is computed here."""
