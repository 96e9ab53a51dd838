"""The report of a search: one HTML page that asks nothing of anybody, readable on screen, on paper and without scripts.

`view` turns the stored search into sentences, tables and charts; `page` writes them as HTML.
"""
