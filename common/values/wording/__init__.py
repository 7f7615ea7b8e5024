"""How values are told to people: counts, sizes, hints, and sentences about jobs."""
