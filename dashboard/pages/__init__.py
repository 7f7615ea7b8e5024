"""The pages, as trees of elements."""
